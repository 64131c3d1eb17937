"""The fetch loop of a follower to one leader server, for every partition that is followed there.

One call is in flight at a time, a request of the epoch dialogue or a fetch, for all *active* partitions:

    active    has something to request (it is new here, made progress, or was named by a notify) or to report (its
              log was written or flushed)
    idle      has everything that the leader has; the leader will notify this follower of more
    paused    its last answer was an error of that partition; active again after ``fetch_backoff_s``

Every ``replica_max_idle_wait_s`` one fetch, an empty one if no partition is active, also asks which idle partitions
must be fetched (``replication/idle_followers.py``). So a lost notify, or a leader that has fallen silent, is noticed
after that time at the latest. If the active partitions have only progress to report, a ``Progress`` is sent instead
of a fetch, which has no answer.

So a busy partition does not carry the idle ones along, and an idle server sends one small message per idle wait. A
failed call pauses the whole loop, for longer each time in a row; the next ``add`` or answer ends that.

Partitions in whose ISR this server is come first in a fetch. The others are *catching up*: they are fetched as the
throttle (``fetcher/throttle.py``) allows. Where the fetcher also has partitions in sync, these fetches are small, so
that no partition in sync waits behind a large answer.

The leader is reported to the controller (``fetcher/leader_reporter.py``) if it does not answer. It is also reported
for a single partition if it answers that the partition is offline, or answers with errors only for
``replica_max_leader_timeout_s``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from math import inf

from tidelog.errors import TidelogError
from tidelog.types import NodeId, TopicPartition
from tidelog.wire.codec import payload_view
from tidelog.wire.messages import (
    EpochOffset,
    EpochOffsetAnswer,
    EpochPart,
    Fetch,
    FetchAnswer,
    FetchPart,
    LogSnapshot,
    LogSnapshotAnswer,
    Message,
    NewsPart,
    Progress,
)

from tidelog_replica.context import NodeContext
from tidelog_replica.fetcher.leader_reporter import LeaderReporter
from tidelog_replica.fetcher.throttle import CATCH_UP_FETCH_BYTES, Throttle
from tidelog_replica.partition.follower_replica import (
    BUSY,
    OPENING,
    FetchOutcome,
    FollowerReplica,
    Outcome,
    RetryLater,
)
from tidelog_replica.partition.partition import Partition
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.producer_snapshots import ReadProducers

Questions = dict[TopicPartition, FetchPart]
"""The parts of a fetch, by partition."""
PARTS = 250
"""The largest number of partitions in one call: few enough that neither side is busy with it for long."""
PATIENCE = 4
"""A call waits for ``replica_max_leader_timeout_s`` times this factor. A server that is silent for
``replica_max_leader_timeout_s`` loses the link. One that sends other messages and does not answer has much to do, and
a repeated request would add to that. The product is less than the lag time, by default."""
UNANSWERED = ("UNREACHABLE", "REQUEST_TIMED_OUT")
"""Codes of failed calls to which no answer came: the other server may never have received them."""


class Fetcher:
    """The fetch loop of this server to one leader server, for all partitions that it follows there. It lives from the
    first such partition until ``close``."""

    def __init__(
        self, context: NodeContext, leader: NodeId, broker_epoch: int, throttle: Throttle, now: float
    ) -> None:
        self._leader, self._node, self._broker_epoch = leader, context.node, broker_epoch
        self._settings = context.settings
        self._effects = context.effects
        self._timers = context.timers
        self._touch = context.touch
        self._throttle = throttle
        self._open_at = now
        """Partitions that catch up are not fetched before this time (seconds)."""
        self._in_sync_at = -inf
        """When a partition in whose ISR this server is was last fetched here (seconds)."""
        self._followed: dict[TopicPartition, Partition] = {}
        """The partitions that are followed here."""
        self._leader_epochs: dict[TopicPartition, int] = {}
        self._active: dict[TopicPartition, bool] = {}
        """The active partitions. True: the partition has something to request; False: only progress to report."""
        self._paused: dict[TopicPartition, float] = {}
        """Paused partitions, and when the pause of each ends."""
        self._failing_since: dict[TopicPartition, float] = {}
        """The time, in seconds, since which a partition has been answered with errors only."""
        self._in_flight = False
        self._ask_unaware_at = now + context.settings.replica_max_idle_wait_s
        """When the next fetch also asks which idle partitions must be fetched, since a notify may have been lost."""
        self._pause_until: float | None = None
        self._pause_s = context.settings.fetch_backoff_s
        self._patience_s = PATIENCE * context.settings.replica_max_leader_timeout_s
        self._leader_reporter = LeaderReporter(context, leader, broker_epoch, self._followed, now)
        self._closed = False

    # --- what is followed --------------------------------------------------------------------------------

    def add(self, partition: Partition, leader_epoch: int) -> None:
        """Begin to follow a partition at this leader server, or go on in a new leader epoch: the partition becomes
        active. This also ends a pause of the loop and a suspicion of the server. Does nothing if the partition is
        followed here in that leader epoch already."""
        key = partition.key
        if self._leader_epochs.get(key) == leader_epoch:
            return
        self._followed[key] = partition
        self._leader_epochs[key] = leader_epoch
        self._paused.pop(key, None)
        self._failing_since.pop(key, None)
        self._active[key] = True
        self._pause_until = None
        self._leader_reporter.clear()  # the controller chose it since: what it was suspected of is over

    def remove(self, key: TopicPartition) -> None:
        """Stop following a partition at this leader server. Does nothing if it is not followed here."""
        for table in (self._followed, self._leader_epochs, self._active, self._paused, self._failing_since):
            table.pop(key, None)

    def activate(self, key: TopicPartition, only_reports: bool = False) -> None:
        """Mark a partition as active, so that the next ``poll`` sends its request or, with ``only_reports``, reports
        its progress. Does nothing if the partition is paused or not followed here."""
        if key in self._followed and key not in self._paused:
            self._active[key] = not only_reports or self._active.get(key, False)

    def close(self) -> None:
        """Stop following all partitions at this leader server, for good. Answers that arrive later are ignored."""
        self._closed = True
        for key in list(self._followed):
            self.remove(key)

    # --- the loop ----------------------------------------------------------------------------------------

    def poll(self, now: float) -> None:
        """Send the next call for the active partitions, unless one is in flight, the loop is paused, or nothing is to
        be sent. Then set the timer for ``on_tick``."""
        self._ask(now)
        self._timers.set(self, self._deadline())

    def _ask(self, now: float) -> None:
        """Send the requests of the epoch dialogue for the active partitions that are in it or, if there are none, a
        fetch. Does nothing while a call is in flight or the loop is paused, or if no partition is active and no
        question about idle ones is due."""
        if self._in_flight or not self._followed or not (self._active or self._ask_unaware_at <= now):
            return
        if self._pause_until is not None and now < self._pause_until:
            return
        dialogues: dict[TopicPartition, EpochPart] = {}
        in_sync: Questions = {}
        catching_up: Questions = {}
        for key in list(self._active):
            partition = self._followed[key]
            role = partition.following
            if role is None or role.is_working:
                del self._active[key]  # offline; or it goes on when its job has ended
            elif (question := role.epoch_request()) is not None:
                dialogues[key] = question
            elif not dialogues:
                (in_sync if self._is_in_sync(partition) else catching_up)[key] = role.fetch_request()
            if len(dialogues) == PARTS or len(in_sync) == PARTS:
                break
        if dialogues:
            for key in dialogues:
                del self._active[key]
            message = EpochOffset(self._node, self._broker_epoch, tuple(dialogues.values()))
            self._call(message, partial(self._on_epoch_ends, dialogues))
        else:
            self._fetch(in_sync, catching_up, now)

    def _fetch(self, in_sync: Questions, catching_up: Questions, now: float) -> None:
        """Send a fetch of the active partitions: those in sync first, those that catch up only if the throttle allows
        (otherwise they stay active). When it is due, the fetch also asks which idle partitions must be fetched. If
        there is only progress to report, send a ``Progress`` instead, which gets no answer. Send nothing if nothing
        is to be asked or reported."""
        self._open_at = self._throttle.open_at(now) if catching_up else now
        asked = dict(islice((in_sync | catching_up if self._open_at <= now else in_sync).items(), PARTS))
        asks_unaware = self._ask_unaware_at <= now
        asks = any([self._active.pop(key) for key in asked])
        self._in_sync_at = now if in_sync else self._in_sync_at
        if asked and not (asks_unaware or catching_up or asks):
            self._effects.send(self._leader, Progress(self._node, self._broker_epoch, tuple(asked.values())))
        elif asked or asks_unaware:
            size = self._settings.fetch_max_bytes
            if asked and not in_sync:
                lonely = now >= self._in_sync_at + 2 * self._settings.replica_max_idle_wait_s
                size = self._throttle.limit(size if lonely else min(size, CATCH_UP_FETCH_BYTES))
            if asks_unaware:
                self._ask_unaware_at = now + self._settings.replica_max_idle_wait_s
            message = Fetch(self._node, self._broker_epoch, size, tuple(asked.values()), asks_unaware)
            self._call(message, partial(self._on_fetched, asked, asks_unaware, now))

    def _is_in_sync(self, partition: Partition) -> bool:
        """Return whether this server is in the partition's ISR. False if the partition's state is not known."""
        return partition.state is not None and self._node in partition.state.isr

    def _call(self, message: Message, done: Callable[[Message | TidelogError, float], None]) -> None:
        """Send the leader the loop's next call. ``done`` is called with the answer or the error."""
        self._in_flight = True
        self._effects.call(self._leader, message, self._patience_s, done)

    def _on_epoch_ends(
        self, asked: dict[TopicPartition, EpochPart], answer: Message | TidelogError, now: float
    ) -> None:
        """Act on the leader's answer in the epoch dialogue: each partition applies its part, which may cut its log.
        Then send the next call. A failed or malformed answer changes no log and pauses the loop."""
        if not self._answered(list(asked), answer, now):
            return
        if not isinstance(answer, EpochOffsetAnswer) or len(answer.parts) != len(asked):
            self._pause(list(asked), now)
            return
        for (key, question), part in zip(asked.items(), answer.parts, strict=True):
            partition = self._followed.get(key)
            if partition is not None and (part.topic_id, part.partition) == key:
                outcome = partition.on_epoch_end(question, part)
                self._continue(partition, outcome, now)
        self.poll(now)

    def _on_fetched(
        self, asked: Questions, wanted_news: bool, sent: float, answer: Message | TidelogError, now: float
    ) -> None:
        """Act on the leader's answer to a fetch: each partition applies its part, which appends its batches.
        Partitions that the leader names as having missed something become active. Then send the next call. A failed
        or malformed answer changes no log and pauses the loop."""
        if wanted_news and not isinstance(answer, FetchAnswer):
            self._ask_unaware_at = now  # with the next fetch
        if not self._answered(list(asked), answer, now):
            return
        if not isinstance(answer, FetchAnswer) or len(answer.parts) != len(asked):
            self._pause(list(asked), now)
            return
        self._effects.counts.fetch_times.observe(now - sent)
        if wanted_news:
            self._on_unaware(answer.news, now)
        data, position = payload_view(answer.payload), 0
        for (key, question), part in zip(asked.items(), answer.parts, strict=True):
            partition = self._followed.get(key)
            batches = data[position : position + part.size]
            position += part.size
            if partition is not None and (part.topic_id, part.partition) == key:
                if len(batches) and not self._is_in_sync(partition):
                    self._throttle.spend(len(batches), now)
                outcome = partition.on_fetched(question, part, batches, sent)
                self._continue(partition, outcome, now)
        self.poll(now)

    def _on_unaware(self, unaware: tuple[NewsPart, ...] | None, now: float) -> None:
        """Make the partitions active of which, as the leader answered, this follower may have missed an update of HW
        or log start. None stands for all partitions."""
        for key in self._followed if unaware is None else (TopicPartition(p.topic_id, p.partition) for p in unaware):
            self.activate(key)
        if any(map(self._is_in_sync, self._followed.values())):
            self._in_sync_at = now

    def _continue(self, partition: Partition, outcome: Outcome, now: float) -> None:
        """Take the next step with a partition after an answer: fetch again, idle, wait for a job, pause after an
        error, or start its copy over. If its leader is offline, or has answered with errors only for
        ``replica_max_leader_timeout_s``, report the leader to the controller."""
        key = partition.key
        self._touch(partition.key)
        if isinstance(outcome, RetryLater):
            self._active.pop(key, None)
            self._paused[key] = now + self._settings.fetch_backoff_s
            if outcome.code in (OPENING, BUSY):
                self._failing_since.pop(key, None)
                return
            since = self._failing_since.setdefault(key, now)
            if outcome.code == "OFFLINE" or now - since >= self._settings.replica_max_leader_timeout_s:
                self._leader_reporter.report([key], outcome.code.lower(), now)
            return
        self._failing_since.pop(key, None)
        if outcome is FetchOutcome.FETCH_AGAIN:
            self._active[key] = True
        elif outcome is FetchOutcome.JOB_RUNNING:
            self._active.pop(key, None)
        elif outcome is FetchOutcome.RESTART_COPY:
            self._request_snapshot(partition, now)

    def _request_snapshot(self, partition: Partition, now: float) -> None:
        """Request a snapshot of the leader's log, from which the partition's copy starts over. Nothing else is
        requested for the partition until the answer. Does nothing if this server does not follow it any more."""
        role, key = partition.following, partition.key
        if role is not None:
            self._active.pop(key, None)
            self._paused[key] = now + self._patience_s + self._settings.fetch_backoff_max_s
            message = LogSnapshot(self._node, self._broker_epoch, *key, role.core.leader_epoch)
            self._effects.call(self._leader, message, self._patience_s, partial(self._on_snapshot, partition, role))

    def _on_snapshot(
        self, partition: Partition, role: FollowerReplica, answer: Message | TidelogError, now: float
    ) -> None:
        """Start a job that reads the producer state in the leader's snapshot. After an error, or if another job of
        the partition runs, the partition is paused. Does nothing if the role has ended or the fetcher is closed."""
        if self._closed or partition.following is not role:
            return
        if isinstance(answer, LogSnapshotAnswer) and not self._effects.jobs.busy(partition.key):
            done = partial(self._on_producers, partition, role, answer)
            self._effects.jobs.start(partition.key, ReadProducers(bytes(payload_view(answer.payload))), done)
            return
        code = answer.code if isinstance(answer, TidelogError) else BUSY
        self._end_restart(partition, RetryLater(code), now)

    def _on_producers(
        self, partition: Partition, role: FollowerReplica, answer: LogSnapshotAnswer, producers: object, now: float
    ) -> None:
        """Start the partition's copy over with the leader's snapshot and its producer state, which a job has read. If
        that is not possible now, the partition is paused. Does nothing if the role has ended or the fetcher is
        closed."""
        if self._closed or partition.following is not role:
            return
        if not isinstance(producers, ProducerState):
            outcome: Outcome = RetryLater("MALFORMED")
        elif self._effects.jobs.busy(partition.key):
            outcome = RetryLater(BUSY)  # nothing may read the log while it is thrown away
        else:
            outcome = partition.start_over(answer, producers)
        self._end_restart(partition, outcome, now)

    def _end_restart(self, partition: Partition, outcome: Outcome, now: float) -> None:
        """End the pause of a partition that began with the request for a snapshot, take its next step (``outcome``),
        and send the next call."""
        self._paused.pop(partition.key, None)
        self._continue(partition, outcome, now)
        self.poll(now)

    def _answered(self, asked: list[TopicPartition], answer: Message | TidelogError, now: float) -> bool:
        """Record the end of the loop's call, and return whether it was answered. An answer ends the suspicion of the
        server and the growth of the pauses. After an error the loop is paused, and a server that did not answer is
        reported to the controller. Return False if the fetcher is closed."""
        if self._closed:
            return False
        self._in_flight = False
        if not isinstance(answer, TidelogError):
            self._leader_reporter.clear()
            self._pause_until = None
            self._pause_s = self._settings.fetch_backoff_s
            return True
        if answer.code in UNANSWERED:
            self._leader_reporter.suspect(answer.code.lower(), now)
        self._pause(asked, now)
        return False

    def _pause(self, asked: list[TopicPartition], now: float) -> None:
        """Make the partitions of a failed call active again, and pause the loop. Each pause in a row is twice as long
        as the last one, up to ``fetch_backoff_max_s``."""
        for key in asked:
            self.activate(key)
        self._pause_until = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, self._settings.fetch_backoff_max_s)
        self.poll(now)

    # --- readers -----------------------------------------------------------------------------------------

    def confirm(self, partition: Partition, now: float) -> None:
        """Request the HW and a confirmation of leadership from the leader, if reads of this partition wait for one.
        This request is sent beside the loop's call, since the leader may answer it late. If reads wait for records
        and the leader does not know that yet, also fetch. Does nothing if this server does not follow the
        partition."""
        role = partition.following
        if role is None:
            return
        if role.must_report_progress and partition.key not in self._active and partition.key not in self._paused:
            self.activate(partition.key)
            self.poll(now)
        question = role.latest_request()
        if question is not None:
            done = partial(self._on_latest, partition, role, now)
            self._effects.call(self._leader, question, self._patience_s, done)

    def _on_latest(
        self, partition: Partition, role: FollowerReplica, sent: float, answer: Message | TidelogError, now: float
    ) -> None:
        """Give the partition the leader's confirmation or error, and fetch if the leader's HW is above the local one.
        Does nothing if the role has ended."""
        if partition.following is not role:
            return
        self._touch(partition.key)
        if role.on_latest(answer, sent):
            self.activate(partition.key)
            self.poll(now)

    # --- reports -----------------------------------------------------------------------------------------

    def on_down(self, now: float) -> None:
        """Act on a broken link to the leader's server: suspect the server, which is reported to the controller, and
        make every partition active that is not paused, since the leader no longer knows which followers idle. They
        are fetched after a pause, and that fetch shows whether the server answers."""
        self._leader_reporter.suspect("unreachable", now)
        for key in self._followed:
            self.activate(key)
        if self._pause_until is None:
            self._pause_until = now + self._pause_s
        self.poll(now)

    def report_again(self, now: float) -> None:
        """Report a suspected leader server to the controller again, at once, since the report may not have arrived.
        Does nothing if the server is not suspected."""
        self._leader_reporter.report_again(now)
        self.on_tick(now)

    # --- time --------------------------------------------------------------------------------------------

    def on_tick(self, now: float) -> None:
        """End the pauses that are over at ``now`` (seconds), repeat a due report of the leader server, and send the
        next call. Does nothing after ``close``."""
        if self._closed:
            return
        if self._pause_until is not None and self._pause_until <= now:
            self._pause_until = None
        for key in [key for key, until in self._paused.items() if until <= now]:
            del self._paused[key]
            self._active[key] = True
        self._leader_reporter.on_tick(now)
        self.poll(now)

    def _deadline(self) -> float | None:
        """Return the time, in seconds, at which ``on_tick`` has something to do. None if no partition is followed
        here or nothing is due."""
        if not self._followed:
            return None
        due = inf if self._in_flight else self._ask_unaware_at
        if self._pause_until is not None:
            due = self._pause_until
        if self._paused:
            due = min(due, min(self._paused.values()))
        if (report_at := self._leader_reporter.deadline()) is not None:
            due = min(due, report_at)
        if self._active and not self._in_flight and self._pause_until is None:
            due = min(due, self._open_at)
        return None if due == inf else due
