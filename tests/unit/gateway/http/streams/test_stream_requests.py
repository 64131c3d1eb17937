"""Paths, offsets and headers of requests about streams, also such as no client should send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_gateway.http.request_head import RequestHead, parse_head
from tidelog_gateway.http.responses import HttpError
from tidelog_gateway.http.routes import find
from tidelog_gateway.http.streams.cursors import EPOCH_MS, INTERVAL_MS, next_cursor
from tidelog_gateway.http.streams.stream_requests import (
    Lifetime,
    Producer,
    closes,
    lifetime_headers,
    lifetime_of,
    live_mode,
    order_mark_of,
    position_of,
    position_text,
    producer_of,
    stream_path,
)


def head(target: str = "/v1/streams/a", method: str = "PUT", **headers: str) -> RequestHead:
    lines = [f"{method} {target} HTTP/1.1", "Host: x"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return parse_head("\r\n".join([*lines, "", ""]).encode())


def path_of(target: str) -> str:
    """Return the path of the stream that a request asks for. Raises ``HttpError``."""
    asked = head(target)
    assert find(asked).route.operation == "create_stream"
    return stream_path(asked.path[2:])


def test_a_path_is_all_that_follows() -> None:
    assert path_of("/v1/streams/a") == "a"
    assert path_of("/v1/streams/v1/stream/a~b@c:1=2+3-x_.y") == "v1/stream/a~b@c:1=2+3-x_.y"
    assert path_of("/v1/streams/%41/b/") == "A/b"


@pytest.mark.parametrize(
    "path",
    [
        *("", ".", "..", "a/..", "a/../b", "a/./b", "a//b", "%2e%2e", "a/%2E%2e/b", "a%2Fb", "a%5cb", "a b"),
        *("%00", "a%0d%0ab", "é".encode().decode("latin-1"), "%C3%A9", "%ff", "a%", "a;b", "a*", "x" * 1025),
    ],
)
def test_no_trick_in_a_path_names_a_stream(path: str) -> None:
    try:
        asked = parse_head(f"PUT /v1/streams/{path} HTTP/1.1\r\nHost: x\r\n\r\n".encode("latin-1"))
        matched = find(asked)
        stream_path(asked.path[2:])
    except HttpError as error:
        assert error.status in (400, 404)
        return
    raise AssertionError(f"{matched.route.operation} takes {path!r}")


@given(st.integers(0, 10**16 - 1), st.integers(0, 10**16 - 1))
def test_offsets_of_a_stream_sort_as_text(one: int, other: int) -> None:
    first, second = position_text("a-1", one), position_text("a-1", other)
    assert (first < second) == (one < other)
    assert position_of(first) == ("a-1", one)


def test_the_beginning_and_the_end_have_names() -> None:
    assert (position_of("-1"), position_of("now")) == (("", 0), ("", -1))


@given(st.text())
def test_other_texts_are_no_offsets(text: str) -> None:
    if text not in ("-1", "now"):
        with pytest.raises(HttpError):
            position_of(text)


def test_a_lifetime_is_a_time_to_live_or_an_end() -> None:
    assert lifetime_of(head()) == Lifetime()
    assert lifetime_of(head(Stream_TTL="60")) == Lifetime(ttl_s=60)
    for text in ("2030-01-01T00:00:00Z", "2030-01-01T01:00:00+01:00", "2030-01-01T00:00:00.000Z"):
        ends = lifetime_of(head(Stream_Expires_At=text))
        assert lifetime_headers(ends.ttl_s, ends.expires_ms) == (("stream-expires-at", "2030-01-01T00:00:00.000Z"),)
    for wrong in ("", "-1", "+1", "01", "1.0", "1e3", "x"):
        with pytest.raises(HttpError):
            lifetime_of(head(Stream_TTL=wrong))
    for wrong in ("", "soon", "2030-01-01T00:00:00", "1969-01-01T00:00:00Z"):
        with pytest.raises(HttpError):
            lifetime_of(head(Stream_Expires_At=wrong))
    with pytest.raises(HttpError):
        lifetime_of(head(Stream_TTL="1", Stream_Expires_At="2030-01-01T00:00:00Z"))


def test_a_producer_has_three_headers() -> None:
    whole = {"Producer_Id": "p", "Producer_Epoch": "0", "Producer_Seq": "7"}
    assert producer_of(head()) == Producer()
    assert producer_of(head(**whole)) == Producer("p", 0, 7)
    for name in whole:
        with pytest.raises(HttpError):
            producer_of(head(**{key: value for key, value in whole.items() if key != name}))
    for wrong in ({"Producer_Id": ""}, {"Producer_Seq": "-1"}, {"Producer_Epoch": "1.5"}, {"Producer_Seq": "9" * 17}):
        with pytest.raises(HttpError):
            producer_of(head(**(whole | wrong)))


def test_other_headers_and_parameters() -> None:
    assert (order_mark_of(head()), order_mark_of(head(Stream_Seq="b"))) == ("", "b")
    with pytest.raises(HttpError):
        order_mark_of(head(Stream_Seq=""))
    assert closes(head(Stream_Closed="TRUE"))
    assert not closes(head(Stream_Closed="false"))
    assert live_mode({"live": "sse", "offset": "now"}) == "sse"
    for query in ({"live": "sse"}, {"live": "x", "offset": "now"}):
        with pytest.raises(HttpError):
            live_mode(query)


def test_a_cursor_is_always_a_greater_one() -> None:
    now = EPOCH_MS + 100 * INTERVAL_MS
    assert [next_cursor(given, now) for given in ("", "x", "99", "100", "105")] == [100, 100, 100, 101, 106]
    assert next_cursor("", 0) == 0
