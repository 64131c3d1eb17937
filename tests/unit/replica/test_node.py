"""Three replica servers on a toy network: from produce to ack, and a server's life at the controller."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support.replica_network import Net, cluster, code, outcome
from tidelog.errors import ConfigError, TidelogError, refuse
from tidelog.types import Acks, TopicConfig
from tidelog.wire.messages import (
    Fetch,
    Heartbeat,
    Message,
    Register,
    Watch,
)
from tidelog_replica.config import ReplicaSettings
from tidelog_replica.node import ReplicaNode


def test_a_batch_is_acked_when_every_isr_member_has_flushed_it() -> None:
    net = cluster()
    id = net.send("r1", b"a", b"b")
    ack = net.acks[id]
    assert (ack.offset, ack.leader_epoch, ack.durability, code(ack)) == (0, 0, "all/fsync", "")
    assert [net.values(name) for name in net.names] == [[b"a", b"b"]] * 3
    assert all(net.partition(name).log.durable == 2 for name in net.names)


def test_R4_no_ack_before_the_last_flush() -> None:
    net = cluster()
    net.slow_flush["r3"] = []
    id = net.send("r1", b"a")
    assert net.values("r3") == [b"a"]
    assert id not in net.acks
    (flush,) = net.slow_flush.pop("r3")
    net.flush("r3", flush)
    net.run()
    assert net.acks[id].offset == 0


def test_acks_leader_waits_for_the_leaders_flush_only_and_acks_none_for_nothing() -> None:
    net = cluster()
    net.slow_flush.update(r1=[], r2=[], r3=[])
    leader, none = net.send("r1", b"a", acks=Acks.LEADER), net.send("r1", b"b", acks=Acks.NONE)
    assert net.acks[none].durability == "received/fsync"
    assert leader not in net.acks
    net.flush("r1", net.slow_flush.pop("r1")[0])
    net.run()
    assert net.acks[leader].durability == "leader/fsync"


def test_group_commit_one_flush_covers_all_records_appended_during_the_last() -> None:
    net = cluster(1)
    net.slow_flush["r1"] = []
    ids = [net.send("r1", b"%d" % i) for i in range(5)]
    first = net.slow_flush["r1"].pop()
    net.flush("r1", first)
    net.run()
    (second,) = net.slow_flush["r1"]
    assert list(net.acks) == ids[:1]
    net.flush("r1", second)
    net.run()
    assert list(net.acks) == ids


def test_a_burst_reaches_the_followers_in_few_fetches() -> None:
    net = cluster(config=TopicConfig(min_insync_replicas=2, flush="os"))
    before = len(net.messages(Fetch))
    ids = [net.send("r1", b"x" * 100, run=False) for _ in range(200)]
    net.run()
    assert all(code(net.acks[id]) == "" for id in ids)
    assert len(net.messages(Fetch)) - before < 30


def test_B16_an_idle_cluster_asks_once_per_idle_wait() -> None:
    net = cluster(partitions=50)
    net.advance(5)
    before = len(net.messages(Fetch))
    net.advance(33)
    assert len(net.messages(Fetch)) - before <= 2 * 11


def test_B16_a_lost_notify_costs_one_idle_wait() -> None:
    net = cluster()
    net.drop_notify = True
    id = net.send("r1", b"a")
    assert id not in net.acks
    net.advance(net.settings.replica_max_idle_wait_s)
    assert net.acks[id].offset == 0


def test_a_busy_partition_does_not_carry_the_idle_ones_along() -> None:
    net = cluster(partitions=20)
    before = len(net.messages(Fetch, "r2"))
    net.send("r1", b"a", partition=7)
    assert all(len(fetch.parts) == 1 for fetch in net.messages(Fetch, "r2")[before:])


def test_a_fetch_answer_is_shared_among_the_partitions_that_wait() -> None:
    net = cluster(partitions=3, settings=ReplicaSettings(fetch_max_bytes=128 << 10))
    net.hold = lambda name, call: isinstance(call.message, Fetch)
    for partition in range(3):
        for _ in range(4):
            net.send("r1", random.Random(partition).randbytes(50_000), acks=Acks.LEADER, partition=partition)
    net.hold = lambda name, call: False
    for name, call in net.held:
        net.deliver(name, call)
    net.run()
    for partition in range(3):
        assert net.values("r2", partition) == net.values("r1", partition)


def test_nothing_is_served_and_no_metadata_counts_before_the_registration_is_answered() -> None:
    net = Net()
    net.start("r2", "r3")
    net.create()
    net.hold = lambda name, call: name == "r1" and isinstance(call.message, Register)
    net.start("r1")
    net._take("r1", net.nodes["r1"].on_metadata(net.image(), net.now))
    net.run()
    assert not net.nodes["r1"].partitions
    assert code(net.acks[net.send("r1", b"a")]) == "NOT_LEADER"
    net.hold = lambda name, call: False
    net.deliver(*net.held.pop())
    net.run()
    assert net.partition("r1").leading is not None


def test_metadata_below_the_index_of_the_registration_is_ignored() -> None:
    net = cluster()
    old = net.image()
    net.stop("r1")
    net.hold = lambda name, call: name == "r1" and isinstance(call.message, Watch)
    net.start("r1")
    net._take("r1", net.nodes["r1"].on_metadata(old, net.now))
    net.run()
    assert not net.nodes["r1"].partitions


def test_R1_a_leader_epoch_is_never_resumed_after_a_restart() -> None:
    net = cluster()
    net.send("r1", b"a")
    net.stop("r1")
    net.start("r1")
    assert net.partition("r1").role is None
    assert net.happened("leadership_refused")
    net.lead("r1", "r1 r2 r3")
    assert net.acks[net.send("r1", b"b")].leader_epoch == 1


def test_B15_a_leader_outside_the_isr_refuses_to_lead() -> None:
    net = cluster()
    net.lead("r2", "r1 r3")
    assert net.partition("r2").role is None
    assert net.happened("leadership_refused")


def test_a_later_life_elsewhere_ends_this_one() -> None:
    net = cluster()
    net.servers["r1"] = net.servers["r1"].__class__("r1", "", 99, fenced=False)
    id = net.send("r1", b"a", run=False)
    net.hold = lambda name, call: name == "r1" and isinstance(call.message, Register)
    net.silent = {"r1"}
    net.advance(1)
    assert net.partition("r1").role is None
    assert outcome(net.acks[id]) in [("NOT_LEADER", True), ("", False)]
    assert net.nodes["r1"].broker_epoch == -1


def test_C4_a_leader_without_controllers_and_without_its_voter_stops_serving_clients() -> None:
    net = without_its_voter()
    net.controller_up = False
    net.advance(2.0)
    assert code(net.answers[net.read("r1", 0)]) == ""
    net.advance(1.5)
    assert code(net.acks[net.send("r1", b"b", acks=Acks.LEADER)]) == "NOT_LEADER"
    assert code(net.answers[net.read("r1", 0)]) == "NOT_LEADER"
    net.controller_up = True
    net.advance(1.0)
    assert code(net.acks[net.send("r1", b"c", acks=Acks.LEADER)]) == ""


def without_its_voter() -> Net:
    """The leader's only voter has been dead for longer than a session lasts."""
    net = cluster(2)
    net.refuse_isr = refuse("REQUEST_TIMED_OUT", "it stays in the ISR")
    net.stop("r2")
    net.advance(4.0)
    return net


def serves_after(net: Net, seconds: float) -> bool:
    """Whether r1 serves its clients so much later, when it has heard nothing more of the controller."""
    net.controller_up = False
    net.advance(seconds)
    return code(net.answers[net.read("r1", 0)]) == ""


@pytest.mark.parametrize(("later", "serves"), [(0.8, True), (1.2, False)])
def test_a_session_lasts_from_when_the_answered_heartbeat_was_sent(later: float, serves: bool) -> None:
    net = without_its_voter()
    net.hold = lambda name, call: isinstance(call.message, Heartbeat)
    net.advance(2.0)
    (held,) = net.held
    sent = net.now - 2.0 + net.settings.heartbeat_s
    net.hold = lambda name, call: False
    net.deliver(*held)
    net.run()
    assert serves_after(net, sent + 2.0 + later - net.now) == serves


@pytest.mark.parametrize(("later", "serves"), [(0.8, True), (1.2, False)])
def test_a_session_lasts_from_when_the_answered_registration_was_sent(later: float, serves: bool) -> None:
    net = without_its_voter()
    net.stop("r1")
    net.hold = lambda name, call: isinstance(call.message, Register)
    net.start("r1")
    net.advance(2.0)
    (held,) = net.held
    net.hold = lambda name, call: isinstance(call.message, Heartbeat)
    net.deliver(*held)
    net.run()
    net.lead("r1", "r1 r2")
    assert serves_after(net, later) == serves


def test_heartbeats_go_on_and_a_lost_registration_is_tried_again() -> None:
    net = Net(1)
    net.controller_up = False
    net.start()
    net.advance(1.0)
    net.controller_up = True
    net.advance(1.0)
    assert net.nodes["r1"].broker_epoch >= 1
    before = len(net.messages(Heartbeat))
    net.advance(5.0)
    assert 9 <= len(net.messages(Heartbeat)) - before <= 11


def test_D10_a_data_directory_of_another_node_or_cluster_is_refused() -> None:
    net = cluster()
    with pytest.raises(ConfigError, match="belongs to node r1"):
        ReplicaNode("r2", "", net.disks["r1"], "/data", net.settings, random.Random(0)).start(0)
    with pytest.raises(ConfigError, match="belongs to cluster c"):
        ReplicaNode("r1", "", net.disks["r1"], "/data", net.settings, random.Random(0), "other").start(0)


def test_a_life_registers_with_its_names_and_whether_anything_may_be_lost() -> None:
    net = cluster(boot="monday")
    net.send("r1", b"a")
    net.stop("r2")
    net.start("r2")
    net.boot = "tuesday"
    net.stop("r2", power=True)
    net.start("r2")
    first, killed, power = net.messages(Register, "r2")
    assert (len(first.lives), first.clean) == (1, False)
    assert (killed.lives[0], len(killed.lives), killed.clean) == (first.lives[0], 2, True)
    assert (power.lives[0], power.clean) == (killed.lives[1], False)


def test_a_server_that_registers_again_is_the_same_life_and_clean() -> None:
    net = cluster()
    net.servers["r2"] = replace(net.servers["r2"], broker_epoch=99)
    net.advance(1)
    first, again = net.messages(Register, "r2")
    assert (again.lives, again.clean) == (first.lives, True)


def test_a_life_that_is_refused_takes_another_name_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is one of an earlier life: a registration from before its disk was swapped has come late."""
    net = cluster()
    known = net.messages(Register, "r2")[-1].lives[-1]

    def control(name: str, message: Message) -> Message | TidelogError:
        if isinstance(message, Register) and message.lives[-1] == known:
            return refuse("FENCED_BROKER_EPOCH", "r2 has begun another incarnation since")
        return answer(name, message)

    answer = net.control
    monkeypatch.setattr(net, "control", control)
    net.servers["r2"] = replace(net.servers["r2"], broker_epoch=99)
    net.advance(5)
    refused, accepted = net.messages(Register, "r2")[-2:]
    assert refused.lives == (known,)
    assert accepted.lives == (known, accepted.lives[1]) and accepted.clean, "nothing that it wrote is lost"
    assert net.send("r1", b"a") and net.values("r2") == [b"a"]
    net.stop("r2")
    net.start("r2")
    assert net.messages(Register, "r2")[-1].lives[0] == accepted.lives[1], "the directory knows it too"


@pytest.mark.parametrize("flush", ["fsync", "interval", "os"])
def test_a_shutdown_in_order_flushes_everything_and_says_so(flush: str) -> None:
    net = cluster(config=TopicConfig(min_insync_replicas=2, flush=flush, flush_interval_ms=60_000))
    net.send("r1", b"a", acks=Acks.NONE)
    net.send("r1", b"b", acks=Acks.NONE)
    assert net.close("r1")
    net.disks["r1"].crash(random.Random(3))
    net.start("r1")
    assert net.messages(Register, "r1")[-1].clean
    assert net.values("r1") == [b"a", b"b"]
    assert net.partition("r1").high_watermark == (1 if flush == "interval" else 2)


def test_logs_that_are_not_open_yet_keep_a_shutdown_from_being_clean() -> None:
    net = cluster(boot="monday")
    net.stop("r1")
    net.slow_job["r1"] = []
    net.start("r1")
    assert not net.close("r1")


def test_D6_a_server_whose_disk_failed_is_not_clean_in_its_next_incarnation() -> None:
    net = cluster(boot="monday")
    net.disks["r1"].fail_syncs()
    net.send("r1", b"a")
    assert net.stopped == ["r1"]
    net.disks["r1"].heal()
    net.stop("r1")
    net.start("r1")
    assert not net.messages(Register, "r1")[-1].clean


def test_D6_a_server_that_cannot_write_its_life_down_does_not_begin_it() -> None:
    net = Net(1, boot="monday")
    net.controller_up = False
    net.start()
    net.disks["r1"].fail_writes()
    net.controller_up = True
    net.advance(1)
    assert net.stopped == ["r1"]
    assert net.nodes["r1"].broker_epoch == -1


def test_C13_data_is_deleted_only_when_a_delta_names_its_topic() -> None:
    net = cluster()
    net.send("r1", b"a")
    topics, net.topics = net.topics, {}
    net.index += 1
    for name in net.names:
        net._take(name, net.nodes[name].on_metadata(net.image(), net.now))
    net.run()
    assert net.partition("r1").role is None
    assert net.values("r1") == [b"a"]
    net.topics = topics
    net.broadcast()
    net.run()
    net.delete()
    for name in net.names:
        assert not net.nodes[name].partitions
        assert net.disks[name].listdir("/data") == ["meta", "meta-copy"]


def test_a_topic_deleted_during_a_flush_goes_when_the_flush_is_over() -> None:
    net = cluster(1)
    net.slow_flush["r1"] = []
    id = net.send("r1", b"a")
    net.delete()
    assert outcome(net.acks[id]) == ("NOT_LEADER", True)
    assert len(net.disks["r1"].listdir("/data")) == 3
    net.flush("r1", net.slow_flush["r1"].pop())
    net.run()
    assert net.disks["r1"].listdir("/data") == ["meta", "meta-copy"]
