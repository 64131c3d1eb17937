"""The transaction coordinators of this server, one for each partition of ``__transactions`` that it leads:
``transactions/coordinator.py`` on ``coordinators/runtime.py``. Their markers are sent to the leaders of partitions
until the committed logs hold them.

A partition is enrolled only if the metadata here have its topic. A later coordinator is elected later, so its
metadata are at least as new: a topic that they do not have is deleted, and needs no marker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from tidelog.client.core.partitioner import partition_of
from tidelog.errors import TidelogError, refuse
from tidelog.feature_levels import TASK_PRODUCERS
from tidelog.sansio.counters import count
from tidelog.types import TRANSACTIONS, TopicState
from tidelog.wire.messages import (
    BeginTransaction,
    Done,
    EnrolPartition,
    InitTaskProducer,
    ListTransactions,
    Message,
    StagedCommitted,
    TransactionEnded,
    WriteMarker,
)

from tidelog_replica.assignment.assignment import Assignment
from tidelog_replica.assignment.leadership import Leadership
from tidelog_replica.context import NodeContext
from tidelog_replica.coordinators.runtime import CoordinatorRuntime, CoordinatorShard, Waiting
from tidelog_replica.coordinators.transactions.coordinator import KINDS as KINDS
from tidelog_replica.coordinators.transactions.coordinator import TransactionCoordinator
from tidelog_replica.coordinators.transactions.records import StoredTransactions
from tidelog_replica.coordinators.transactions.transaction import (
    ENDING,
    LIVE,
    Marker,
    TransactionMetadata,
    topic_shares,
)


@dataclass(frozen=True, slots=True)
class _Begin:
    """A request to begin a transaction that waits until the previous transaction of the same name has ended. At
    ``deadline`` (seconds) it is refused."""

    source: int
    id: int | None
    message: BeginTransaction
    deadline: float


@dataclass(frozen=True, slots=True)
class _Commit:
    """The answer to a request to commit, which waits until the partitions of the committed transactions ``slots``
    have their markers, so that readers see the records."""

    led: CoordinatorShard[TransactionCoordinator, StoredTransactions]
    waiting: Waiting
    slots: tuple[TransactionMetadata, ...]
    until: float
    """When the answer is sent in any case (seconds). It then names the partitions whose marker is not confirmed."""


class TransactionCoordinatorService(CoordinatorRuntime[TransactionCoordinator, StoredTransactions]):
    """The coordinators of transactions on this server, one for each partition of ``__transactions`` that it leads.
    Besides what every coordinator needs, it sends markers to the leaders of partitions, and delays the answers to
    commits until the markers are there, and requests to begin until the previous transaction has ended. It lives as
    long as the node."""

    TOPIC: ClassVar[str] = TRANSACTIONS

    def __init__(self, context: NodeContext, assignment: Assignment, leadership: Leadership) -> None:
        super().__init__(context, assignment, leadership)
        self._seen: tuple[TopicState, ...] = ()
        self._topics: dict[str, TopicState] = {}
        self._begins: dict[tuple[str, str], _Begin] = {}
        """Requests to begin that wait for the end of the previous transaction, by application and staged name."""
        self._finished: list[tuple[str, str]] = []
        """Transactions that have ended during this tick, by application and staged name. Requests that wait for them
        are handled when every coordinator of this server has done what is due."""
        self._commits: list[_Commit] = []
        """Answers to commits that wait for markers."""

    def _store(self) -> StoredTransactions:
        return StoredTransactions()

    def _make(
        self, led: CoordinatorShard[TransactionCoordinator, StoredTransactions], now: float
    ) -> TransactionCoordinator:
        core = TransactionCoordinator(self._settings.transactions)
        core.load_records(led.stored, led.written, now, self._wall_ms())
        return core

    def _on_begun(
        self, led: CoordinatorShard[TransactionCoordinator, StoredTransactions], core: TransactionCoordinator
    ) -> None:
        fields = {"partition": led.partition.key.partition, "transactions": len(core.slots)}
        self._effects.event("transactions_coordinated", **fields, log_end=led.partition.log.end)

    def _on_unreadable(self, led: CoordinatorShard[TransactionCoordinator, StoredTransactions]) -> None:
        self._effects.event("transactions_unreadable", partition=led.partition.key.partition, reason=led.broken)

    def _number(self, message: Message) -> int:
        if isinstance(message, ListTransactions) and not message.app:
            return message.partition
        return partition_of(getattr(message, "app", "").encode(), self.partitions)

    def _changes(self, message: Message) -> bool:
        return not isinstance(message, ListTransactions)

    def _needs_proof(self, message: Message, wrote: bool) -> bool:
        """Return whether the answer waits for a proof that no other server led when the request came: only if the
        request has appended nothing, since the commit of what it appends is such a proof."""
        return not wrote

    def ages(self) -> dict[str, list[float]]:
        """Return, for each state of a transaction that has not ended, a list with the seconds since when each
        transaction in it has been in that state. The list of a state without transactions is empty."""
        found: dict[str, list[float]] = {state: [] for state in LIVE + ENDING}
        wall_ms, patience_ms = self._wall_ms(), self._settings.transactions.staged_timeout_ms
        for led in self._led.values():
            for slot in led.core.slots.values() if led.core is not None and led.is_led else ():
                if slot.outcome in found:
                    found[slot.outcome].append(max(0.0, (wall_ms - slot.since_ms(patience_ms)) / 1000))
        return found

    def topic(self, topic_id: str) -> TopicState | None:
        """Return the topic with that id from the newest metadata; None if there is none."""
        if self._seen is not self._assignment.image.topics:
            self._seen = self._assignment.image.topics
            self._topics = {topic.topic_id: topic for topic in self._seen}
        return self._topics.get(topic_id)

    def coordinator_of(self, app: str) -> str | None:
        """Return the server that coordinates a transactional id, by the newest metadata: the leader of its partition
        of ``__transactions``. None if the partition has no leader, or if the topic does not exist yet."""
        topic = self.topic(self.topic_id)
        if topic is None:
            return None
        return topic.partitions[partition_of(app.encode(), len(topic.partitions))].leader

    def on_request(self, source: int, id: int | None, message: Message, now: float) -> None:
        """Pass a request to its transaction coordinator, as the base class does. A ``BeginTransaction`` waits first
        until the previous transaction of the same name has ended. An ``EnrolPartition`` of a topic that the metadata
        here do not have is refused with ``NOT_COORDINATOR``, and ``InitTaskProducer`` below its feature level with
        ``UNSUPPORTED_LEVEL``."""
        if isinstance(message, EnrolPartition) and self.topic(message.topic_id) is None:
            text = f"{self._node} has not heard of topic {message.topic_id} yet"
            self._effects.answer(source, id, refuse("NOT_COORDINATOR", text))
        elif isinstance(message, InitTaskProducer) and self._assignment.image.level < TASK_PRODUCERS:
            self._effects.answer(source, id, _level_too_low(self._assignment.image.level))
        elif isinstance(message, BeginTransaction) and not message.renew and self._must_wait(message, now):
            key = (message.app, message.staged)
            self._dismiss(key)  # one at a time: the one before is fenced in any case
            self._begins[key] = _Begin(source, id, message, now + self._settings.ack_timeout_s)
            self._set_timer(now)
        else:
            super().on_request(source, id, message, now)

    # --- decided, and visible ----------------------------------------------------------------------------

    def _holds_back(
        self,
        led: CoordinatorShard[TransactionCoordinator, StoredTransactions],
        message: Message,
        waiting: Waiting,
        now: float,
    ) -> bool:
        """Store the answer to a commit until the partitions of the committed transactions have their markers, and
        return True. Return False if the answer is an error or does not commit any transaction that still lacks
        markers."""
        if led.core is None or isinstance(waiting.answer, TidelogError):
            return False
        slots = tuple(led.core.decided_by(message))
        if slots:
            until = now + self._settings.transactions.visible_wait_ms / 1000
            self._commits.append(_Commit(led, waiting, slots, until))
        return bool(slots)

    def _release(self, now: float) -> None:
        """End the wait of the answers to commits whose markers are all confirmed, and of those that have waited long
        enough; the latter name the partitions without a confirmed marker. Each answer is sent as soon as the decision
        is committed and leadership is proved. Answers whose leader role is over stay, until their requests fail with
        it."""
        kept: list[_Commit] = []
        for commit in self._commits:
            pending = {partition for slot in commit.slots for partition in slot.left}
            if (pending and now < commit.until) or not commit.led.is_led:
                kept.append(commit)
                continue
            answer = commit.waiting.answer
            assert isinstance(answer, TransactionEnded | StagedCommitted)
            commit.led.waiting.add(replace(commit.waiting, answer=replace(answer, pending=topic_shares(pending))))
            self._wake(commit.led)
        self._commits = kept

    def _resign(self, led: CoordinatorShard[TransactionCoordinator, StoredTransactions]) -> None:
        """Remove the shard with its coordinator, since the leader role is over. Its waiting requests, and answers to
        commits that wait for markers, are answered with ``NOT_COORDINATOR``, marked as of unknown outcome."""
        mine = [commit for commit in self._commits if commit.led is led]
        self._commits = [commit for commit in self._commits if commit.led is not led]
        for commit in mine:
            led.waiting.add(commit.waiting)  # which are failed with the others
        super()._resign(led)

    # --- beginnings that wait ----------------------------------------------------------------------------

    def _must_wait(self, message: BeginTransaction, now: float) -> bool:
        """Return whether a ``BeginTransaction`` must wait, since the previous transaction of the same name is ending:
        its decision is not committed, or a partition lacks its marker. False if no coordinator here can handle the
        request."""
        led = self._find(message, now)
        if isinstance(led, TidelogError) or led.core is None:
            return False
        slot = led.core.slots.get((message.app, message.staged))
        return slot is not None and slot.state in ENDING and not slot.is_over

    def _dismiss(self, key: tuple[str, str]) -> None:
        """Refuse the request to begin that waits under this application and staged name with ``TRANSACTION_ENDING``,
        which the client may repeat. Does nothing if none waits."""
        begin = self._begins.pop(key, None)
        if begin is not None:
            text = f"the transaction of {key[0]} before is not at its end yet"
            self._effects.answer(begin.source, begin.id, refuse("TRANSACTION_ENDING", text))

    def on_source_closed(self, source: int) -> None:
        """Drop the unanswered requests that came over link ``source``, which is closed. What they changed stays."""
        super().on_source_closed(source)
        self._begins = {key: begin for key, begin in self._begins.items() if begin.source != source}
        self._commits = [commit for commit in self._commits if commit.waiting.source != source]

    def on_tick(self, now: float) -> None:
        """Do all that is due. Refuse requests to begin that waited too long, release answers to commits, and do what
        the base class does. Then handle the requests to begin whose previous transaction has ended."""
        for key in [key for key, begin in self._begins.items() if begin.deadline <= now]:
            self._dismiss(key)
        self._release(now)
        super().on_tick(now)
        finished, self._finished = self._finished, []
        for key in finished:
            begin = self._begins.pop(key, None)
            if begin is not None:
                self.on_request(begin.source, begin.id, begin.message, now)

    def _due(self) -> float | None:
        times = [begin.deadline for begin in self._begins.values()] + [commit.until for commit in self._commits]
        return min(times, default=None)

    def _on_due(
        self,
        led: CoordinatorShard[TransactionCoordinator, StoredTransactions],
        core: TransactionCoordinator,
        now: float,
    ) -> None:
        """Let the coordinator act on its timers. Count the transactions that have ended by outcome, and add them to
        ``_finished``, so that ``on_tick`` handles the requests that wait for their end."""
        super()._on_due(led, core, now)
        finished, core.finished = core.finished, []
        for key, how in finished:
            count(self._effects.counts.ended_transactions, how)
            self._finished.append(key)

    def _write(self, led: CoordinatorShard[TransactionCoordinator, StoredTransactions]) -> None:
        """Append the coordinator's new records to its log, and report their end offset to the coordinator."""
        super()._write(led)
        assert led.core is not None
        led.core.on_written(led.written)

    def _on_moved(
        self,
        led: CoordinatorShard[TransactionCoordinator, StoredTransactions],
        core: TransactionCoordinator,
        now: float,
    ) -> None:
        """Report the log's HW to the coordinator, and send the markers of the decisions that are committed now, and
        those to be sent again. Send the answers to commits that wait for no marker any more."""
        before = core.deadline()
        core.on_committed(led.leading.high_watermark)
        for marker in core.take_markers(now):
            self._send_marker(led, core, marker, now)
        self._release(now)
        if core.deadline() != before:
            self._set_timer(now)

    def _send_marker(
        self,
        led: CoordinatorShard[TransactionCoordinator, StoredTransactions],
        core: TransactionCoordinator,
        marker: Marker,
        now: float,
    ) -> None:
        """Send a marker to the leader of its partition, as ``WriteMarker``. If the topic is deleted the marker counts
        as done; if the partition has no leader it is sent again later."""
        topic_id, number = marker.partition
        topic = self.topic(topic_id)
        leader = None if topic is None else topic.partitions[number].leader
        if leader is None:
            self._on_marker(core, marker, topic is None, now)
            return
        message = WriteMarker(self._node, topic_id, number, marker.producer_id, marker.epoch, marker.commit)
        done = partial(self._on_marker_answer, led, core, marker)
        self._effects.call(leader, message, self._settings.ack_timeout_s, done)

    def _on_marker_answer(
        self,
        led: CoordinatorShard[TransactionCoordinator, StoredTransactions],
        core: TransactionCoordinator,
        marker: Marker,
        answer: Message | TidelogError,
        now: float,
    ) -> None:
        """Report the leader's answer to a marker to the coordinator: any answer but ``Done`` is a failure. Does
        nothing if the coordinator's role is over."""
        if led.is_led and led.core is core:
            self._on_marker(core, marker, isinstance(answer, Done), now)
            self._release(now)
            self._set_timer(now)

    def _on_marker(self, core: TransactionCoordinator, marker: Marker, done: bool, now: float) -> None:
        core.on_marker(marker, done, now, awaited=(marker.app, marker.staged) in self._begins)


def _level_too_low(level: int) -> TidelogError:
    """Return the error ``UNSUPPORTED_LEVEL`` for task producers, which names the needed feature level and the present
    ``level``."""
    text = f"producers of numbered batches need feature level {TASK_PRODUCERS}, the cluster is at {level}: upgrade it"
    return refuse("UNSUPPORTED_LEVEL", f"{text}, and raise its level (tidelog features raise)", level=level)
