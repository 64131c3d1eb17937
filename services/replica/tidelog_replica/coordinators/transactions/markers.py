"""What the leaders of data partitions do for transactions: they have their partitions enrolled, and append markers. A
marker is confirmed when the log is committed up to it, also if the log held it before: no later leader lacks it then.
"""

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
    """A request for a marker that is answered when the log is committed up to ``awaited_end`` (exclusive), or with an
    error at ``deadline`` (seconds)."""

    awaited_end: int
    deadline: float
    source: int
    id: int | None


@dataclass(slots=True)
class _Marked:
    """The requests for markers that wait for the commit of one leader replica's log."""

    leading: LeaderReplica
    waiting: Purgatory[_Waiting]


class TransactionMarkers:
    """The part of a node that appends transaction markers to the logs that it leads, as coordinators request, and has
    these partitions enrolled in transactions. It lives as long as the node."""

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
        """Partitions with requests for markers that are not answered yet."""

    # --- markers -----------------------------------------------------------------------------------------

    def on_marker(self, source: int, id: int | None, message: WriteMarker, now: float) -> None:
        """Append the marker that a coordinator requests to the partition's log, and answer ``Done`` when the log is
        committed up to it. A marker that the log holds already is not appended again, but its commit is waited for
        too. Answer with an error at once if this server does not lead the partition, cannot confirm that it does, or
        cannot append."""
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
        """Append the marker unless the log has it, and queue the request until the log is committed up to its present
        end. If the leader cannot append, answer with the error."""
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
        """Answer ``Done`` to the requests whose markers are committed now. If the leader role has ended, answer with
        ``NOT_LEADER``. The partition must be in ``marked``."""
        marked = self.marked[partition.key]
        if marked.leading is not partition.leading:
            self._resign(partition.key)
            return
        for waiting in marked.waiting.complete(marked.leading.high_watermark):
            self._effects.answer(waiting.source, waiting.id, Done())
        if not marked.waiting.waiting:
            del self.marked[partition.key]

    def on_source_closed(self, source: int) -> None:
        """Drop the unanswered requests that came over link ``source``, which is closed. Their markers stay in the
        logs."""
        for marked in self.marked.values():
            marked.waiting.drop(source)

    def on_tick(self, now: float) -> None:
        """Answer requests whose markers were not committed in time with ``REQUEST_TIMED_OUT``, marked as of unknown
        outcome, and set the timer to the next deadline. The coordinator sends the marker again."""
        for marked in self.marked.values():
            for waiting in marked.waiting.expire(now):
                text = "the marker is not committed yet"
                self._effects.answer(waiting.source, waiting.id, _unknown("REQUEST_TIMED_OUT", text))
        self.marked = {key: marked for key, marked in self.marked.items() if marked.waiting.waiting}
        self._set_timer()

    def _set_timer(self) -> None:
        """Set the timer to the earliest deadline of a waiting request; does nothing if none waits."""
        due = min((marked.waiting.deadline for marked in self.marked.values()), default=inf)
        if due < inf:
            self._timers.set(self, due)

    def _resign(self, key: TopicPartition) -> None:
        """Answer the partition's waiting requests with ``NOT_LEADER``, marked as of unknown outcome, since the leader
        role has ended. Does nothing if none waits."""
        marked = self.marked.pop(key, None)
        for waiting in marked.waiting.take_all() if marked is not None else ():
            self._effects.answer(waiting.source, waiting.id, _unknown("NOT_LEADER", f"{self._node} leads no more"))

    # --- enrolment ---------------------------------------------------------------------------------------

    def enrol(self, partition: Partition, leading: LeaderReplica, now: float) -> None:
        """Send the transaction verifications that wait at this leader to the coordinators, as ``EnrolPartition``.
        Each answer admits or refuses the batches that wait for it. If the coordinator of a transactional id is not
        known, its batches are refused at once."""
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
    """Return the error ``code``, marked as of unknown outcome: the marker is in the log and may still be
    committed."""
    return refuse(code, text, unknown_outcome=True)
