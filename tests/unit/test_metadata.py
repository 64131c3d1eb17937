"""The metadata state machine: examples of every rule, and random logs against the invariants of its theory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog.errors import TidelogError
from tidelog.types import PartitionState, TopicConfig
from tidelog.wire.messages import AlterIsrAnswer, Done, IsrMember, ProducerIds, Registered, TopicCreated
from tidelog_controller.core.commands import (
    AddTopic,
    ChangeIsr,
    Command,
    FenceServer,
    LostLeader,
    RegisterServer,
    RemoveTopic,
    ReplaceLeaders,
    TakeProducerIds,
    UnfenceServer,
    decode_command,
    encode_command,
)
from tidelog_controller.core.metadata import HISTORY_LENGTH, Applied, MetadataState, apply, elect

SERVERS = ("r1", "r2", "r3", "r4")


class Log:
    """A metadata log that is applied as it is written, through the bytes of its entries."""

    def __init__(self) -> None:
        self.state = MetadataState("test")
        self.commands: list[Command] = []

    def write(self, command: Command) -> Applied:
        applied = apply(self.state, decode_command(encode_command(command)), len(self.commands) + 1)
        self.commands.append(command)
        self.state = applied.state
        return applied

    def register(self, *nodes: str) -> None:
        for node in nodes:
            self.write(RegisterServer(0, node, f"ws://{node}"))

    def epoch_of(self, node: str) -> int:
        return self.state.servers[node].broker_epoch

    def fence(self, node: str) -> Applied:
        return self.write(FenceServer(0, node, self.epoch_of(node)))

    def unfence(self, node: str) -> Applied:
        return self.write(UnfenceServer(0, node, self.epoch_of(node)))

    def topic(self, *replicas: str) -> None:
        self.write(AddTopic(7, "id", "orders", TopicConfig(), (replicas,)))

    def proposal(self, *isr: str, sender: str | None = None) -> ChangeIsr:
        p = self.partition
        node = sender or p.leader or ""
        members = tuple(IsrMember(n, self.epoch_of(n)) for n in isr)
        return ChangeIsr(
            0, node, self.epoch_of(node), "id", 0, p.leader_epoch, p.epoch, members, "lag", {"who": "r3"}
        )

    @property
    def partition(self) -> PartitionState:
        partition = self.state.partition("id", 0)
        assert partition is not None
        return partition


@pytest.fixture
def log() -> Log:
    """Three servers and one topic with one partition on all of them, led by r1."""
    log = Log()
    log.register("r1", "r2", "r3")
    log.topic("r1", "r2", "r3")
    return log


def code(applied: Applied) -> str:
    return applied.answer.code if isinstance(applied.answer, TidelogError) else "done"


def test_broker_epoch_is_the_index_of_the_registration() -> None:
    log = Log()
    assert log.write(RegisterServer(0, "r1", "ws://r1")).answer == Registered(1, 1, 0, "test")
    assert log.write(RegisterServer(0, "r1", "ws://r1")).answer == Registered(2, 2, 0, "test")


def test_new_topic_is_led_by_its_preferred_replica(log: Log) -> None:
    assert log.partition == PartitionState(("r1", "r2", "r3"), ("r1", "r2", "r3"), "r1", 0, 0)
    assert log.state.history["id"][0][0].event == "created"


def test_topic_names_are_taken_once(log: Log) -> None:
    again = AddTopic(0, "other", "orders", TopicConfig(), (("r1",),))
    assert code(log.write(again)) == "TOPIC_EXISTS"
    assert log.write(RemoveTopic(0, "id")).deleted_ids == ("id",)
    assert log.write(again).answer == TopicCreated("other")
    assert list(log.state.history) == ["other"]


def test_server_fenced_between_placement_and_creation_is_left_out_of_the_isr() -> None:
    log = Log()
    log.register("r1", "r2")
    log.fence("r1")
    log.topic("r1", "r2")
    assert (log.partition.isr, log.partition.leader) == (("r2",), "r2")
    log.fence("r2")
    assert code(log.write(AddTopic(0, "x", "x", TopicConfig(), (("r1", "r2"),)))) == "INVALID_REPLICATION_FACTOR"


def test_restarted_follower_leaves_the_isr(log: Log) -> None:
    log.register("r2")
    assert (log.partition.isr, log.partition.leader) == (("r1", "r3"), "r1")
    assert (log.partition.epoch, log.partition.leader_epoch) == (1, 0)


def test_restarted_leader_leaves_the_isr_and_another_leads(log: Log) -> None:
    log.register("r1")
    assert (log.partition.isr, log.partition.leader) == (("r2", "r3"), "r2")
    assert (log.partition.epoch, log.partition.leader_epoch) == (1, 1)
    last = log.state.history["id"][0][-1]
    assert (last.event, last.cause, last.evidence["node"]) == ("leader_elected", "registered", "r1")


@pytest.mark.parametrize("fenced_first", [False, True])
def test_restarted_sole_isr_member_leads_again_in_a_new_leader_epoch(log: Log, fenced_first: bool) -> None:
    log.write(log.proposal("r1"))
    before = log.partition
    if fenced_first:
        log.fence("r1")
        assert log.partition.leader is None
    log.register("r1")
    assert (log.partition.isr, log.partition.leader) == (("r1",), "r1")
    assert log.partition.leader_epoch > before.leader_epoch
    assert log.partition.epoch > before.epoch


def test_fenced_leader_is_replaced_and_the_last_one_keeps_the_isr(log: Log) -> None:
    log.fence("r1")
    assert (log.partition.isr, log.partition.leader, log.partition.leader_epoch) == (("r2", "r3"), "r2", 1)
    log.fence("r3")
    assert (log.partition.isr, log.partition.leader, log.partition.leader_epoch) == (("r2",), "r2", 1)
    log.fence("r2")
    assert (log.partition.isr, log.partition.leader, log.partition.leader_epoch) == (("r2",), None, 2)
    log.unfence("r1")  # not in the ISR: may have missed committed records
    assert log.partition.leader is None
    log.unfence("r2")
    assert (log.partition.isr, log.partition.leader, log.partition.leader_epoch) == (("r2",), "r2", 3)
    assert [e.event for e in log.state.history["id"][0]] == [
        "created",
        "leader_elected",
        "isr_shrunk",
        "offline",
        "leader_elected",
    ]


def test_fence_of_a_former_life_does_nothing(log: Log) -> None:
    former = log.epoch_of("r1")
    log.register("r1")
    before = log.state
    assert code(log.write(FenceServer(0, "r1", former))) == "FENCED_BROKER_EPOCH"
    assert replace(log.state, index=before.index) == before


def test_fencing_and_unfencing_twice_is_fencing_and_unfencing_once(log: Log) -> None:
    log.fence("r3")
    assert not log.fence("r3").visible
    log.unfence("r3")
    assert not log.unfence("r3").visible


def test_leader_shrinks_and_expands_its_isr(log: Log) -> None:
    assert log.write(log.proposal("r1", "r2")).answer == AlterIsrAnswer(1, ("r1", "r2"))
    assert log.write(log.proposal("r1", "r3", "r2")).answer == AlterIsrAnswer(2, ("r1", "r2", "r3"))
    assert (log.partition.leader, log.partition.leader_epoch) == ("r1", 0)
    assert log.state.history["id"][0][-1].evidence == {"who": "r3"}


def test_repeated_proposal_is_stale(log: Log) -> None:
    proposal = log.proposal("r1", "r2")
    log.write(proposal)
    assert code(log.write(proposal)) == "STALE_EPOCH"


def test_proposal_that_changes_nothing_moves_the_epoch(log: Log) -> None:
    assert log.write(log.proposal("r1", "r2", "r3")).answer == AlterIsrAnswer(1, ("r1", "r2", "r3"))


def test_proposals_are_refused_that_do_not_come_from_the_present_leader(log: Log) -> None:
    proposal = log.proposal("r1", "r2")
    assert code(log.write(replace(proposal, topic_id="no"))) == "UNKNOWN_TOPIC"
    assert code(log.write(replace(proposal, partition=1))) == "UNKNOWN_TOPIC"
    assert code(log.write(replace(proposal, broker_epoch=99))) == "FENCED_BROKER_EPOCH"
    assert code(log.write(log.proposal("r2", sender="r2"))) == "NOT_LEADER"
    assert code(log.write(replace(proposal, leader_epoch=9))) == "FENCED_LEADER_EPOCH"
    assert code(log.write(replace(proposal, epoch=9))) == "STALE_EPOCH"
    log.register("r4")
    assert code(log.write(log.proposal("r1", "r4"))) == "NOT_REPLICA"
    assert code(log.write(log.proposal("r2", "r3"))) == "NOT_REPLICA"
    assert log.partition.epoch == 0


@pytest.mark.parametrize("restart", [False, True])
def test_unfit_member_is_refused_and_the_proposal_can_never_be_applied_later(log: Log, restart: bool) -> None:
    log.write(log.proposal("r1", "r2"))
    delayed = log.proposal("r1", "r2", "r3")
    if restart:
        log.register("r3")
    else:
        log.fence("r3")
    assert code(log.write(delayed)) == "STALE_EPOCH"
    assert (log.partition.epoch, log.partition.isr) == (2, ("r1", "r2"))
    assert log.state.history["id"][0][-1].event == "isr_refused"
    if not restart:
        log.unfence("r3")
    assert code(log.write(delayed)) == "STALE_EPOCH"
    assert log.partition.isr == ("r1", "r2")


def lost(log: Log) -> ReplaceLeaders:
    p = log.partition
    return ReplaceLeaders(0, p.leader or "", (LostLeader("id", 0, p.leader_epoch, p.epoch, {"reports": "2"}),))


def test_reported_leader_is_replaced_and_leaves_the_isr_in_one_change(log: Log) -> None:
    command = lost(log)
    assert log.write(command).answer == Done()
    assert log.partition == PartitionState(("r1", "r2", "r3"), ("r2", "r3"), "r2", 1, 1)
    assert log.state.history["id"][0][-1].cause == "leader_reported"
    log.write(command)
    assert log.partition.epoch == 1


def test_reported_leader_stays_when_nobody_else_holds_everything(log: Log) -> None:
    log.write(log.proposal("r1"))
    before = log.partition
    log.write(lost(log))
    assert log.partition == before


def test_producer_ids_are_given_once() -> None:
    log = Log()
    assert log.write(TakeProducerIds(0, 10)).answer == ProducerIds(1, 10)
    assert log.write(TakeProducerIds(0, 5)).answer == ProducerIds(11, 5)


def test_history_keeps_the_last_changes(log: Log) -> None:
    for _ in range(HISTORY_LENGTH):
        log.write(log.proposal("r1", "r2", "r3"))
    log.write(log.proposal("r1", "r2"))
    history = log.state.history["id"][0]
    assert len(history) == HISTORY_LENGTH
    assert history[-1].event == "isr_shrunk"
    assert [e.epoch for e in history] == list(range(2, HISTORY_LENGTH + 2))


def test_elect_keeps_a_live_leader_and_takes_the_first_live_one_otherwise() -> None:
    partition = PartitionState(("r3", "r1", "r2"), ("r3", "r1", "r2"), "r1", 4, 9)
    assert elect(partition, ("r2", "r1", "r3"), lambda n: True) is partition
    assert elect(partition, ("r1", "r2"), lambda n: True) == replace(partition, isr=("r1", "r2"), epoch=10)
    elected = elect(partition, ("r2", "r3"), lambda n: n != "r3")
    assert elected == replace(partition, isr=("r3", "r2"), leader="r2", leader_epoch=5, epoch=10)


def test_a_command_of_a_newer_version_is_not_skipped() -> None:
    data = encode_command(TakeProducerIds(0, 1)).replace(b"take_producer_ids", b"take_producer_idz")
    with pytest.raises(ValueError, match="newer version"):
        decode_command(data)


# --- random logs -----------------------------------------------------------------------------------------

node = st.sampled_from(SERVERS)
action = st.one_of(
    st.tuples(st.just("register"), node),
    st.tuples(st.just("fence"), node),
    st.tuples(st.just("unfence"), node),
    st.tuples(st.just("add"), st.permutations(SERVERS), st.integers(1, 4)),
    st.tuples(st.just("remove")),
    st.tuples(st.just("isr"), st.permutations(SERVERS), st.integers(1, 4), st.integers(-1, 0), st.booleans()),
    st.tuples(st.just("lost"), st.integers(-1, 0)),
)


def command_of(log: Log, number: int, action: tuple[object, ...]) -> list[Command]:
    """The action as commands to every topic; some of old epochs, some with members of former lives."""
    topics = list(log.state.topics.values())
    match action:
        case ("register", str(n)):
            return [RegisterServer(number, n, f"ws://{n}")]
        case ("fence", str(n)) if n in log.state.servers:
            return [FenceServer(number, n, log.epoch_of(n))]
        case ("unfence", str(n)) if n in log.state.servers:
            return [UnfenceServer(number, n, log.epoch_of(n))]
        case ("add", [*order], int(count)):
            return [AddTopic(number, f"t{number}", f"n{number % 3}", TopicConfig(), (tuple(order[:count]),))]
        case ("remove",) if topics:
            return [RemoveTopic(number, topics[0].topic_id)]
        case ("isr", [*order], int(count), int(age), bool(current)):
            commands: list[Command] = []
            for topic in topics:
                p = topic.partitions[0]
                leader = p.leader or p.isr[0]
                chosen = {leader, *order[:count]} & set(p.replicas) & set(log.state.servers)
                members = tuple(IsrMember(n, log.epoch_of(n) - (not current)) for n in p.replicas if n in chosen)
                epochs = (log.epoch_of(leader), topic.topic_id, 0, p.leader_epoch, p.epoch + age)
                commands.append(ChangeIsr(number, leader, *epochs, members, "test"))
            return commands
        case ("lost", int(age)):
            return [
                ReplaceLeaders(number, p.leader, (LostLeader(t.topic_id, 0, p.leader_epoch, p.epoch + age),))
                for t in topics
                for p in t.partitions
                if p.leader is not None
            ]
    return []


def check_partition(state: MetadataState, p: PartitionState) -> None:
    assert p.isr and p.isr == tuple(n for n in p.replicas if n in p.isr)
    assert p.leader is None or (p.leader in p.isr and state.is_live(p.leader))
    if not all(state.is_live(n) for n in p.isr):
        assert len(p.isr) == 1 and p.leader is None
    else:
        assert p.leader is not None


def check_step(before: MetadataState, applied: Applied) -> None:
    """The invariants of the module's theory, between two states that follow one another."""
    after = applied.state
    assert after.names == {t.name: t.topic_id for t in after.topics.values()}
    assert list(after.history) == list(after.topics)
    for topic in after.topics.values():
        old = before.topics.get(topic.topic_id)
        p = topic.partitions[0]
        check_partition(after, p)
        if old is None:
            continue
        q = old.partitions[0]
        assert p == q or p.epoch == q.epoch + 1
        assert p.leader_epoch - q.leader_epoch in (0, 1)
        assert p.leader_epoch > q.leader_epoch or p.leader == q.leader
        assert (topic in applied.topics) == (topic != old)
        added = after.history[topic.topic_id][0][-1]
        assert (added.epoch, added.leader_epoch, added.isr) == (p.epoch, p.leader_epoch, p.isr)
        if p.leader is not None and p.leader != q.leader:
            assert p.leader in q.isr, "a new leader was in the ISR before"
        for server in applied.servers:
            began = before.servers.get(server.node)
            if began is not None and began.broker_epoch != server.broker_epoch and server.node in p.isr:
                assert p.isr == (server.node,), "who restarted stays only where it is alone"
                assert p.leader_epoch > q.leader_epoch, "no leader epoch is resumed after a restart"


@settings(max_examples=150, deadline=None)
@given(st.lists(action, max_size=40))
def test_random_logs_keep_the_invariants_and_always_give_the_same_state(actions: list[tuple[object, ...]]) -> None:
    log = Log()
    log.register("r1", "r2", "r3")
    log.write(AddTopic(0, "first", "first", TopicConfig(), (("r1", "r2", "r3"),)))
    for number, act in enumerate(actions):
        for command in command_of(log, number, act):
            before = log.state
            check_step(before, log.write(command))
    replayed = MetadataState("test")
    for index, command in enumerate(log.commands, 1):
        replayed = apply(replayed, command, index).state
    assert replayed == log.state
    assert repr(replayed) == repr(log.state)
