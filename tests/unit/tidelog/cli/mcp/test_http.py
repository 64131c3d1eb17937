"""``tidelog mcp --listen``: who is answered over HTTP, and with which token. Tests ``cli/mcp/http.py`` and the
options in ``cli/mcp/command.py``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import httpx2
import pytest
import tidelog
import trio
from click.testing import CliRunner
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from support.fake_gateway import FakeCluster
from tidelog.cli.main import main
from tidelog.cli.mcp import http as http_module
from tidelog.cli.mcp.calls import ToolCalls
from tidelog.cli.mcp.http import MAX_BODY, allowed_hosts, application, serve_http
from tidelog.cli.mcp.server import TOOLS
from tidelog.client.log import Log

REQUEST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


@asynccontextmanager
async def served() -> AsyncIterator[tuple[str, list[str | None]]]:
    """The URL of the tools of a fake cluster, and the tokens with which the cluster was asked."""
    cluster = FakeCluster()
    cluster.add_topic("orders", 1, commit_rule="isr", min_insync_replicas="1")
    tokens: list[str | None] = []
    async with cluster.gateways() as [gateway], trio.open_nursery() as nursery:

        def connect(token: str | None) -> AbstractAsyncContextManager[Log]:
            tokens.append(token)
            return tidelog.connect(gateway, token=token or "")

        app = application(ToolCalls(TOOLS, connect, False), "1", allowed_hosts("127.0.0.1", ["log.example"]))

        async def serve(task_status: trio.TaskStatus[str]) -> None:
            await serve_http(app, "127.0.0.1", 0, task_status=task_status)

        url = await nursery.start(serve)
        yield url, tokens
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_each_caller_is_asked_for_with_its_own_token(mode: str) -> None:
    async with served() as (url, tokens):
        for token in ("first", "second", ""):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            async with (
                httpx2.AsyncClient(headers=headers) as http,
                Client(streamable_http_client(url, http_client=http), mode=mode) as client,
            ):
                answer = await client.call_tool("list_topics", {})
                assert not answer.is_error and answer.structured_content is not None
                assert answer.structured_content["untrusted"]["topics"][0]["name"] == "orders"
        assert tokens == ["first", "second", ""]


async def test_web_pages_and_other_names_are_refused() -> None:
    async with served() as (url, tokens), httpx2.AsyncClient(headers=HEADERS) as http:
        for headers, status in (
            ({}, 200),
            ({"host": "log.example"}, 200),
            ({"host": "localhost:1234"}, 200),
            ({"host": "evil.example"}, 421),
            ({"host": "log.example.evil.example"}, 421),
            ({"host": "127.0.0.1.evil.example:80"}, 421),
            ({"origin": "http://evil.example"}, 403),
            ({"origin": "null"}, 403),
            ({"origin": "http://127.0.0.1:8000"}, 403),
            ({"origin": url.removesuffix("/mcp")}, 403),
        ):
            for version in ("2025-06-18", "2026-07-28"):
                reply = await http.post(url, json=REQUEST, headers=headers | {"mcp-protocol-version": version})
                expected = {200: (200, 400)}.get(status, (status,))  # the newer version wants more in a request
                assert reply.status_code in expected, (headers, version, reply.text)
        assert tokens == []


async def test_only_bounded_posts_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as (url, tokens), httpx2.AsyncClient(headers=HEADERS) as http:
        for method in ("GET", "DELETE", "PUT", "OPTIONS"):
            reply = await http.request(method, url)
            assert reply.status_code == 405 and reply.headers["allow"] == "POST", method
        assert (await http.post(url, content=b" " * (MAX_BODY + 1))).status_code == 413
        assert (await http.post(url.removesuffix("/mcp"), json=REQUEST)).status_code == 404
        reply = await http.post(url, json=REQUEST, headers={"authorization": "Basic YTpi"})
        assert reply.status_code == 200  # listing needs no token
        call = REQUEST | {"method": "tools/call", "params": {"name": "list_topics", "arguments": {}}}
        reply = await http.post(url, json=call, headers={"authorization": "Basic YTpi"})
        assert "Authorization: Bearer TOKEN" in reply.json()["error"]["message"]
        assert tokens == []
    monkeypatch.setattr(http_module, "MAX_REQUESTS", 0)
    async with served() as (url, _), httpx2.AsyncClient(headers=HEADERS) as http:
        assert (await http.post(url, json=REQUEST)).status_code == 503


async def test_an_expression_is_refused_over_http() -> None:
    async with served() as (url, tokens), Client(url) as client:
        answer = await client.call_tool("read_records", {"topic": "orders", "grep": "(a+)+$"})
        assert answer.is_error and answer.content[0].text.startswith("NOT_OVER_HTTP: ")  # type: ignore[union-attr]
        assert tokens == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--listen", "9300"], "not HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "not HOST:PORT"),
        (["--listen", "0.0.0.0:9300"], "--allow-host"),
        (["--allow-host", "log.example"], "--allow-host is for --listen"),
        (["--listen", "127.0.0.1:9300", "--token-file", "FILE"], "each caller presents its own token"),
    ],
)
def test_options_that_would_open_too_much_are_refused(options: list[str], text: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret")
    given = [str(file) if one == "FILE" else one for one in options]
    done = CliRunner().invoke(main, ["mcp", *given])
    assert done.exit_code == 2 and text in " ".join(done.output.split())
