"""The part of transactions that leaders of data partitions do: they have their partitions enrolled, and write
markers. A marker is answered when the log is committed up to it, also if it was there before: then no later leader
can be without it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from tidelog.batch.format import encode_marker, read_header
from tidelog.errors import TidelogError, refuse
from tidelog.types import TopicPartition
from tidelog.wire.messages import Done, Message, WriteMarker

from tidelog_replica.assignment.assignment import Assignment
from tidelog_replica.assignment.leadership import Leadership
from tidelog_replica.context import NodeContext
from tidelog_replica.coordinators.transactions.service import TransactionCoordinatorService
from tidelog_replica.partition.leader_replica import LeaderReplica
from tidelog_replica.partition.partition import Partition
from tidelog_replica.partition.purgatory import Purgatory
from tidelog_replica.partition.transaction_gate import ASK_TIMEOUT_S, Question, enrol


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A marker that is written and not committed yet, whose coordinator waits for the answer."""

    awaited_end: int
    deadline: float
    source: int
    id: int | None


@dataclass(slots=True)
class _Marked:
    """The transaction markers in the log of one leader replica here that are not committed yet."""

    leading: LeaderReplica
    waiting: Purgatory[_Waiting]


class TransactionMarkers:
    """The part of a node that writes markers to the logs that are led here, and has these partitions enrolled in
    transactions. It lives as long as the node."""

    def __init__(
        self,
        context: NodeContext,
        assignment: Assignment,
        leadership: Leadership,
        transactions: TransactionCoordinatorService,
    ) -> None:
        self._node = context.node
        self._assignment = assignment
        self._leadership = leadership
        self._settings = context.settings
        self._effects = context.effects
        self._timers = context.timers
        self._touch = context.touch
        self._wall_ms = context.wall_ms
        self._transactions = transactions
        self.marked: dict[TopicPartition, _Marked] = {}
        """Partitions with markers that are not known to be committed."""

    # --- markers -----------------------------------------------------------------------------------------

    def on_marker(self, source: int, id: int | None, message: WriteMarker, now: float) -> None:
        """Write the marker that a coordinator sends, and answer ``Done`` when it is committed. A marker that the log
        has already is not written again. Answer with the error if this server does not lead the partition, cannot
        confirm that it does, or cannot append."""
        key = TopicPartition(message.topic_id, message.partition)
        partition = self._assignment.partitions.get(key)
        if partition is None:
            refusal = self._assignment.refusal(key)
        elif partition.leading is None:
            refusal = partition.refusal()
        elif (unconfirmed := self._leadership.refuse(partition, now)) is not None:
            refusal = unconfirmed
        else:
            self._mark(source, id, message, partition, partition.leading, now)
            return
        self._effects.answer(source, id, refusal)

    def _mark(
        self,
        source: int,
        id: int | None,
        message: WriteMarker,
        partition: Partition,
        leading: LeaderReplica,
        now: float,
    ) -> None:
        """Append the marker unless the log has it, and queue the answer."""
        producer, epoch = message.producer_id, message.producer_epoch
        end = leading.log_end
        if partition.producers.needs_marker(producer, epoch):
            try:
                leading.admission.check_own_append()
            except TidelogError as error:
                self._effects.answer(source, id, error)
                return
            leading.transaction_gate.on_marker(producer)
            stamp = self._wall_ms()
            batch = encode_marker(producer, epoch, commit=message.commit, timestamp_ms=stamp)
            header = read_header(batch)
            end = leading.append(batch, header)
            partition.producers.record(header, end - 1)
        marked = self.marked.get(partition.key)
        if marked is None or marked.leading is not leading:
            self._resign(partition.key)
            marked = self.marked[partition.key] = _Marked(leading, Purgatory())
        marked.waiting.add(_Waiting(end, now + self._settings.ack_timeout_s, source, id))
        self._touch(partition.key)
        self._set_timer()

    def on_settled(self, partition: Partition) -> None:
        """Answer the markers of a partition in ``marked`` that are committed now; refuse them if the leader's role
        has ended."""
        marked = self.marked[partition.key]
        if marked.leading is not partition.leading:
            self._resign(partition.key)
            return
        for waiting in marked.waiting.complete(marked.leading.high_watermark):
            self._effects.answer(waiting.source, waiting.id, Done())
        if not marked.waiting.waiting:
            del self.marked[partition.key]

    def on_source_closed(self, source: int) -> None:
        """Forget the coordinators' requests that came over a link that is closed. Their markers stay in the logs."""
        for marked in self.marked.values():
            marked.waiting.drop(source)

    def on_tick(self, now: float) -> None:
        """Answer markers that are not committed in time with ``REQUEST_TIMED_OUT``; the coordinator sends them
        again."""
        for marked in self.marked.values():
            for waiting in marked.waiting.expire(now):
                text = "the marker is not committed yet"
                self._effects.answer(waiting.source, waiting.id, _unknown("REQUEST_TIMED_OUT", text))
        self.marked = {key: marked for key, marked in self.marked.items() if marked.waiting.waiting}
        self._set_timer()

    def _set_timer(self) -> None:
        due = min((marked.waiting.deadline for marked in self.marked.values()), default=inf)
        if due < inf:
            self._timers.set(self, due)

    def _resign(self, key: TopicPartition) -> None:
        """Refuse the markers of a partition whose leader's role has ended, with an unknown outcome."""
        marked = self.marked.pop(key, None)
        for waiting in marked.waiting.take_all() if marked is not None else ():
            self._effects.answer(waiting.source, waiting.id, _unknown("NOT_LEADER", f"{self._node} leads no more"))

    # --- enrolment ---------------------------------------------------------------------------------------

    def enrol(self, partition: Partition, leading: LeaderReplica, now: float) -> None:
        """Send the coordinators the transaction verifications that wait at this leader. If a coordinator is not
        known, the batches that wait for it are refused."""
        unsent, leading.transaction_gate.unsent = leading.transaction_gate.unsent, []
        for question in unsent:
            coordinator = self._transactions.coordinator_of(question.app)
            message = enrol(self._node, *partition.key, question)

            def done(answer: Message | TidelogError, now: float, question: Question = question) -> None:
                partition.guard(question.done, answer, now)
                self._touch(partition.key)

            if coordinator is None:
                done(refuse("NOT_COORDINATOR", f"nobody is known to coordinate {question.app}"), now)
            else:
                self._effects.call(coordinator, message, ASK_TIMEOUT_S, done)


def _unknown(code: str, text: str) -> TidelogError:
    """Return an error with an unknown outcome, since the marker is in the log."""
    return refuse(code, text, unknown_outcome=True)
