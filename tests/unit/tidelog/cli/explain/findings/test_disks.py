"""What is said about disks and starved servers: each cause with its evidence, and nothing where it is another one."""

from __future__ import annotations

from dataclasses import replace

from tidelog.cli.explain.disk_growth import Growth
from tidelog.cli.explain.findings.diagnosis import examine
from tidelog.cli.explain.findings.finding import PROBLEM, WARNING, Finding
from tidelog.cli.explain.findings.snapshot import ClusterSnapshot

from unit.tidelog.cli.explain.findings.snapshots import WHOLE, healthy, with_metrics

MIB = 1 << 20


def only_cause(view: ClusterSnapshot) -> Finding:
    """The one finding that is called a cause."""
    (cause,) = [one for one in examine(view) if not one.because_of]
    return cause


def full(log_mib: int) -> ClusterSnapshot:
    """A disk of 1,000 MiB on r2 that is full, with so much of logs."""
    sizes = {"disk_size_bytes": 1000 * MIB, "disk_free_bytes": 2 * MIB, "log_bytes": log_mib * MIB}
    return with_metrics(healthy(), "r2", disk_full=1, **sizes)


def test_a_healthy_cluster_under_load_has_no_finding() -> None:
    assert examine(healthy()) == []


def test_a_disk_that_logs_have_filled_is_named_with_what_they_take() -> None:
    found = only_cause(full(900))
    assert (found.level, found.cause, found.about) == (PROBLEM, "disk-full-of-logs", ("r2",))
    assert "r2 is full of logs" in found.what and "retention" in found.next_step
    assert found.evidence == "of 1000 MiB 2 are free; its logs take 900 MiB, other files 98 MiB"


def test_a_disk_that_other_files_have_filled_is_another_cause() -> None:
    found = only_cause(full(60))
    assert (found.level, found.cause, found.about) == (PROBLEM, "disk-full-of-other-files", ("r2",))
    assert "not its logs" in found.what and "du -xh" in found.next_step
    assert "its logs take 60 MiB, other files 938 MiB" in found.evidence


def test_a_full_disk_of_unknown_size_is_full_and_no_more_is_said() -> None:
    found = only_cause(with_metrics(full(900), "r2", disk_size_bytes=0))
    assert (found.cause, found.evidence) == ("disk-full", "")


def test_what_a_full_disk_holds_up_is_a_consequence() -> None:
    partitions = (replace(WHOLE, isr=("r1", "r3")), replace(WHOLE, isr=("r3",), leader="r3"))
    behind = replace(full(900), metadata=healthy(*partitions).metadata)
    assert {one.cause: one.because_of for one in examine(behind)} == {
        "disk-full-of-logs": "",
        "replica-out-of-sync": "disk-full-of-logs",
        "in-sync-below-minimum": "disk-full-of-logs",
    }


def test_little_room_is_a_share_of_a_small_disk() -> None:
    small = with_metrics(healthy(), "r1", disk_size_bytes=2000 * MIB, disk_free_bytes=300 * MIB, log_bytes=0)
    assert examine(small) == []
    found = only_cause(with_metrics(small, "r1", disk_free_bytes=150 * MIB))
    assert (found.level, found.cause) == (WARNING, "disk-nearly-full")


def test_a_disk_whose_syncs_are_slow_is_named_with_how_slow_they_are() -> None:
    found = only_cause(with_metrics(healthy(), "r3", recent_flush_seconds=1.24))
    assert (found.level, found.cause, found.about) == (WARNING, "disk-slow", ("r3",))
    assert "a sync took 1.24 s" in found.evidence and "iostat" in found.next_step


def test_a_server_that_does_not_get_to_run_is_starved_and_its_disk_is_not_blamed() -> None:
    found = only_cause(with_metrics(healthy(), "r3", recent_flush_seconds=1.24, late_ratio=0.8))
    assert (found.level, found.cause, found.about) == (WARNING, "server-starved", ("r3",))
    assert "in 80% of the last 10 s" in found.evidence and "CPU" in found.next_step


def test_a_limit_of_the_gateway_follows_from_the_disk_of_a_replica_whose_ack_is_awaited() -> None:
    view = replace(with_metrics(healthy(), "r3", recent_flush_seconds=1.24), limits={"r1": 1000.0})
    assert {one.cause: one.because_of for one in examine(view)} == {"disk-slow": "", "server-slow": "disk-slow"}
    apart = replace(view, metadata=healthy(replace(WHOLE, replicas=("r1", "r2"), isr=("r1", "r2"))).metadata)
    assert {one.cause: one.because_of for one in examine(apart)} == {"disk-slow": "", "server-slow": ""}


def test_a_disk_that_grows_without_retention_names_the_topic() -> None:
    growing = replace(healthy(), growth=Growth({"r1": 2.0 * MIB}, ("events",)))
    found = only_cause(growing)
    assert (found.level, found.cause, found.about) == (WARNING, "retention-not-set", ("r1",))
    assert "no retention is set for events" in found.what and "configure events retention_ms" in found.next_step
