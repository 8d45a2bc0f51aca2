"""Listeners that have done their work: gloo's, once its pair is connected.

gloo goes on accepting connections for as long as a group lives, and keeps the socket of everyone who says anything at all. A pair
needs no third end, so its listener is told to accept nobody any more: its events are masked, and what knocks stays in the kernel's
short queue, at no cost to this process. (The socket itself is gloo's to close.) Linux only; elsewhere nothing is done.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
from collections.abc import Iterator

__all__ = ["deafen", "listening_ports"]

DESCRIPTORS = "/proc/self/fd"


def listening_ports(address: str) -> set[int]:
    """Ports of this process's listeners on `address`."""
    return {port for _, port in _listeners(address)}


def deafen(address: str, published: bytes) -> bool:
    """Masks the listener on `address` whose port is in `published`, the coordinates that a group gave out; whether it was found.

    The coordinates hold the socket address as the kernel writes it: family, port, then the four bytes of the address.
    """
    if sys.platform != "linux":
        return False
    try:
        packed = socket.inet_aton(address)
    except OSError:
        return False
    place = published.find(packed)
    if place < 2:
        return False
    port = int.from_bytes(published[place - 2 : place], "big")
    found = [number for number, bound in _listeners(address) if bound == port]
    return bool(found) and all(map(_mask, found))


def _listeners(address: str) -> Iterator[tuple[int, int]]:
    """Descriptor and port of every socket of this process that listens on `address`."""
    for number in _descriptors("socket:"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as copy:
            if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and copy.family == socket.AF_INET:
                host, port = copy.getsockname()[:2]
                if host == address:
                    yield number, port


def _mask(number: int) -> bool:
    """Takes all events of descriptor `number` out of the event loop that watches it."""
    for watcher in _descriptors("anon_inode:[eventpoll]"):
        with contextlib.suppress(OSError), select.epoll.fromfd(os.dup(watcher)) as loop:
            loop.modify(number, 0)  # raises where this loop does not watch it
            return True
    return False


def _descriptors(kind: str) -> Iterator[int]:
    for name in os.listdir(DESCRIPTORS):
        with contextlib.suppress(OSError):
            if os.readlink(f"{DESCRIPTORS}/{name}").startswith(kind):
                yield int(name)
