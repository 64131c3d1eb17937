"""Checks that cost more than a step may: done on each log now and then, and on all at the end.

epochs      the leader-epoch cache says of every batch what its header says
producers   the producers' state is the one recomputed from the log, and so is that of transactions
hash chain  the product's own chain names the same prefix by the same hash, on every replica and in every life (R2)
queues      bounded; who waits has a deadline, and the server's timer is not later
fencing     a message of an older leader epoch, life or metadata index changes nothing
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tidelog.batch.format import MAX_OFFSET
from tidelog.sansio.effects import Event
from tidelog.types import TopicPartition
from tidelog.wire.messages import EpochOffset, Fetch, FetchAnswer, MetadataUpdate, Notify
from tidelog_replica.node import ReplicaNode
from tidelog_replica.partition.partition import Partition
from tidelog_replica.partition.purgatory import Purgatory
from tidelog_replica.replication.producer_state import AppendedBatch, ProducerState

from simulation.invariants.controllers import ControllerInvariants
from simulation.invariants.ghost import Chain, Committed, Digest, Held
from simulation.invariants.views import View, view

STRIDE = 64
"""A log is looked into after every so many changes."""
NEWEST = 200
"""So many of its newest batches."""
MAY_BE_STALE = (Fetch, EpochOffset, FetchAnswer, Notify, MetadataUpdate)
"""Messages of a leader epoch, a life, or a metadata index."""
MAX_CALLS = 200
"""More unanswered calls of one server would be a leak: it asks a few peers about a few partitions."""
Producers = dict[int, tuple[int, tuple[AppendedBatch, ...]]]
"""See ``ProducerState.snapshot``."""


class DeepChecks(ControllerInvariants):
    """Checks that read much, made at some steps only."""

    _chains: dict[tuple[TopicPartition, Digest], bytes]
    """The product's hash chain by the ghost's."""
    _producers: dict[tuple[TopicPartition, Digest], Producers]
    """What a log says of its producers."""
    _committed: dict[TopicPartition, Committed]
    may_forget: set[TopicPartition]
    """Partitions of which a copy was damaged. Where no other file tells what producers had written before the new log
    start, that copy goes by its memory, and may forget the oldest: never the newest batch of one that it knows."""

    def _check_deep(self, name: str, key: TopicPartition, partition: Partition, chain: Chain) -> None:
        who, log = f"{name} {key.partition}", partition.log
        for header in chain.headers[-NEWEST:]:
            if header.end_offset <= log.start:
                continue
            epoch = log.epoch_at(header.end_offset)
            if epoch != header.leader_epoch:
                text = f"the epoch cache has {epoch} for {header.base_offset}, of {header.leader_epoch}"
                self._fail(f"R5 {who}: {text}")
        told = partition.producers.snapshot()
        wanted = self._producers.setdefault((key, chain.last), told) if chain.base else None
        if wanted is None:
            wanted = self._producers[key, chain.last] = ProducerState(chain.headers).snapshot()
        if told != wanted and not (
            key in self.may_forget and _forgets_only(told, wanted, self._committed[key].start)
        ):
            self._fail(f"R10 {who}: the producers' state is {told}, the log says {wanted}")
        if not chain.base:
            has = _transactions(partition.producers, log.start)
            should = _transactions(ProducerState(chain.headers), log.start)
            if has != should:
                self._fail(f"R10 {who}: transactions are {has}, the log says {should}")
        for end in chain.ends[-1:]:
            boundary, hashed = log.chain_at(end)
            known = self._chains.setdefault((key, chain.at[end]), hashed)
            self._demand(boundary == end and known == hashed, f"R2 {who}: another hash chain up to {end}")

    def on_producers_forgotten(self, name: str, key: TopicPartition) -> None:
        """A server says that it does not know any more what producers wrote before the log start: only damage may
        have cost it that."""
        rotten = name in self.cluster.faults.rotten or self.cluster.replica(name).disk.rots
        damaged = rotten or self.cluster.counts.get("fault read_error", 0) > 0
        self._demand(damaged, f"R10 {name} {key.partition}: producers are forgotten, and nothing was damaged")
        self.may_forget.add(key)

    def _check_stable(self, who: str, held: Held, view: View) -> None:
        """The last stable offset goes back only with the HW, which has to be excused."""
        transactions, stable = view.log.producers.transactions, view.high_watermark
        if not transactions.is_idle:
            stable = transactions.copy().last_stable_offset(stable)
        if stable < held.stable and (held.view is None or held.view.high_watermark <= view.high_watermark):
            self._fail(f"R5 {who}: the last stable offset went from {held.stable} to {stable}")
        held.stable = stable

    def _check_waiting(self, name: str, node: ReplicaNode) -> None:
        """Everybody who waits has a deadline that the timer knows."""
        bound = self.cluster.replica_settings.partition_max_waiting
        due = node.deadline()
        for key, partition in node.partitions.items():
            for waiters in _waiters(partition.role):
                who = f"QUEUE {name} {key.partition}"
                self._demand(len(waiters.waiting) <= bound, f"{who}: {len(waiters.waiting)} wait")
                if waiters.waiting:
                    earliest = waiters.deadline
                    known = earliest is not None and due is not None and due <= earliest
                    self._demand(known, f"{who}: waiters until {earliest}, the timer is set to {due}")
        calls = len(node._effects._calls)
        self._demand(calls <= MAX_CALLS, f"QUEUE {name}: {calls} calls are not answered")

    def fenced(
        self, name: str, node: ReplicaNode, message: Any, action: Callable[[], Sequence[Any]]
    ) -> Sequence[Any]:
        """Give the server one of ``MAY_BE_STALE``. Where it is out of date nothing may change."""
        stale = _stale(node, message)
        if not stale:
            return action()
        before = [fingerprint(partition) for partition in stale]
        effects = action()
        for partition, was in zip(stale, before, strict=True):
            now = fingerprint(partition)
            if _retention_moved_start(partition, effects):  # it began in the same input, and would have without it
                was, now = was[1:], now[1:]
            if was != now:
                self._fail(f"R6 {name} {partition.key.partition}: {message} came too late, and {was} is {now}")
        self.cluster.count("messages out of date")
        return effects


def _forgets_only(one: Producers, other: Producers, start: int) -> bool:
    """Whether two states of one log differ in nothing but what one of them has forgotten: the older batches of a
    producer, or a producer that has written nothing since ``start``."""
    for id in one.keys() | other.keys():
        if id not in one or id not in other:
            _, batches = one.get(id) or other[id]
            if batches[-1].base_offset >= start:
                return False
            continue
        (epoch, batches), (other_epoch, others) = one[id], other[id]
        known = min(len(batches), len(others))
        if epoch != other_epoch or batches[-known:] != others[-known:]:
            return False
    return True


def _transactions(producers: ProducerState, start: int) -> object:
    """What they say of transactions, as if everything were committed: the rest is forgotten sooner or later."""
    transactions = producers.transactions.copy()
    transactions.last_stable_offset(MAX_OFFSET)
    transactions.forget_below(start)
    return transactions.to_map()


def _waiters(role: object) -> list[Purgatory[Any]]:
    """All queues of a role and of what it is made of."""
    found: list[Purgatory[Any]] = []
    for part in (role, getattr(role, "_reading", None), getattr(role, "reading", None)):
        if part is not None:
            found += [value for value in vars(part).values() if isinstance(value, Purgatory)]
    return found


def _stale(node: ReplicaNode, message: Any) -> list[Partition]:
    """The partitions that the message is about where it is of an earlier leader epoch, life, or state."""
    if isinstance(message, MetadataUpdate):
        session, known = node._session, node._assignment._image.index
        old = message.index <= known or not session.registered or message.index < session.index
        return list(node.partitions.values()) if old else []
    named: dict[TopicPartition, list[Any]] = {}
    for part in message.parts:
        named.setdefault(TopicPartition(part.topic_id, part.partition), []).append(part)
    found = ((node.partitions.get(key), parts) for key, parts in named.items())
    return [partition for partition, parts in found if partition is not None and _is_stale(partition, message, parts)]


def _is_stale(partition: Partition, message: Any, parts: Sequence[Any]) -> bool:
    """Whether its ``parts``, which are about that partition, are of an earlier leader epoch or life."""
    if partition.role is None:
        return False
    if isinstance(message, FetchAnswer | Notify):
        following = partition.following
        return following is not None and parts[0].leader_epoch not in (-1, following.core.leader_epoch)
    leading = partition.leading
    if leading is None:
        return True  # nobody fetches from a follower
    progress = leading.core.followers.get(message.node)
    older_life = progress is not None and message.broker_epoch < progress.broker_epoch
    return older_life or all(part.leader_epoch < leading.core.leader_epoch for part in parts)


def _retention_moved_start(partition: Partition, effects: Sequence[Any]) -> bool:
    """Whether the server's own retention has moved the partition's log start in this input. Every input may begin
    it: the disk has become full, and the server notices at the end of the next input, whatever that is."""
    return any(
        isinstance(effect, Event)
        and effect.name == "log_start_moved"
        and effect.fields["cause"] == "retention"
        and TopicPartition(effect.fields["topic_id"], effect.fields["partition"]) == partition.key
        for effect in effects
    )


def fingerprint(partition: Partition) -> tuple[Any, ...]:
    """All that a message could change of a partition."""
    seen, leading = view(partition), partition.leading
    followers = () if leading is None else (repr(leading.core.followers), leading.core.proposal, leading.core.isr)
    log = partition.log
    return (
        log.start,
        log.end,
        log.durable,
        seen.leads,
        seen.leader_epoch,
        seen.epoch,
        seen.high_watermark,
        followers,
    )
