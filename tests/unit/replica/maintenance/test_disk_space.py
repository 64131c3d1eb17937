"""A disk that is full: what a server keeps back for that, what it goes on with, and how it comes out of it again."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pytest
from support.replica_network import Net, code
from tidelog.testing.hardware.disk import SimDisk
from tidelog.types import Acks, TopicConfig
from tidelog.wire.messages import HandOver
from tidelog_replica.config import ReplicaSettings
from tidelog_replica.maintenance.disk_space import CHECK_S, ERROR_RETRY_S, NAME, RETRY_S

RESERVE = 64 << 10
RESERVE_PATH = f"/data/{NAME}"
SETTINGS = ReplicaSettings(reserve_bytes=RESERVE, retention_check_interval_s=1000)
VALUE = bytes(1000)


def topic(minimum: int = 1, **fields: Any) -> TopicConfig:
    return TopicConfig(min_insync_replicas=minimum, segment_max_bytes=4000, **fields)


def roomy(nodes: int = 1, config: TopicConfig | None = None, settings: ReplicaSettings = SETTINGS) -> Net:
    """Servers that have their reserve, and some records."""
    net = Net(nodes, config=config or topic(), settings=settings)
    net.start()
    net.create()
    for _ in range(10):
        net.send("r1", VALUE)
    net.advance(6)
    assert all(disk.exists(RESERVE_PATH) or not settings.reserve_bytes for disk in net.disks.values())
    return net


def fill(disk: SimDisk, free: int = 0) -> None:
    """Others have written so much that this much is free."""
    disk.capacity = 1 << 39
    disk.capacity -= disk.free("/data") - free


def produced(net: Net, name: str, **fields: Any) -> str:
    return code(net.acks[net.send(name, VALUE, **fields)])


def read(net: Net, name: str, offset: int = 0) -> Any:
    return net.answers[net.read(name, offset)]


# --- at a start ------------------------------------------------------------------------------------------


def test_without_a_reserve_a_full_disk_keeps_a_server_from_starting() -> None:
    net = Net(1, config=topic(), settings=ReplicaSettings(reserve_bytes=0))
    net.start()
    net.stop("r1")
    fill(net.disks["r1"])
    with pytest.raises(OSError, match="no space"):
        net.start("r1")


def test_a_server_starts_on_a_full_disk_serves_reads_and_refuses_records() -> None:
    net = roomy()
    net.stop("r1")
    fill(net.disks["r1"])
    net.start("r1")
    net.push(leader="r1", leader_epoch=net.state().leader_epoch + 1)
    net.advance(5)
    assert net.stopped == [] and not net.disks["r1"].exists(RESERVE_PATH)
    assert code(read(net, "r1")) == "" and net.values("r1") == [VALUE] * 10
    ack = net.acks[net.send("r1", VALUE)]
    assert ack.error.code == "DISK_FULL" and "bytes are free in /data" in ack.error.message
    assert produced(net, "r1", acks=Acks.LEADER) == "DISK_FULL"
    assert [e.fields["reserve_given_up"] for _, e in net.happened("disk_full")] == [True]


def test_a_reserve_that_is_left_from_other_settings_goes_with_the_first_error_and_nobody_waits_for_it() -> None:
    net = roomy()
    net.stop("r1")
    disk, net.settings = net.disks["r1"], replace(SETTINGS, reserve_bytes=0)
    fill(disk)
    net.start("r1")
    assert not disk.exists(RESERVE_PATH) and not net.nodes["r1"].disk_space.is_full
    net.push(leader="r1", leader_epoch=net.state().leader_epoch + 1)
    net.run()
    assert produced(net, "r1") == "", "who keeps no reserve looks at nothing"


def test_where_no_check_shows_a_full_disk_the_first_error_releases_the_reserve() -> None:
    """A quota, or no more inodes: bytes are free."""
    net = roomy()
    net.stop("r1")

    class Quota(SimDisk):
        def write_atomic(self, path: str, data: bytes) -> None:
            if self.exists(RESERVE_PATH):
                raise OSError(errno.EDQUOT, "over quota", path)
            super().write_atomic(path, data)

    net.disks["r1"].__class__ = Quota
    net.start("r1")
    net.push(leader="r1", leader_epoch=net.state().leader_epoch + 1)
    net.run()
    assert not net.disks["r1"].exists(RESERVE_PATH) and len(net.happened("disk_full")) == 1
    assert produced(net, "r1") == "DISK_FULL"
    net.disks["r1"].__class__ = SimDisk
    net.advance(RETRY_S - 1)
    assert produced(net, "r1") == "DISK_FULL", "nobody knows; a reserve tells, which is made again after a while"
    net.advance(2)
    assert produced(net, "r1") == "" and net.disks["r1"].exists(RESERVE_PATH)


def test_an_error_that_is_none_of_room_is_not_tried_again() -> None:
    net = roomy()
    net.stop("r1")
    net.disks["r1"].fail_writes(errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        net.start("r1")
    assert net.disks["r1"].exists(RESERVE_PATH)


# --- while it runs ---------------------------------------------------------------------------------------


def test_retention_makes_room_and_records_are_taken_again_without_a_restart() -> None:
    net = roomy(config=topic(retention_bytes=4000))
    fill(net.disks["r1"], RESERVE - 1)
    net.disks["r1"].capacity += 2 * RESERVE - 20_000  # what retention frees is enough for the rest
    net.nodes["r1"].on_tick(net.now)
    fill(net.disks["r1"], RESERVE - 1)
    assert net.partition("r1").log.start == 0
    net.advance(2)
    assert net.partition("r1").log.start > 0, "long before its time"
    assert produced(net, "r1") == "DISK_FULL", "the reserve and that are not enough yet"
    net.disks["r1"].capacity += 3 * RESERVE
    net.advance(2)
    assert produced(net, "r1") == ""
    assert net.disks["r1"].exists(RESERVE_PATH), "for the next time"
    assert len(net.happened("disk_full")) == len(net.happened("disk_roomy")) == 1 and net.stopped == []


def test_between_roomy_and_full_nothing_changes() -> None:
    net = roomy()
    fill(net.disks["r1"], RESERVE)
    net.advance(5)
    assert produced(net, "r1") == "" and net.disks["r1"].exists(RESERVE_PATH)
    fill(net.disks["r1"], RESERVE - 1)
    net.advance(2)
    fill(net.disks["r1"], 3 * RESERVE - 1)
    net.advance(2)
    assert produced(net, "r1") == "DISK_FULL" and not net.disks["r1"].exists(RESERVE_PATH)
    fill(net.disks["r1"], 3 * RESERVE + 5000)
    net.advance(2)
    assert produced(net, "r1") == "" and net.disks["r1"].exists(RESERVE_PATH)


def test_appends_between_two_checks_of_the_disk_are_bounded() -> None:
    """No write of ours meets the end of the disk: half of the reserve is appended at most before it is looked."""
    net = roomy()
    fill(net.disks["r1"], 2 * RESERVE)
    codes = [produced(net, "r1") for _ in range(200)]
    assert codes[0] == "" and codes[-1] == "DISK_FULL"
    assert net.stopped == [] and net.disks["r1"].free("/data") >= RESERVE


def test_a_reserve_for_which_there_is_no_room_after_all_is_tried_again_later() -> None:
    net = Net(1, config=topic(), settings=SETTINGS)
    disk = net.disks["r1"]
    fill(disk, 4 * RESERVE)
    disk.allocate = lambda path, size: SimDisk.allocate(disk, path, 5 * RESERVE)  # type: ignore[method-assign]
    net.start()
    net.create()
    assert not disk.exists(RESERVE_PATH) and len(net.happened("reserve_failed")) == 1
    del disk.allocate  # type: ignore[method-assign]
    assert produced(net, "r1") == ""
    net.advance(RETRY_S - 1)
    assert not disk.exists(RESERVE_PATH)
    net.advance(2)
    assert disk.exists(RESERVE_PATH)


def test_a_full_server_takes_records_soon_after_a_reserve_that_an_error_of_the_disk_prevented() -> None:
    net = roomy()
    disk = net.disks["r1"]
    fill(disk)
    net.advance(CHECK_S)
    assert produced(net, "r1") == "DISK_FULL"

    def fail(path: str, size: int) -> None:
        raise OSError(errno.EIO, "simulated", path)

    disk.allocate = fail  # type: ignore[method-assign]
    fill(disk, 100 * RESERVE)
    net.advance(CHECK_S)
    assert len(net.happened("reserve_failed")) == 1
    del disk.allocate  # type: ignore[method-assign]
    net.advance(ERROR_RETRY_S + CHECK_S)
    assert disk.exists(RESERVE_PATH) and produced(net, "r1") == ""


def test_a_topic_can_be_deleted_where_not_one_byte_can_be_written() -> None:
    net = roomy(settings=replace(SETTINGS, reserve_bytes=0))
    fill(net.disks["r1"])
    net.delete()
    assert [name for name in net.disks["r1"].files() if name.endswith(".log")] == []
    assert net.happened("delete_failed") == [] and net.stopped == []


# --- beside others ---------------------------------------------------------------------------------------


def test_a_full_leader_leaves_the_partition_to_one_that_has_room() -> None:
    net = roomy(3, topic(2))
    fill(net.disks["r1"])
    net.advance(2)
    assert {(asked.reason, asked.lost) for asked in net.messages(HandOver, "r1")} == {("disk_full", False)}
    net.lead("r2", "r2 r3")
    assert produced(net, "r2") == ""
    net.advance(5)
    assert net.values("r1") == [VALUE] * 10 and "r1" not in net.state().isr
    assert net.stopped == []
    net.disks["r1"].capacity = 1 << 40
    net.advance(5)
    assert net.values("r1") == [VALUE] * 11 and "r1" in net.state().isr, "without a restart"


def test_a_full_follower_takes_nothing_also_nothing_that_it_did_not_ask_for() -> None:
    net = roomy(2, topic(1))
    fill(net.disks["r2"], RESERVE - 1)
    net.advance(2)
    assert [m.reason for m in net.messages(HandOver, "r2")][:1] == ["disk_full"]
    net.push(isr=("r1",))
    net.run()
    count = len(net.messages(HandOver))
    for _ in range(5):
        assert produced(net, "r1") == ""
    net.advance(30)
    assert net.values("r2") == [VALUE] * 10 and net.state().isr == ("r1",)
    assert len(net.messages(HandOver)) == count
    net.disks["r2"].capacity = 1 << 40
    net.advance(5)
    assert net.values("r2") == [VALUE] * 15 and net.state().isr == ("r1", "r2")


def test_the_last_in_sync_leads_on_though_its_disk_is_full_too() -> None:
    net = roomy(2, topic(1))
    for disk in net.disks.values():
        fill(disk)
    net.advance(2)
    net.push(leader="r2", isr=("r2",), leader_epoch=1)
    net.advance(30)
    state = net.state()
    assert (state.leader, state.isr, state.leader_epoch) == ("r2", ("r2",), 1), "nobody pushes it to and fro"
    assert code(read(net, "r2")) == "" and produced(net, "r2") == "DISK_FULL"
    assert net.stopped == []


def test_a_full_follower_which_hears_nothing_of_its_leader_goes_by_retention_itself() -> None:
    net = roomy(2, topic(1, retention_bytes=4000))
    fill(net.disks["r2"], RESERVE - 1)
    net.advance(12)
    assert net.partition("r1").log.start == 0, "its turn has not come"
    assert net.partition("r2").log.start > 0
    assert net.partition("r2").log.start <= net.partition("r2").high_watermark


QUORUM = TopicConfig(min_insync_replicas=2, commit_rule="quorum")


def test_under_quorum_a_full_leader_hands_over_and_keeps_its_promises() -> None:
    net = roomy(3, QUORUM)
    fill(net.disks["r1"])
    net.advance(2)
    assert {(asked.reason, asked.lost) for asked in net.messages(HandOver, "r1")} == {("disk_full", False)}
    net.lead("r2", "r1 r2 r3")
    count = len(net.messages(HandOver))
    assert produced(net, "r2") == ""
    net.advance(30)
    assert len(net.messages(HandOver)) == count, "who follows leaves nothing: its promises hold"
    net.disks["r1"].capacity = 1 << 40
    net.advance(5)
    assert net.values("r1") == [VALUE] * 11 and net.stopped == []


@pytest.mark.parametrize("full", ["r1 r2", "r1 r2 r3"])
def test_under_quorum_a_full_server_leads_on_where_no_majority_of_the_others_has_space(full: str) -> None:
    net = roomy(3, QUORUM)
    for name in full.split():
        fill(net.disks[name])
    net.advance(2)
    net.lead("r2", "r1 r2 r3")
    net.advance(30)
    assert not net.messages(HandOver, "r2"), "nobody pushes it to and fro"
    assert code(read(net, "r2")) == "" and produced(net, "r2") == "DISK_FULL"
    net.disks["r1"].capacity = net.disks["r3"].capacity = 1 << 40
    net.advance(5)
    assert {asked.reason for asked in net.messages(HandOver, "r2")} == {"disk_full"}, "now they have"


def test_a_repeated_batch_is_acknowledged_by_a_full_disk() -> None:
    """It is in the log."""
    net = roomy(3, topic(2))
    first = net.send("r1", b"once", producer_id=7, producer_epoch=0, base_sequence=0)
    fill(net.disks["r1"])
    net.advance(2)
    again = net.send("r1", b"once", producer_id=7, producer_epoch=0, base_sequence=0)
    assert net.acks[again].offset == net.acks[first].offset and net.acks[again].duplicate
