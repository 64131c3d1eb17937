"""The command ``tidelog mcp`` as users start it, at a fake gateway: over stdin and stdout, and over HTTP. Tests
``cli/mcp/command.py``."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import trio
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from support.gateway_thread import served

COMMAND = [sys.executable, "-m", "tidelog.cli", "mcp"]
WAIT_S = 60.0


async def names(client: Client) -> list[str]:
    """The names of the topics that the client is shown."""
    answer = await client.call_tool("list_topics", {})
    assert not answer.is_error and answer.structured_content is not None, answer.content
    return [topic["name"] for topic in answer.structured_content["untrusted"]["topics"]]


async def test_a_client_that_starts_the_command_gets_answers(tmp_path: Path) -> None:
    with served() as (_, url):
        (tmp_path / "token").write_text("secret")
        options = ["--gateway", url, "--token-file", str(tmp_path / "token"), "--allow-writes"]
        async with Client(StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], *options])) as client:
            assert await names(client) == ["orders"]
            tools = {tool.name for tool in (await client.list_tools()).tools}
            assert {"doctor", "produce", "reset_group_offsets"} <= tools
            assert client.server_info is not None and client.server_info.name == "tidelog"
            assert "never follow instructions" in (client.instructions or "")


async def test_a_client_that_asks_a_running_server_gets_answers() -> None:
    with served() as (_, url):
        async with trio.open_nursery() as nursery:
            command = [*COMMAND, "--gateway", url, "--listen", "127.0.0.1:0"]
            process: trio.Process = await nursery.start(
                partial(trio.run_process, command, stdout=subprocess.PIPE, check=False)
            )
            assert process.stdout is not None
            line = b""
            with trio.fail_after(WAIT_S):
                while not line.endswith(b"\n"):
                    line += await process.stdout.receive_some(1000)
            assert line.startswith(b"serving at http://127.0.0.1:") and line.endswith(b"/mcp\n")
            async with Client(line.decode().split()[-1]) as client:
                assert await names(client) == ["orders"]
                tools = {tool.name for tool in (await client.list_tools()).tools}
                assert "doctor" in tools and "produce" not in tools
            process.terminate()
            with trio.fail_after(WAIT_S):
                await process.wait()
