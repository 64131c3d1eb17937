"""What people write as the address of a gateway, and what they are told of one that is none."""

from __future__ import annotations

import pytest
from tidelog.errors import ConfigError
from tidelog.net.addresses import gateway_url, why_no_websocket


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("ws://log.example:9292", "ws://log.example:9292"),
        ("wss://log.example/path", "wss://log.example/path"),
        ("localhost:1234", "ws://localhost:1234"),
        ("log.example", "ws://log.example:9292"),
        ("127.0.0.1", "ws://127.0.0.1:9292"),
        ("[::1]:1234", "ws://[::1]:1234"),
        ("[::1]", "ws://[::1]:9292"),
    ],
)
def test_a_host_with_or_without_a_port_is_an_address(address: str, url: str) -> None:
    assert gateway_url(address) == url


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://localhost:9292", "did you mean ws://localhost:9292"),
        ("https://localhost:9292", "did you mean wss://localhost:9292"),
        ("kafka://localhost:9092", "did you mean ws://localhost:9092"),
        ("localhost:port", "host:port or wss://host:port"),
        ("localhost:99999", "host:port or wss://host:port"),
        ("a:1,b:2", "host:port or wss://host:port"),
        ("a b", "it has spaces"),
        ("h\udcff:1", "not printable"),
        ("ws://me:secret@host:1", "no user and password"),
        ("ws://", "it has no host"),
        (":9292", "it has no host"),
        ("", "it has no host"),
    ],
)
def test_another_text_is_refused_and_the_right_one_is_said(address: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        gateway_url(address)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", ""),
        (b"HT", ""),
        (b"HTTP/1.1 404", ""),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", ""),
        (b"HTTP/1.1 404 Not Found\r\nServer: nginx\r\n\r\n", "an HTTP server (nginx) answers there with status 404"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "an HTTP server answers there with status 404"),
        (b"HTTP/1.1 426 Upgrade Required\r\n\r\n", "the port speaks TLS: use wss://h:1"),
        (b"HTTP/1.1 503 Too many connections\r\n\r\n", "refused with HTTP 503"),
        (b"\x15\x03\x03\x00\x02\x02\x16", "the port speaks TLS: use wss://h:1"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "something else than a gateway answers there: b'SSH-2.0-OpenSSH_9.2"),
    ],
)
def test_the_first_bytes_of_a_server_tell_what_it_is(data: bytes, words: str) -> None:
    assert why_no_websocket("ws://h:1", data).startswith(words) and bool(words) == bool(
        why_no_websocket("ws://h:1", data)
    )
