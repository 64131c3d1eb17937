"""The commands and programs of README.md, docs/javascript.md and docs/examples do what they show: all in their order,
as they stand, and then once more. The test's own are only folders, ports, and the arguments of a program."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator

import pytest
import tidelog
import trio
from pages.place import CLUSTER, DEV, ROOT, Place, blocks, commands_of, promise, started
from real.running import HEAL_S, until
from support.browser import browser
from support.js_tools import CHROMIUM, needs_chromium, on_each_node
from tidelog.cli.local.local_cluster import LocalCluster

pytestmark = pytest.mark.real
README = (ROOT / "README.md").read_text()
EXAMPLES = "docs/examples"
ELSEWHERE = ("make ", "python3 -m venv ", "pip install ")
"""Commands of the README that other tests run: those of the wheel, and this one runs within ``make test``."""

TAIL = (ROOT / EXAMPLES / "tail.html").read_text()
(ADMIT,) = re.findall(r"--allowed-origin \S+", TAIL)
TRY, SEND, CLONE, USE, MOVE = map(commands_of, blocks(README, "sh"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module", params=["once", "twice"])
def time(request: pytest.FixtureRequest) -> str:
    """Everything runs for the first time, and then all again in the same place."""
    return str(request.param)


@pytest.fixture(scope="module")
def dev(place: Place, time: str) -> Iterator[Place]:
    """The cluster that the README starts first, with the option that the example of a page asks for."""
    (command,) = [line for line in TRY if line.startswith(DEV)]
    with started(place, f"{command} {ADMIT}", b"Ctrl-C ends it") as process:
        yield place
        process.send_signal(signal.SIGINT)
        assert process.wait(HEAL_S) == 0


@pytest.fixture(scope="module")
def other_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The place of the cluster of processes; what was started there is ended."""
    place = Place(tmp_path_factory.mktemp("processes"))
    yield place
    if (place.folder / "tide" / "cluster.json").exists():
        LocalCluster.load(place.folder / "tide").stop()


def test_every_command_of_the_readme_is_run_here_or_elsewhere() -> None:
    assert all(line.startswith((*ELSEWHERE, DEV)) for line in [*TRY, *CLONE]), "and what it starts with is new to me"
    assert all(line.startswith(("tidelog ", "echo ", "printf ")) for line in [*SEND, *USE, *MOVE])


def test_a_first_record(dev: Place, time: str) -> None:
    *_, consumed = [dev.shell(command) for command in SEND]
    assert consumed == "hello, world\n" * (1 if time == "once" else 2)


def test_the_first_program(dev: Place, time: str) -> None:
    (program,) = blocks(README, "python")
    said = dev.run("python", "-c", dev.own(program)).splitlines()
    count = 1 if time == "once" else 2
    assert said == [f"0 {count - 1} all/fsync", *(f"{offset} b'world' b'hello'" for offset in range(count))]


def test_the_example_on_trio(dev: Place) -> None:
    said = dev.run("python", f"{EXAMPLES}/orders_trio.py", dev.url).splitlines()
    assert {"30 orders are safe", "ada owes 1350", "grace owes 1450", "edsger owes 1550"} <= set(said)


def test_the_example_on_asyncio(dev: Place) -> None:
    said = dev.run("python", f"{EXAMPLES}/tickets_asyncio.py", dev.url)
    assert re.fullmatch(r"(\w+ has \[(\d+(, )?){5}\], and was too late \d+ times\n){2}", said)


def test_the_example_with_threads(dev: Place) -> None:
    said = dev.run("python", f"{EXAMPLES}/lines_sync.py", dev.url, ROOT / "README.md", ROOT / "LICENSE")
    assert said.count("the same when read back") == 2 and "DIFFERENT" not in said


@on_each_node
def test_the_example_in_node(dev: Place, node: str) -> None:
    said = dev.run(node, f"{EXAMPLES}/orders.mjs", dev.url).splitlines()
    assert said[0].startswith("order 10 is record") and "ada: order 10, 5" in said
    assert int(said[-1].removeprefix("total ")) % 455 == 0


@on_each_node
def test_the_program_of_the_page_about_javascript(dev: Place, node: str) -> None:
    program, *_ = blocks((ROOT / "docs" / "javascript.md").read_text(), "js")
    (dev.folder / "page.mjs").write_text(dev.own(program))
    said = dev.run(node, "page.mjs").splitlines()
    assert any(re.fullmatch(r"[0-2] \d+ hello", line) for line in said)


@needs_chromium
def test_the_example_of_a_page(dev: Place) -> None:
    assert CHROMIUM is not None
    serve, _, create, url = re.findall(r"^ {6}(\S.*)$", TAIL.partition("-->")[0], re.M)
    dev.shell(create)
    with started(dev, serve, b"Serving HTTP"), browser(CHROMIUM) as page:
        page.open(dev.own(url))
        page.evaluate(promise("find('state') === 'following'"))
        page.evaluate(
            "document.querySelector('input').value = 'from the page'; document.querySelector('button').click()"
        )
        page.evaluate(promise("find('records').includes(' from the page')"))
        page.evaluate(promise("find('state').startsWith('sent: partition ')"))


@pytest.mark.spark
@pytest.mark.skipif(shutil.which("java") is None, reason="Java is missing: apt-get install openjdk-17-jre-headless")
def test_the_example_of_a_pipeline(dev: Place, time: str) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")
    lines = [
        f"Dec 10 06:5{n % 10}:46 host sshd[{n}]: Failed password for root from 10.0.0.1 port 22 ssh2"
        for n in range(50)
    ]
    (dev.folder / "auth.log").write_text("".join(f"{line}\n" for line in lines))
    text = (ROOT / EXAMPLES / "ssh_attacks.toml").read_text()
    *_, run = [dev.shell(command) for command in re.findall(r"^#   (tidelog .*)$", text, re.M)]
    assert "rows: 50 rows read in " in run, "a second run goes on where the first has ended"


def test_the_cluster_of_processes(other_place: Place, time: str) -> None:
    for command in (*USE, *MOVE):
        said = other_place.shell(command)
        if command.startswith(CLUSTER):
            trio.run(in_sync, other_place.url)
        elif "--reverse" in command:
            assert set(said.split()) == {"one", "two", "three"}


async def in_sync(url: str) -> None:
    """Wait until every replica of every topic is in sync."""
    async with tidelog.connect(url, connect_timeout_s=HEAL_S) as log:

        async def are_all() -> bool:
            return all(len(p.isr) == len(p.replicas) for topic in await log.topics.list() for p in topic.partitions)

        await until(are_all)
