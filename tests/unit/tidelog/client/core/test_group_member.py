"""The member core: joining, keeping, giving up, losing, committing; the rules of ``docs/protocol.md`` by number."""

from __future__ import annotations

from math import inf
from random import Random

import pytest
from support.fake_group_coordinator import FakeGroup
from tidelog.client.core.group_member import (
    Assigned,
    CommitDue,
    CommitPositions,
    Committed,
    Effect,
    Lost,
    MemberCore,
    Revoked,
    SendRequest,
    shares,
)
from tidelog.errors import TidelogError, refuse
from tidelog.types import Position, TopicPartition
from tidelog.wire.messages import (
    GroupHeartbeat,
    GroupHeartbeatAnswer,
    JoinGroup,
    JoinGroupAnswer,
    LeaveGroup,
    MemberWork,
    Message,
    TopicShare,
)

A, B, C = (TopicPartition("T", n) for n in range(3))


class Bench:
    """A member core, its clock, and the effects that it returned."""

    def __init__(self, auto_commit_s: float = inf, session_ms: int = 10_000, work: MemberWork | None = None) -> None:
        join = JoinGroup("billing", "m1", ("orders",), session_timeout_ms=session_ms)
        self.core = MemberCore(join, auto_commit_s, 0.5, lambda now: work)
        self.now = 100.0
        self.asked: list[SendRequest] = []
        self.log: list[Effect] = []

    def do(self, effects: list[Effect]) -> list[Effect]:
        self.asked += [effect for effect in effects if isinstance(effect, SendRequest)]
        self.log += effects
        return [effect for effect in effects if not isinstance(effect, SendRequest)]

    def tick(self, seconds: float = 0.0) -> list[Effect]:
        self.now += seconds
        effects = self.do(self.core.on_tick(self.now))
        deadline = self.core.deadline()
        assert deadline is None or deadline > self.now
        return effects

    def answer(self, answer: Message | TidelogError) -> list[Effect]:
        return self.do(self.core.on_answer(self.asked[-1].number, answer, self.now))

    @property
    def request(self) -> Message:
        return self.asked[-1].request

    def share(self, *keys: TopicPartition) -> tuple[TopicShare, ...]:
        return tuple(TopicShare(s.topic_id, s.partitions, "orders") for s in shares(keys))

    def joined(self, *keys: TopicPartition) -> Bench:
        self.tick()
        self.answer(JoinGroupAnswer(4, 1000, self.share(*keys)))
        return self

    def beat(self, generation: int, *keys: TopicPartition) -> list[Effect]:
        """Let the next heartbeat be sent, and answer it."""
        if self.core._under_way is None:
            self.tick(1.0)
        return self.answer(GroupHeartbeatAnswer(generation, self.share(*keys)))

    def commit(self, **at: int) -> list[Effect]:
        positions = {TopicPartition("T", "ABC".index(name)): Position(2, offset) for name, offset in at.items()}
        return self.do(self.core.commit(positions))


def test_1_the_answer_to_a_join_is_the_members_share() -> None:
    bench = Bench()
    assert bench.tick() == [] and isinstance(bench.request, JoinGroup)
    assert bench.answer(JoinGroupAnswer(4, 1000, bench.share(A))) == [Assigned((A,))]
    assert (bench.core.state, bench.core.generation, bench.core.owned) == ("stable", 4, [A])
    assert bench.core.names == {"T": "orders"}
    assert bench.beat(4, A, B) == [Assigned((B,))]


def test_2_it_heartbeats_in_time_with_all_that_it_owns() -> None:
    bench = Bench().joined(A, C)
    assert bench.tick(0.9) == [] and len(bench.asked) == 1
    bench.tick(0.1)
    assert bench.request == GroupHeartbeat("billing", "m1", 4, (TopicShare("T", (0, 2)),))
    assert bench.core.deadline() == pytest.approx(110.0), "nothing more until it is answered, or the session ends"


def test_a_heartbeat_reports_what_the_application_does() -> None:
    bench = Bench(work=MemberWork(1500, "T", 0, 7)).joined(A)
    bench.tick(1.0)
    assert isinstance(bench.request, GroupHeartbeat) and bench.request.work == MemberWork(1500, "T", 0, 7)


def test_a_gateway_of_an_earlier_release_gets_heartbeats_without_the_report() -> None:
    bench = Bench(work=MemberWork(1500)).joined(A)
    bench.tick(1.0)
    assert bench.answer(refuse("UNSUPPORTED", "group_heartbeat has no key work", key="work")) == []
    assert isinstance(bench.request, GroupHeartbeat) and bench.request.work is None
    assert bench.beat(4, A) == [] and bench.core.owned == [A], "nothing was lost"
    bench.tick(1.0)
    assert isinstance(bench.request, GroupHeartbeat) and bench.request.work is None


def test_2_partitions_missing_from_an_assignment_are_revoked_first_and_others_stay() -> None:
    bench = Bench().joined(A, B)
    assert bench.beat(5, A) == [Revoked((B,))]
    assert (bench.core.state, bench.core.kept, bench.core.owned) == ("giving up", [A], [A, B])
    assert bench.beat(5, A) == [], "told once"
    assert isinstance(bench.request, GroupHeartbeat) and bench.request.owned == (TopicShare("T", (0, 1)),)
    before = len(bench.asked)
    bench.do(bench.core.on_released((B,), bench.now))
    assert len(bench.asked) == before + 1, "at once"
    assert bench.request == GroupHeartbeat("billing", "m1", 5, (TopicShare("T", (0,)),))
    assert bench.core.state == "stable"


def test_2_a_release_during_a_heartbeat_makes_the_next_one_due_at_once() -> None:
    bench = Bench().joined(A, B)
    bench.beat(5, A)
    bench.tick(1.0)
    count = len(bench.asked)
    bench.do(bench.core.on_released((B,), bench.now))
    assert len(bench.asked) == count
    bench.answer(GroupHeartbeatAnswer(5, bench.share(A)))
    assert len(bench.asked) == count + 1
    assert isinstance(bench.request, GroupHeartbeat) and bench.request.owned == (TopicShare("T", (0,)),)


def test_2_a_partition_assigned_again_while_it_is_given_up_is_new_after_its_release() -> None:
    bench = Bench().joined(A, B)
    bench.beat(5, A)
    assert bench.beat(6, A, B) == []
    bench.do(bench.core.on_released((B,), bench.now))
    assert bench.beat(6, A, B) == [Assigned((B,))]


def test_2_positions_of_partitions_given_up_are_committed_in_the_new_generation() -> None:
    bench = Bench().joined(A, B)
    bench.beat(5, A)
    [commit] = bench.commit(B=7)
    assert isinstance(commit, CommitPositions)
    assert (commit.request.generation, commit.request.positions[0].offset) == (5, 7)


def test_3_a_commit_refused_for_its_generation_is_sent_again_for_partitions_still_owned() -> None:
    bench = Bench().joined(A, B)
    [commit] = bench.commit(A=5, B=7)
    assert isinstance(commit, CommitPositions)
    bench.do(bench.core.on_committed(commit.request, refuse("FENCED_GENERATION", "6"), bench.now))
    assert isinstance(bench.request, GroupHeartbeat), "it asks at once"
    effects = bench.answer(GroupHeartbeatAnswer(6, bench.share(A)))
    assert effects[0] == Revoked((B,))
    again = effects[1]
    assert isinstance(again, CommitPositions) and again.request.generation == 6
    assert [at.partition for at in again.request.positions] == [0, 1], "what is being given up is its to commit"
    assert bench.do(bench.core.on_committed(again.request, None, bench.now)) == [Committed()]
    assert bench.commit(A=5) == [Committed()], "nothing new"


def test_3_an_answer_that_was_under_way_already_says_nothing_about_a_refused_commit() -> None:
    bench = Bench().joined(A)
    bench.tick(1.0)
    [commit] = bench.commit(A=5)
    assert isinstance(commit, CommitPositions)
    bench.do(bench.core.on_committed(commit.request, refuse("FENCED_GENERATION", "6"), bench.now))
    assert bench.answer(GroupHeartbeatAnswer(4, bench.share(A))) == []
    [again] = bench.answer(GroupHeartbeatAnswer(6, bench.share(A)))
    assert isinstance(again, CommitPositions) and again.request.generation == 6


def test_3_a_commit_refused_in_the_present_generation_is_not_repeated() -> None:
    bench = Bench().joined(A)
    [commit] = bench.commit(A=5)
    assert isinstance(commit, CommitPositions)
    bench.do(bench.core.on_committed(commit.request, refuse("FENCED_GENERATION", "not its own"), bench.now))
    [over] = bench.answer(GroupHeartbeatAnswer(4, bench.share(A)))
    assert isinstance(over, Committed) and over.error is not None and over.error.code == "FENCED_GENERATION"


def test_3_a_commit_for_a_partition_given_up_meanwhile_is_refused() -> None:
    bench = Bench().joined(A)
    bench.beat(5)
    [commit] = bench.commit(A=5)
    assert isinstance(commit, CommitPositions)
    bench.do(bench.core.on_released((A,), bench.now))
    bench.do(bench.core.on_committed(commit.request, refuse("FENCED_GENERATION", "another's"), bench.now))
    assert bench.answer(GroupHeartbeatAnswer(6)) == []
    [over] = bench.answer(GroupHeartbeatAnswer(6))
    assert isinstance(over, Committed) and over.error is not None and over.error.code == "FENCED_GENERATION"


@pytest.mark.parametrize("code", ["UNKNOWN_MEMBER", "FENCED_GENERATION"])
def test_4_an_unknown_member_loses_all_partitions_and_joins_again(code: str) -> None:
    bench = Bench().joined(A, B)
    [commit] = bench.commit(A=5)
    bench.tick(1.0)
    effects = bench.answer(refuse(code, "gone"))
    assert effects[0] == Lost((A, B))
    assert isinstance(effects[1], Committed) and effects[1].error is not None
    assert (bench.core.state, bench.core.owned) == ("joining", [])
    assert isinstance(commit, CommitPositions)
    assert bench.do(bench.core.on_committed(commit.request, None, bench.now)) == [], "it came too late"
    bench.tick(0.5)
    assert isinstance(bench.request, JoinGroup)


def test_4_a_commit_of_a_member_that_is_not_known_loses_all_too() -> None:
    bench = Bench().joined(A)
    [commit] = bench.commit(A=5)
    assert isinstance(commit, CommitPositions)
    effects = bench.do(bench.core.on_committed(commit.request, refuse("UNKNOWN_MEMBER", "gone"), bench.now))
    assert effects[1:] == [Lost((A,))]


def test_4_a_static_member_whose_name_another_process_has_stops_for_good() -> None:
    bench = Bench().joined(A)
    bench.tick(1.0)
    assert bench.answer(refuse("FENCED_INSTANCE", "another")) == [Lost((A,))]
    assert bench.core.state == "over" and bench.core.error is not None
    assert bench.tick(100.0) == [] and bench.core.deadline() is None


def test_4_a_commit_that_is_under_way_then_hears_why() -> None:
    bench = Bench().joined(A)
    bench.tick(1.0)
    [commit] = bench.commit(A=5)
    why = refuse("FENCED_INSTANCE", "another")
    assert bench.answer(why) == [Lost((A,)), Committed(why)]
    assert isinstance(commit, CommitPositions)
    assert bench.do(bench.core.on_committed(commit.request, None, bench.now)) == []


def test_5_without_an_answer_for_the_session_timeout_all_is_lost() -> None:
    """Counted from when the last answered heartbeat was sent."""
    bench = Bench(session_ms=3000).joined(A)
    bench.tick(1.0)
    bench.now += 0.8
    bench.answer(GroupHeartbeatAnswer(4, bench.share(A)))
    bench.tick(1.0)
    for _ in range(4):
        bench.answer(refuse("NOT_COORDINATOR", "moving"))
        assert bench.tick(0.25) == []
    assert bench.core.deadline() == pytest.approx(104.0)
    late = bench.asked[-1]
    assert bench.tick(104.0 - bench.now) == [Lost((A,))]
    assert bench.do(bench.core.on_answer(late.number, GroupHeartbeatAnswer(4, bench.share(A)), bench.now)) == []
    bench.tick(0.5)
    assert isinstance(bench.request, JoinGroup)


def test_7_a_leaving_member_says_so_after_the_request_in_flight() -> None:
    bench = Bench().joined(A)
    bench.tick(1.0)
    bench.do(bench.core.leave(bench.now, keep=True))
    assert isinstance(bench.request, GroupHeartbeat)
    bench.answer(GroupHeartbeatAnswer(4, bench.share(A)))
    assert bench.request == LeaveGroup("billing", "m1", True)
    bench.answer(refuse("NOT_COORDINATOR", "moving"))
    bench.tick(0.5)
    assert isinstance(bench.request, LeaveGroup)
    assert bench.answer(refuse("UNKNOWN_MEMBER", "left already")) == []
    assert bench.core.state == "over" and bench.core.error is None


def test_a_member_that_has_not_asked_to_join_leaves_without_a_request() -> None:
    bench = Bench()
    bench.do(bench.core.leave(bench.now, keep=False))
    assert bench.core.state == "over" and bench.asked == []


def test_an_error_that_stays_ends_the_member() -> None:
    bench = Bench()
    bench.tick()
    bench.answer(refuse("GROUP_FULL", "enough"))
    assert bench.core.state == "over" and bench.core.error is not None and bench.core.error.code == "GROUP_FULL"
    assert isinstance(bench.commit(A=1)[0], Committed)


def test_commits_are_due_at_the_interval_and_not_while_one_is_under_way() -> None:
    bench = Bench(auto_commit_s=2.0, session_ms=100_000).joined(A)
    assert CommitDue() not in bench.tick(1.0)
    assert bench.tick(1.0) == [CommitDue()]
    [commit] = bench.commit(A=5)
    assert isinstance(commit, CommitPositions)
    assert CommitDue() not in bench.tick(4.0)
    bench.do(bench.core.on_committed(commit.request, None, bench.now))
    assert bench.tick() == [CommitDue()]


def test_only_new_positions_of_owned_partitions_are_committed() -> None:
    bench = Bench().joined(A, B)
    bench.core.on_position_fetched(A, Position(2, 5))
    [commit] = bench.commit(A=5, B=7, C=9)
    assert isinstance(commit, CommitPositions)
    assert [(at.partition, at.offset, at.leader_epoch) for at in commit.request.positions] == [(1, 7, 2)]


@pytest.mark.parametrize("seed", range(30))
def test_no_two_members_own_a_partition_however_slow_they_are(seed: int) -> None:
    """Several members, a coordinator that changes its mind, answers in any order and lost ones, slow applications."""
    rng = Random(seed)
    group = FakeGroup({"T": "orders"})
    keys = [TopicPartition("T", n) for n in range(6)]
    cores = {n: MemberCore(JoinGroup("g", n, ("orders",), n, session_timeout_ms=10**9), inf, 0.1) for n in "abc"}
    group.give("a", keys)
    asks: list[tuple[str, SendRequest]] = []
    giving_up: list[tuple[str, tuple[TopicPartition, ...]]] = []
    now = 0.0

    def do(name: str, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SendRequest):
                asks.append((name, effect))
            elif isinstance(effect, Revoked):
                giving_up.append((name, effect.partitions))
            else:
                assert isinstance(effect, Assigned)

    for step in range(1500):
        now += 0.01
        name = rng.choice("abc")
        do(name, cores[name].on_tick(now))
        if asks and rng.random() < 0.7:
            name, ask = asks.pop(rng.randrange(len(asks)))
            answer: Message | TidelogError = group.answer(ask.request)
            if rng.random() < 0.2:
                answer = refuse("UNREACHABLE", "lost")
            do(name, cores[name].on_answer(ask.number, answer, now))
        if giving_up and rng.random() < 0.2:
            name, released = giving_up.pop(rng.randrange(len(giving_up)))
            do(name, cores[name].on_released(released, now))
        if step < 1000 and rng.random() < 0.05:
            group.give(rng.choice("abc"), rng.sample(keys, 2))
        held = [key for core in cores.values() for key in core.owned]
        assert len(held) == len(set(held))
    while giving_up:
        name, released = giving_up.pop()
        do(name, cores[name].on_released(released, now))
    for _ in range(200):
        now += 0.05
        for name, core in cores.items():
            do(name, core.on_tick(now))
        while asks:
            name, ask = asks.pop()
            do(name, cores[name].on_answer(ask.number, group.answer(ask.request), now))
        while giving_up:
            name, released = giving_up.pop()
            do(name, cores[name].on_released(released, now))
    assert {key: group.wanted[key] for key in keys} == {key: n for n, core in cores.items() for key in core.owned}
