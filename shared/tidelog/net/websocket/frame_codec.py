"""Encodes and decodes the bytes of one WebSocket frame (RFC 6455 §5.2), without any state: heads, masks, plain
messages. The state of a connection is in ``frame_stream.py``."""

from __future__ import annotations

import struct

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
NO_MASK = bytes(4)
"""A masking key that leaves the bytes as they are."""
NO_CODE, BROKEN_RULES = 1005, 1002
_FINAL_BINARY = 0x80 | BINARY


def frame_head(opcode: int, length: int, *, masked: bool) -> bytes:
    """Return the encoded head of a final, unfragmented frame with a payload of ``length`` bytes. If ``masked``, the
    head ends with the masking key ``NO_MASK``."""
    bit, mask = (0x80, NO_MASK) if masked else (0, b"")
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


def unmask(data: bytes, mask: bytes) -> bytes:
    """Return ``data`` XORed with the repeated four-byte masking key (§5.3): 1 MiB takes about 1 ms. An empty or zero
    key returns ``data`` itself."""
    if mask in (b"", NO_MASK):
        return data
    size = len(data)
    key = mask * (size // 4) + mask[: size % 4]
    return (int.from_bytes(data, "little") ^ int.from_bytes(key, "little")).to_bytes(size, "little")


def close_reason(data: bytes) -> tuple[int, str]:
    """Return the code and reason in a close frame's payload (§5.5.1): ``NO_CODE`` and "" if the payload is empty,
    ``BROKEN_RULES`` and "" if it is one byte long."""
    if len(data) < 2:
        return (NO_CODE, "") if not data else (BROKEN_RULES, "")
    return int.from_bytes(data[:2], "big"), data[2:].decode(errors="replace")
