"""What a forked process and its relay say to each other: JSON behind its length, with bytes as base64. Nothing is pickled."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

__all__ = ["bytes_of", "frame_of", "taken_from", "text_of"]

LENGTH = struct.Struct(">I")


def frame_of(message: dict[str, Any]) -> bytes:
    """A message as it travels."""
    body = json.dumps(message).encode()
    return LENGTH.pack(len(body)) + body


def taken_from(received: bytearray) -> dict[str, Any] | None:
    """The first message in `received`, which is taken out of it; None if it is not all there yet."""
    if len(received) < LENGTH.size:
        return None
    end = LENGTH.size + LENGTH.unpack_from(received)[0]
    if len(received) < end:
        return None
    message: dict[str, Any] = json.loads(received[LENGTH.size : end])
    del received[:end]
    return message


def text_of(value: bytes | None) -> str | None:
    """Bytes as JSON can hold them."""
    return None if value is None else base64.b64encode(value).decode()


def bytes_of(text: str | None) -> bytes | None:
    """What `text_of` was given."""
    return None if text is None else base64.b64decode(text)
