"""What the ghost takes for committed."""

from __future__ import annotations

import pytest
from scenarios.stage import Stage
from tidelog.verify.history import OK
from tidelog_replica.log.segment import CorruptLog
from tidelog_replica.reading import Reading


def test_what_a_leader_committed_in_the_step_in_which_it_failed_counts(monkeypatch: pytest.MonkeyPatch):
    """Found by seed 50282: the leader committed a batch, acked it, and could not read its log for a reader that the
    commit had woken. Everybody in sync had the batch: the ack was right."""
    stage = Stage()
    stage.put(b"m0")
    stage.settle()
    leader = stage.partition(stage.first)
    settle, committed = Reading.settle, leader.high_watermark

    def settle_unless_it_committed(reading: Reading, now: float) -> None:
        if leader.role is not None and reading is leader.role.reading and leader.high_watermark > committed:
            raise CorruptLog("a segment", "it cannot be read")
        settle(reading, now)

    monkeypatch.setattr(Reading, "settle", settle_unless_it_committed)
    pending = stage.send(b"m1", patience=30.0)
    stage.until(lambda: pending.result != "")
    assert (pending.result, pending.errors) == (OK, [])
    stage.until(lambda: stage.now.leader not in (None, stage.first))
    stage.settle()
    assert stage.values(stage.leader) == [b"m0", b"m1"]
