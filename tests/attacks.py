"""What hostile peers send, and the WebSocket code with which every server closes on them."""

from __future__ import annotations

import struct

import cbor2


def frame(opcode: int, data: bytes, *, mask: bytes = b"\0\0\0\0") -> bytes:
    """A final WebSocket frame, masked."""
    length = len(data)
    if length < 126:
        return bytes((0x80 | opcode, 0x80 | length)) + mask + data
    long = struct.pack(">BH", 0xFE, length) if length < 1 << 16 else struct.pack(">BQ", 0xFF, length)
    return bytes((0x80 | opcode,)) + long + mask + data


GOOD = {"op": "init_producer", "id": 1}
PRODUCE = cbor2.dumps({"op": "produce", "parts": []})

COLLIDING_KEYS = b"\xb9\x10\x00" + b"".join(struct.pack(">BQB", 0x1B, n << 40, 0) for n in range(4096))
MESSAGES: dict[str, tuple[bytes, int]] = {
    "empty": (b"", 1007),
    "no CBOR": (b"\xff\xff", 1007),
    "trailing garbage": (cbor2.dumps(GOOD) + b"\x00", 1007),
    "a tag": (cbor2.dumps({**GOOD, "x": cbor2.CBORTag(1234, 1)}), 1007),
    "a date": (b"\xa1\x61x\xc1\x00", 1007),
    "a number of a billion digits": (b"\xa1\x61x\xc4\x82\x1a\x3b\x9a\xca\x00\x01", 1007),
    "a regular expression": (b"\xa1\x61x\xd8\x23\x68(a*)*b$!", 1007),
    "shared references": (b"\xa1\x61x\xd8\x1c\x81\xd8\x1d\x00", 1007),
    "indefinite length": (b"\xbf\x62op\x65watch\xff", 1007),
    "deep nesting": (b"\xa1\x61x" + b"\x81" * 100_000 + b"\x00", 1007),
    "duplicate keys": (b"\xa2\x62op\x65watch\x62op\x65watch", 1007),
    "keys with equal hashes": (COLLIDING_KEYS, 1007),
    "huge declared map": (b"\xbb\x7f" + b"\xff" * 7, 1007),
    "huge declared array": (b"\xa1\x61x\x9b\x7f" + b"\xff" * 7, 1007),
    "huge declared text": (b"\x7b\x7f" + b"\xff" * 7, 1007),
    "huge declared payload": (PRODUCE + b"\x5b\x7f" + b"\xff" * 7, 1007),
    "a million empty arrays": (b"\xa1\x61x\x9a\x00\x0f\x00\x00" + b"\x80" * 0x0F0000, 1007),
    "bad UTF-8": (b"\xa1\x62op\x62\xff\xfe", 1007),
    "not a map": (b"\x80", 1002),
    "wrong types": (cbor2.dumps({"op": "produce", "parts": {}}), 1002),
    "NaN": (cbor2.dumps({"op": "credit", "sub": float("nan"), "bytes": 1}), 1002),
    "True for one": (cbor2.dumps({"op": "credit", "sub": True, "bytes": 1}), 1002),
    "undefined": (cbor2.dumps({"op": "credit", "sub": cbor2.undefined, "bytes": 1}), 1002),
    "2**63": (cbor2.dumps({"op": "credit", "sub": 2**63, "bytes": 1}), 1002),
    "a negative number": (cbor2.dumps({"op": "credit", "sub": -5, "bytes": 1}), 1002),
    "missing keys": (cbor2.dumps({"op": "credit"}), 1002),
    "request without id": (cbor2.dumps({"op": "init_producer"}), 1002),
    "a payload where none belongs": (cbor2.dumps(GOOD) + b"\x41x", 1002),
    "one-way op of another plane": (cbor2.dumps({"op": "notify", "parts": []}), 1008),
    "raft": (cbor2.dumps({"op": "request_vote", "term": 9, "last_index": 9, "last_term": 9}), 1008),
}


def frames_for(limit: int) -> dict[str, tuple[bytes, int]]:
    """What a client sends on an open WebSocket, and the code that closes it; ``limit``: the longest message."""
    return {
        "text": (frame(1, b"{}"), 1003),
        "reserved bits": (b"\xf2\x80" + bytes(4), 1002),
        "unknown opcode": (frame(3, b""), 1002),
        "not masked": (b"\x82\x01a", 1002),
        "declared beyond the limit": (b"\x82\xff" + struct.pack(">Q", limit + 1) + bytes(4), 1009),
        "declared 2**63 - 1": (b"\x82\xff\x7f" + b"\xff" * 7 + bytes(4), 1009),
        "endless empty fragments": (b"\x02\x80" + bytes(4) + (b"\x00\x80" + bytes(4)) * 5000, 1002),
        "fragments beyond the limit": (b"\x02" + frame(0, bytes(limit))[1:] + frame(0, b"x"), 1009),
        "a flood of pings": (frame(9, b"") * 5000, 1002),
        "a long ping": (frame(9, bytes(126)), 1002),
    }
