"""The pytest plugin in projects of users: tests on trio, on asyncio, and without a loop."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec

import pytest
from pytest import Pytester, RunResult

LOADED = ["-p", "no:cacheprovider"]
if not metadata.entry_points(group="pytest11", name="tidelog"):  # an environment that was made before the plugin was
    LOADED += ["-p", "tidelog.testing.plugin"]

PROGRAM = """
import tidelog


async def copy(connect, address):
    async with connect(address) as log, log.producer("copies") as producer:
        async for record in log.consume("orders", start="earliest", end="latest"):
            await producer.send(record.value)


async def fill(connect, address):
    async with connect(address) as log, log.producer("orders") as producer:
        await producer.send(b"one")
        await producer.send(b"two")
"""
SYNC = """
import tidelog


def test_copy(tidelog_cluster):
    tidelog_cluster.topic("orders")
    with tidelog.sync.connect(tidelog_cluster.address) as log, log.producer("orders") as producer:
        assert producer.send(b"one").offset == 0
    assert [record.value for record in tidelog_cluster.records("orders")] == [b"one"]


def test_another(tidelog_cluster):
    tidelog_cluster.topic("orders")
    assert tidelog_cluster.records("orders") == []
"""
ASYNC = """
import pytest
import tidelog
from program import copy, fill

MARK


async def test_copy(tidelog_cluster):
    for topic in ("orders", "copies"):
        await tidelog_cluster.awaitable.topic(topic)
    await fill(CONNECT, tidelog_cluster.address)
    await copy(CONNECT, tidelog_cluster.address)
    copies = await tidelog_cluster.awaitable.records("copies")
    assert [record.value for record in copies] == [b"one", b"two"]


async def test_leader(tidelog_faulty_cluster):
    tidelog_faulty_cluster.topic("orders")
    await fill(CONNECT, tidelog_faulty_cluster.address)
    killed = await tidelog_faulty_cluster.awaitable.kill_leader("orders")
    await fill(CONNECT, tidelog_faulty_cluster.address)
    assert await tidelog_faulty_cluster.awaitable.leader("orders") != killed
    assert len(tidelog_faulty_cluster.records("orders")) == 4
"""
LOOPLESS = """
import asyncio

import tidelog
from program import copy, fill


def test_copy(tidelog_cluster):
    tidelog_cluster.topic("orders")
    tidelog_cluster.topic("copies")
    asyncio.run(fill(tidelog.aio.connect, tidelog_cluster.address))
    asyncio.run(copy(tidelog.aio.connect, tidelog_cluster.address))
    assert len(tidelog_cluster.records("copies")) == 2
"""


def run(project: Pytester, test: str, *options: str) -> RunResult:
    """Run a user's tests in a process of its own, in which a warning is an error."""
    project.makepyfile(program=PROGRAM, test_program=test)
    has_asyncio = find_spec("pytest_asyncio") is not None and "no:asyncio" not in options
    scope = "asyncio_default_fixture_loop_scope = function\n" if has_asyncio else ""
    project.makeini(f"[pytest]\nfilterwarnings = error\n{scope}")
    return project.runpytest_subprocess(*LOADED, "--strict-markers", *options)


WITHOUT = ("-p", "no:trio", "-p", "no:asyncio", "-p", "no:anyio", "-p", "no:xdist")
"""No plugin for a loop, as in an environment that has none."""


def test_plain_tests(pytester: Pytester) -> None:
    run(pytester, SYNC, *WITHOUT).assert_outcomes(passed=2)


def test_tests_that_run_asyncio_themselves(pytester: Pytester) -> None:
    run(pytester, LOOPLESS, *WITHOUT).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("mark", "connect", "blocked"),
    [
        ("pytestmark = pytest.mark.trio", "tidelog.connect", ("asyncio", "anyio")),
        ("pytestmark = pytest.mark.asyncio", "tidelog.aio.connect", ("trio", "anyio")),
        (
            'pytestmark = pytest.mark.anyio\n\n\n@pytest.fixture\ndef anyio_backend():\n    return "asyncio"',
            "tidelog.aio.connect",
            ("trio", "asyncio"),
        ),
        (
            'pytestmark = pytest.mark.anyio\n\n\n@pytest.fixture\ndef anyio_backend():\n    return "trio"',
            "tidelog.connect",
            ("trio", "asyncio"),
        ),
    ],
    ids=["pytest-trio", "pytest-asyncio", "anyio-asyncio", "anyio-trio"],
)
def test_tests_on_a_loop(pytester: Pytester, mark: str, connect: str, blocked: tuple[str, ...]) -> None:
    if "mark.asyncio" in mark:
        pytest.importorskip("pytest_asyncio")
    options = [word for name in blocked for word in ("-p", f"no:{name}")]
    run(pytester, ASYNC.replace("MARK", mark).replace("CONNECT", connect), *options).assert_outcomes(passed=2)


def test_several_workers_have_clusters_of_their_own(pytester: Pytester) -> None:
    run(pytester, SYNC, "--numprocesses", "2").assert_outcomes(passed=2)


def test_a_failing_test_shows_no_lines_of_the_services(pytester: Pytester) -> None:
    failing = "def test_it(tidelog_cluster):\n    tidelog_cluster.topic('orders')\n    assert False\n"
    done = run(pytester, failing, *WITHOUT)
    done.assert_outcomes(failed=1)
    assert "Captured" not in done.stdout.str()


def test_the_fixtures_say_what_they_are(pytester: Pytester) -> None:
    done = run(pytester, "", "--fixtures")
    done.stdout.fnmatch_lines(["tidelog_cluster*", "*one replica server, for this test alone*"])
    done.stdout.fnmatch_lines(["tidelog_faulty_cluster*", "*three replica servers, for this test alone*"])


HEAVY = ("tidelog.client", "tidelog.net", "tidelog.wire", "tidelog.runtime", "tidelog.testing.real")


def test_a_run_that_does_not_use_the_plugin_loads_no_library_and_no_client() -> None:
    code = "import sys, pytest; before = set(sys.modules); import tidelog.testing.plugin"
    code += "; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names == {"tidelog"}
    assert not {name for name in loaded if name.startswith(HEAVY)}
