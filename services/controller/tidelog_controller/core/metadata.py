"""The cluster's metadata: a pure state machine over the committed Raft log.

``apply(state, command, index)`` gives the next state. It reads no clock, throws no dice and does no I/O, so every
controller that applied the same entries holds the same state, and a replayed log rebuilds it.

Partition states. All changes go through ``elect``, the one function that chooses leaders and lets epochs grow:

    led       leader in the ISR, unfenced
    offline   leader None; the ISR is one fenced server, which alone holds everything committed

Invariants, for every partition after every command (``tests/unit/test_metadata.py`` throws random logs at them):

- the ISR is never empty and a subset of the replicas, in replica order;
- the leader is an unfenced member of the ISR, so an elected leader holds everything committed (R3);
- a fenced server is in an ISR only alone, and offline; a restarted one only alone, with a new leader epoch (R9):
  whoever cannot vouch for its log leaves every ISR in which another can;
- ``epoch`` grows with every change, ``leader_epoch`` with every change of leader, also to none and also to a new
  life of the same server (R1; no leader epoch is ever resumed after a restart).

A proposed ISR whose members are not all live is refused, *and* the epoch moves on. The leader counts a proposed
member until it sees a newer epoch; were the epoch to stay, a delayed copy of the refused proposal could still be
applied after the leader had stopped counting that member.

Sources: KIP-497 (compare-and-set of the ISR), KIP-841 and KIP-903 (fenced members, broker epochs of members).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tidelog.errors import TidelogError, refuse
from tidelog.types import ClusterImage, NodeId, PartitionState, ServerState, TopicPartition, TopicState
from tidelog.wire.messages import (
    AlterIsrAnswer,
    Done,
    HistoryEntry,
    Message,
    ProducerIds,
    Registered,
    TopicCreated,
)

from tidelog_controller.core.commands import (
    AddTopic,
    ChangeIsr,
    Command,
    FenceServer,
    RegisterServer,
    RemoveTopic,
    ReplaceLeaders,
    TakeProducerIds,
    UnfenceServer,
)

HISTORY_LENGTH = 200
"""Changes remembered per partition."""


@dataclass(frozen=True, slots=True)
class MetadataState:
    """Everything the cluster agrees on, after entry ``index``. Never changed in place: ``apply`` makes a new one."""

    cluster: str
    index: int = 0
    servers: dict[NodeId, ServerState] = field(default_factory=dict)
    topics: dict[str, TopicState] = field(default_factory=dict)
    """By topic id."""
    names: dict[str, str] = field(default_factory=dict)
    """Topic ids by topic name."""
    history: dict[str, tuple[tuple[HistoryEntry, ...], ...]] = field(default_factory=dict)
    """By topic id, then partition: the last ``HISTORY_LENGTH`` changes, oldest first."""
    next_producer_id: int = 1
    """0 means "not idempotent" in a batch header."""

    def image(self) -> ClusterImage:
        """What watchers see of it."""
        return ClusterImage(self.index, self.cluster, tuple(self.servers.values()), tuple(self.topics.values()))

    def partition(self, topic_id: str, partition: int) -> PartitionState | None:
        """One partition, or None when there is no such topic or partition."""
        topic = self.topics.get(topic_id)
        if topic is None or not 0 <= partition < len(topic.partitions):
            return None
        return topic.partitions[partition]

    def is_live(self, node: NodeId) -> bool:
        """Registered and not fenced: may lead and may join an ISR."""
        server = self.servers.get(node)
        return server is not None and not server.fenced

    def in_life(self, node: NodeId, broker_epoch: int) -> bool:
        """Whether ``broker_epoch`` is the server's present life, fenced or not."""
        server = self.servers.get(node)
        return server is not None and server.broker_epoch == broker_epoch


@dataclass(frozen=True, slots=True)
class Applied:
    """What one command did: the new state, the answer to whoever asked, and what changed."""

    state: MetadataState
    answer: Message | TidelogError
    servers: tuple[ServerState, ...] = ()
    topics: tuple[TopicState, ...] = ()
    deleted_ids: tuple[str, ...] = ()
    changes: tuple[tuple[TopicPartition, HistoryEntry], ...] = ()
    """The history entries that were added, in order."""

    @property
    def visible(self) -> bool:
        """Whether watchers must hear of it."""
        return bool(self.servers or self.topics or self.deleted_ids)


def elect(
    partition: PartitionState, isr: tuple[NodeId, ...], is_live: Callable[[NodeId], bool], *, renew: bool = False
) -> PartitionState:
    """The partition with this ISR and the leader that follows from it; the same object when nothing changes.

    The leader stays while it is a live member of ``isr``; else the first live member in replica order leads, or
    nobody. ``renew``: a leader that stays gets a new leader epoch all the same (it restarted).
    """
    assert isr, "an ISR is never empty"
    assert all(node in partition.replicas for node in isr), "an ISR holds replicas only"
    isr = tuple(node for node in partition.replicas if node in isr)
    stays = not renew and partition.leader in isr and partition.leader is not None and is_live(partition.leader)
    leader = partition.leader if stays else next((node for node in isr if is_live(node)), None)
    new_leader = not stays and not (leader is None and partition.leader is None)
    if isr == partition.isr and not new_leader:
        return partition
    return replace(
        partition,
        isr=isr,
        leader=leader,
        leader_epoch=partition.leader_epoch + (1 if new_leader else 0),
        epoch=partition.epoch + 1,
    )


def apply(state: MetadataState, command: Command, index: int) -> Applied:
    """The state after ``command``, which stands in the log at ``index``. Deterministic."""
    draft = _Draft(state, index, command.time_ms)
    match command:
        case RegisterServer():
            return draft.finish(_register(draft, command, index))
        case FenceServer():
            return draft.finish(_fence(draft, command))
        case UnfenceServer():
            return draft.finish(_unfence(draft, command))
        case AddTopic():
            return draft.finish(_add_topic(draft, command))
        case RemoveTopic():
            return draft.finish(_remove_topic(draft, command))
        case ChangeIsr():
            return draft.finish(_change_isr(draft, command))
        case ReplaceLeaders():
            return draft.finish(_replace_leaders(draft, command))
        case TakeProducerIds():
            first = draft.next_producer_id
            draft.next_producer_id += command.count
            return draft.finish(ProducerIds(first, command.count))
        case _:
            raise AssertionError(f"no rule for {command.KIND}")


def skip(state: MetadataState, index: int) -> MetadataState:
    """The state after an entry without a command (Raft's no-op)."""
    return replace(state, index=index)


class _Draft:
    """The changes of one command, until they become one new state. Copies only what it changes."""

    def __init__(self, state: MetadataState, index: int, time_ms: int) -> None:
        self.state = state
        self.next_producer_id = state.next_producer_id
        self._index = index
        self._time_ms = time_ms
        self._servers: dict[NodeId, ServerState] = {}
        self._added: dict[str, TopicState] = {}
        self._removed: list[str] = []
        self._partitions: dict[str, list[PartitionState]] = {}
        self._changes: list[tuple[TopicPartition, HistoryEntry]] = []

    def is_live(self, node: NodeId) -> bool:
        server = self._servers.get(node)
        return not server.fenced if server is not None else self.state.is_live(node)

    def put_server(self, server: ServerState) -> None:
        self._servers[server.node] = server

    def add_topic(self, topic: TopicState) -> None:
        self._added[topic.topic_id] = topic
        for number, partition in enumerate(topic.partitions):
            self._record(TopicPartition(topic.topic_id, number), partition, "created", "create_topic", {})

    def remove_topic(self, topic_id: str) -> None:
        self._removed.append(topic_id)

    def with_isr_member(self, node: NodeId) -> list[tuple[TopicPartition, PartitionState]]:
        """The partitions whose ISR holds ``node``, in the order of the topics' creation."""
        return [
            (TopicPartition(topic.topic_id, number), partition)
            for topic in self.state.topics.values()
            for number, partition in enumerate(topic.partitions)
            if node in partition.isr
        ]

    def change(self, key: TopicPartition, new: PartitionState, cause: str, evidence: dict[str, str]) -> None:
        """Put a partition's new state, once per command, and remember why. Nothing when it is the old one."""
        old = self.state.topics[key.topic_id].partitions[key.partition]
        if new == old:
            return
        assert new.epoch == old.epoch + 1, "every change is one epoch"
        partitions = self._partitions.setdefault(key.topic_id, list(self.state.topics[key.topic_id].partitions))
        partitions[key.partition] = new
        self._record(key, new, _event(old, new), cause, evidence)

    def _record(
        self, key: TopicPartition, new: PartitionState, event: str, cause: str, evidence: dict[str, str]
    ) -> None:
        entry = HistoryEntry(
            self._time_ms, new.epoch, new.leader_epoch, event, cause, new.leader or "", new.isr, evidence
        )
        self._changes.append((key, entry))

    def finish(self, answer: Message | TidelogError) -> Applied:
        """The new state. Every command ends here, also one that came to nothing."""
        changed = dict(self._added)
        for topic_id, partitions in self._partitions.items():
            changed[topic_id] = replace(self.state.topics[topic_id], partitions=tuple(partitions))
        topics, names, history = self.state.topics, self.state.names, self.state.history
        if changed or self._removed:
            topics, history = {**topics, **changed}, self._histories()
        if self._added or self._removed:
            for topic_id in self._removed:
                del topics[topic_id]
            names = {topic.name: topic.topic_id for topic in topics.values()}
        state = MetadataState(
            self.state.cluster,
            self._index,
            {**self.state.servers, **self._servers} if self._servers else self.state.servers,
            topics,
            names,
            history,
            self.next_producer_id,
        )
        servers = tuple(self._servers.values())
        return Applied(state, answer, servers, tuple(changed.values()), tuple(self._removed), tuple(self._changes))

    def _histories(self) -> dict[str, tuple[tuple[HistoryEntry, ...], ...]]:
        open_topics: dict[str, list[tuple[HistoryEntry, ...]]] = {
            topic_id: [()] * len(topic.partitions) for topic_id, topic in self._added.items()
        }
        for key, entry in self._changes:
            if key.topic_id not in open_topics:
                open_topics[key.topic_id] = list(self.state.history[key.topic_id])
            kept = open_topics[key.topic_id]
            kept[key.partition] = (*kept[key.partition], entry)[-HISTORY_LENGTH:]
        history = {**self.state.history, **{k: tuple(v) for k, v in open_topics.items()}}
        for topic_id in self._removed:
            del history[topic_id]
        return history


def _event(old: PartitionState, new: PartitionState) -> str:
    """The history's word for a change: its most important part."""
    if new.leader_epoch != old.leader_epoch:
        return "leader_elected" if new.leader is not None else "offline"
    if len(new.isr) != len(old.isr):
        return "isr_shrunk" if len(new.isr) < len(old.isr) else "isr_expanded"
    return "isr_changed" if new.isr != old.isr else "isr_refused"


def _without(isr: tuple[NodeId, ...], node: NodeId) -> tuple[NodeId, ...]:
    return tuple(member for member in isr if member != node)


def _register(draft: _Draft, command: RegisterServer, index: int) -> Registered:
    """A life begins. The former one may have lost what it had not flushed: it leaves every ISR where others
    remain; where it is alone it stays, and leads in a new leader epoch."""
    node = command.node
    draft.put_server(ServerState(node, command.url, index, fenced=False))
    for key, partition in draft.with_isr_member(node):
        others = _without(partition.isr, node)
        new = elect(partition, others or partition.isr, draft.is_live, renew=not others)
        draft.change(key, new, "registered", {"node": node, "broker_epoch": str(index)})
    return Registered(index, index, 0, draft.state.cluster)


def _fence(draft: _Draft, command: FenceServer) -> Done | TidelogError:
    server = draft.state.servers.get(command.node)
    if server is None or server.broker_epoch != command.broker_epoch:
        return refuse("FENCED_BROKER_EPOCH", f"{command.node} is in a later life")
    if server.fenced:
        return Done()
    draft.put_server(replace(server, fenced=True))
    evidence = {"node": command.node, "broker_epoch": str(command.broker_epoch), **command.evidence}
    for key, partition in draft.with_isr_member(command.node):
        others = _without(partition.isr, command.node)
        draft.change(key, elect(partition, others or partition.isr, draft.is_live), "session_expired", evidence)
    return Done()


def _unfence(draft: _Draft, command: UnfenceServer) -> Done | TidelogError:
    server = draft.state.servers.get(command.node)
    if server is None or server.broker_epoch != command.broker_epoch:
        return refuse("FENCED_BROKER_EPOCH", f"{command.node} is in a later life")
    if not server.fenced:
        return Done()
    draft.put_server(replace(server, fenced=False))
    evidence = {"node": command.node, "broker_epoch": str(command.broker_epoch)}
    for key, partition in draft.with_isr_member(command.node):
        draft.change(key, elect(partition, partition.isr, draft.is_live), "session_resumed", evidence)
    return Done()


def _add_topic(draft: _Draft, command: AddTopic) -> TopicCreated | TidelogError:
    if command.name in draft.state.names:
        return refuse("TOPIC_EXISTS", f"a topic named {command.name} exists")
    partitions = []
    for replicas in command.replicas:
        isr = tuple(node for node in replicas if draft.is_live(node))
        if not isr:
            return refuse("INVALID_REPLICATION_FACTOR", f"none of the servers {', '.join(replicas)} is live", live=0)
        partitions.append(PartitionState(replicas, isr, isr[0], leader_epoch=0, epoch=0))
    draft.add_topic(TopicState(command.topic_id, command.name, command.config, tuple(partitions)))
    return TopicCreated(command.topic_id)


def _remove_topic(draft: _Draft, command: RemoveTopic) -> Done | TidelogError:
    if command.topic_id not in draft.state.topics:
        return refuse("UNKNOWN_TOPIC", "the topic is deleted already")
    draft.remove_topic(command.topic_id)
    return Done()


def _change_isr(draft: _Draft, command: ChangeIsr) -> AlterIsrAnswer | TidelogError:
    state, key = draft.state, TopicPartition(command.topic_id, command.partition)
    partition = state.partition(*key)
    if partition is None:
        return refuse("UNKNOWN_TOPIC", f"no partition {command.partition} of topic id {command.topic_id}")
    if not state.in_life(command.node, command.broker_epoch):
        return refuse("FENCED_BROKER_EPOCH", f"{command.node} is in a later life")
    if partition.leader != command.node:
        return refuse("NOT_LEADER", f"{partition.leader or 'nobody'} leads, not {command.node}")
    if partition.leader_epoch != command.leader_epoch:
        return refuse(
            "FENCED_LEADER_EPOCH",
            f"the leader epoch is {partition.leader_epoch}",
            leader_epoch=partition.leader_epoch,
        )
    if partition.epoch != command.epoch:
        return refuse("STALE_EPOCH", f"the epoch is {partition.epoch}, not {command.epoch}", epoch=partition.epoch)
    members = tuple(member.node for member in command.isr)
    strangers = [node for node in members if node not in partition.replicas]
    if strangers or command.node not in members:
        return refuse("NOT_REPLICA", "an ISR holds the leader and replicas only", members=", ".join(members))
    unfit = [m.node for m in command.isr if not (state.is_live(m.node) and state.in_life(m.node, m.broker_epoch))]
    if unfit:
        moved = replace(partition, epoch=partition.epoch + 1)
        draft.change(key, moved, command.cause, {**command.evidence, "unfit": ", ".join(unfit)})
        return refuse(
            "STALE_EPOCH",
            f"fenced or restarted since: {', '.join(unfit)}; now epoch {moved.epoch}",
            epoch=moved.epoch,
        )
    new = elect(partition, members, draft.is_live)
    if new is partition:  # no change is also a change, so that the proposer sees a newer epoch
        new = replace(partition, epoch=partition.epoch + 1)
    assert new.leader == command.node
    draft.change(key, new, command.cause, command.evidence)
    return AlterIsrAnswer(new.epoch, new.isr)


def _replace_leaders(draft: _Draft, command: ReplaceLeaders) -> Done:
    """The failed leader leaves the ISR in the same change: nobody fetches in its epoch any more, so it commits
    nothing, and the new leader's HW need not wait for it. A partition that moved on is left alone."""
    for part in command.parts:
        key = TopicPartition(part.topic_id, part.partition)
        partition = draft.state.partition(*key)
        if partition is None or (partition.leader, partition.leader_epoch, partition.epoch) != (
            command.leader,
            part.leader_epoch,
            part.epoch,
        ):
            continue
        others = _without(partition.isr, command.leader)
        if any(draft.is_live(node) for node in others):
            draft.change(key, elect(partition, others, draft.is_live), "leader_reported", part.evidence)
    return Done()
