"""Random logs against the invariants of the metadata's theory, for every commit rule. Tests
``metadata/application.py`` and ``metadata/rules``."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.applied_commands import Log
from tidelog.types import PartitionState, TopicConfig, TopicState
from tidelog.wire.messages import IsrMember, SuspectPart
from tidelog_controller.metadata.application import Applied, MetadataState, apply
from tidelog_controller.metadata.commands import (
    AddTopic,
    ChangeIsr,
    ChangeTopic,
    Command,
    ElectSealed,
    FenceServer,
    LeaveParts,
    LostLeader,
    RankedServer,
    RecordLoss,
    RegisterServer,
    RemoveTopic,
    ReplaceLeaders,
    SealedPart,
    SetDraining,
    SetLearners,
    SetReplicas,
    SetSuccessor,
    Suspend,
    UnfenceServer,
)

SERVERS = ("r1", "r2", "r3", "r4")
RULES = ("isr", "quorum", "leader")

node = st.sampled_from(SERVERS)
age = st.sampled_from((0, 0, 0, -1))
session = st.one_of(
    st.tuples(st.just("register"), node, st.booleans(), st.sampled_from(("knows", "knows", "wiped"))),
    st.tuples(st.just("fence"), node),
    st.tuples(st.just("unfence"), node),
)
isr = st.tuples(
    st.just("isr"), st.permutations(SERVERS), st.integers(1, 4), age, st.sampled_from((True, True, False))
)
other = st.one_of(
    st.tuples(st.just("add"), st.permutations(SERVERS), st.integers(1, 4), st.sampled_from(RULES), st.integers(1, 3)),
    st.tuples(st.just("remove")),
    st.tuples(st.just("lost"), age),
    st.tuples(st.just("leave"), node, st.booleans(), age),
    st.tuples(st.just("seal"), st.permutations(SERVERS), age),
    st.tuples(st.just("change"), st.booleans(), st.integers(1, 3)),
    st.tuples(st.just("learn"), node),
    st.tuples(st.just("loss"), node),
)
move = st.one_of(
    st.tuples(st.just("successor"), st.one_of(node, st.just("")), age),
    st.tuples(st.just("ready"), age),
    st.tuples(st.just("replicas"), st.permutations(SERVERS), st.integers(0, 4), age),
    st.tuples(st.just("cancel")),
    st.tuples(st.just("finish")),
    st.tuples(st.just("drain"), node, st.booleans()),
    st.tuples(st.just("suspend"), st.sampled_from(("paused", "paused", "read_only")), st.booleans()),
)
action = st.one_of(session, isr, other, move, move)


def ranks_of(number: int) -> tuple[RankedServer, ...]:
    """Return a ranking that is another one for each command; it also ranks servers that are not registered."""
    return tuple(RankedServer(f"r{n}", (number + n) % 4, "test") for n in range(1, 7) if (number + n) % 4)


def commands_of(log: Log, number: int, action: tuple[object, ...]) -> list[Command]:
    """Return an action as commands to every topic; some name old epochs, some members of earlier incarnations."""
    topics = list(log.state.topics.values())
    match action:
        case ("register", str(n), bool(clean), str(directory)):
            known = log.state.servers.get(n)
            lives = (known.life,) if known is not None and directory == "knows" else ()
            return [RegisterServer(number, n, f"ws://{n}", (*lives, f"{n}-{number}"), clean)]
        case ("fence", str(n)) if n in log.state.servers:
            return [FenceServer(number, n, log.epoch_of(n), ranks=ranks_of(number))]
        case ("unfence", str(n)) if n in log.state.servers:
            return [UnfenceServer(number, n, log.epoch_of(n))]
        case ("add", [*order], int(count), str(rule), int(least)):
            flush = "fsync" if rule == "quorum" else ("fsync", "os")[number % 2]
            config = TopicConfig(commit_rule=rule, flush=flush, min_insync_replicas=min(least, count))
            return [AddTopic(number, f"t{number}", f"n{number % 3}", config, (tuple(order[:count]),))]
        case ("drain", str(n), bool(drain)):
            return [SetDraining(number, n, drain)]
        case ("remove",) if topics:
            return [RemoveTopic(number, topics[-1].topic_id)]
    commands = (command_to(log, number, action, topic, topic.partitions[0]) for topic in topics)
    return [command for command in commands if command is not None]


def command_to(
    log: Log, number: int, action: tuple[object, ...], topic: TopicState, p: PartitionState
) -> Command | None:
    """Return an action as a command to one topic; None if it does not apply to it."""
    leader = p.leader or p.replicas[0]
    servers = log.state.servers
    match action:
        case ("isr", [*order], int(count), int(age), bool(current)) if leader in servers:
            chosen = {leader, *order[:count]} & {*p.replicas, *p.learners} & set(servers)
            if topic.config.commit_rule == "quorum":
                chosen |= set(p.isr) & set(servers)
            copies = p.replicas + p.learners
            members = tuple(IsrMember(n, log.epoch_of(n) - (not current)) for n in copies if n in chosen)
            epochs = (log.epoch_of(leader), topic.topic_id, 0, p.leader_epoch, p.epoch + age)
            return ChangeIsr(number, leader, *epochs, members, "test")
        case ("lost", int(age)):
            lost_leader = LostLeader(topic.topic_id, 0, p.leader_epoch, p.epoch + age)
            return ReplaceLeaders(number, leader, (lost_leader,), ranks_of(number))
        case ("leave", str(n), bool(lost), int(age)) if n in servers:
            parts = (SuspectPart(topic.topic_id, 0, p.epoch + age, p.leader_epoch),)
            return LeaveParts(number, n, log.epoch_of(n), "test", parts, lost, ranks=ranks_of(number))
        case ("seal", [*order], int(age)):
            sealed = [n for n in order if n in p.isr and n in servers][: len(p.replicas) // 2 + 1]
            if 2 * len(sealed) > len(p.replicas):
                by = tuple(IsrMember(n, log.epoch_of(n)) for n in sealed)
                return ElectSealed(number, (SealedPart(topic.topic_id, 0, p.leader_epoch + age, sealed[0], by),))
        case ("change", bool(unclean), int(least)):
            values = {"unclean_election": unclean, "min_insync_replicas": min(least, len(p.replicas))}
            return ChangeTopic(number, topic.topic_id, values)
        case ("successor", str(n), int(age)):
            return SetSuccessor(number, topic.topic_id, 0, p.epoch + age, n, "test")
        case ("ready", int(age)) if leader in servers:
            parts = (SuspectPart(topic.topic_id, 0, p.epoch + age, p.leader_epoch),)
            return LeaveParts(number, leader, log.epoch_of(leader), "transfer", parts, lost=False, ready=True)
        case ("replicas", [*order], int(count), int(age)):
            return SetReplicas(number, topic.topic_id, 0, p.epoch + age, tuple(order[:count]), "test")
        case ("suspend", str(what), bool(wanted)):
            return Suspend(number, topic.topic_id, (), what, wanted)
        case ("cancel",) if p.origin:
            return SetReplicas(number, topic.topic_id, 0, p.epoch, p.origin, "test")
        case ("finish",) if p.target and leader in p.target and set(p.replicas) <= set(servers):
            quorum = topic.config.commit_rule == "quorum"
            gone = [n for n in p.replicas if n not in p.target][: 1 if quorum else None]
            chosen = {*p.target, leader} if not quorum else {*p.isr} - set(gone)
            members = tuple(IsrMember(n, log.epoch_of(n)) for n in p.replicas if n in chosen)
            epochs = (log.epoch_of(leader), topic.topic_id, 0, p.leader_epoch, p.epoch)
            return ChangeIsr(number, leader, *epochs, members, "test")
        case ("learn", str(n)) if n not in p.replicas:
            return SetLearners(number, topic.topic_id, 0, (n,))
        case ("loss", str(n)) if n in servers:
            return RecordLoss(number, n, log.epoch_of(n), topic.topic_id, 0, p.leader_epoch, 1, 2)
    return None


class Model:
    """Per topic, the servers that may lack what they acknowledged, derived from the commands alone."""

    def __init__(self) -> None:
        self.unsafe: dict[str, set[str]] = {}

    def on_command(self, before: MetadataState, command: Command, applied: Applied) -> None:
        """Follow one command, and check that no server is in ISR or ELR that may lack what it acknowledged. Called
        after every command."""
        for topic in applied.state.topics.values():
            unsafe = self.unsafe.setdefault(topic.topic_id, set())
            match command:
                case RegisterServer():
                    known = before.servers.get(command.node)
                    continuous = known is None or known.life in command.lives
                    if not (continuous and (command.clean or topic.config.flush == "fsync")):
                        unsafe.add(command.node)
                case LeaveParts() if command.lost and applied.changes:
                    if any(key.topic_id == topic.topic_id for key, _ in applied.changes):
                        unsafe.add(command.node)
                case ChangeIsr() if command.topic_id == topic.topic_id and applied.topics:
                    unsafe -= set(topic.partitions[0].isr)
            p = topic.partitions[0]
            old = before.partition(topic.topic_id, 0)
            if old is not None and p.unclean_epoch != old.unclean_epoch:
                unsafe -= {p.leader or ""}  # its log is what counts now, whatever it lacks
                continue
            assert not unsafe & {*p.isr, *p.elr}, "who may have lost something vouches for nothing"


def check_partition(state: MetadataState, topic: TopicState) -> None:
    p, config = topic.partitions[0], topic.config
    assert p.isr == tuple(n for n in p.replicas if n in p.isr)
    assert p.elr == tuple(n for n in p.replicas if n in p.elr and n not in p.isr)
    assert not p.elr or (config.commit_rule == "isr" and len(p.isr) < config.min_insync_replicas)
    assert p.leader is None or (p.leader in p.isr and state.is_live(p.leader) and p.last_leader is None)
    assert not set(p.learners) & set(p.replicas) and len(set(p.replicas)) == len(p.replicas) > 0
    assert p.successor is None or (p.successor in p.isr and state.is_live(p.successor) and p.leader is not None)
    assert bool(p.target) == bool(p.origin) and set(p.target) != set(p.replicas)
    assert set(p.target) <= {*p.replicas, *p.learners}
    assert not set(p.departed) & {*p.replicas, *p.learners}
    assert p.unclean_epoch <= p.leader_epoch
    if config.commit_rule == "quorum":
        assert p.sealing == (p.leader is None)
        return
    assert not p.sealing
    if not all(state.is_live(n) for n in p.isr):
        assert len(p.isr) == 1 and p.leader is None
    if p.leader is None:
        assert not any(state.is_live(n) for n in (*p.isr, *p.elr)), "somebody could lead"


def check_change(applied: Applied, topic: TopicState, q: PartitionState) -> None:
    """Check the invariants between two states of a partition that follow one another."""
    p = topic.partitions[0]
    assert p == q or p.epoch == q.epoch + 1
    assert p.leader_epoch - q.leader_epoch in (0, 1)
    assert p.leader_epoch > q.leader_epoch or p.leader == q.leader
    assert p.unclean_epoch in (q.unclean_epoch, p.leader_epoch)
    assert not q.paused or p.paused or p.leader_epoch > q.leader_epoch or p.leader is None, "it has served nobody"
    assert p.paused == q.paused or not p.paused or (p.leader_epoch, p.isr, p.elr) == (q.leader_epoch, q.isr, q.elr)
    changed = set(p.replicas) ^ set(q.replicas)
    assert topic.config.commit_rule != "quorum" or len(changed) <= 1, "any two majorities meet"
    back = {*p.replicas, *p.learners} & set(q.departed)
    assert p.leader is None or p.leader_epoch > q.leader_epoch or not back, "who left told this leader things"
    added = applied.state.history[topic.topic_id][0][-1]
    assert (added.epoch, added.leader_epoch, added.isr) == (p.epoch, p.leader_epoch, p.isr)
    if p.leader is not None and p.leader != q.leader:
        unclean = p.unclean_epoch == p.leader_epoch
        assert unclean or p.leader in (*q.isr, *q.elr), "a new leader vouched for everything before"
        assert unclean == (added.cause == "unclean_election")
        assert unclean == ("loss" in added.evidence)
        eligible = not unclean and p.leader not in q.isr
        assert eligible == (added.evidence.get("elected_from") == "elr")
        if added.cause == "transferred":
            assert p.leader == q.successor and p.isr == q.isr
        elif topic.config.commit_rule == "quorum" and not unclean:
            assert q.sealing, "nobody leads a quorum before the old epoch is sealed"


def check_step(before: MetadataState, applied: Applied) -> None:
    after = applied.state
    assert after.names == {t.name: t.topic_id for t in after.topics.values()}
    assert list(after.history) == list(after.topics)
    for topic in after.topics.values():
        check_partition(after, topic)
        old = before.topics.get(topic.topic_id)
        assert (topic in applied.topics) == (topic != old)
        if old is None:
            continue
        check_change(applied, topic, old.partitions[0])
        p, q = topic.partitions[0], old.partitions[0]
        for server in applied.servers:
            began = before.servers.get(server.node)
            restarted = began is not None and began.broker_epoch != server.broker_epoch
            if restarted and server.node in (p.leader, q.leader):
                assert p.leader_epoch > q.leader_epoch, "no leader epoch is resumed after a restart"
                if server.node in p.isr and topic.config.commit_rule != "quorum":
                    assert p.isr == (server.node,), "who restarted stays only where it is alone"


@settings(max_examples=200, deadline=None)
@given(st.lists(action, min_size=40, max_size=80))
def test_random_logs_keep_the_invariants_and_always_give_the_same_state(actions: list[tuple[object, ...]]) -> None:
    log, model = Log(), Model()
    for server in SERVERS[:3]:
        log.register(server, lives=(f"{server}-first",))
    for rule in RULES:
        config = TopicConfig(commit_rule=rule, min_insync_replicas=2)
        log.write(AddTopic(0, rule, rule, config, (("r1", "r2", "r3"),)))
    for number, act in enumerate(actions):
        for command in commands_of(log, number, act):
            before = log.state
            applied = log.write(command)
            check_step(before, applied)
            model.on_command(before, command, applied)
    replayed = MetadataState("test")
    for index, command in enumerate(log.commands, 1):
        replayed = apply(replayed, command, index).state
    assert replayed == log.state
    assert repr(replayed) == repr(log.state)
