"""Retention that waits for consumer groups: what stays until a group has read it, and what goes unread."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.fake_controller import KEY
from support.replica_network import Net
from tidelog.sansio.effects import Call
from tidelog.types import GROUPS, PartitionState, TopicConfig, TopicState
from tidelog.wire.messages import CommitOffsets, Done, FetchOffsets, GroupPosition
from tidelog_replica.config import ReplicaSettings
from tidelog_replica.storage.retention import AwaitedStart, awaited_start
from tidelog_replica.storage.segment import SegmentExtent

# base, end, bytes, when it was last written
SEGMENTS = [SegmentExtent(0, 10, 100, 1000), SegmentExtent(10, 30, 200, 3000), SegmentExtent(30, 40, 50, 4000)]
UNBOUNDED = {"retention_waits_max_ms": 0, "retention_waits_max_bytes": 0}


def start(position: int, now_ms: int = 5000, **settings: int) -> AwaitedStart:
    return awaited_start(SEGMENTS, 40, position, TopicConfig(**(UNBOUNDED | settings)), now_ms)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("position", "expected", "held"),
    [(-1, 0, 350), (0, 0, 350), (9, 0, 350), (10, 10, 250), (29, 10, 250), (30, 30, 50), (40, 40, 0), (99, 40, 0)],
)
def test_a_segment_stays_while_the_group_has_not_read_all_of_it(position: int, expected: int, held: int) -> None:
    assert start(position) == AwaitedStart(expected, held, 0.0, 0)


@pytest.mark.parametrize(
    ("most", "expected", "share", "unread"),
    [
        (700, 0, 0.5, 0),
        (350, 0, 1.0, 0),
        (349, 10, 250 / 349, 6),
        (249, 30, 50 / 249, 26),
        (49, 40, 0.0, 36),
    ],
)
def test_beyond_the_bound_of_bytes_the_oldest_goes_unread(
    most: int, expected: int, share: float, unread: int
) -> None:
    found = start(4, retention_waits_max_bytes=most)
    assert (found.start, found.share, found.unread) == (expected, share, unread)


@pytest.mark.parametrize(
    ("now_ms", "expected", "share", "unread"), [(5000, 0, 0.7, 0), (6500, 0, 1.0, 0), (6501, 10, 3001 / 5000, 10)]
)
def test_a_wait_counts_from_when_retention_by_age_would_have_deleted(
    now_ms: int, expected: int, share: float, unread: int
) -> None:
    found = start(-1, now_ms, retention_ms=500, retention_waits_max_ms=5000)
    assert (found.start, found.share, found.unread) == (expected, share, unread)


def test_the_bound_that_is_nearer_counts() -> None:
    assert start(-1, retention_waits_max_ms=8000, retention_waits_max_bytes=1000).share == 0.5
    assert start(-1, retention_waits_max_ms=8000, retention_waits_max_bytes=500).share == 0.7


# --- among servers ---------------------------------------------------------------------------------------

ALL = ("r1", "r2", "r3")
GROUPS_KEY = "id-groups"


class Archived(Net):
    """Three servers and thirty records of 1970, all of which are due for deletion an hour later. r1 leads them, and
    ``coordinator`` coordinates the groups."""

    def __init__(self, coordinator: str = "r2", **settings: object) -> None:
        config = TopicConfig(
            segment_max_bytes=400,
            retention_ms=5000,
            retention_waits_for="archive",
            **settings,  # type: ignore[arg-type]
        )
        super().__init__(
            config=config, settings=ReplicaSettings(retention_check_interval_s=10, reserve_bytes=0), level=7
        )
        self.start()
        self.coordinator = coordinator
        states = (PartitionState(ALL, ALL, coordinator, 0, 0),)
        self.topics[GROUPS_KEY] = TopicState(GROUPS_KEY, GROUPS, TopicConfig(flush="os"), states)
        self.create()
        self.advance(0.1)
        for number in range(30):
            self.send("r1", b"%d" % number)
        self.wall_ms = 3_600_000

    def commit(self, group: str, offset: int) -> None:
        request = CommitOffsets(group, (GroupPosition(*KEY, offset),))
        assert self.answers[self.ask(self.coordinator, request)] == Done()

    def starts(self) -> list[int]:
        self.advance(25)
        return [self.partition(name).log.start for name in self.names]

    def extents(self) -> list[SegmentExtent]:
        return self.partition("r1").log.segments.extents()


@pytest.mark.parametrize("coordinator", ALL[:2])
def test_the_leader_keeps_what_the_group_has_not_read_and_followers_keep_it_too(coordinator: str) -> None:
    net = Archived(coordinator)
    second, last = net.extents()[1].base, net.extents()[-1].base
    assert net.starts() == [0, 0, 0], "a group without a position holds everything"
    net.commit("archive", second + 1)
    assert net.starts() == [second] * 3
    (wait,) = net.nodes["r1"].retention_waits.waits.values()
    assert (wait.slowest.group, wait.slowest.position) == ("archive", second + 1)
    assert wait.result.held_bytes == sum(e.bytes for e in net.extents() if e.end <= last)
    assert not net.nodes["r2"].retention_waits.waits, "only who leads tells of it"
    net.commit("archive", 30)
    assert net.starts() == [last] * 3
    assert not net.nodes["r1"].retention_waits.waits and not net.happened("retention_wait_ended")


def test_of_several_groups_the_slowest_counts() -> None:
    net = Archived()
    topic = net.topics[KEY.topic_id]
    net.topics[KEY.topic_id] = replace(topic, config=replace(topic.config, retention_waits_for="archive,audit"))
    net.broadcast()
    net.run()
    second = net.extents()[1].base
    net.commit("archive", 30)
    assert net.starts() == [0, 0, 0]
    net.commit("audit", second)
    assert net.starts() == [second] * 3


def test_a_coordinator_that_is_not_reached_holds_everything_and_only_the_bound_ends_that() -> None:
    net = Archived(retention_waits_max_bytes=1 << 20)
    net.commit("archive", 30)
    net.cut.add(("r1", "r2"))
    assert net.starts()[0] == 0
    net.cut.clear()
    assert net.starts()[0] == net.extents()[-1].base > 0


def test_beyond_the_bound_records_go_unread_and_it_is_said() -> None:
    net = Archived(retention_waits_max_bytes=500)
    net.commit("archive", 1)
    (begin, *_) = net.starts()
    assert 0 < begin < net.extents()[-1].base
    ((name, event),) = net.happened("retention_wait_ended")
    assert name == "r1" and event.fields["group"] == "archive" and event.fields["position"] == 1
    assert (event.fields["old"], event.fields["start"], event.fields["records"]) == (0, begin, begin - 1)
    assert net.nodes["r1"].assignment.counts.retention_unread_records == begin - 1
    assert net.nodes["r2"].assignment.counts.retention_unread_records == 0


def test_nobody_is_asked_where_nothing_is_due_and_once_where_an_answer_is_awaited() -> None:
    net = Archived()
    net.wall_ms = 1000
    net.advance(40)
    assert not [message for _, message in net.sent if isinstance(message, FetchOffsets)]
    net.wall_ms = 3_600_000
    net.hold = lambda name, call: isinstance(call.message, FetchOffsets)
    net.advance(45)
    ((name, call),) = net.held
    assert (name, call.to, call.message.group) == ("r1", "r2", "archive")  # type: ignore[attr-defined]


def test_an_answer_that_comes_when_another_server_leads_deletes_nothing() -> None:
    net = Archived()
    net.commit("archive", 30)
    net.hold = lambda name, call: isinstance(call.message, FetchOffsets)
    net.advance(25)
    ((name, call),) = net.held
    assert isinstance(call, Call)
    net.lead("r3", "r1 r2 r3")
    net.deliver(name, call)
    net.run()
    assert net.partition("r1").log.start == 0 and net.partition("r1").following is not None


def test_a_partition_that_is_deleted_is_forgotten() -> None:
    net = Archived()
    net.advance(25)
    waits = net.nodes["r1"].retention_waits
    assert list(waits.waits) == [KEY]
    net.delete()
    net.advance(25)
    assert not waits.waits and not waits._waits


def test_the_new_leader_waits_and_the_old_one_no_longer_reports_it() -> None:
    net = Archived()
    net.advance(25)
    assert net.nodes["r1"].retention_waits.waits
    net.lead("r3", "r1 r2 r3")
    assert not net.nodes["r1"].retention_waits.waits
    net.advance(25)
    assert list(net.nodes["r3"].retention_waits.waits) == [KEY] and net.starts() == [0, 0, 0]


def test_a_follower_whose_disk_is_full_asks_for_itself() -> None:
    """It deletes by itself what is due, since its leader's log start may not reach it."""
    net = Archived(coordinator="r3")
    second = net.extents()[1].base
    net.commit("archive", second)
    net.nodes["r2"]._effects.full = "no space"
    net.hold = lambda name, call: name == "r1" and isinstance(call.message, FetchOffsets)
    assert net.starts() == [0, second, 0]
