"""Checks that are too expensive for every step: made on each log now and then, and on all at the end.

- epochs: the leader-epoch cache gives every batch the epoch of its header
- producers: the producer state equals the one recomputed from the log, and so do the transactions
- hash chain: the product's own chain gives the same prefix the same hash, on every replica and in every incarnation
  (R2)
- queues: they are bounded, every waiting request has a deadline, and the server's timer is not later
- fencing: a message of an older leader epoch, incarnation or metadata index changes nothing
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tidelog_replica.node import ReplicaNode
from tidelog_replica.partition.partition import Partition
from tidelog_replica.partition.purgatory import Purgatory
from tidelog_replica.replication.producer_state import AppendedBatch, ProducerState

from tidelog.batch.format import MAX_OFFSET
from tidelog.sansio.effects import Event
from tidelog.testing.invariants.controllers import ControllerInvariants
from tidelog.testing.invariants.ghost import Chain, Committed, Digest, Held
from tidelog.testing.invariants.views import View, view
from tidelog.types import TopicPartition
from tidelog.wire.messages import EpochOffset, Fetch, FetchAnswer, MetadataUpdate, Notify

STRIDE = 64
"""The number of changes of a log between two deep checks of it."""
NEWEST = 200
"""The number of newest batches of a log that a deep check looks at."""
MAY_BE_STALE = (Fetch, EpochOffset, FetchAnswer, Notify, MetadataUpdate)
"""The messages that carry a leader epoch, an incarnation or a metadata index."""
MAX_CALLS = 200
"""The most unanswered requests of one server; more would be a leak, since it asks a few peers about a few
partitions."""
Producers = dict[int, tuple[int, tuple[AppendedBatch, ...]]]
"""The producer state as ``ProducerState.snapshot`` returns it."""


class DeepChecks(ControllerInvariants):
    """The expensive checks, which are made at some steps only."""

    _chains: dict[tuple[TopicPartition, Digest], bytes]
    """The product's hash of a prefix, by partition and the checks' own digest of it."""
    _producers: dict[tuple[TopicPartition, Digest], Producers]
    """The producer state computed from a log, by partition and digest of the log."""
    _committed: dict[TopicPartition, Committed]
    may_forget: set[TopicPartition]
    """The partitions of which a copy was damaged. If no file has the producer state below a new log start, such a
    copy uses its memory and may forget the oldest batches, but never the newest one of a known producer."""

    def _check_deep(self, name: str, key: TopicPartition, partition: Partition, chain: Chain) -> None:
        """Check the newest batches of a log against its epoch cache, producer state, transactions and hash chain."""
        who, log = f"{name} {key.partition}", partition.log
        for header in chain.headers[-NEWEST:]:
            if header.end_offset <= log.start:
                continue
            epoch = log.epoch_at(header.end_offset)
            if epoch != header.leader_epoch:
                text = f"the epoch cache has {epoch} for {header.base_offset}, of {header.leader_epoch}"
                self._fail(f"R5 {who}: {text}")
        kept = partition.producers.snapshot()
        wanted = self._producers.setdefault((key, chain.last), kept) if chain.base else None
        if wanted is None:
            wanted = self._producers[key, chain.last] = ProducerState(chain.headers).snapshot()
        if kept != wanted and not (
            key in self.may_forget and _forgets_only(kept, wanted, self._committed[key].start)
        ):
            self._fail(f"R10 {who}: the producers' state is {kept}, the log says {wanted}")
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
        """Check that a server reports forgotten producers only where something was damaged."""
        rotten = name in self.cluster.faults.rotten or self.cluster.replica(name).disk.rots
        damaged = rotten or self.cluster.counts.get("fault read_error", 0) > 0
        self._demand(damaged, f"R10 {name} {key.partition}: producers are forgotten, and nothing was damaged")
        self.may_forget.add(key)

    def _check_stable(self, who: str, held: Held, view: View) -> None:
        """Check that the last stable offset goes back only together with the HW, which is checked itself."""
        transactions, stable = view.log.producers.transactions, view.high_watermark
        if not transactions.is_idle:
            stable = transactions.copy().last_stable_offset(stable)
        if stable < held.stable and (held.view is None or held.view.high_watermark <= view.high_watermark):
            self._fail(f"R5 {who}: the last stable offset went from {held.stable} to {stable}")
        held.stable = stable

    def _check_waiting(self, name: str, node: ReplicaNode) -> None:
        """Check that queues are bounded and every waiting request has a deadline that the timer covers."""
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
        """Give a server a message of ``MAY_BE_STALE`` by calling ``action``, and return its effects. If the message
        is out of date, check that it changes nothing (R6)."""
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
    """Return whether two producer states of one log differ only by what one has forgotten: older batches of a
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
    """Return the transactions of a producer state as if everything were committed, without those below ``start``."""
    transactions = producers.transactions.copy()
    transactions.last_stable_offset(MAX_OFFSET)
    transactions.forget_below(start)
    return transactions.to_map()


def _waiters(role: object) -> list[Purgatory[Any]]:
    """Return all queues of waiting requests of a role."""
    found: list[Purgatory[Any]] = []
    for part in (role, getattr(role, "_reading", None), getattr(role, "reading", None)):
        if part is not None:
            found += [value for value in vars(part).values() if isinstance(value, Purgatory)]
    return found


def _stale(node: ReplicaNode, message: Any) -> list[Partition]:
    """Return the partitions that an out-of-date message is about; [] if it is current."""
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
    """Return whether the parts of a message about a partition are of an earlier leader epoch or incarnation."""
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
    """Return whether retention moved the log start in this input. Any input may begin it: a server notices a full
    disk at the end of its next input."""
    return any(
        isinstance(effect, Event)
        and effect.name == "log_start_moved"
        and effect.fields["cause"] == "retention"
        and TopicPartition(effect.fields["topic_id"], effect.fields["partition"]) == partition.key
        for effect in effects
    )


def fingerprint(partition: Partition) -> tuple[Any, ...]:
    """Return everything of a partition that a message could change, as a comparable tuple."""
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
