"""C. Fencing: reports, leaders that are cut off, one-way partitions, topics that were deleted."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest
from support.replica_network import KEY, cluster, code
from tidelog.errors import TidelogError
from tidelog.types import Acks
from tidelog.verify.history import OK, UNKNOWN
from tidelog.wire.messages import (
    Fetch,
    FetchPart,
    ListOffset,
    MetadataUpdate,
    Notify,
    Read,
    Register,
    ReportLeader,
    ReportLoss,
    SuspectPart,
)

from scenarios.stage import Stage


def report(stage: Stage, *nodes: str, leader: str = "", epoch: int = 0, leader_epoch: int = 0, life: int = 0) -> None:
    """Let these servers report the leader as dead, though it is not. The numbers are added to the true epochs."""
    process, state = stage.controller(stage.active), stage.now
    part = SuspectPart(*stage.key, state.epoch + epoch, state.leader_epoch + leader_epoch)
    for node in nodes:
        broker_epoch = stage.invariants.metadata.servers[node].broker_epoch + life
        message = ReportLeader(node, broker_epoch, leader or state.leader or "", "unreachable", (part,))
        process.submit("forged", lambda message=message: process.core.on_request(0, None, message, stage.loop.now))
    stage.run_for(0.1)


def too_late(stage: Stage, a: str, b: str, c: str) -> None:
    """Send the third report when those of the other two have expired."""
    report(stage, a, b)
    stage.run_for(stage.controller_settings.leader_report_window_s)
    report(stage, c)


LIES: dict[str, Callable[[Stage, str, str, str], None]] = {
    "the same ones again": lambda stage, a, b, c: report(stage, a, b, a, b, a, b),
    "too late": too_late,
    "of an earlier epoch": lambda stage, a, b, c: report(stage, a, b, c, epoch=-1),
    "of an earlier leader epoch": lambda stage, a, b, c: report(stage, a, b, c, leader_epoch=-1),
    "of a later epoch": lambda stage, a, b, c: report(stage, a, b, c, epoch=1),
    "about another leader": lambda stage, a, b, c: report(stage, a, b, c, leader=a),
    "of an earlier life": lambda stage, a, b, c: report(stage, a, b, c, life=-1),
    "by the leader itself": lambda stage, a, b, c: report(stage, a, b, stage.first),
}


@pytest.mark.parametrize("lie", LIES)
def test_C3_only_a_timely_report_of_a_member_about_its_own_leader_counts(lie: str):
    """Three of the four followers must agree."""
    stage = Stage(replicas=5)
    a, b, c, _ = stage.others
    stage.put(b"m0")
    stage.until(stage.in_sync)
    before = stage.now
    LIES[lie](stage, a, b, c)
    assert stage.now == before
    stage.run_for(stage.controller_settings.leader_report_window_s)
    report(stage, a, b, c)
    (replaced,) = [change for change in stage.changes if change.cause == "leader_reported"]
    assert (replaced.leader_epoch, replaced.evidence["reports"]) == (before.leader_epoch + 1, "3")
    stage.settle()


def test_C4_a_leader_that_is_cut_off_commits_nothing_stops_with_its_session_and_truncates():
    """Its clients reach it, and it reaches them, all the time."""
    stage = Stage(min_insync_replicas="2")
    first, others = stage.first, stage.others
    stage.send(b"m0", by="hasty", acks=Acks.LEADER)
    stage.put(b"m1", by="careful")
    stage.until(stage.in_sync)
    stage.isolate(first)
    for client in ("hasty", "careful"):  # they know no other leader
        stage.cut(client, *stage.controllers)
    hasty = stage.send(b"m2", by="hasty")
    careful = stage.send(b"m3", by="careful")
    stage.until(lambda: hasty.result == OK and stage.end(first) == 4)
    stage.until(lambda: stage.leader in others)
    stage.run_for(stage.controller_settings.session_timeout_s)
    assert stage.leads(first) and stage.hw(first) == 2, "nobody has told it, nobody follows it"
    for question in (ListOffset(*stage.key, "latest"), Read(*stage.key, 0)):
        answer = stage.ask(first, question)
        assert isinstance(answer, TidelogError) and answer.code == "NOT_LEADER"
    stage.put(b"y", by="other")
    stage.give_up(careful, by="careful")
    assert careful.result == UNKNOWN
    stage.network.heal()
    stage.until(stage.in_sync)
    assert stage.values(first) == [b"m0", b"m1", b"y"]
    stage.settle()


ONE_WAY = list(permutations(("leader", "follower", "controller"), 2))


@pytest.mark.parametrize(("source", "target"), ONE_WAY)
def test_C5_a_one_way_partition_ends_in_one_epoch_and_stays_there(source: str, target: str):
    stage = Stage(min_insync_replicas="2")
    stage.put(b"m0")
    stage.until(stage.in_sync)
    nodes = {"leader": stage.first, "follower": stage.others[0], "controller": stage.active}
    stage.network.block(nodes[source], nodes[target], 1e6)
    stage.put(b"m1")
    stage.run_for(10.0)
    settled = stage.now
    assert settled.leader_epoch <= 1
    stage.run_for(20.0)
    assert stage.now == settled, "nothing goes to and fro"
    stage.put(b"m2")
    leaders = [node for node in stage.replicas if stage.leads(node) and stage.hw(node) == 3]
    assert leaders == [stage.leader]
    stage.settle()


def test_C8_a_leader_replaced_and_reelected_within_one_batch_of_metadata_forgets_its_followers():
    """It never hears that another replica led in between, and that the followers may have cut records that they had
    reported to it."""
    net = cluster(3)
    net.send("r1", b"m0")
    net.advance(4)
    core = net.partition("r1").leading.core
    assert [core.followers[node].durable for node in ("r2", "r3")] == [1, 1]
    net.hold = lambda name, call: isinstance(call.message, Fetch)
    late = Fetch("r2", net.nodes["r2"].broker_epoch, 1 << 16, (FetchPart(*KEY, 0, 1, 0, 1),))
    net.push(leader="r1", leader_epoch=2)
    net.run()
    again = net.partition("r1").leading.core
    assert again is not core and again.leader_epoch == 2
    assert [again.followers[node].durable for node in ("r2", "r3")] == [-1, -1]
    sent = net.send("r1", b"m1")
    assert sent not in net.acks and again.high_watermark == 1
    assert code(net.answers[net.ask("r1", late)].parts[0]) == "FENCED_LEADER_EPOCH"
    assert sent not in net.acks


def test_C8_a_notice_of_an_earlier_leader_comes_too_late():
    """It brings exactly the batch that would come next in the follower's log."""
    stage = Stage(min_insync_replicas="1")
    first, (second, third) = stage.first, stage.others
    stage.put(b"m0")
    stage.until(stage.in_sync)
    late = stage.hold(lambda sender, receiver, message: sender == first and isinstance(message, Notify))
    stage.cut(first, second)
    stage.send(b"m1", patience=20.0)
    stage.until(lambda: any(receiver_has_data(message) for message in late.messages))
    stage.cut(first, *stage.controllers)
    report(stage, second, third)
    stage.until(lambda: stage.follows(third, second) and stage.partition(third).following.core.agreed)
    late.deliver()
    stage.run_for(0.1)
    assert stage.values(second) == stage.values(third) == [b"m0"]
    stage.settle()


def test_C8_a_leader_refuses_requests_of_a_newer_leader_epoch():
    """A leader that is cut off from the controllers hears of its successor's epoch from others."""
    stage = Stage(min_insync_replicas="1")
    first, (second, third) = stage.first, stage.others
    stage.put(b"m0")
    stage.until(stage.in_sync)
    stage.cut(first, *stage.controllers)
    report(stage, second, third)
    stage.until(lambda: stage.leads(second) and stage.follows(third, second))
    life = stage.replica(third).core.broker_epoch
    for question in (ListOffset(*stage.key, "latest", leader_epoch=1), Read(*stage.key, 0, leader_epoch=1)):
        answer = stage.ask(first, question)
        assert isinstance(answer, TidelogError) and answer.code == "UNKNOWN_LEADER_EPOCH"
    answer = stage.ask(first, Fetch(third, life, 1 << 16, (FetchPart(*stage.key, 1, 1, 0, 1),)))
    assert code(answer.parts[0]) == "UNKNOWN_LEADER_EPOCH"
    assert stage.partition(first).leading.core.leader_epoch == 0
    stage.settle()


def receiver_has_data(notice: Notify) -> bool:
    """Return whether a notification carries batches."""
    return any(part.size for part in notice.parts)


def test_C19_a_server_takes_no_part_before_its_registration_is_answered():
    """The metadata name it as the leader, and it has lost all of its data."""
    stage = Stage(flush="os")
    first = stage.first
    stage.put(b"m0")
    stage.until(stage.in_sync)
    stage.hold(lambda sender, receiver, message: isinstance(message, ReportLeader))
    asked = stage.hold(lambda sender, receiver, message: sender == first and isinstance(message, Register))
    stage.lose_power(first)
    stage.restart(first)
    stage.until(lambda: bool(asked.messages))
    stage.run_for(0.2)
    assert stage.leader == first
    answer = stage.ask(first, ListOffset(*stage.key, "latest"), 0.2)
    assert isinstance(answer, TidelogError) and answer.code == "NOT_LEADER"
    assert stage.partition(first) is None
    asked.release()
    stage.settle()
    assert stage.read_all() == [b"m0"]


def test_C19_a_server_ignores_decisions_made_before_its_incarnation_was_registered():
    """A late copy of its registration ends a server's incarnation; it hears of the next one before it hears of the
    other changes."""
    stage = Stage()
    second = stage.others[0]
    stage.put(b"m0")
    stage.until(stage.in_sync)
    news = stage.hold(lambda sender, receiver, message: receiver == second and isinstance(message, MetadataUpdate))
    lives, before = stage.replica(second).core._incarnations, stage.replica(second).core.broker_epoch
    process, copy = stage.controller(stage.active), Register(second, f"sim://{second}", stage.name, lives.names, True)
    process.submit("forged", lambda: process.core.on_request(0, None, copy, stage.loop.now))
    stage.until(lambda: bool(stage.happened("life_ended", second)))
    stage.until(lambda: stage.replica(second).core.broker_epoch > before)
    stage.run_for(0.2)
    assert stage.partition(second).role is None
    news.release()
    stage.settle()


def test_C10_after_an_unclean_election_readers_get_the_divergence_point_and_the_loss_is_counted():
    stage = Stage(min_insync_replicas="1", unclean_election="true")
    first, others = stage.first, stage.others
    stage.put(b"m0")
    stage.until(stage.in_sync)
    stage.kill(*others)
    stage.until(lambda: stage.now.isr == (first,))
    stage.put(b"m1", b"m2")
    stage.put(b"m3")
    stage.run_for(1.5)  # it has written down that all this is committed
    stage.kill(first)
    stage.restart(*others)
    stage.until(lambda: stage.leader in others and stage.leads(stage.leader))
    (unclean,) = [change for change in stage.changes if change.cause == "unclean_election"]
    assert stage.now.unclean_epoch == unclean.leader_epoch
    stage.put(b"y", by="other")
    answer = stage.ask(stage.leader, Read(*stage.key, 4, last_epoch=0))
    assert isinstance(answer, TidelogError) and answer.code == "LOG_TRUNCATED"
    assert (answer.detail["end_offset"], answer.detail["leader_epoch"]) == (1, 0)
    stage.restart(first)
    stage.until(lambda: any(change.event == "records_lost" for change in stage.changes))
    (lost,) = [change.evidence for change in stage.changes if change.event == "records_lost"]
    assert (lost["node"], lost["start"], lost["end"], lost["count"]) == (first, "1", "4", "3")
    stage.until(stage.in_sync)
    assert stage.values(first) == [b"m0", b"y"]
    stage.settle()


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power lost"])
def test_C10_acked_records_after_the_last_checkpoint_that_are_cut_are_reported_as_possibly_lost(power: bool):
    """A returning leader knows only the high watermark of its last checkpoint, and none after a power loss that
    destroyed the checkpoint."""
    stage = Stage(min_insync_replicas="1", unclean_election="true")
    first, others = stage.first, stage.others
    stage.put(b"m0")
    stage.until(stage.in_sync)
    stage.kill(*others)
    stage.until(lambda: stage.now.isr == (first,))
    stage.put(b"m1", b"m2")
    stage.until(lambda: stage.partition(first).log.read_high_watermark() == 3)
    acked = [stage.put(b"m3"), stage.put(b"m4", b"m5")]
    assert all(batch.result == OK for batch in acked)
    assert stage.partition(first).log.read_high_watermark() == 3, "the checkpoint does not know of them"
    if power:
        stage.lose_power(first)
    else:
        stage.kill(first)
    stage.restart(*others)
    stage.until(lambda: stage.leader in others and stage.leads(stage.leader))
    stage.put(b"y", by="other")
    stage.restart(first)
    stage.until(lambda: stage.in_sync() and stage.values(first) == [b"m0", b"y"])
    expected = {"records_possibly_lost": ("1", "6")} if power else {"records_lost": ("1", "3")}
    if not power:
        expected["records_possibly_lost"] = ("3", "6")
    reports = [change for change in stage.changes if change.event.endswith("_lost")]
    assert {report.event: (report.evidence["start"], report.evidence["end"]) for report in reports} == expected
    assert all((report.cause, report.evidence["node"]) == ("unclean_election", first) for report in reports)
    stage.settle()


def test_C10_a_loss_that_was_not_reported_yet_is_reported_by_the_next_life():
    stage = Stage(min_insync_replicas="1", unclean_election="true")
    first, others = stage.first, stage.others
    stage.put(b"m0")
    stage.until(stage.in_sync)
    stage.kill(*others)
    stage.until(lambda: stage.now.isr == (first,))
    stage.put(b"m1")
    stage.kill(first)
    stage.restart(*others)
    stage.until(lambda: stage.leader in others and stage.leads(stage.leader))
    held = stage.hold(lambda sender, receiver, message: isinstance(message, ReportLoss))
    stage.restart(first)
    stage.until(lambda: bool(held.messages) and stage.values(first) == [b"m0"])
    stage.lose_power(first)
    held.lose()
    held.holding = False
    stage.restart(first)
    stage.until(lambda: any(change.event.endswith("_lost") for change in stage.changes))
    found = [change.evidence for change in stage.changes if change.event.endswith("_lost")]
    assert {(lost["start"], lost["end"]) for lost in found} == {("1", "2")}
    stage.until(lambda: not stage.partition(first).log.pending_losses.ranges)
    stage.settle()


def test_C14_a_topic_that_was_made_anew_under_its_name_knows_nothing_of_a_zombie_of_the_old_one():
    stage = Stage(min_insync_replicas="1")
    first, old = stage.first, stage.key
    stage.send(b"m0", by="local", acks=Acks.LEADER)
    stage.until(lambda: stage.in_sync() and stage.hw(first) == 1)
    stage.isolate(first)
    stage.cut("local", *stage.controllers)
    zombie = stage.send(b"of the old topic", by="local")
    stage.until(lambda: zombie.result == OK)
    stage.admin.recreate(stage.options.topics[0])
    stage.until(lambda: stage.admin.done and stage.key != old)
    led = stage.replica(first).core.partitions[old].leading
    assert led is not None, "it knows nothing of all that"
    stage.until(lambda: stage.leader != "" and stage.leads(stage.leader))
    stage.put(b"new", by="other")
    here, there = stage.ask(first, Read(*stage.key, 0)), stage.ask(stage.leader, Read(*old, 0))
    assert here.code == there.code == "NOT_LEADER"
    part = FetchPart(*old, led.core.leader_epoch, 2, led.core.leader_epoch, 2)
    life = stage.invariants.metadata.servers[first].broker_epoch
    fetched = stage.ask(stage.leader, Fetch(first, life, 1 << 16, (part,)))
    assert fetched.parts[0].error.code == "NOT_LEADER"
    stage.network.heal()
    stage.until(stage.in_sync)
    assert all(stage.values(node) == [b"new"] for node in stage.now.replicas)
    stage.settle()
