"""Packing: one message is one flat buffer, header first. Pure functions; no socket, no Ray.

    0                128                    128 + payload          + layout text
    | header: 16 int64 | leaf blocks, aligned | layout as JSON, or nothing |

Header: magic and protocol version, request id, verb, status, layout digest, rows, items, payload bytes, layout bytes, digest of the
reply layout the sender knows, and six arguments. Everything is little-endian. Sizes are checked against each other and against the
buffer before a single tensor is made, so that nothing is ever allocated from what a peer merely claims.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from replay_service.arena import aligned
from replay_service.errors import LayoutError, ReplayError
from replay_service.payload import view_leaf, write_leaf
from replay_service.sources import SOURCES_KEY, learn
from replay_service.wire.layout import Layout, LayoutTable
from replay_service.wire.message import ARGUMENTS, EMPTY, TEXT, Message
from replay_service.wire.verbs import Verb

__all__ = [
    "HEADER_BYTES",
    "Frame",
    "Header",
    "ProtocolError",
    "Take",
    "TakeFlat",
    "UnknownLayoutError",
    "begin",
    "begin_apart",
    "known_layouts",
    "pack",
    "pack_apart",
    "read_header",
    "unpack",
]

Frame: TypeAlias = NDArray[np.uint8]
Take: TypeAlias = Callable[[int], Frame]
"""Gives a writable, aligned buffer of so many bytes."""

TakeFlat: TypeAlias = Callable[[int], Tensor]
"""Gives a flat uint8 tensor of so many bytes, on a device."""

HEADER_BYTES = 128
APART = 1 << 32
"""Bit of the verb field that says that the payload travels on a channel of its own."""

HEADER = struct.Struct(f"<{HEADER_BYTES // 8}q")
PROTOCOL_VERSION = 1
MAGIC = (int.from_bytes(b"REPLAY", "little") << 8) | PROTOCOL_VERSION
LARGEST_MESSAGE_BYTES = 1 << 36
LARGEST_LAYOUT_BYTES = 1 << 20
LARGEST_COUNT = 1 << 40

assert sys.byteorder == "little", "the wire format is that of little-endian machines"


class UnknownLayoutError(ReplayError):
    """A message names a layout that this end does not know; the sender repeats it with the text."""


class ProtocolError(ReplayError):
    """What arrived is no message of this protocol and version."""


@dataclass(slots=True)
class Header:
    """The fixed part of a message, checked."""

    request_id: int
    verb: Verb
    status: int
    digest: int
    rows: int
    items: int
    payload_bytes: int
    layout_bytes: int
    known_reply: int
    arguments: tuple[int, ...]
    apart: bool = False
    """Whether the payload travels on a channel of its own; the frame is then header and layout text only."""

    @property
    def frame_bytes(self) -> int:
        """Bytes of the frame: the whole message, or all of it but a payload that travels apart."""
        return HEADER_BYTES + (0 if self.apart else self.payload_bytes) + self.layout_bytes


def known_layouts(limit: int = 256) -> LayoutTable:
    """A table that knows the two layouts every end knows, for ever."""
    return LayoutTable(limit, {layout.digest: layout for layout in (EMPTY, TEXT)})


def begin(message: Message, take: Take, *, with_layout: bool) -> tuple[Frame, list[Tensor]]:
    """A frame with the message's header, and one tensor per leaf over its payload, to be filled by the caller.

    `message.tensors` is not looked at: rows can be gathered straight into what is returned.
    """
    frame = _headed(message, take, message.layout.text if with_layout else b"", apart=False)
    return frame, _tensors(frame, message.layout, message.rows, message.items)


def begin_apart(message: Message, take: Take, take_flat: TakeFlat, *, with_layout: bool) -> tuple[Frame, list[Tensor]]:
    """As `begin`, with the payload in device memory of its own (`message.flat`), if the message carries records."""
    layout = message.layout
    size = layout.payload_bytes(message.rows, message.items)
    if size == 0 or not layout.carries_records:
        return begin(message, take, with_layout=with_layout)
    frame = _headed(message, take, layout.text if with_layout else b"", apart=True)
    message.flat = take_flat(size)
    return frame, _flat_tensors(message.flat, layout, message.rows, message.items)


def pack_apart(message: Message, take: Take, take_flat: TakeFlat, *, with_layout: bool) -> Frame:
    """As `pack`, with the payload in device memory of its own (`message.flat`)."""
    frame, outs = begin_apart(message, take, take_flat, with_layout=with_layout)
    for out, tensor in zip(outs, message.tensors, strict=True):
        out.copy_(tensor)
    return frame


def _headed(message: Message, take: Take, text: bytes, *, apart: bool) -> Frame:
    """A frame with its header and its layout text; the payload between them, unless it travels apart, is left as it is."""
    layout = message.layout
    payload = layout.payload_bytes(message.rows, message.items)
    frame = take(HEADER_BYTES + (0 if apart else payload) + len(text))
    arguments = (*message.arguments, *(0,) * (ARGUMENTS - len(message.arguments)))
    HEADER.pack_into(
        frame.data,
        0,
        MAGIC,
        message.request_id,
        message.verb | APART if apart else message.verb,
        message.status,
        layout.digest,
        message.rows,
        message.items,
        payload,
        len(text),
        message.known_reply,
        *arguments,
    )
    if text:
        frame[frame.size - len(text) :] = np.frombuffer(text, np.uint8)
    return frame


def pack(message: Message, take: Take, *, with_layout: bool) -> Frame:
    """The message as one flat buffer; tensors of any device are copied in."""
    layout = message.layout
    frame = _headed(message, take, layout.text if with_layout else b"", apart=False)
    blocks = layout.blocks(message.rows, message.items).leaves
    for (dtype, size, offset), tensor in zip(blocks, message.tensors, strict=True):
        write_leaf(frame, dtype, size, HEADER_BYTES + offset, tensor)
    return frame


def read_header(frame: Frame) -> Header:
    """The header at the start of `frame`, checked.

    Raises:
        ProtocolError: too short, wrong magic or version, unknown verb, or sizes that cannot be.
    """
    if frame.size < HEADER_BYTES:
        raise ProtocolError(f"message ({frame.size} bytes) must have a header of {HEADER_BYTES} bytes")
    magic, request_id, verb, status, digest, rows, items, payload, layout_bytes, known, *arguments = HEADER.unpack_from(
        frame.data
    )
    if magic != MAGIC:
        raise ProtocolError(f"message must begin with the mark of protocol version {PROTOCOL_VERSION}; got {magic:#x}")
    apart = bool(verb & APART)
    verb &= ~APART
    if verb not in VERBS:
        raise ProtocolError(f"verb ({verb}) must be one of {[int(known_verb) for known_verb in Verb]}")
    sizes_fit = 0 <= payload <= LARGEST_MESSAGE_BYTES and 0 <= layout_bytes <= LARGEST_LAYOUT_BYTES
    if not sizes_fit or not 0 <= rows <= LARGEST_COUNT or not 0 <= items <= LARGEST_COUNT or payload % aligned(1):
        raise ProtocolError(
            f"sizes must be possible; got rows {rows}, items {items}, {payload} and {layout_bytes} bytes"
        )
    return Header(
        request_id, VERBS[verb], status, digest, rows, items, payload, layout_bytes, known, tuple(arguments), apart
    )


def unpack(frame: Frame, layouts: LayoutTable, flat: Tensor | None = None) -> Message:
    """The message in `frame`; its tensors are views of it, or of `flat`, where the payload came apart.

    A layout that came along is remembered.

    Raises:
        ProtocolError: the header is wrong, or header, layout and length do not fit each other.
        UnknownLayoutError: the layout is named only, and not in `layouts`.
        LayoutError: the layout's text is none, or what comes as the words of sources.
    """
    header = read_header(frame)
    if header.frame_bytes != frame.size:
        raise ProtocolError(f"message ({frame.size} bytes) must be as long as its header says ({header.frame_bytes})")
    layout = layouts.get(header.digest)
    if layout is None:
        if not header.layout_bytes:
            raise UnknownLayoutError(f"layout ({header.digest:#x}) must be sent with its text first")
        layout = Layout.from_text(frame[frame.size - header.layout_bytes :].tobytes())
        if layout.digest != header.digest:
            raise LayoutError(f"layout text must have the digest {header.digest:#x}; got {layout.digest:#x}")
        layouts.add(layout)
    if layout.payload_bytes(header.rows, header.items) != header.payload_bytes:
        raise ProtocolError(f"payload ({header.payload_bytes} bytes) must fit {header.rows} rows of its layout")
    if header.apart:
        if flat is None or flat.numel() != header.payload_bytes:
            raise ProtocolError(f"payload ({header.payload_bytes} bytes) must have come on its own channel")
        tensors = _flat_tensors(flat, layout, header.rows, header.items)
    else:
        tensors = _tensors(frame, layout, header.rows, header.items)
    if SOURCES_KEY in layout.places:  # what numbers of files in the rows stand for
        learn(tensors[layout.places[SOURCES_KEY]])
    return Message(
        header.verb,
        layout,
        tensors,
        header.rows,
        header.items,
        header.arguments,
        header.status,
        header.request_id,
        header.known_reply,
    )


def _tensors(frame: Frame, layout: Layout, rows: int, items: int) -> list[Tensor]:
    blocks = layout.blocks(rows, items).leaves
    return [view_leaf(frame, dtype, size, HEADER_BYTES + offset) for dtype, size, offset in blocks]


def _flat_tensors(flat: Tensor, layout: Layout, rows: int, items: int) -> list[Tensor]:
    """Views of a flat uint8 tensor of any device."""
    views = []
    for dtype, size, offset in layout.blocks(rows, items).leaves:
        count = math.prod(size) * dtype.itemsize
        views.append(flat[offset : offset + count].view(dtype).view(size))
    return views


VERBS = {int(verb): verb for verb in Verb}
