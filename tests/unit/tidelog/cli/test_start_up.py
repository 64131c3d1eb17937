"""Which modules short commands load: what is not needed costs every call, and every press of the tab key. Tests
``cli/main.py``; the CPU times are those of ``deploy/bench/cli.py``."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.gateway_thread import served

PROGRAM = """
import sys
from tidelog.cli import main
try:
    main(prog_name="tidelog")
finally:
    print(*sys.modules, file=sys.stderr)
"""
"""The command, which in the end says on stderr which modules it has loaded."""
PATIENT = "import tidelog.cli.completion; tidelog.cli.completion.ASK_S = 100.0\n"
"""On a busy machine a completion would give up."""
SERVERS = (
    "tidelog_controller",
    "tidelog_replica",
    "tidelog_gateway",
    "tidelog.runtime",
    "structlog",
    "prometheus_client",
)
"""For a process that serves, never for one that asks."""
NETWORK = ("trio", "asyncio", "ssl", "cbor2", "tidelog.wire", "tidelog.net", "tidelog.client")
"""For a command that talks to a cluster."""
RECORDS = ("tidelog.batch", "crc32c", "lz4", "zstandard", "tidelog.client.producer", "tidelog.client.consumer")
"""For a command that writes or reads records."""


def loaded(*words: str, completes: bool = False, gateway: str = "ws://127.0.0.1:1") -> tuple[str, set[str]]:
    """Run the command in a process of its own, or have it complete these words as the shell does, and return its
    output and the modules that it has loaded."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TIDELOG_")}
    environ["TIDELOG_GATEWAY"] = gateway
    if completes:
        environ |= {"_TIDELOG_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("tidelog", *words))}
        environ["COMP_CWORD"] = str(len(words))
        words = ()
    command = [sys.executable, "-c", f"{PATIENT}{PROGRAM}" if completes else PROGRAM, *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, set(done.stderr.split())


def of(unwanted: tuple[str, ...], modules: set[str]) -> list[str]:
    """Return those of the modules that are unwanted, or in an unwanted package."""
    return sorted(one for one in modules if any(one == name or one.startswith(f"{name}.") for name in unwanted))


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_to_show_version_and_help_loads_neither_network_nor_tables(option: str) -> None:
    output, modules = loaded(option)
    assert "tidelog" in output and not of((*NETWORK, *SERVERS, *RECORDS, "rich", "json"), modules)


def test_help_of_a_command_and_names_of_commands_load_no_network() -> None:
    for words, completes in ((("help", "topics", "create"), False), (("topi",), True), (("topics", "cr"), True)):
        output, modules = loaded(*words, completes=completes)
        assert "topics" in output or "create" in output
        assert not of((*NETWORK, *SERVERS, *RECORDS, "rich"), modules), words


def test_to_list_topics_loads_no_server_no_producer_and_no_consumer() -> None:
    with served() as (_, url):
        output, modules = loaded("topics", "list", gateway=url)
    assert "orders" in output and not of((*SERVERS, *RECORDS), modules)
    messages = [one.removeprefix("tidelog.wire.messages.") for one in of(("tidelog.wire.messages",), modules)]
    assert messages == ["tidelog.wire.messages", "base", "description"]


def test_to_complete_a_topic_loads_no_more_than_to_list_topics_and_no_tables() -> None:
    with served() as (_, url):
        output, modules = loaded("topics", "describe", "o", completes=True, gateway=url)
    assert output.strip() == "plain,orders" and not of((*SERVERS, *RECORDS, "rich"), modules)


@pytest.mark.parametrize("module", ["tidelog", "tidelog.aio", "tidelog.sync"])
def test_a_client_loads_no_server(module: str) -> None:
    program = f"import sys, {module}; {module}.connect; {module}.Log; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    modules = set(done.stdout.split())
    assert f"{module}" in modules and not of((*SERVERS, "tidelog.cli", "click", "rich"), modules)
    assert module != "tidelog.aio" or "trio" not in modules


def test_a_blocking_reader_loads_no_producer_no_group_and_no_administration_that_it_does_not_use() -> None:
    program = """
import sys, tidelog.sync
with tidelog.sync.connect(sys.argv[1]) as log:
    print(log.topics.describe("orders").name, file=sys.stderr)
    with log.consume("orders", start="earliest", end="latest") as consumer:
        consumer.next_batch()
print(*sys.modules)
"""
    with served() as (_, url):
        command = [sys.executable, "-c", program, url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == "orders\n"
    modules = set(done.stdout.split())
    client = {one.removeprefix("tidelog.client.") for one in modules if one.startswith("tidelog.client.")}
    assert "consumer" in client and not client & {"producer", "group_consumer", "transactions", "admin.access"}
    messages = [one.removeprefix("tidelog.wire.messages.") for one in of(("tidelog.wire.messages",), modules)]
    assert messages == ["tidelog.wire.messages", "base", "data", "description"]
