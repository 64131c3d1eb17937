"""One leader server as its follower sees it: the fetch loop for every partition followed there.

One call is in flight at a time, an epoch dialogue or a fetch, over all *active* partitions:

    active    has something to ask (it is new here, made progress, was named by a notify) or to report (wrote,
              flushed)
    idle      has everything the leader has, which has promised to notify it
    paused    its last answer was an error of that partition: active again after ``fetch_backoff_s``

Every ``replica_max_idle_wait_s`` one fetch, an empty one where nothing is active, also asks which of the idle ones
have to be asked for (``replication/idle_followers.py``): a lost notify costs no more than that, nor does a leader
that has fallen silent. Where all that is active has only something to report, that goes one way, and is no call
(``progress``).

So a busy partition does not carry the idle ones along, and an idle server asks one small thing per idle wait. A
failed call pauses the whole loop, for longer each time; the next ``add`` or answer ends that.

Partitions in whose ISR this server is come first in a fetch. The others are *catching up*: asked for as the throttle
(``fetcher/throttle.py``) allows, by small fetches where some here are in sync: no such one waits for a large
answer.

The leader is reported to the controller (``fetcher/failure_detector.py``) when it does not answer; or, per partition,
when it says it is offline or answers nothing but errors for ``replica_max_leader_timeout_s``.
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
from tidelog_replica.fetcher.failure_detector import LeaderFailureDetector
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
"""First part of a fetcher's timer key; the second is the leader's name."""
PARTS = 250
"""Partitions of a call: few enough that neither side is busy with it for long."""
PATIENCE = 4
"""A server that is silent for ``replica_max_leader_timeout_s`` loses the link. One that is heard and does not answer
has much to do, and a repeated question would add to that. It gets so many times as long. That is less than the lag
time, by default."""
UNANSWERED = ("UNREACHABLE", "REQUEST_TIMED_OUT")
"""Codes of calls that the other server may never have seen."""


class Fetcher:
    """The fetch loop to ``leader``."""

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
        """Partitions that catch up are not fetched before."""
        self._in_sync_at = -inf
        """When a partition in whose ISR this server is was last fetched here."""
        self._followed: dict[TopicPartition, Partition] = {}
        self._leader_epochs: dict[TopicPartition, int] = {}
        self._active: dict[TopicPartition, bool] = {}  # whether it has a question
        self._paused: dict[TopicPartition, float] = {}
        self._failing_since: dict[TopicPartition, float] = {}
        self._in_flight = False
        self._ask_unaware_at = now + context.settings.replica_max_idle_wait_s
        """When the next fetch is to ask which partitions here may have missed an update."""
        self._pause_until: float | None = None
        self._pause_s = context.settings.fetch_backoff_s
        self._patience_s = PATIENCE * context.settings.replica_max_leader_timeout_s
        self._failure_detector = LeaderFailureDetector(context, leader, broker_epoch, self._followed, now)
        self._closed = False

    # --- what is followed --------------------------------------------------------------------------------

    def add(self, partition: Partition, leader_epoch: int) -> None:
        """Follow a partition here, or follow it in a new leader epoch."""
        key = partition.key
        if self._leader_epochs.get(key) == leader_epoch:
            return
        self._followed[key] = partition
        self._leader_epochs[key] = leader_epoch
        self._paused.pop(key, None)
        self._failing_since.pop(key, None)
        self._active[key] = True
        self._pause_until = None
        self._failure_detector.clear()  # the controller chose it since: what it was suspected of is over

    def remove(self, key: TopicPartition) -> None:
        """Follow it here no longer."""
        for table in (self._followed, self._leader_epochs, self._active, self._paused, self._failing_since):
            table.pop(key, None)

    def activate(self, key: TopicPartition, only_reports: bool = False) -> None:
        """The partition has something to ask or, with ``only_reports``, only progress to report; unless it is
        paused."""
        if key in self._followed and key not in self._paused:
            self._active[key] = not only_reports or self._active.get(key, False)

    def close(self) -> None:
        """Answers that are still on their way come too late."""
        self._closed = True
        for key in list(self._followed):
            self.remove(key)

    # --- the loop ----------------------------------------------------------------------------------------

    def poll(self, now: float) -> None:
        """Ask, where something is to be asked and nothing is in flight. The end of every input here."""
        self._ask(now)
        self._timers.set(self, self._deadline())

    def _ask(self, now: float) -> None:
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
        """Fetch partitions that are in sync, and those that catch up if the throttle allows. The others stay
        active."""
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
        return partition.state is not None and self._node in partition.state.isr

    def _call(self, message: Message, done: Callable[[Message | TidelogError, float], None]) -> None:
        self._in_flight = True
        self._effects.call(self._leader, message, self._patience_s, done)

    def _on_epoch_ends(
        self, asked: dict[TopicPartition, EpochPart], answer: Message | TidelogError, now: float
    ) -> None:
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
        """These partitions have to be asked for, whatever is thought of them here; None: all."""
        for key in self._followed if unaware is None else (TopicPartition(p.topic_id, p.partition) for p in unaware):
            self.activate(key)
        if any(map(self._is_in_sync, self._followed.values())):
            self._in_sync_at = now

    def _continue(self, partition: Partition, outcome: Outcome, now: float) -> None:
        """What becomes of a partition after its answer. Those that got data queue up behind the others: the leader
        fills its answer in the order asked."""
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
                self._failure_detector.report([key], outcome.code.lower(), now)
            return
        self._failing_since.pop(key, None)
        if outcome is FetchOutcome.FETCH_AGAIN:
            self._active[key] = True
        elif outcome is FetchOutcome.JOB_RUNNING:
            self._active.pop(key, None)
        elif outcome is FetchOutcome.RESTART_COPY:
            self._restart(partition, now)

    def _restart(self, partition: Partition, now: float) -> None:
        """Have the copy start over where the leader's log begins; nothing else is asked for it meanwhile."""
        role, key = partition.following, partition.key
        if role is not None:
            self._active.pop(key, None)
            self._paused[key] = now + self._patience_s + self._settings.fetch_backoff_max_s
            message = LogSnapshot(self._node, self._broker_epoch, *key, role.core.leader_epoch)
            self._effects.call(self._leader, message, self._patience_s, partial(self._on_snapshot, partition, role))

    def _on_snapshot(
        self, partition: Partition, role: FollowerReplica, answer: Message | TidelogError, now: float
    ) -> None:
        if self._closed or partition.following is not role:
            return
        if isinstance(answer, LogSnapshotAnswer) and not self._effects.jobs.busy(partition.key):
            done = partial(self._on_producers, partition, role, answer)
            self._effects.jobs.start(partition.key, ReadProducers(bytes(payload_view(answer.payload))), done)
            return
        code = answer.code if isinstance(answer, TidelogError) else BUSY
        self._on_restarted(partition, RetryLater(code), now)

    def _on_producers(
        self, partition: Partition, role: FollowerReplica, answer: LogSnapshotAnswer, producers: object, now: float
    ) -> None:
        if self._closed or partition.following is not role:
            return
        if not isinstance(producers, ProducerState):
            outcome: Outcome = RetryLater("MALFORMED")
        elif self._effects.jobs.busy(partition.key):
            outcome = RetryLater(BUSY)  # nothing may read the log while it is thrown away
        else:
            outcome = partition.start_over(answer, producers)
        self._on_restarted(partition, outcome, now)

    def _on_restarted(self, partition: Partition, outcome: Outcome, now: float) -> None:
        self._paused.pop(partition.key, None)
        self._continue(partition, outcome, now)
        self.poll(now)

    def _answered(self, asked: list[TopicPartition], answer: Message | TidelogError, now: float) -> bool:
        """The call is over. False where it failed: then all is asked again after a pause."""
        if self._closed:
            return False
        self._in_flight = False
        if not isinstance(answer, TidelogError):
            self._failure_detector.clear()
            self._pause_until = None
            self._pause_s = self._settings.fetch_backoff_s
            return True
        if answer.code in UNANSWERED:
            self._failure_detector.suspect(answer.code.lower(), now)
        self._pause(asked, now)
        return False

    def _pause(self, asked: list[TopicPartition], now: float) -> None:
        """Ask all of it again, later."""
        for key in asked:
            self.activate(key)
        self._pause_until = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, self._settings.fetch_backoff_max_s)
        self.poll(now)

    # --- readers -----------------------------------------------------------------------------------------

    def confirm(self, partition: Partition, now: float) -> None:
        """Ask how far the log is committed, where readers wait for the proof that no more is (beside the loop, whose
        answers never wait), and have the leader know that some wait for more."""
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
        if partition.following is not role:
            return
        self._touch(partition.key)
        if role.on_latest(answer, sent):
            self.activate(partition.key)
            self.poll(now)

    # --- reports -----------------------------------------------------------------------------------------

    def on_down(self, now: float) -> None:
        """The link to the leader's server broke, or cannot be opened. The leader no longer knows which
        followers idle: all is asked again, soon, which also shows whether it answers."""
        self._failure_detector.suspect("unreachable", now)
        for key in self._followed:
            self.activate(key)
        if self._pause_until is None:
            self._pause_until = now + self._pause_s
        self.poll(now)

    def report_again(self, now: float) -> None:
        """The controller may not have heard of what is suspected."""
        self._failure_detector.report_again(now)
        self.on_tick(now)

    # --- time --------------------------------------------------------------------------------------------

    def on_tick(self, now: float) -> None:
        """End pauses that are over, repeat reports, and ask for what is due."""
        if self._closed:
            return
        if self._pause_until is not None and self._pause_until <= now:
            self._pause_until = None
        for key in [key for key, until in self._paused.items() if until <= now]:
            del self._paused[key]
            self._active[key] = True
        self._failure_detector.on_tick(now)
        self.poll(now)

    def _deadline(self) -> float | None:
        """When ``on_tick`` has something to do; None while nothing is followed here."""
        if not self._followed:
            return None
        due = inf if self._in_flight else self._ask_unaware_at
        if self._pause_until is not None:
            due = self._pause_until
        if self._paused:
            due = min(due, min(self._paused.values()))
        if (report_at := self._failure_detector.deadline()) is not None:
            due = min(due, report_at)
        if self._active and not self._in_flight and self._pause_until is None:
            due = min(due, self._open_at)
        return None if due == inf else due
