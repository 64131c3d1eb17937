"""The cluster of the fixture ``tidelog_cluster``: alone, whole, and gone without a trace at the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
import tidelog
from tidelog.errors import ConfigError, TidelogError
from tidelog.testing import RealCluster


def produce(address: str, *values: bytes) -> None:
    with tidelog.sync.connect(address) as log, log.producer("orders") as producer:
        for value in values:
            producer.send(value)


@pytest.mark.parametrize("value", [b"one", b"two"])
def test_each_test_has_a_cluster_without_topics_groups_and_records_of_others(
    tidelog_cluster: RealCluster, value: bytes
) -> None:
    with tidelog.sync.connect(tidelog_cluster.address) as log:
        assert not log.topics.list() and not log.groups.list()
        tidelog_cluster.topic("orders", partitions=2, retention_ms=60_000)
        produce(tidelog_cluster.address, value)
        for record in log.consume("orders", group="billing"):
            assert record.value == value
            break
        assert [group.group for group in log.groups.list()] == ["billing"]
    assert [record.value for record in tidelog_cluster.records("orders")] == [value]


async def test_a_test_on_trio_uses_it_in_its_own_loop(tidelog_cluster: RealCluster) -> None:
    tidelog_cluster.topic("orders")  # which blocks this loop: the services have another
    async with tidelog.connect(tidelog_cluster.address) as log, log.transaction("app") as transaction:
        await transaction.send("orders", b"one")
    assert [record.value for record in await tidelog_cluster.awaitable.records("orders")] == [b"one"]


def test_a_topic_has_the_settings_that_are_asked_for(tidelog_cluster: RealCluster) -> None:
    topic = tidelog_cluster.topic("orders", partitions=3, cleanup="compact")
    assert (len(topic.partitions), topic.config["cleanup"]) == (3, "compact")
    with pytest.raises(TidelogError, match="orders"):
        tidelog_cluster.topic("orders")


def open_descriptors() -> set[str]:
    """What the process has open, without the null device and what comes and goes with the threads of trio."""
    found = set()
    for descriptor in Path("/dev/fd").iterdir():
        try:
            found.add(f"{descriptor.name} {descriptor.readlink()}")
        except OSError:  # the one that lists the folder
            continue
    return found


def test_at_the_end_threads_and_descriptors_are_given_back(tmp_path: Path) -> None:
    def use(folder: str) -> None:
        with RealCluster(tmp_path / folder, replicas=3) as cluster:
            cluster.topic("orders")
            produce(cluster.address, b"one")
            cluster.kill("r1")

    use("first")  # what is opened once and kept
    before = open_descriptors()
    use("second")
    assert not open_descriptors() - before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tidelog")]


@pytest.fixture
def no_logs() -> Iterator[None]:
    """The state of a program that has not configured structlog, whatever other tests have done."""
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    yield
    if before is not None:
        structlog.configure(**before)


@pytest.mark.usefixtures("no_logs")
def test_a_cluster_that_cannot_start_says_why_and_leaves_no_thread(tmp_path: Path) -> None:
    (tmp_path / "r1").write_text("a file where the folder of r1 is to be")
    with pytest.raises(OSError, match="r1"), RealCluster(tmp_path):
        raise AssertionError
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tidelog")]
    assert not structlog.is_configured()


def test_after_its_end_a_cluster_is_closed(tmp_path: Path) -> None:
    with RealCluster(tmp_path) as cluster:
        assert cluster.nodes == ("c1", "r1", "g1")
    with pytest.raises(RuntimeError, match="the cluster is closed"):
        cluster.topic("orders")


def test_the_failure_of_a_service_fails_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise ValueError("a bug of a service")

    def break_a_service(cluster: RealCluster) -> None:
        cluster._thread._token.run_sync_soon(cluster._thread._nursery.start_soon, fail)
        cluster._thread._thread.join(60)

    with pytest.raises(ValueError, match="a bug of a service"), RealCluster(tmp_path / "one") as cluster:
        break_a_service(cluster)
    with pytest.raises(ValueError, match="a bug of a service"), RealCluster(tmp_path / "two") as cluster:
        break_a_service(cluster)
        cluster.topic("orders")


def test_the_programs_own_logs_are_left_alone(tmp_path: Path) -> None:
    lines: list[object] = []

    def keep(_logger: object, _method: str, line: object) -> object:
        lines.append(line)
        raise structlog.DropEvent

    structlog.configure(processors=[keep])
    try:
        with RealCluster(tmp_path):
            assert lines, "the services log where the program does"
        assert structlog.get_config()["processors"] == [keep]
    finally:
        structlog.reset_defaults()


@pytest.mark.usefixtures("no_logs")
def test_without_logs_of_its_own_a_program_sees_errors_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RealCluster(tmp_path) as cluster:
        cluster.kill("r1")
        cluster.restart("r1")
        structlog.get_logger().error("broken", node="r1")
    assert not structlog.is_configured()
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "tidelog: broken node=r1\n")


def test_an_unknown_server_is_named_with_those_that_there_are(tidelog_cluster: RealCluster) -> None:
    for call in (tidelog_cluster.kill, tidelog_cluster.restart, tidelog_cluster.cut, tidelog_cluster.pause):
        with pytest.raises(ConfigError, match="no server 'r9': there are c1, r1, g1"):
            call("r9")
    with pytest.raises(ConfigError, match="c1 is no replica server"):
        tidelog_cluster.slow_disk("c1", 1.0)
    with pytest.raises(ConfigError, match="cannot be cut from itself"):
        tidelog_cluster.cut("r1", "r1")
    tidelog_cluster.topic("orders")
    with pytest.raises(TidelogError, match="orders has 1 partitions"):
        tidelog_cluster.leader("orders", 1)
