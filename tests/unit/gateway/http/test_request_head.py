"""The head of a request: what is taken, and every head that two readers could take for different requests."""

from __future__ import annotations

import pytest
from tidelog_gateway.http.request_head import RequestHead, parse_head
from tidelog_gateway.http.responses import HttpError


def parsed(line: str = "GET /v1/topics HTTP/1.1", *headers: str) -> RequestHead:
    return parse_head("\r\n".join([line, "Host: here", *headers, "", ""]).encode("latin-1"))


def test_a_path_is_split_before_it_is_decoded() -> None:
    head = parsed("GET /v1/groups/a%2Fb%20%C3%A9/positions?from=1&x=a+b%2B HTTP/1.1")
    assert head.path == ("v1", "groups", "a/b é", "positions")
    assert head.query == {"from": "1", "x": "a b+"}


def test_a_request_to_a_proxy_names_its_host_in_the_target() -> None:
    head = parsed("GET http://there:9292/v1/topics HTTP/1.1")
    assert (head.host, head.path) == ("there:9292", ("v1", "topics"))


def test_a_last_slash_does_not_count_and_repeated_headers_are_joined() -> None:
    head = parsed("GET /v1/topics/ HTTP/1.1", "Accept: a", "accept: b", "Content-Type: Text/Plain; charset=x")
    assert head.path == ("v1", "topics")
    assert (head.header("accept"), head.media_type, head.header("cookie")) == ("a, b", "text/plain", "")


def test_a_client_says_whether_it_waits_before_the_body_and_whether_it_goes_on() -> None:
    assert parsed("POST /v1/x HTTP/1.1", "Expect: 100-Continue").waits_for_continue
    assert not parsed().waits_for_continue
    assert not parsed("POST /v1/x HTTP/1.0", "Expect: 100-continue").waits_for_continue, "it knows no such answer"
    assert parsed().keeps_connection
    assert parsed("GET /v1/x HTTP/1.1", "Connection: keep-alive, TE").keeps_connection
    for last in (parsed("GET /v1/x HTTP/1.1", "Connection: TE , Close"), parsed("GET /v1/x HTTP/1.0")):
        assert not last.keeps_connection


REFUSED: dict[str, tuple[bytes, int]] = {
    "length and chunks": (
        b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        400,
    ),
    "two lengths": (b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
    "one length twice": (b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", 400),
    "lengths in a list": (b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 5, 5\r\n\r\n", 400),
    "a signed length": (b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: +5\r\n\r\n", 400),
    "a length in digits of another script": (
        "POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: \u0665\r\n\r\n".encode(),
        400,
    ),
    "a coding besides chunked": (b"POST /v1/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
    "an unknown coding": (b"POST /v1/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n", 501),
    "two codings": (
        b"POST /v1/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        501,
    ),
    "chunks in HTTP/1.0": (b"POST /v1/x HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "a space before the colon": (b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length : 5\r\n\r\n", 400),
    "a folded line": (b"GET /v1/x HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", 400),
    "a line end without CR": (b"GET /v1/x HTTP/1.1\nHost: x\r\n\r\n", 400),
    "an empty line without CR": (b"GET /v1/x HTTP/1.1\r\nHost: x\n\nGET /v1/y HTTP/1.1\r\n\r\n", 400),
    "CR without a line end": (b"GET /v1/x HTTP/1.1\r\nHost: x\r\nA: b\rC: d\r\n\r\n", 400),
    "NUL": (b"GET /v1/x HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n", 400),
    "no host": (b"GET /v1/x HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET /v1/x HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
    "two spaces": (b"GET  /v1/x HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "no version": (b"GET /v1/x\r\nHost: x\r\n\r\n", 400),
    "another version": (b"GET /v1/x HTTP/2.0\r\nHost: x\r\n\r\n", 400),
    "bytes beyond ASCII in the target": (b"GET /v1/\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "too many headers": (b"GET /v1/x HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 100 + b"\r\n", 431),
    "a compressed body": (
        b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\n",
        415,
    ),
    "a dotted segment": (b"GET /v1/../x HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "an encoded dotted segment": (b"GET /v1/%2e%2E/x HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "an empty segment": (b"GET /v1//x HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "an encoded NUL": (b"GET /v1/a%00 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "an encoded line end": (b"GET /v1/a%0d%0a HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "overlong UTF-8": (b"GET /v1/a%c0%af HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "half a surrogate pair": (b"GET /v1/a%ed%a0%80 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "half an escape": (b"GET /v1/a%4 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "an escape that is none": (b"GET /v1/a%u0041 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a change of direction of writing": (b"GET /v1/a%E2%80%AE HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a parameter twice": (b"GET /v1/x?a=1&%61=2 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "too many parameters": (
        b"GET /v1/x?" + b"&".join(b"a%d=1" % n for n in range(33)) + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        400,
    ),
    "no path": (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 400),
}


@pytest.mark.parametrize(("data", "status"), REFUSED.values(), ids=REFUSED)
def test_a_head_that_could_be_read_in_two_ways_is_refused(data: bytes, status: int) -> None:
    with pytest.raises(HttpError) as refused:
        parse_head(data)
    assert refused.value.status == status
