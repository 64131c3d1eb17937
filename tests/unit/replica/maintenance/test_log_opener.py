"""Logs are opened and deleted in threads: what a partition says and what becomes of it meanwhile."""

from __future__ import annotations

import errno
import os

import pytest
from support.replica_network import KEY, Net, cluster, code
from tidelog.types import TopicPartition
from tidelog.wire.messages import HandOver
from tidelog_replica.effects import StartJob
from tidelog_replica.maintenance.log_deletion import DeleteLog
from tidelog_replica.maintenance.log_opener import AT_ONCE, OpenLog

PATH = f"/data/{KEY.topic_id}-0"


def work(net: Net, name: str, count: int | None = None) -> list[StartJob]:
    """Do the jobs that are held back, the first ``count`` of them."""
    done = net.slow_job[name][:count]
    del net.slow_job[name][:count]
    for effect in done:
        net.work(name, effect)
    net.run()
    return done


def restarted(net: Net, name: str) -> None:
    """A new life of the server, whose jobs wait."""
    net.stop(name)
    net.slow_job[name] = []
    net.start(name)


def test_a_partition_that_is_being_opened_says_so_and_serves_when_it_is_open() -> None:
    net = Net(3)
    net.slow_job["r1"] = []
    net.start()
    net.create()
    early, read = net.send("r1", b"a"), net.read("r1", 0)
    refused = net.answers[read]
    assert (code(net.acks[early]), refused.code) == ("OFFLINE", "OFFLINE")
    assert refused.retriable and "is being opened on r1" in refused.message
    net.advance(10)
    assert net.reports == [], "a leader that is opening its log is not suspected"
    assert [type(effect.job) for effect in work(net, "r1")] == [OpenLog]
    net.advance(1)
    late = net.send("r1", b"b")
    assert net.acks[late].offset == 0
    assert net.values("r3") == [b"b"]


def test_only_the_newest_of_the_states_that_came_meanwhile_is_acted_on() -> None:
    net = Net(3)
    net.slow_job["r2"] = []
    net.start()
    net.create()
    net.lead("r2", "r1 r2 r3")
    net.lead("r3", "r1 r2 r3")
    work(net, "r2")
    roles = [event.name for name, event in net.events if name == "r2" and event.name.endswith("_became")]
    assert roles == ["follower_became"]
    assert net.partition("r2").state == net.state()
    ack = net.send("r3", b"a")
    assert net.acks[ack].offset == 0 and net.values("r2") == [b"a"]


def test_logs_are_opened_by_need() -> None:
    net = cluster(2, partitions=AT_ONCE + 3)
    last, other = AT_ONCE + 2, AT_ONCE + 1
    net.stop("r2")
    net.push(other, isr=("r1",))
    net.push(last, leader="r2", leader_epoch=1)
    net.slow_job["r2"] = []
    net.start("r2")
    begun = [effect.key.partition for effect in net.slow_job["r2"]]
    assert begun == [last, *range(AT_ONCE - 1)], "what it leads first; not all at once"
    rest = [effect.key.partition for effect in work(net, "r2")] and [e.key.partition for e in net.slow_job["r2"]]
    assert rest == [AT_ONCE - 1, AT_ONCE, other], "what it is not in sync for last"
    work(net, "r2")
    assert len(net.nodes["r2"].partitions) == AT_ONCE + 3


def test_need_changes_while_a_log_waits() -> None:
    net = cluster(2, partitions=AT_ONCE + 2)
    restarted(net, "r2")
    net.push(AT_ONCE + 1, leader="r2", leader_epoch=1)
    net.run()
    work(net, "r2", 1)
    assert net.slow_job["r2"][-1].key.partition == AT_ONCE + 1


def test_a_topic_deleted_while_its_log_is_being_opened_goes_when_that_is_over() -> None:
    net = cluster(2, partitions=AT_ONCE + 1)
    restarted(net, "r2")
    net.delete()
    opening = work(net, "r2")
    assert len(opening) == AT_ONCE + 1
    assert isinstance(opening[-1].job, DeleteLog), "nothing is opened only to be deleted"
    assert {type(effect.job) for effect in opening[:-1]} == {OpenLog}
    work(net, "r2")
    assert net.nodes["r2"].partitions == {}
    assert net.disks["r2"].listdir("/data") == ["meta", "meta-copy"]
    assert len([name for name, _ in net.happened("partition_deleted") if name == "r2"]) == AT_ONCE + 1


def test_a_partition_reassigned_while_its_log_waits_is_deleted_unopened_and_returns_empty() -> None:
    net = cluster(3, partitions=AT_ONCE + 1)
    restarted(net, "r3")
    for number in (0, AT_ONCE):
        net.push(number, replicas=("r1", "r2"), isr=("r1", "r2"))
    net.run()
    opened = [effect.key.partition for effect in work(net, "r3")]
    assert opened[:AT_ONCE] == list(range(AT_ONCE)), "the first was being opened already"
    work(net, "r3")
    assert TopicPartition(KEY.topic_id, 0) not in net.nodes["r3"].partitions
    assert len([name for name in net.disks["r3"].listdir("/data") if not name.startswith("meta")]) == AT_ONCE - 1
    net.push(AT_ONCE, replicas=("r1", "r2", "r3"))
    net.push(0, replicas=("r1", "r2", "r3"))
    net.run()
    work(net, "r3")
    assert net.partition("r3", 0).following and net.partition("r3", AT_ONCE).following


def test_a_partition_reassigned_to_and_fro_while_its_log_is_being_opened_begins_with_an_empty_copy() -> None:
    net = cluster(3)
    net.send("r1", b"a")
    restarted(net, "r3")
    net.push(0, replicas=("r1", "r2"), isr=("r1", "r2"))
    net.push(0, replicas=("r1", "r2", "r3"))
    net.run()
    assert [type(effect.job) for effect in work(net, "r3")] == [OpenLog]
    assert [type(effect.job) for effect in work(net, "r3")] == [DeleteLog]
    assert [type(effect.job) for effect in work(net, "r3")] == [OpenLog]
    net.advance(1)
    assert net.values("r3") == [b"a"]


def test_the_end_of_the_servers_life_leaves_an_opening_without_a_role() -> None:
    net = cluster(2)
    restarted(net, "r2")
    former = net.servers["r2"].broker_epoch
    net.servers["r2"] = net.servers["r1"]  # a later life has registered
    net.controller_up = True
    net.hold = lambda name, call: name == "r2" and type(call.message).__name__ == "Register"
    net.advance(1)
    ((_, ended),) = net.happened("life_ended")
    assert ended.fields["broker_epoch"] == former
    work(net, "r2")
    assert net.partition("r2").role is None and net.partition("r2").state is None
    net.hold = lambda name, call: False
    name, call = net.held.pop()
    net.deliver(name, call)
    net.run()
    assert net.partition("r2").following is not None


def test_a_log_that_cannot_be_written_ends_the_process_and_a_damaged_one_does_not() -> None:
    net = cluster(2)
    net.send("r1", b"a")
    restarted(net, "r2")
    net.disks["r2"].replace(f"{PATH}/{0:020d}.log", net.disks["r2"].read(f"{PATH}/{0:020d}.log") + b"torn")
    net.disks["r2"].fail_syncs(errno.EIO)
    work(net, "r2")
    assert net.stopped == ["r2"]

    net = cluster(2)
    net.send("r1", b"a")
    net.advance(6)
    net.disks["r2"].replace(f"{PATH}/{0:020d}.log", b"x" * 200)
    restarted(net, "r2")
    work(net, "r2")
    assert net.stopped == []
    assert code(net.answers[net.read("r2", 0)]) == "OFFLINE"
    net.delete()
    work(net, "r2")
    work(net, "r2")
    assert net.disks["r2"].listdir("/data") == ["meta", "meta-copy"], "also a damaged log is deleted with its topic"


HOLDING_BACK = [errno.EACCES, errno.EMFILE, errno.EIO]


@pytest.mark.parametrize("error", HOLDING_BACK, ids=map(errno.errorcode.get, HOLDING_BACK))
def test_a_log_of_which_nothing_can_be_known_is_offline_with_its_cause_and_tried_again_ever_less_often(
    error: int,
) -> None:
    """No rights, no descriptors, a directory that cannot be read: nothing of it is touched, or taken for empty."""
    net = cluster(2)
    for value in (b"a", b"b"):
        net.send("r1", value)
    net.advance(6)
    net.stop("r1")
    net.stop("r2")
    before = contents(net)
    net.disks["r1"].fail_reads(error, only=PATH)
    net.push(isr=("r1",))
    net.start("r1")
    refused = net.answers[net.read("r1", 0)]
    assert (refused.code, refused.retriable) == ("OFFLINE", True) and os.strerror(error) in refused.message
    assert "opening" not in refused.detail, "whoever follows may suspect it"
    tried = len(opened(net))
    net.advance(600)
    assert 10 <= len(opened(net)) - tried <= 20
    assert net.stopped == [] and len(net.happened("partition_offline")) == 1 and not net.messages(HandOver)
    assert contents(net) == before
    net.disks["r1"].heal()
    net.advance(61)
    net.start("r2")
    net.push(leader="r1", leader_epoch=net.state().leader_epoch + 1)
    net.advance(1)
    assert net.values("r1") == net.values("r2") == [b"a", b"b"], "without a restart"


def contents(net: Net) -> dict[str, bytes]:
    """All files of r1's log."""
    disk = net.disks["r1"]
    with disk.watched():
        return {path: disk.read(path) for path in disk.files() if path.startswith(PATH)}


def opened(net: Net) -> list[OpenLog]:
    """All tries of r1 to open a log."""
    return [job for name, job in net.jobs if name == "r1" and isinstance(job, OpenLog)]


def test_a_log_that_is_held_back_is_tried_at_once_when_there_is_news_of_it() -> None:
    net = cluster(2)
    net.stop("r2")
    net.disks["r2"].fail_reads(errno.EACCES, only=PATH)
    net.start("r2")
    net.advance(100)
    net.disks["r2"].heal()
    net.push(isr=("r1",))
    net.run()
    assert net.partition("r2").following is not None


def test_tries_that_changes_of_the_metadata_begin_do_not_lengthen_the_pause() -> None:
    net = cluster(2)
    net.stop("r2")
    net.disks["r2"].fail_reads(errno.EACCES, only=PATH)
    net.start("r2")
    for _ in range(10):
        net.push(isr=("r1",), leader_epoch=net.state().leader_epoch + 1)
        net.run()
    net.advance(1.5)
    net.disks["r2"].heal()
    net.advance(2)
    assert net.partition("r2").following is not None, "after pauses of 1 and 2 s"


def test_a_log_that_is_held_back_goes_with_its_topic() -> None:
    net = cluster(2)
    net.stop("r2")
    net.disks["r2"].fail_reads(errno.EMFILE, only=PATH)
    net.start("r2")
    net.disks["r2"].heal()
    net.delete()
    assert net.disks["r2"].listdir("/data") == ["meta", "meta-copy"]
    net.advance(100)
    assert net.disks["r2"].listdir("/data") == ["meta", "meta-copy"] and net.stopped == []


def test_data_left_over_by_an_earlier_assignment_goes_with_its_topic() -> None:
    net = cluster(3)
    net.stop("r3")
    net.push(replicas=("r1", "r2"), isr=("r1", "r2"))
    net.start("r3")
    assert KEY not in net.nodes["r3"].partitions
    net.delete()
    assert net.disks["r3"].listdir("/data") == ["meta", "meta-copy"]


def test_settings_that_change_while_its_log_is_being_opened_hold_when_it_is_open() -> None:
    net = cluster()
    restarted(net, "r1")
    net.reconfigure(replica_max_lag_ms=1234)
    work(net, "r1")
    assert net.nodes["r1"].partitions[KEY].config.replica_max_lag_ms == 1234
