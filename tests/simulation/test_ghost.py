"""The records that the ghost counts as committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from scenarios.stage import Stage
from tidelog.sansio.effects import Event
from tidelog.testing.invariants.ghost import Violation
from tidelog.verify.history import OK
from tidelog.wire.messages import Fetch, FetchPart
from tidelog_replica.partition.pending_reads import PendingReads
from tidelog_replica.storage.segment import CorruptLog


def trimmed(**config: str) -> tuple[Stage, int]:
    """Return a cluster whose logs begin above 0, at the returned offset, and hold a few more records."""
    stage = Stage(segment_max_bytes="1024", **config)
    for number in range(24):
        stage.put(b"%02d" % number * 100)
    stage.settle()
    assert stage.partition(stage.first).log.advance_start(6)
    stage.put(b"last")
    stage.settle()
    (start,) = {stage.partition(node).log.start for node in stage.replicas}
    assert 0 < start <= 6
    return stage, start


def test_a_commit_in_the_step_in_which_the_leader_failed_counts(monkeypatch: pytest.MonkeyPatch):
    """Found by seed 50282: the leader committed a batch, acked it, and could not read its log for a reader that the
    commit had woken. Everybody in sync had the batch: the ack was right."""
    stage = Stage()
    stage.put(b"m0")
    stage.settle()
    leader = stage.partition(stage.first)
    settle, committed = PendingReads.settle, leader.high_watermark

    def settle_unless_it_committed(reading: PendingReads, now: float) -> None:
        if leader.role is not None and reading is leader.role.reading and leader.high_watermark > committed:
            raise CorruptLog("a segment", "it cannot be read")
        settle(reading, now)

    monkeypatch.setattr(PendingReads, "settle", settle_unless_it_committed)
    pending = stage.send(b"m1", patience=30.0)
    stage.until(lambda: pending.result != "")
    assert (pending.result, pending.errors) == (OK, [])
    stage.until(lambda: stage.now.leader not in (None, stage.first))
    stage.settle()
    assert stage.values(stage.leader) == [b"m0", b"m1"]


def test_a_trimmed_log_that_an_unclean_election_brings_back_is_committed_from_its_edge_on():
    """Found by seed 74: everything committed counted as lost, since a leader with an empty disk led. Then a copy was
    elected that begins where retention had left it, and its high watermark was exactly there."""
    stage, start = trimmed(min_insync_replicas="2", unclean_election="true")
    second = stage.others[0]
    stage.kill(*stage.others)
    for name in ("high-watermark", "committed-once"):  # a power loss may take both
        for path in stage.files(second, name):
            stage.replica(second).disk.unlink(path)
    stage.kill(stage.first)
    stage.replace_disk(stage.first)
    stage.restart(stage.first)
    stage.until(lambda: stage.leads(stage.first))
    assert stage.end(stage.first) == stage.invariants.committed_end(stage.key) == 0
    stage.kill(stage.first)
    stage.restart(second)
    stage.until(lambda: stage.leads(second))
    assert stage.hw(second) == stage.invariants.committed_end(stage.key) == start
    stage.settle()
    assert stage.values(stage.first)[-1] == b"last"


@pytest.mark.parametrize("cause", ["retention", "leader"])
def test_effects_that_only_coincide_with_a_late_message_are_not_blamed_on_it(cause: str):
    """Found by seed 9001765: a disk had become full while its server was paused. The first thing that it heard of
    then was a fetch of an earlier leader epoch, and in that input it began to remove what retention allows."""
    stage, start = trimmed()
    node = stage.others[0]
    core, partition = stage.replica(node).core, stage.partition(node)
    late = Fetch(stage.first, 1, 1000, (FetchPart(*stage.key, 0, 0),))

    def move_start() -> Sequence[Any]:
        assert partition.log.advance_start(partition.log.end)
        topic_id, number = stage.key
        fields = {"topic_id": topic_id, "partition": number, "old": start, "start": partition.log.start}
        return [Event("log_start_moved", {**fields, "cause": cause})]

    if cause == "retention":
        stage.invariants.fenced(node, core, late, move_start)
    else:
        with pytest.raises(Violation, match=r"R6 .* came too late"):
            stage.invariants.fenced(node, core, late, move_start)
