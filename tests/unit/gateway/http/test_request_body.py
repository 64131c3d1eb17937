"""The body of a request: where it ends, and every body that is not what its head announces."""

from __future__ import annotations

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tidelog_gateway.http.request_body import MAX_BODY_BYTES, RequestBody
from tidelog_gateway.http.request_head import parse_head
from tidelog_gateway.http.responses import HttpError


def body_of(*headers: str) -> RequestBody:
    lines = ["POST /v1/topics HTTP/1.1", "Host: x", *headers, "", ""]
    return RequestBody(parse_head("\r\n".join(lines).encode()))


def test_a_request_without_a_length_has_no_body() -> None:
    body = body_of()
    assert body.is_complete and body.content == b""


def test_the_next_request_begins_behind_the_announced_length() -> None:
    body = body_of("Content-Length: 5")
    body.receive(b"ab")
    assert not body.is_complete
    body.receive(b"cdeGET /")
    assert (body.is_complete, body.content, body.rest) == (True, b"abcde", b"GET /")


def test_chunks_are_joined_and_extensions_and_trailers_ignored() -> None:
    body = body_of("Transfer-Encoding: chunked")
    for byte in b"2;a=b\r\nab\r\n3\r\ncde\r\n0\r\nX: y\r\n\r\nGET /":
        body.receive(bytes((byte,)))
        if body.is_complete:
            break
    assert body.content == b"abcde"


BROKEN = {
    "no number": b"x\r\nab\r\n0\r\n\r\n",
    "a signed number": b"+2\r\nab\r\n0\r\n\r\n",
    "a number with a prefix": b"0x2\r\nab\r\n0\r\n\r\n",
    "a huge number": b"f" * 30 + b"\r\n",
    "more than the chunk says": b"2\r\nabcd\r\n0\r\n\r\n",
    "another end than CR LF": b"2\r\nabXX0\r\n\r\n",
    "a size with nothing": b"\r\n",
    "a line end without CR": b"2\nab\r\n0\r\n\r\n",
    "a line end without CR in an extension": b"2;a\nb\r\nab\r\n0\r\n\r\n",
    "CR without a line end in an extension": b"2;a\rb\r\nab\r\n0\r\n\r\n",
    "a line end without CR behind a chunk": b"2\r\nab\n0\r\n\r\n",
    "a line end without CR behind a trailer": b"0\r\nA: b\n\r\n",
    "a trailer that is folded": b"0\r\nA: b\r\n c\r\n\r\n",
    "a trailer without a colon": b"0\r\nA\r\n\r\n",
    "an endless extension": b"2;" + b"a" * 40_000,
    "an endless trailer": b"0\r\n" + b"A: b\r\n" * 10_000,
    "very many small chunks": b"1\r\na\r\n" * 2000,
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_chunks_that_are_none_are_refused(data: bytes) -> None:
    body = body_of("Transfer-Encoding: chunked")
    with pytest.raises(HttpError) as refused:
        for start in range(0, len(data), 1000):
            body.receive(data[start : start + 1000])
    assert refused.value.status in (400, 413, 431)


def chunked(parts: list[bytes], extension: bytes, trailer: bytes) -> bytes:
    chunks = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
    return chunks + b"0%b\r\n%b\r\nGET /" % (extension, trailer)


bodies = st.builds(
    chunked,
    st.lists(st.binary(min_size=1, max_size=20), max_size=3),
    st.sampled_from((b"", b" ", b";a", b';a="b"', b"  ")),
    st.sampled_from((b"", b"A: b\r\n", b"A:\r\nB: c\r\n")),
)


@given(
    bodies,
    st.integers(0, 60),
    st.sampled_from((b"", b"\r", b"\n", b"\r\n", b"0", b";", b":", b"\0")),
    st.integers(1, 9),
)
@example(b"1;x\ry\r\na\r\n0\r\n\r\n", 0, b"", 9)
@example(b"0\r\nA: b\n\nGET /", 0, b"", 9)
def test_chunks_that_are_taken_are_read_by_another_parser_in_the_same_way(
    data: bytes, at: int, change: bytes, step: int
) -> None:
    data = data[:at] + change + data[at + (at + len(change)) % 2 :]
    body = body_of("Transfer-Encoding: chunked")
    try:
        for start in range(0, len(data), step):
            body.receive(data[start : start + step])
            if body.is_complete:
                break
    except HttpError:
        return
    parser = h11.Connection(h11.SERVER)
    parser.receive_data(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + data)
    parser.next_event()
    found = b""
    while isinstance(event := parser.next_event(), h11.Data):
        found += event.data
    assert isinstance(event, h11.EndOfMessage) is body.is_complete
    assert found == body.content
    if body.is_complete:
        assert parser.trailing_data[0].startswith(body.rest)


def test_a_body_that_is_too_long_is_refused_before_and_while_it_comes() -> None:
    with pytest.raises(HttpError) as refused:
        body_of(f"Content-Length: {MAX_BODY_BYTES + 1}")
    assert refused.value.status == 413
    body = body_of("Transfer-Encoding: chunked")
    chunk = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
    with pytest.raises(HttpError) as refused:
        for _ in range(17):
            body.receive(chunk)
    assert refused.value.status == 413
