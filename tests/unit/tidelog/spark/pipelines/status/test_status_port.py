"""The port of a running pipeline, over real sockets."""

from __future__ import annotations

import socket
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from tidelog.errors import ConfigError
from tidelog.spark.pipelines.status.status_pages import StatusPages
from tidelog.spark.pipelines.status.status_port import status_port
from tidelog.spark.pipelines.supervision import OutputStatus, State


def ask(url: str, host: str = "") -> tuple[int, str]:
    try:
        with urlopen(Request(url, headers={"host": host} if host else {}), timeout=20) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_pages_are_served_until_the_block_ends() -> None:
    pages = StatusPages("p")
    with status_port("127.0.0.1", 0, pages.pages) as url:
        assert ask(f"{url}/healthz")[0] == 503
        pages.show(lambda: (OutputStatus("a", State.RUNNING),))
        assert ask(f"{url}/healthz")[0] == 200
        assert 'tidelog_pipeline_output_up{output="a"} 1.0' in ask(f"{url}/metrics")[1]
        assert ask(f"{url}/other")[0] == 404
        status, text = ask(f"{url}/healthz", host="rebound.example")
        assert status == 403 and '"output"' not in text, "a web page whose name was made to lead here"
    with pytest.raises(OSError, match="refused"):
        ask(f"{url}/healthz")


def test_a_port_in_use_is_an_error() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ConfigError, match="is in use"), status_port("127.0.0.1", other.getsockname()[1], {}):
            pass
