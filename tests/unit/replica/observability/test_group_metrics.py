"""What is told of consumer groups: their members and generations, what was committed, and how far they lag."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.fake_controller import KEY
from support.group_coordinator import Desk, code
from support.replica_network import Net
from tidelog.errors import TidelogError, Unreachable
from tidelog.sansio.counters import samples
from tidelog.types import GROUPS, PartitionState, TopicConfig, TopicPartition, TopicState
from tidelog.wire.messages import (
    CommitOffsets,
    Done,
    GroupPosition,
    JoinGroup,
    JoinGroupAnswer,
    LeaveGroup,
    ListOffset,
    Message,
    OffsetAnswer,
)
from tidelog_replica.observability import group_metrics
from tidelog_replica.observability.group_metrics import MOVED_MS, FarEnds, group_samples

ALL = ("r1", "r2", "r3")


class Watched(Net):
    """r1 coordinates. Of ``near`` every server has a copy, led by r2; ``far`` is on r2 and r3 only."""

    def __init__(self, **config: Any) -> None:
        super().__init__(3, TopicConfig(min_insync_replicas=1, flush="os", **config))
        self.start()
        self.asked: list[tuple[str, TopicPartition]] = []
        self.mute = False
        self.far = FarEnds(self.ask_peer)

        def topic(topic_id: str, name: str, replicas: tuple[str, ...], count: int) -> TopicState:
            states = (PartitionState(replicas, replicas, replicas[-2], 0, 0),) * count
            return TopicState(topic_id, name, self.config, states)

        groups = PartitionState(ALL, ALL, "r1", 0, 0)
        self.topics = {
            KEY.topic_id: TopicState(KEY.topic_id, GROUPS, self.config, (groups,)),
            "id-near": topic("id-near", "near", ALL, 2),
            "id-far": topic("id-far", "far", ALL[1:], 2),
        }
        self.broadcast()
        self.run()
        self.advance(0.1)

    def ask_peer(
        self, node: str, message: Message, timeout_s: float, done: Callable[[Message | TidelogError], None]
    ) -> None:
        """What ``Peers.start_call`` does."""
        assert isinstance(message, ListOffset) and timeout_s > 0
        self.asked.append((node, TopicPartition(message.topic_id, message.partition)))
        if not self.mute:
            id = self.ask(node, message)
            self.advance(0.1)
            done(self.answers[id])

    def fill(self, topic_id: str, *counts: int) -> None:
        for number, count in enumerate(counts):
            for _ in range(count):
                self.send("r2", b"x", topic_id=topic_id, partition=number)
        self.advance(2 * self.settings.replica_max_idle_wait_s)  # followers know, too, what is committed

    def tell(self, message: Message) -> Any:
        return self.answers[self.ask("r1", message)]

    def commit(self, group: str, topic_id: str, *offsets: int) -> None:
        positions = tuple(GroupPosition(topic_id, number, offset) for number, offset in enumerate(offsets))
        assert self.tell(CommitOffsets(group, positions)) == Done()

    def commit_as_member(self, group: str, name: str, *offsets: int) -> None:
        """A member joins, commits these offsets of the topic's first partitions, and leaves."""
        joined = self.tell(JoinGroup(group, "a", (name,)))
        positions = tuple(GroupPosition(f"id-{name}", number, offset) for number, offset in enumerate(offsets))
        assert self.tell(CommitOffsets(group, positions, "a", joined.generation)) == Done()
        self.tell(LeaveGroup(group, "a"))

    def figures(self, node: str = "r1", wall_ms: int = 0) -> dict[str, object]:
        """What the page would show, by metric and label, without the beginning that all have in common."""
        watched = self.nodes[node]
        return {
            f"{metric.name.removeprefix('tidelog_group')}{'/'.join(['', *labels])}": value
            for metric, labels, value in (
                *group_samples(watched, self.far, wall_ms),
                *samples(watched.assignment.counts),
            )
        }


def test_the_lag_is_what_is_committed_and_not_processed() -> None:
    net = Watched()
    net.fill("id-near", 7, 3)
    net.commit("billing", "id-near", 2, 3)
    net.commit("audit", "id-near", 0)
    found = net.figures()
    assert (found["_lag_records/billing"], found["_largest_lag_records/billing"]) == (5, 5)
    assert (found["_lag_records/audit"], found["_members/audit"]) == (7, 0)
    assert found["_unknown_lag_partitions"] == 0 and not net.asked
    assert (found["s/empty"], found["s/stable"], found["_commits"]) == (2, 0, 2)
    net.fill("id-near", 1, 1)
    assert net.figures()["_lag_records/billing"] == 7
    assert "_lag_records/billing" not in net.figures("r2"), "only who coordinates the group tells of it"


def test_of_partitions_elsewhere_the_leaders_are_asked_when_somebody_looks() -> None:
    net = Watched()
    net.fill("id-far", 4, 6)
    net.commit("billing", "id-far", 1, 1)
    found = net.figures()
    assert (found["_lag_records/billing"], found["_unknown_lag_partitions"]) == (8, 0)
    assert net.asked == [("r2", TopicPartition("id-far", number)) for number in range(2)]
    net.fill("id-far", 1)
    net.advance(60)
    assert len(net.asked) == 2, "nobody looks: nobody is asked"
    assert net.figures()["_lag_records/billing"] == 9


def test_positions_below_the_log_start_were_overtaken_by_retention() -> None:
    net = Watched(retention_records=3, segment_max_bytes=1024)
    net.fill("id-near", 40, 1)
    net.commit("billing", "id-near", 0, 0)
    net.commit("audit", "id-near", 40, 1)
    net.advance(2 * net.settings.retention_check_interval_s)
    found = net.figures()
    assert found["_overtaken_partitions/billing"] == 1
    assert "_overtaken_partitions/audit" not in found


def test_positions_that_a_client_that_is_no_member_moved_are_counted_for_ten_minutes() -> None:
    net = Watched()
    net.fill("id-near", 9, 9)
    net.commit_as_member("billing", "near", 4, 4)
    assert not any("moved" in name for name in net.figures())
    net.commit("billing", "id-near", 2, 7)
    moved = {name: value for name, value in net.figures().items() if "moved" in name}
    assert moved == {"_moved_positions/billing/back": 1, "_moved_positions/billing/forward": 1}
    assert len(net.figures(wall_ms=MOVED_MS)) - len(net.figures(wall_ms=MOVED_MS + 1)) == 2
    net.commit("billing", "id-near", 4, 7)
    assert "_moved_positions/billing/back" not in net.figures(), "it was put back"


def test_moved_positions_have_a_figure_in_groups_that_do_not_lag_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_metrics, "SHOWN", 1)
    net = Watched()
    net.fill("id-near", 9)
    net.commit_as_member("billing", "near", 4)
    net.commit("audit", "id-near", 0)
    net.commit("billing", "id-near", 9)
    found = net.figures()
    assert "_lag_records/billing" not in found and found["_moved_positions/billing/forward"] == 1


def test_a_position_set_forward_in_a_partition_without_a_copy_here_is_not_counted() -> None:
    net = Watched()
    net.fill("id-far", 9)
    net.commit_as_member("billing", "far", 4)
    net.commit("billing", "id-far", 9)
    assert not any("moved" in name for name in net.figures())
    net.commit("billing", "id-far", 2)
    assert net.figures()["_moved_positions/billing/back"] == 1


def test_a_position_set_forward_to_the_log_start_has_passed_over_nothing() -> None:
    net = Watched(retention_records=3, segment_max_bytes=1024)
    net.fill("id-near", 40, 1)
    net.commit_as_member("billing", "near", 1)
    net.advance(2 * net.settings.retention_check_interval_s)
    start = net.nodes["r1"].partitions[TopicPartition("id-near", 0)].log.start
    assert start > 1
    net.commit("billing", "id-near", start)
    assert not any("moved" in name for name in net.figures())
    net.commit("billing", "id-near", start + 1)
    assert net.figures()["_moved_positions/billing/forward"] == 1


def test_unknown_lags_are_counted_as_unknown_and_known_ones_stay() -> None:
    net = Watched()
    net.fill("id-far", 4, 6)
    net.commit("billing", "id-far", 1)
    net.mute = True
    for _ in range(2):
        found = net.figures()
        assert (found["_lag_records/billing"], found["_unknown_lag_partitions"]) == (0, 1)
    assert len(net.asked) == 1, "the question is under way"
    ends = FarEnds(lambda node, message, timeout_s, done: done(answers.pop()))
    answers: list[Message | TidelogError] = [Unreachable("gone"), OffsetAnswer(4, 0)]
    key = TopicPartition("id-far", 0)
    for _ in range(2):
        ends.request_ends([key], lambda _: "r2")
        assert ends.get(key) == 4
    ends.request_ends([], lambda _: "r2")
    assert ends.get(key) is None, "nobody wants it any more"


def test_questions_are_bounded_and_everybodys_turn_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_metrics, "ASKED_AT_ONCE", 2)
    waiting: list[Callable[[], None]] = []
    asked: list[int] = []

    def ask(node: str, message: Any, timeout_s: float, done: Callable[[Any], None]) -> None:
        asked.append(message.partition)
        waiting.append(lambda: done(OffsetAnswer(message.partition, 0)))

    ends, keys = FarEnds(ask), [TopicPartition("t", number) for number in range(5)]
    for _ in range(3):
        ends.request_ends(keys, lambda key: None if key.partition == 3 else "r2")
        while waiting:
            waiting.pop()()
    assert asked == [0, 1, 2, 4, 0, 1]
    assert [ends.get(key) for key in keys] == [0, 1, 2, None, 4]


def test_members_and_generations() -> None:
    net = Watched()
    joined = net.tell(JoinGroup("billing", "a", ("near",), session_timeout_ms=10_000))
    assert isinstance(joined, JoinGroupAnswer)
    found = net.figures()
    assert (found["_members/billing"], found["_generation/billing"], found["_generations"]) == (1, 1, 1)
    assert found["s/stable"] == 1
    net.tell(JoinGroup("billing", "b", ("near",)))
    found = net.figures()
    assert (found["_members/billing"], found["s/moving"]) == (2, 1), "one has to give something up"
    assert found["_generation/billing"] == found["_generations"] == 2
    net.tell(LeaveGroup("billing", "b"))
    assert net.figures()["_generations"] == 3
    net.advance(11)
    found = net.figures()
    assert found["_expelled_members"] == 1 and "_members/billing" not in found, (
        "the group is gone with its last member"
    )


def test_commits_that_were_refused_are_counted_by_code() -> None:
    desk = Desk()
    desk.join("a")
    assert code(desk.commit("a", 0)) == ""
    assert code(desk.commit("a", 0, generation=0)) == "FENCED_GENERATION"
    assert code(desk.commit("a", 0, generation=0)) == "FENCED_GENERATION"
    desk.told["x"] = 1, set()
    assert code(desk.commit("x", 0)) == "UNKNOWN_MEMBER"
    assert desk.counts.group_commits == 1
    assert desk.counts.group_commit_refusals == {"FENCED_GENERATION": 2, "UNKNOWN_MEMBER": 1}


def test_members_are_short_lived_that_end_within_a_minute_without_having_got_on() -> None:
    desk = Desk()
    for end_ms, *offsets in ((59_999,), (60_000,), (1, 3, 9), (2, 9)):
        desk.join("a")
        for offset in offsets:
            desk.commit("a", 0, offset)
        desk.wall_ms += end_ms
        desk.ask(LeaveGroup("g", "a"))
    assert desk.counts.group_short_lived == 2, "the first, and the last: its commit did not move the position"
    desk.join("a", session_timeout_ms=6000)
    desk.advance(7)
    assert desk.counts.group_short_lived == 3 and desk.counts.group_expelled == 1
    desk.join("a")
    desk.wall_ms += 60_000
    desk.fail_over()
    desk.ask(LeaveGroup("g", "a"))
    assert desk.counts.group_short_lived == 3, "nothing is known of its life before"


def test_only_the_groups_that_lag_most_have_a_figure_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_metrics, "SHOWN", 2)
    net = Watched()
    net.fill("id-near", 5)
    for number in range(4):
        net.commit(f"g{number}", "id-near", number)
    assert {name: value for name, value in net.figures().items() if name.startswith("_lag")} == {
        "_lag_records/g0": 5,
        "_lag_records/g1": 4,
    }
    assert net.figures()["s/empty"] == 4
