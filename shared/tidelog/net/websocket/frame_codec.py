"""Encodes and decodes the bytes of one WebSocket frame (RFC 6455 §5.2), without any state: heads, masks, plain
messages. The state of a connection is in ``frame_stream.py``."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tidelog.types import Buffer

try:
    from websockets.speedups import apply_mask
except ImportError:  # a platform for which websockets has no compiled wheel
    from websockets.utils import apply_mask

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
NO_MASK = bytes(4)
"""A masking key that leaves the bytes as they are."""
NO_CODE, BROKEN_RULES = 1005, 1002
MASK_PIECE_BYTES = 32 << 10
"""Longest piece that is masked at once: glibc maps larger buffers anew, and unmaps them."""
_FINAL_BINARY = 0x80 | BINARY


def frame_head(opcode: int, length: int, mask: bytes = b"") -> bytes:
    """Return the encoded head of a final, unfragmented frame with a payload of ``length`` bytes. ``mask`` is the
    masking key of four bytes in the frame of an end that opened the connection, and empty in the other end's."""
    bit = 0x80 if mask else 0
    if length < 126:
        return bytes((0x80 | opcode, bit | length)) + mask
    if length < 1 << 16:
        return struct.pack(">BBH", 0x80 | opcode, bit | 126, length) + mask
    return struct.pack(">BBQ", 0x80 | opcode, bit | 127, length) + mask


def plain_message(data: bytes, at: int, *, masked: bool) -> tuple[int, int, bytes] | None:
    """Decode the head of a frame at position ``at`` of ``data``, by a fast path for complete, unfragmented binary
    frames below 64 KiB. Return start and end of the frame's payload and its masking key (b"" if ``masked`` is false).
    Return None for every other frame, an incomplete frame, and some very short ones; the caller then parses the frame
    the slow way."""
    start = at + 2
    if len(data) < start + 4 or data[at] != _FINAL_BINARY:
        return None
    length = data[at + 1] ^ 0x80 if masked else data[at + 1]
    if length == 126:
        length = data[start] << 8 | data[start + 1]
        start += 2
        if length < 126:
            return None
    elif length > 126:  # longer, or not masked as it should be
        return None
    mask = b""
    if masked:
        mask = data[start : start + 4]
        start += 4
    end = start + length
    return (start, end, mask) if end <= len(data) else None


def mask_bytes(data: Buffer, mask: bytes) -> bytes:
    """Return ``data`` with each byte XORed with a byte of the masking key, in turn (§5.3). Masking twice gives
    ``data`` again. An empty or zero key changes nothing: ``data`` itself is returned if it is ``bytes``."""
    return bytes(data) if mask in (b"", NO_MASK) else apply_mask(data, mask)


def mask_buffers(buffers: Sequence[Buffer], mask: bytes, at: int) -> list[Buffer]:
    """Return masked copies of consecutive parts of a payload, the first of which is at byte ``at`` of it."""
    masked: list[Buffer] = []
    for buffer in buffers:
        view = memoryview(buffer)
        for start in range(0, len(view), MASK_PIECE_BYTES):
            turn = (at + start) % 4
            masked.append(apply_mask(view[start : start + MASK_PIECE_BYTES], mask[turn:] + mask[:turn]))
        at += len(view)
    return masked


def close_reason(data: bytes) -> tuple[int, str]:
    """Return the code and reason in a close frame's payload (§5.5.1): ``NO_CODE`` and "" if the payload is empty,
    ``BROKEN_RULES`` and "" if it is one byte long."""
    if len(data) < 2:
        return (NO_CODE, "") if not data else (BROKEN_RULES, "")
    return int.from_bytes(data[:2], "big"), data[2:].decode(errors="replace")
