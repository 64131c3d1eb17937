"""Read-only and paused partitions: what the controllers decide, and what the servers do."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support.applied_commands import Log, code, who
from support.controller_network import ControllerNet
from support.replica_network import KEY, Net, cluster
from support.replica_network import code as code_of
from tidelog.types import Acks, ClusterImage, PartitionState, TopicConfig, TopicState
from tidelog.wire.messages import (
    CreateTopic,
    Digest,
    Done,
    ListOffset,
    PauseTopic,
    Register,
    SetReadOnly,
    TransferLeader,
)
from tidelog_controller.metadata.application import Applied
from tidelog_controller.metadata.commands import RegisterServer, SetReplicas, SetSuccessor, Suspend
from tidelog_controller.metadata.rules.rebalance_planner import plan_rebalance
from tidelog_gateway.cluster_view import ClusterView

# --- the metadata ----------------------------------------------------------------------------------------


def three(**config: object) -> Log:
    log = Log()
    log.register("r1", "r2", "r3")
    log.topic("r1", "r2", "r3", **config)
    return log


def suspend(log: Log, what: str, wanted: bool = True) -> Applied:
    return log.write(Suspend(0, "id", (), what, wanted, asker="ann at home"))


def test_read_only_is_a_new_epoch_and_touches_nothing_else() -> None:
    log = three()
    before = log.partition
    suspend(log, "read_only")
    p = log.partition
    assert (p.read_only, p.epoch, p.leader_epoch, p.isr) == (True, 1, before.leader_epoch, before.isr)
    assert (log.last.event, log.last.evidence) == ("read_only", {"asked_by": "ann at home"})
    log.fence("r1")
    assert log.partition.read_only and log.partition.leader == "r2", "whoever leads next has it too"
    suspend(log, "read_only", wanted=False)
    assert not log.partition.read_only and log.last.event == "writable"


def test_a_suspension_that_is_already_in_force_changes_nothing() -> None:
    log = three()
    for what in ("read_only", "paused"):
        suspend(log, what, wanted=False)
        assert log.partition.epoch == 0
    for what in ("read_only", "paused"):
        suspend(log, what)
        epoch = log.partition.epoch
        suspend(log, what)
        assert log.partition.epoch == epoch


def test_a_pause_changes_neither_leader_nor_isr_and_ends_in_a_new_leader_epoch() -> None:
    log = three()
    suspend(log, "paused")
    p = log.partition
    assert (p.leader, p.leader_epoch, p.isr, p.rests) == ("r1", 0, ("r1", "r2", "r3"), True)
    suspend(log, "paused", wanted=False)
    p = log.partition
    assert (p.leader, p.leader_epoch, p.isr, p.rests) == ("r1", 1, ("r1", "r2", "r3"), False)
    assert [e.event for e in log.state.history["id"][0]] == ["created", "paused", "resumed"]


def test_an_isr_that_was_proposed_before_a_pause_counts_no_more() -> None:
    log = three()
    proposal = log.proposal("r1", "r2")
    suspend(log, "paused")
    assert code(log.write(proposal)) == "STALE_EPOCH"


def test_sessions_and_registrations_count_while_it_is_paused() -> None:
    log = three(flush="os", min_insync_replicas=2)
    suspend(log, "paused")
    log.fence("r1")
    assert who(log.partition) == ("r2", "r2 r3", "")
    log.power_up("r2", wiped=True)
    assert who(log.partition) == ("r3", "r3", ""), "who has lost what it had vouches for nothing"
    log.fence("r3")
    suspend(log, "paused", wanted=False)
    assert who(log.partition) == ("-", "r3", ""), "it waits for who holds everything"


def test_a_paused_quorum_is_sealed_and_elects() -> None:
    log = three(commit_rule="quorum")
    suspend(log, "paused")
    log.fence("r1")
    assert log.partition.sealing and not log.partition.rests, "the logs are opened for it"
    log.write(log.seal("r2", "r3"))
    assert log.partition.leader == "r2" and log.partition.rests
    suspend(log, "paused", wanted=False)
    assert log.partition.sealing, "and anew when it is resumed"


def test_a_pause_withdraws_a_transfer_and_allows_none() -> None:
    log = three()
    log.write(SetSuccessor(0, "id", 0, 0, "r2", "operator"))
    suspend(log, "paused")
    assert log.partition.successor is None
    assert code(log.write(SetSuccessor(0, "id", 0, log.partition.epoch, "r2", "operator"))) == "TOPIC_PAUSED"


def test_a_reassignment_waits_for_the_end_of_the_pause() -> None:
    log = three()
    log.register("r4")
    suspend(log, "paused")
    log.write(SetReplicas(0, "id", 0, log.partition.epoch, ("r1", "r2", "r4"), "reassign"))
    suspend(log, "paused", wanted=False)
    p = log.partition
    assert (p.target, p.learners, p.leader_epoch) == (("r1", "r2", "r4"), ("r4",), 1)


def test_a_rebalance_leaves_paused_partitions_where_they_are() -> None:
    log = three()
    log.register("r4", "r5")
    for node in ("r1", "r2"):
        log.write(RegisterServer(0, node, f"ws://{node}", rack="a"))
    assert plan_rebalance(log.state).moves
    suspend(log, "paused")
    assert not plan_rebalance(log.state).moves


def test_requests_name_a_topic_and_its_partitions() -> None:
    net = ControllerNet(1)
    link = net.link(net.elect())
    net.answer(link, Register("r1", "ws://r1"))
    net.answer(link, CreateTopic("orders", 2, 1))
    for wish in (SetReadOnly, PauseTopic):
        assert net.refusal(link, wish("nobody")).code == "UNKNOWN_TOPIC"
        refusal = net.refusal(link, wish("orders", (0, 2, 7)))
        assert (refusal.code, refusal.message) == ("UNKNOWN_TOPIC", "orders has partitions 0 to 1, and no 2, 7")
        assert net.refusal(link, wish("__timeline")).code == "FORBIDDEN"
        assert net.answer(link, wish("orders", (1,))) == Done()
    (topic,) = net.nodes["c1"].state.topics.values()
    assert [(p.read_only, p.paused) for p in topic.partitions] == [(False, False), (True, True)]
    assert net.refusal(link, TransferLeader("orders", 1, "r1")).code == "TOPIC_PAUSED"
    assert net.answer(link, PauseTopic("orders", pause=False)) == Done()
    (topic,) = net.nodes["c1"].state.topics.values()
    assert [p.paused for p in topic.partitions] == [False, False]


# --- the servers: read-only ------------------------------------------------------------------------------


def test_a_leader_of_a_read_only_partition_takes_nothing_and_serves_readers() -> None:
    net = cluster()
    net.send("r1", b"before")
    net.push(read_only=True)
    net.run()
    for acks in Acks:
        assert code_of(net.acks[net.send("r1", b"after", acks=acks)]) == "TOPIC_READ_ONLY"
    assert net.answers[net.read("r1", 0)].high_watermark == 1
    net.lead("r2", "r1 r2 r3")
    assert code_of(net.acks[net.send("r2", b"after")]) == "TOPIC_READ_ONLY", "the next leader, too"
    net.push(read_only=False)
    net.run()
    assert net.acks[net.send("r2", b"again")].offset == 1
    assert [net.values(name) for name in net.names] == [[b"before", b"again"]] * 3


def test_records_taken_before_read_only_are_committed_and_their_duplicates_acked() -> None:
    net = cluster()
    net.slow_flush |= {"r2": [], "r3": []}
    id = net.send("r1", b"a", producer_id=5, base_sequence=0)
    net.push(read_only=True)
    net.run()
    for name in ("r2", "r3"):
        for effect in net.slow_flush.pop(name):
            net.flush(name, effect)
    net.run()
    assert net.acks[id].offset == 0
    again = net.acks[net.send("r1", b"a", producer_id=5, base_sequence=0)]
    assert (again.offset, again.duplicate) == (0, True), "it was taken before"


# --- the servers: paused ---------------------------------------------------------------------------------


def paused(**options: object) -> Net:
    net = cluster(**options)  # type: ignore[arg-type]
    net.send("r1", b"a")
    net.advance(1.0)
    net.push(paused=True)
    net.run()
    return net


def resume(net: Net, leader: str = "r1") -> None:
    net.push(paused=False, leader=leader, leader_epoch=net.state().leader_epoch + 1)
    net.run()


def test_a_paused_partition_is_closed_everywhere_and_says_so() -> None:
    net = paused()
    assert not any(node.partitions for node in net.nodes.values())
    assert [name for name, _ in net.happened("partition_paused")] == ["r1", "r2", "r3"]
    requests = [net.read("r1", 0), net.read("r2", 0, any_replica=True), net.ask("r1", ListOffset(*KEY, "latest"))]
    requests.append(net.ask("r3", Digest("r3", *KEY)))
    assert {code_of(net.answers[id]) for id in requests} == {"TOPIC_PAUSED"}
    assert code_of(net.acks[net.send("r1", b"b")]) == "TOPIC_PAUSED"


def test_nothing_is_asked_or_proposed_while_it_is_paused() -> None:
    net = paused()
    net.sent.clear()
    net.advance(60.0)
    kinds = {type(message).__name__ for _, message in net.sent}
    assert kinds <= {"Heartbeat"}, "nobody fetches, lags, or is reported"


def test_a_resumed_partition_keeps_its_records() -> None:
    net = paused()
    resume(net)
    assert net.acks[net.send("r1", b"b")].offset == 1
    assert [net.values(name) for name in net.names] == [[b"a", b"b"]] * 3


def test_another_leads_after_a_pause() -> None:
    net = paused()
    net.stop("r1", power=True)
    net.push(leader="r2", leader_epoch=1, isr=("r2", "r3"))
    net.run()
    assert not net.nodes["r2"].partitions, "it is elected, and rests"
    resume(net, "r2")
    assert net.acks[net.send("r2", b"b")].offset == 1
    net.start("r1")
    net.advance(1.0)
    assert [net.values(name) for name in net.names] == [[b"a", b"b"]] * 3


def test_waiting_requests_are_refused_when_the_topic_is_paused() -> None:
    net = cluster()
    net.cut |= {("r2", "r1"), ("r3", "r1")}
    net.drop_notify = True
    id = net.send("r1", b"a")
    reader = net.read("r1", 0, max_wait_ms=60_000)
    net.push(paused=True)
    net.run()
    assert code_of(net.answers[reader]) == "TOPIC_PAUSED"
    assert net.acks[id].error.unknown_outcome and code_of(net.acks[id]) == "TOPIC_PAUSED"


@pytest.mark.parametrize("flush", ["fsync", "interval", "os"])
def test_a_log_is_durable_before_it_is_closed_so_that_an_end_in_order_vouches_for_it(flush: str) -> None:
    net = paused(config=TopicConfig(flush=flush, min_insync_replicas=2))
    for name in list(net.names):
        assert net.close(name), "nothing is left to write"
        net.disks[name].crash(random.Random(0))
    net.start()
    resume(net)
    assert [net.values(name) for name in net.names] == [[b"a"]] * 3


def test_it_is_resumed_before_its_last_flush_has_ended() -> None:
    net = cluster()
    net.slow_flush["r1"] = []
    net.send("r1", b"a", acks=Acks.NONE)
    net.push(paused=True)
    net.run()
    resume(net)
    assert code_of(net.answers[net.read("r1", 0)]) == "OFFLINE", "the old log is not closed yet"
    held = net.slow_flush.pop("r1")
    for effect in held:
        net.flush("r1", effect)
    net.run()
    net.advance(1.0)
    assert [net.values(name) for name in net.names] == [[b"a"]] * 3
    assert net.acks[net.send("r1", b"b")].offset == 1


def test_it_is_paused_while_its_log_is_being_opened() -> None:
    net = cluster()
    net.send("r1", b"a")
    net.stop("r1")
    net.slow_job["r1"] = []
    net.start("r1")
    net.push(paused=True)
    net.run()
    for effect in net.slow_job.pop("r1"):
        net.work("r1", effect)
    net.run()
    assert not net.nodes["r1"].partitions
    resume(net)
    assert net.values("r1") == [b"a"]


def test_a_copy_that_is_not_wanted_any_more_goes_also_while_it_is_paused() -> None:
    net = paused()
    net.push(replicas=("r1", "r2"), isr=("r1", "r2"))
    net.run()
    assert [name for name, _ in net.happened("partition_deleted")] == ["r3"]
    net.delete()
    assert sorted(name for name, _ in net.happened("partition_deleted")) == ["r1", "r2", "r3"]


def test_a_restarted_server_opens_no_paused_log() -> None:
    net = paused()
    net.stop("r2")
    net.start("r2")
    net.advance(1.0)
    assert not net.nodes["r2"].partitions
    assert not net.happened("logs_opened")[3:], "the three of the beginning"


# --- the gateway -----------------------------------------------------------------------------------------


def test_a_refusal_is_final_for_a_gateway_only_where_its_metadata_agree() -> None:
    known = ClusterView()
    state = PartitionState(("r1",), ("r1",), "r1", 1, 1)
    states = (state, replace(state, paused=True), replace(state, read_only=True))
    known.update(ClusterImage(1, "test", (), (TopicState("t1", "orders", partitions=states),)))
    codes = ("TOPIC_PAUSED", "TOPIC_READ_ONLY", "UNKNOWN_TOPIC", "BATCH_TOO_LARGE")
    assert [[known.knows_better("t1", number, code) for code in codes] for number in range(4)] == [
        [True, True, True, False],
        [False, True, True, False],
        [True, False, True, False],
        [False, False, False, False],
    ]
