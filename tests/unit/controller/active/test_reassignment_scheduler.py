"""The moves of a rebalance wait for their turn: a few per server at a time, until they are done or cancelled."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tidelog.errors import TidelogError
from tidelog.types import TIMELINE, PartitionState, ServerState, TopicPartition, TopicState
from tidelog.wire.messages import CancelReassignment, Reassign, Rebalance
from tidelog_controller.active.reassignment_scheduler import ReassignmentScheduler
from tidelog_controller.metadata.application import apply
from tidelog_controller.metadata.commands import ChangeQueue, Command, QueuedMove, RemoveTopic, SetDraining, Suspend
from tidelog_controller.metadata.rules.reassignment import MoveRequest, plan_move
from tidelog_controller.metadata.rules.rebalance_planner import plan_rebalance
from tidelog_controller.metadata.state import MetadataState
from tidelog_controller.metadata.state_machine import Replicated, decode_state, encode_state

SERVERS = ("r1", "r2", "r3", "r4", "r5", "r6")


def cluster(*replicas: str) -> MetadataState:
    servers = {n: ServerState(n, f"ws://{n}", 1, fenced=False) for n in SERVERS}
    nodes = [tuple(words.split()) for words in replicas]
    topic = TopicState("id", "t", partitions=tuple(PartitionState(n, n, n[0], 1, 1) for n in nodes))
    return MetadataState("test", 1, servers, {"id": topic}, {"t": "id"}, {"id": tuple(() for _ in nodes)})


class Active:
    """A reassignment scheduler, and the metadata to which its commands are applied."""

    def __init__(self, state: MetadataState, most: int = 2) -> None:
        self.state = state
        self.turns = ReassignmentScheduler(most)
        self.now = 0.0
        self.turns.become_active(state, 0.0)

    def write(self, command: Command) -> object:
        applied = apply(self.state, command, self.state.index + 1)
        self.state = applied.state
        self.turns.on_applied(self.state, command, [key for key, _ in applied.changes], self.now)
        return applied.answer

    def wish(self, message: MoveRequest) -> object:
        command = plan_move(self.state, message, random.Random(1), 0)
        return command if isinstance(command, TidelogError) else self.write(command)  # type: ignore[arg-type]

    def queue(self, *moves: tuple[int, str]) -> None:
        self.write(ChangeQueue(0, tuple(QueuedMove("id", n, tuple(to.split()), "load") for n, to in moves)))

    def begin(self) -> list[int]:
        """Let a second pass, apply the commands of the scheduler, and return the partitions whose reassignments
        begin."""
        self.now += 1.0
        commands = self.turns.due(self.state, self.now, 0)
        for command in commands:
            self.write(command)
        assert self.turns.due(self.state, self.now, 0) == []
        return [command.partition for command in commands]

    def finish(self, number: int) -> None:
        """Complete the reassignment of a partition: its target becomes its replicas."""
        p = self.state.topics["id"].partitions[number]
        done = replace(p, replicas=p.target, isr=p.target, leader=p.target[0], target=(), origin=(), learners=())
        partitions = list(self.state.topics["id"].partitions)
        partitions[number] = replace(done, epoch=p.epoch + 1)
        topic = replace(self.state.topics["id"], partitions=tuple(partitions))
        self.state = replace(self.state, topics={"id": topic})
        self.turns.on_applied(self.state, ChangeQueue(0), [TopicPartition("id", number)], self.now)

    @property
    def waiting(self) -> list[int]:
        return [move.partition for move in self.state.queue.values()]


FIVE = cluster(*["r1 r2"] * 5)
TO_R3 = tuple((number, "r1 r3") for number in range(5))


def test_a_server_gets_gives_or_serves_so_many_copies_at_a_time() -> None:
    active = Active(FIVE)
    active.queue(*TO_R3)
    assert active.begin() == [0, 1]
    assert active.waiting == [2, 3, 4]
    assert active.begin() == []
    active.finish(0)
    assert active.begin() == [2]
    active.finish(2)
    active.finish(1)
    assert active.begin() == [3, 4] and active.waiting == []


def test_moves_between_other_servers_do_not_wait_for_them() -> None:
    active = Active(cluster("r1 r2", "r1 r2", "r4 r5"), most=1)
    active.queue((0, "r1 r3"), (1, "r1 r3"), (2, "r4 r6"))
    assert active.begin() == [0, 2]


def test_the_leader_that_is_copied_from_counts_too() -> None:
    active = Active(cluster("r1 r2", "r1 r3"), most=1)
    active.queue((0, "r1 r4"), (1, "r1 r5"))
    assert active.begin() == [0]


def test_a_mere_change_of_order_waits_for_nobody() -> None:
    active = Active(FIVE, most=1)
    active.queue(*[(number, "r2 r1") for number in range(5)])
    assert active.begin() == [0, 1, 2, 3, 4]
    assert all(p.replicas == ("r2", "r1") for p in active.state.topics["id"].partitions)


def test_moves_that_were_asked_for_one_by_one_count_but_do_not_wait() -> None:
    active = Active(FIVE)
    for number in range(3):
        active.wish(Reassign("t", number, ("r1", "r3")))
    active.queue((3, "r1 r3"), (4, "r1 r4"))
    assert active.begin() == [] and active.waiting == [3, 4]


def test_another_controller_goes_on_where_one_has_ended() -> None:
    active = Active(FIVE)
    active.queue(*TO_R3)
    active.begin()
    active.turns.due(active.state, 9.0, 0)
    restored = decode_state(encode_state(Replicated(active.state))).metadata
    assert restored == active.state
    other = Active(restored)
    assert other.begin() == [], "two are under way"
    other.finish(1)
    assert other.begin() == [2] and other.waiting == [3, 4]


def test_a_proposed_reassignment_is_not_proposed_again_before_it_is_applied() -> None:
    active = Active(FIVE)
    active.queue(*TO_R3)
    begun = active.turns.due(active.state, 1.0, 0)
    active.queue((4, "r1 r3"))
    assert [command.partition for command in begun] == [0, 1]
    assert active.turns.due(active.state, 2.0, 0) == []


def test_a_reassignment_that_cannot_begin_lets_others_go_first() -> None:
    active = Active(FIVE)
    fenced = replace(active.state.servers["r3"], fenced=True)
    active.state = replace(active.state, servers={**active.state.servers, "r3": fenced})
    active.queue((0, "r1 r3"), (1, "r1 r4"))
    assert active.begin() == [1] and active.waiting == [0]


def test_a_plan_waits_as_a_whole_and_is_not_planned_again() -> None:
    active = Active(cluster(*["r1 r2"] * 6), most=1)
    planned = len(plan_rebalance(active.state).moves)
    assert planned > 3
    active.wish(Rebalance())
    plan = plan_rebalance(active.state)
    assert len(active.waiting) == len(plan.waiting) == planned and plan.moves == ()
    begun = len(active.begin())
    assert 0 < begun < planned
    assert plan_rebalance(active.state).moves == ()


def test_cancel_drops_one_or_all_that_wait() -> None:
    active = Active(FIVE)
    active.queue(*TO_R3)
    active.begin()
    active.wish(CancelReassignment("t", 3))
    assert active.waiting == [2, 4]
    assert getattr(active.wish(CancelReassignment("t", 3)), "code", "") == "NO_REASSIGNMENT"
    active.wish(CancelReassignment("t", 0))
    assert active.state.topics["id"].partitions[0].target == (), "one under way goes back"
    active.wish(Rebalance(cancel=True))
    assert active.waiting == []
    assert active.state.topics["id"].partitions[1].target == ("r1", "r3"), "what has begun goes on"


def test_a_new_request_replaces_a_waiting_reassignment_of_the_same_partition() -> None:
    active = Active(FIVE, most=1)
    active.queue(*TO_R3)
    active.wish(Reassign("t", 4, ("r1", "r5")))
    assert active.waiting == [0, 1, 2, 3]


def test_a_deleted_topic_waits_no_more() -> None:
    active = Active(FIVE)
    active.queue(*TO_R3)
    active.begin()
    active.write(RemoveTopic(0, "id"))
    assert active.waiting == [] and active.begin() == []


@pytest.mark.parametrize("empty", [False, True])
def test_drained_servers_are_emptied_where_that_is_asked_for(empty: bool) -> None:
    active = Active(cluster("r1 r2", "r2 r3", "r3 r4", "r4 r5", "r5 r6", "r6 r1"))
    active.write(SetDraining(0, "r2", True))
    targets = {move.partition: move.target for move in plan_rebalance(active.state, empty).moves}
    if not empty:
        assert all("r2" in targets.get(number, "r2") for number in (0, 1))
        return
    assert all("r2" not in targets[number] for number in (0, 1))
    active.wish(Rebalance(empty_drained=True))
    while active.waiting:
        for number in active.begin():
            if active.state.topics["id"].partitions[number].target:
                active.finish(number)
    assert all("r2" not in p.replicas for p in active.state.topics["id"].partitions)


def test_the_clusters_own_topics_are_moved_like_any_other() -> None:
    active = Active(cluster("r1 r2 r3"))
    (topic,) = active.state.topics.values()
    own = replace(topic, name=TIMELINE)
    active.state = replace(active.state, topics={"id": own}, names={TIMELINE: "id"})
    active.write(SetDraining(0, "r2", True))
    (move,) = plan_rebalance(active.state, empty_drained=True).moves
    assert move.name == TIMELINE and "r2" not in move.target
    active.wish(Rebalance(empty_drained=True))
    assert active.begin() == [0]


def test_each_move_of_a_rebalance_records_the_principal_that_asked_for_it() -> None:
    active = Active(cluster("r1 r2", "r1 r2", "r1 r2", "r1 r2"), most=1)
    active.wish(Rebalance(asker="ann at home"))
    waiting = len(active.waiting)
    while active.waiting:
        for number in active.begin():
            assert active.state.history["id"][number][-1].evidence["asked_by"] == "ann at home"
            if active.state.topics["id"].partitions[number].target:
                active.finish(number)
    assert waiting >= 2


def test_a_paused_partition_keeps_its_place_and_holds_nobody_up() -> None:
    active = Active(cluster("r1 r2", "r1 r2", "r1 r2"), most=1)
    active.queue((0, "r1 r3"), (1, "r1 r4"))
    active.write(Suspend(0, "id", (0,), "paused", True))
    assert active.begin() == [1]
    active.write(Suspend(0, "id", (1,), "paused", True))
    active.queue((2, "r1 r5"))
    assert active.begin() == [2], "a reassignment that cannot go on counts for nothing"
    active.finish(2)
    active.write(Suspend(0, "id", (), "paused", False))
    assert active.begin() == [] and active.waiting == [0]
    active.finish(1)
    assert active.begin() == [0]
