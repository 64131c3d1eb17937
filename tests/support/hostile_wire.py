"""What hostile peers send, and how every server must end it: with a WebSocket close code or an HTTP status."""

from __future__ import annotations

import struct

import cbor2


def frame(opcode: int, data: bytes, *, mask: bytes = b"\0\0\0\0") -> bytes:
    """Return a final, masked WebSocket frame."""
    length = len(data)
    if length < 126:
        return bytes((0x80 | opcode, 0x80 | length)) + mask + data
    long = struct.pack(">BH", 0xFE, length) if length < 1 << 16 else struct.pack(">BQ", 0xFF, length)
    return bytes((0x80 | opcode,)) + long + mask + data


def opening(protocol: str = "tidelog.v1", more: str = "") -> bytes:
    """Return a client's WebSocket handshake."""
    return (
        "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: {protocol}\r\n{more}\r\n"
    ).encode()


GOOD = {"op": "init_producer", "id": 1}
PRODUCE = cbor2.dumps({"op": "produce", "parts": []})

COLLIDING_KEYS = b"\xb9\x10\x00" + b"".join(struct.pack(">BQB", 0x1B, n << 40, 0) for n in range(4096))
MESSAGES: dict[str, tuple[bytes, int]] = {
    "empty": (b"", 1007),
    "no CBOR": (b"\xff\xff", 1007),
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
    "a tag": (cbor2.dumps({"x": cbor2.CBORTag(1234, 1), **GOOD}), 1007),
    "a header without end": (cbor2.dumps({"x": "x" * 600_000, **GOOD}), 1009),
    "a part without number": (cbor2.dumps({"op": "produce", "parts": [{"size": 1}]}) + b"\x41x", 1002),
    "missing keys": (cbor2.dumps({"op": "credit"}), 1002),
    "request without id": (cbor2.dumps({"op": "init_producer"}), 1002),
    "one-way op of another plane": (cbor2.dumps({"op": "notify", "parts": []}), 1008),
    "raft": (cbor2.dumps({"op": "request_vote", "term": 9, "last_index": 9, "last_term": 9}), 1008),
}
"""What no number can be read of, and the code that closes the connection."""

PART = {"id": 7, "topic_id": "t", "partition": 0, "acks": 2, "size": 1}
REFUSED: dict[str, tuple[bytes, str]] = {
    "trailing garbage": (cbor2.dumps(GOOD) + b"\x00", "the header is no definite byte string"),
    "a tag": (cbor2.dumps({**GOOD, "x": cbor2.CBORTag(1234, 1)}), "tags are not accepted"),
    "duplicate keys": (b"\xa3\x62op\x6dinit_producer\x62id\x01\x62id\x02", "uplicate"),
    "half a header": (cbor2.dumps({**GOOD, "x": "xyz"})[:-2], "not the CBOR we accept"),
    "a payload where none belongs": (cbor2.dumps(GOOD) + b"\x41x", "takes no payload"),
    "huge declared payload": (cbor2.dumps(GOOD) + b"\x5b\x7f" + b"\xff" * 7, "the payload says"),
    "a wrong type": (cbor2.dumps({**GOOD, "count": "two"}), "count is not an integer"),
    "a negative number": (cbor2.dumps({"count": -5, **GOOD}), "count is not an integer"),
    "missing keys": (cbor2.dumps({"op": "list_offset", "id": 1}), "missing topic_id, partition, at"),
    "a one-way message with an id": (cbor2.dumps({"op": "credit", "id": 1, "sub": 1, "bytes": 1}), "takes no id"),
    "a header that is too long": (cbor2.dumps({**GOOD, "x": "x" * 600_000}), "longer than"),
    "too many items": (cbor2.dumps({**GOOD, "x": [0] * 100_000}), "items in a header"),
}
"""Requests with the number 1 that are answered ``MALFORMED``, and words of the answer."""


def frames_for(limit: int) -> dict[str, tuple[bytes, int]]:
    """Return by name the bytes of a client on an open WebSocket and the code that closes it; ``limit``: the longest
    message."""
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


HANDSHAKES: dict[str, tuple[bytes, int]] = {
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    "no upgrade": (b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n", 404),
    "another method": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", 405),
    "no key": (b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", 400),
    "another subprotocol": (opening("tidelog.v2"), 400),
    "a page of another origin": (opening(more="Origin: https://elsewhere.example\r\n"), 403),
    "bytes beyond ASCII": (b"GET /\xff HTTP/1.1\r\nHost: \xff\r\n\xff: \xff\r\n\r\n", 400),
    "an endless head": (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000, 431),
    "compression": (
        opening(more="Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n")
        + b"\xc2"  # compressed
        + frame(2, b"")[1:],
        1002,
    ),
}
"""Bytes in place of an opening handshake, with the HTTP status of the answer; 0: the server closes the connection
without one."""

ASKED = b"".join(frame(2, cbor2.dumps({"op": "fly" * 30, "id": n})) for n in range(60_000))
"""Requests whose answers fill every buffer on the way if the peer does not read them."""


def slow_peers(hello: bytes) -> dict[str, tuple[bytes, set[int]]]:
    """Return by name the bytes of a peer that then falls silent and reads nothing, and the codes or statuses that may
    end it. ``hello``: a valid hello. The last peer sees 1013 only if it reads before the server gives up its close
    frame."""
    opened = opening() + frame(2, hello)
    return {
        "nothing": (b"", {408}),
        "half a handshake": (opening()[:40], {408}),
        "no hello": (opening(), {1008}),
        "half a hello": (opened[:-1], {1008}),
        "no pong": (opened, {1013}),
        "half a message": (opened + frame(2, bytes(1 << 20))[:1000], {1013}),
        "requests without end": (opened + ASKED, {0, 1013}),
    }


def ending(data: bytes) -> int:
    """Return the HTTP status of a refusal, or the code of the close frame, in all bytes that a server sent; 0 if
    neither is there."""
    head, _, rest = data.partition(b"\r\n\r\n")
    status = int(head.split(b" ")[1]) if head else 0
    if status != 101:
        return status
    while len(rest) >= 2:
        first, length = rest[0], rest[1]
        size, rest = (int.from_bytes(rest[2:4], "big"), rest[4:]) if length == 126 else (length, rest[2:])
        if first == 0x88:
            return int.from_bytes(rest[:2], "big")
        rest = rest[size:]
    return 0
