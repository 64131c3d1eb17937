"""B. Eligible leader replicas (KIP-966): who may lead when the in-sync replicas are gone."""

from __future__ import annotations

from scenarios.stage import Stage


def drop_to_one(stage: Stage) -> tuple[str, str, str]:
    """Let 2 leave the ISR while it is large enough without it, and 3 leave it below the minimum, so that 3 stays
    eligible; the leader 1 is alone."""
    one, (two, three) = stage.first, stage.others
    stage.put(b"with all")
    stage.kill(two)
    stage.until(lambda: stage.now.isr == tuple(n for n in stage.now.replicas if n != two))
    stage.put(b"without 2")
    stage.kill(three)
    stage.until(lambda: stage.now.isr == (one,))
    assert stage.now.elr == (three,), "2 left while the HW could still move on without it"
    return one, two, three


def test_B6_an_eligible_replica_leads_when_the_last_of_the_isr_dies_with_its_disk():
    stage = Stage(min_insync_replicas="2")
    one, two, three = drop_to_one(stage)
    pending = stage.send(b"never committed", by="refused", patience=2.0)
    stage.until(lambda: pending.result != "")
    assert pending.errors[-1] == "NOT_ENOUGH_REPLICAS"
    stage.lose_power(one)
    stage.restart(two)
    stage.run_for(5.0)
    assert stage.leader == "", "2 is not eligible: it does not hold what was committed without it"
    stage.restart(three)
    stage.until(lambda: stage.leader == three)
    assert stage.read_all() == [b"with all", b"without 2"], "nothing acked is lost"
    stage.until(lambda: two in stage.now.isr)
    assert stage.now.elr == ()
    stage.put(b"with 2 and 3")
    stage.settle()


def test_B6_the_eligible_replica_is_not_forgotten_when_everybody_is_away():
    stage = Stage(min_insync_replicas="2")
    one, two, three = drop_to_one(stage)
    stage.kill(one)
    stage.run_for(5.0)
    assert (stage.leader, set(stage.now.isr) | set(stage.now.elr)) == ("", {one, three})
    stage.restart(two)
    stage.run_for(5.0)
    assert stage.leader == ""
    stage.restart(three)
    stage.until(lambda: stage.leader == three)
    assert stage.read_all() == [b"with all", b"without 2"]
    stage.settle()


def test_B6_the_elr_ends_when_the_isr_is_large_enough_again():
    """From then on the HW moves without the replica. If it were still eligible, it could lead without committed
    records."""
    stage = Stage(min_insync_replicas="2")
    one, two, three = drop_to_one(stage)
    stage.restart(two)
    stage.until(lambda: two in stage.now.isr)
    assert stage.now.elr == ()
    stage.put(b"without 3")
    stage.kill(one, two)
    stage.restart(three)
    stage.run_for(5.0)
    assert stage.leader != three
    stage.settle()
    assert b"without 3" in stage.read_all()


def test_B7_all_lose_power_and_the_one_that_kept_its_data_leads_and_the_event_says_that_loss_is_possible():
    """The operating system flushes: acked records are on the leader's disk only, which was written back."""
    stage = Stage(flush="os", min_insync_replicas="2", unclean_election="true")
    kept = stage.first
    stage.put(b"m0")
    stage.write_back(kept)
    stage.lose_power(*stage.replicas)
    stage.run_for(3.0)
    assert stage.leader == ""
    stage.restart(kept)
    stage.until(lambda: stage.leads(kept))
    stage.restart(*stage.others)
    assert stage.read_all() == [b"m0"]
    (unclean,) = [change for change in stage.changes if change.cause == "unclean_election"]
    assert unclean.evidence["loss"] == "possible"
    assert stage.now.unclean_epoch == unclean.leader_epoch
    stage.settle()


def test_B7_without_leave_to_lose_records_nobody_leads_after_all_lost_power():
    stage = Stage(flush="os", min_insync_replicas="2")
    stage.put(b"m0")
    stage.write_back(stage.first)
    stage.lose_power(*stage.replicas)
    stage.restart(*stage.replicas)
    stage.run_for(10.0)
    assert stage.leader == ""
    assert stage.now.isr == stage.now.elr == ()
