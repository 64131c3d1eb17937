"""The changes of one command while it is applied, and how they are recorded in the partitions' histories and the
timeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tidelog.errors import TidelogError
from tidelog.timeline.records import Subject
from tidelog.types import NodeId, PartitionState, ServerState, TopicConfig, TopicPartition, TopicState
from tidelog.wire.messages import HistoryEntry, Message

from tidelog_controller.metadata.state import Applied, MetadataState
from tidelog_controller.metadata.timeline_state import TimelineEvent

HISTORY_LENGTH = 200
"""Number of changes that are remembered per partition."""


class ChangeSet:
    """The changes of one command while it is applied, until ``finish`` makes a new state of them. The rule that
    applies the command calls its methods. It copies only what changes. Most of its methods also record an event for
    the timeline."""

    def __init__(self, state: MetadataState, index: int, time_ms: int, asker: str = "") -> None:
        """Begin without changes to ``state``. ``index`` is the index of the command's entry, ``time_ms`` the wall
        clock in the command in milliseconds. ``asker`` is the principal that asked for the command ("" if none did);
        every event then names it."""
        self.state = state
        self._requester = {"asked_by": asker} if asker else {}
        self.next_producer_id = state.next_producer_id
        self.timeline = state.timeline
        """The timeline of the state, without the events of this command."""
        self.queue = state.queue
        """The queue of reassignments; a rule replaces it as a whole."""
        self.access = state.access
        """Tokens, rules and quotas; a rule replaces them as a whole."""
        self.level = state.level
        self.ticket_keys = state.ticket_keys
        """The keys of tickets; a rule replaces them as a whole."""
        self.owners = state.owners
        """The owners of topics; a rule replaces them as a whole."""
        self._forgotten: list[NodeId] = []
        self.index = index
        self._time_ms = time_ms
        self._servers: dict[NodeId, ServerState] = {}
        self._earlier_lives: dict[NodeId, tuple[str, ...]] = {}
        self._added: dict[str, TopicState] = {}
        self._removed: list[str] = []
        self._configs: dict[str, TopicConfig] = {}
        self._partitions: dict[str, list[PartitionState]] = {}
        self._changes: list[tuple[TopicPartition, HistoryEntry]] = []
        self._events: list[TimelineEvent] = []

    def is_live(self, node: NodeId) -> bool:
        """Return whether the server is registered and not fenced, with the changes of this command taken into
        account."""
        server = self._servers.get(node)
        return not server.fenced if server is not None else self.state.is_live(node)

    def drains(self, node: NodeId) -> bool:
        """Return whether the server is being drained, with the changes of this command taken into account; it then
        leads nothing that another server can lead. False for an unknown server."""
        server = self._servers.get(node) or self.state.servers.get(node)
        return server is not None and server.draining

    def put_server(
        self,
        server: ServerState,
        event: str,
        cause: str,
        evidence: dict[str, str],
        earlier_lives: tuple[str, ...] | None = None,
    ) -> None:
        """Add or replace a server, and record an event of the kind ``event`` about it. ``earlier_lives``, unless
        None, are the new names of its earlier incarnations."""
        self.record_event(event, cause, evidence, self.state.servers.get(server.node), server, node=server.node)
        self._servers[server.node] = server
        if earlier_lives is not None:
            self._earlier_lives[server.node] = earlier_lives

    def renew_server(self, server: ServerState) -> None:
        """Replace a server without an event: after a rescue one event stands for all servers."""
        self._servers[server.node] = server

    def forget_server(self, node: NodeId) -> None:
        """Remove a server and the names of its incarnations, and record the event ``server_forgotten``."""
        self._forgotten.append(node)
        self.record_event("server_forgotten", "operator", {}, self.state.servers[node], None, node=node)

    def add_topic(self, topic: TopicState) -> None:
        """Add a topic with its partitions. Records the event ``topic_created``, and ``created`` for each
        partition."""
        self._added[topic.topic_id] = topic
        evidence = {"partitions": str(len(topic.partitions))}
        self.record_event("topic_created", "create_topic", evidence, None, topic.config, topic=topic)
        for number, partition in enumerate(topic.partitions):
            self._record_change(
                TopicPartition(topic.topic_id, number), None, partition, "created", "create_topic", {}
            )

    def remove_topic(self, topic_id: str) -> None:
        """Remove a topic, its histories and its queued reassignments. Records the event ``topic_deleted``."""
        self._removed.append(topic_id)
        topic = self.state.topics[topic_id]
        evidence = {"partitions": str(len(topic.partitions))}
        self.record_event("topic_deleted", "delete_topic", evidence, topic.config, None, topic=topic)
        self.queue = {key: move for key, move in self.queue.items() if move.topic_id != topic_id}

    def put_config(self, topic: TopicState, config: TopicConfig, evidence: dict[str, str]) -> None:
        """Replace the settings of a topic by ``config``. Records the event ``topic_changed``."""
        self._configs[topic.topic_id] = config
        self.record_event("topic_changed", "alter_topic", evidence, topic.config, config, topic=topic)

    def add_partitions(self, topic: TopicState, partitions: tuple[PartitionState, ...]) -> None:
        """Append partitions to a topic. Records the event ``topic_grown``, and ``created`` for each new partition. A
        command that adds partitions must change nothing else of the topic."""
        present = len(topic.partitions)
        self._partitions[topic.topic_id] = [*topic.partitions, *partitions]
        evidence = {"partitions_before": str(present), "partitions": str(present + len(partitions))}
        self.record_event("topic_grown", "grow_topic", evidence, topic.config, topic.config, topic=topic)
        for number, partition in enumerate(partitions, present):
            self._record_change(TopicPartition(topic.topic_id, number), None, partition, "created", "grow_topic", {})

    def copies_of(self, node: NodeId) -> Iterator[tuple[TopicPartition, PartitionState, TopicConfig]]:
        """Yield the partitions of which the server is a replica, as they were before this command, each with its key
        and the settings of its topic, in the order in which the topics were created."""
        for topic in self.state.topics.values():
            for number, partition in enumerate(topic.partitions):
                if node in partition.replicas:
                    yield TopicPartition(topic.topic_id, number), partition, topic.config

    def change(self, key: TopicPartition, new: PartitionState, cause: str, evidence: dict[str, str]) -> None:
        """Replace the state of a partition by ``new``, and record an event with this cause in its history and in the
        timeline. Servers that lose their copy are remembered in ``departed``. Does nothing if ``new`` equals the old
        state. Fails an assertion unless the epoch of ``new`` is one higher. A command changes a partition at most
        once."""
        old = self.state.topics[key.topic_id].partitions[key.partition]
        if new == old:
            return
        assert new.epoch == old.epoch + 1, "every change is one epoch"
        self._put(key, old, _with_departed(old, new), cause, evidence)

    def recover(self, key: TopicPartition, new: PartitionState, evidence: dict[str, str]) -> None:
        """Replace the state of a partition after a rescue, and record an event with the cause ``rescue``. The epochs
        may jump by any number."""
        self._put(key, self.state.topics[key.topic_id].partitions[key.partition], new, "rescue", evidence)

    def _put(
        self, key: TopicPartition, old: PartitionState, new: PartitionState, cause: str, evidence: dict[str, str]
    ) -> None:
        """Replace the state of a partition, and record the event that describes the difference."""
        if key.topic_id not in self._partitions:
            self._partitions[key.topic_id] = list(self.state.topics[key.topic_id].partitions)
        self._partitions[key.topic_id][key.partition] = new
        cause, evidence = _completed(old, new, cause, evidence)
        self._record_change(key, old, new, _event(old, new, cause), cause, evidence)

    def record_partition_event(self, key: TopicPartition, event: str, cause: str, evidence: dict[str, str]) -> None:
        """Record an event about a partition in its history and in the timeline. The partition does not change."""
        now = self.state.topics[key.topic_id].partitions[key.partition]
        self._record_change(key, now, now, event, cause, evidence)

    def record_event(
        self,
        kind: str,
        cause: str,
        evidence: dict[str, str],
        before: Subject | None,
        after: Subject | None,
        *,
        topic: TopicState | None = None,
        partition: int = -1,
        node: NodeId = "",
    ) -> None:
        """Add an event of this kind to the timeline, with the next number and the time of the command. ``before`` and
        ``after`` are the subject of the event before and after the change; None if it did not exist, or exists no
        longer. ``topic``, ``partition`` and ``node`` name the subject."""
        name, topic_id = ("", "") if topic is None else (topic.name, topic.topic_id)
        evidence = {**evidence, **self._requester}
        number = self.timeline.last + len(self._events) + 1
        time_ms = self.timeline.clock(self._time_ms)
        event = TimelineEvent(
            number, time_ms, self.index, kind, cause, evidence, name, topic_id, partition, node, before, after
        )
        self._events.append(event)

    def _record_change(
        self,
        key: TopicPartition,
        old: PartitionState | None,
        new: PartitionState,
        event: str,
        cause: str,
        evidence: dict[str, str],
    ) -> None:
        """Record a change of a partition, from ``old`` (None for a new one) to ``new``, in its history and in the
        timeline."""
        evidence = {**evidence, **self._requester}
        entry = HistoryEntry(
            self._time_ms, new.epoch, new.leader_epoch, event, cause, new.leader or "", new.isr, evidence
        )
        self._changes.append((key, entry))
        topic = self._added.get(key.topic_id) or self.state.topics[key.topic_id]
        self.record_event(event, cause, evidence, old, new, topic=topic, partition=key.partition)

    def finish(self, answer: Message | TidelogError) -> Applied:
        """Return the outcome of the command: the new state, ``answer``, and the list of what changed. Every command
        ends with this call, even one that was refused."""
        old = self.state
        changed = dict(self._added)
        for topic_id in {**self._partitions, **self._configs}:
            topic = old.topics[topic_id]
            partitions = tuple(self._partitions.get(topic_id, topic.partitions))
            config = self._configs.get(topic_id, topic.config)
            changed[topic_id] = replace(topic, config=config, partitions=partitions)
        topics, names = old.topics, old.names
        if changed or self._removed:
            topics = {**topics, **changed}
        if self._added or self._removed:
            for topic_id in self._removed:
                del topics[topic_id]
            names = {topic.name: topic.topic_id for topic in topics.values()}
        servers_now, earlier_lives = old.servers, old.earlier_lives
        if self._servers or self._forgotten:
            servers_now = {n: s for n, s in {**old.servers, **self._servers}.items() if n not in self._forgotten}
        if self._earlier_lives or self._forgotten:
            lives = {**old.earlier_lives, **self._earlier_lives}
            earlier_lives = {n: names for n, names in lives.items() if n not in self._forgotten}
        state = MetadataState(
            old.cluster,
            self.index,
            servers_now,
            topics,
            names,
            self._histories() if self._changes or self._removed else old.history,
            self.next_producer_id,
            earlier_lives,
            self.timeline.with_events(self._events),
            self.queue,
            self.access,
            self.level,
            self.ticket_keys,
            self.owners,
        )
        return Applied(
            state,
            answer,
            tuple(self._servers.values()),
            tuple(changed.values()),
            tuple(self._removed),
            tuple(self._changes),
            None if self.access == old.access else self.access,
            None if self.level == max(old.level, 1) else self.level,
            tuple(self._forgotten),
            None if self.ticket_keys == old.ticket_keys else self.ticket_keys,
        )

    def _histories(self) -> dict[str, tuple[tuple[HistoryEntry, ...], ...]]:
        """Return the histories of all partitions with the new entries appended; of each the last ``HISTORY_LENGTH``
        are kept."""
        open_topics: dict[str, list[tuple[HistoryEntry, ...]]] = {
            topic_id: [()] * len(topic.partitions) for topic_id, topic in self._added.items()
        }
        for key, entry in self._changes:
            if key.topic_id not in open_topics:
                open_topics[key.topic_id] = list(self.state.history[key.topic_id])
            kept = open_topics[key.topic_id]
            kept += [()] * (key.partition + 1 - len(kept))
            kept[key.partition] = (*kept[key.partition], entry)[-HISTORY_LENGTH:]
        history = {**self.state.history, **{k: tuple(v) for k, v in open_topics.items()}}
        for topic_id in self._removed:
            del history[topic_id]
        return history


def _with_departed(old: PartitionState, new: PartitionState) -> PartitionState:
    """Return the new state of a partition, with the servers that lose their copy by this change added to
    ``departed``. Return it unchanged if a new leader epoch begins, since ``departed`` holds only for one leader
    epoch."""
    if new.leader_epoch != old.leader_epoch:
        return new
    copies = new.replicas + new.learners
    gone = tuple(n for n in old.replicas + old.learners if n not in copies and n not in new.departed)
    return replace(new, departed=new.departed + gone) if gone else new


def _event(old: PartitionState, new: PartitionState, cause: str) -> str:
    """Return the name of the event for a partition's change. If several parts change, the most important one names
    it: for example a new leader rather than a smaller ISR. ``isr_refused`` stands for a change of the epoch alone."""
    if new.paused != old.paused:
        return "paused" if new.paused else "resumed"
    if new.read_only != old.read_only:
        return "read_only" if new.read_only else "writable"
    if new.leader_epoch != old.leader_epoch:
        return "leader_elected" if new.leader is not None else "sealing" if new.sealing else "offline"
    if len(new.isr) != len(old.isr):
        return "isr_shrunk" if len(new.isr) < len(old.isr) else "isr_expanded"
    if set(new.isr) != set(old.isr):
        return "isr_changed"
    if new.doubtful != old.doubtful:
        return "tail_doubtful" if len(new.doubtful) > len(old.doubtful) else "tail_settled"
    if new.elr != old.elr:
        return "elr_changed"
    if new.replicas != old.replicas:
        return "replicas_changed"
    if new.target != old.target:
        return "reassignment_began"
    if new.successor != old.successor:
        return "transfer_began" if new.successor is not None else "transfer_withdrawn"
    if new.learners != old.learners:
        return "learners_changed"
    if new.last_leader != old.last_leader:
        return "last_leader_forgotten"
    events = {"data_lost": "copy_lost", "alter_topic": "settings_changed", "tail_given_up": "tail_given_up"}
    events |= {"tail_doubtful": "tail_doubtful", "tail_settled": "tail_settled"}
    return events.get(cause, "isr_refused")


def _completed(
    old: PartitionState, new: PartitionState, cause: str, evidence: dict[str, str]
) -> tuple[str, dict[str, str]]:
    """Return cause and evidence of a partition's change, with everything added that a reader needs besides leader and
    ISR: an unclean election, an election from the ELR, and changed replicas, targets, ELR and doubtful members."""
    more = {}
    if new.unclean_epoch != old.unclean_epoch:
        more = {"trigger": cause, "loss": "possible", "in_sync_before": " ".join(old.isr)}
        cause = "unclean_election"
    elif new.leader_epoch != old.leader_epoch and new.leader is not None and new.leader not in old.isr:
        more = {"elected_from": "elr"}
    if new.replicas != old.replicas:
        more["replicas"] = " ".join(new.replicas)
    if new.target != old.target:
        more["reassigned_to"] = " ".join(new.target or new.replicas)
    if new.elr or old.elr:
        more["elr"] = " ".join(new.elr)
    if new.doubtful or old.doubtful:
        more["doubtful"] = " ".join(new.doubtful)
    return cause, {**evidence, **more}
