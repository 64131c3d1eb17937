"""Opens logs by jobs in threads, so that a server with ten thousand partitions still sends its heartbeats in time.

    waiting    no job has begun; the order is by need: the partitions that this server leads, then those that it is in
               sync for, then the others
    opening    the job runs: recovery, and the producers' state from the log
    open       the owner has the log; this module has forgotten it
    held back  it could not be opened, for a reason that says nothing of its content: a directory that cannot be
               read, missing rights, no descriptors. It is never taken for empty, nothing of it is touched, and it is
               tried again after a pause that doubles, or when the state of the partition changes. If the disk fails
               in writing, the process ends instead: only the next incarnation knows what is there

Until the log is open only the newest state of its partition is kept; the owner acts on that state then. A log that is
not wanted any more before its job began is not opened at all. If its topic is deleted during the job, the log is
closed again, and then its data is deleted (``log_deletion.py``).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tidelog.errors import TidelogError, refuse
from tidelog.feature_levels import DOUBTFUL_TAILS
from tidelog.runtime.disk import Disk
from tidelog.sansio.timers import KeyTimer
from tidelog.types import PartitionState, TopicConfig, TopicPartition

from tidelog_replica.context import NodeContext
from tidelog_replica.jobs import Jobs
from tidelog_replica.maintenance.log_deletion import DELETING, LogDeleter, finish_deletion
from tidelog_replica.registration.session import BrokerSession
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.index import IndexCache
from tidelog_replica.storage.log import Log
from tidelog_replica.storage.recovery.damage import find_hole
from tidelog_replica.storage.recovery.doubtful_tail import DoubtfulLog
from tidelog_replica.storage.segment import CorruptLog
from tidelog_replica.storage.tail_cache import LogTailCache

AT_ONCE = 32
"""Most logs that are opened at the same time: enough to keep the threads busy, few enough that the most needed logs
come first."""
NEEDS = 3
"""Number of levels of need: partitions that this server leads, those that it is in sync for, and the rest."""
RETRY_S = 1.0
"""First pause before a log that could not be opened is tried again, in seconds. It doubles with each failure."""
RETRY_MAX_S = 60.0
"""Longest pause before a log that could not be opened is tried again, in seconds."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The result of the job ``OpenLog``: the open log, and the state of the producers whose batches the log holds."""

    log: Log
    producers: ProducerState


class CannotOpenYet(OSError):
    """The log cannot be opened now, for a reason that says nothing about its content, such as missing rights or file
    descriptors. The opening is tried again later."""


_HOLDING_BACK = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOTDIR, errno.EISDIR)
"""Error numbers of the operating system that say nothing about the state of the disk or the log."""


@dataclass(frozen=True, slots=True)
class OpenLog:
    """The job that opens the log in directory ``path``, with recovery, or creates an empty log if there is none. Its
    result is ``Opened``."""

    disk: Disk
    path: str
    config: TopicConfig
    tails: LogTailCache
    indexes: IndexCache | None = None
    intact: bool = False
    has_peers: bool = False
    """Whether other replicas can be asked about a doubtful tail. This field and ``intact`` are passed to
    ``Log.open``."""

    def run(self) -> Opened:
        """Open the log and return it with its producers' state. A deletion of the log that a crash interrupted is
        finished first; the log is then empty. Raises ``CorruptLog`` if the log is damaged or an unfinished repair has
        left a hole in it, ``DoubtfulLog`` if its tail is doubtful, ``CannotOpenYet`` if the opening should be tried
        again, and another ``OSError`` if the disk fails."""
        try:
            hole = find_hole(self.disk, self.path, self._names())
            if hole is not None:
                raise hole
            log = Log.open(
                self.disk,
                self.path,
                self.config,
                self.tails,
                self.indexes,
                intact=self.intact,
                has_peers=self.has_peers,
            )
        except OSError as error:
            if error.errno not in _HOLDING_BACK:
                raise
            raise CannotOpenYet(error.errno, error.strerror, error.filename or self.path) from error
        return Opened(log, log.producers)

    def _names(self) -> list[str]:
        """Return the names of the files in the log's directory. If a deletion of the log was begun, finish it and
        return an empty list; also an empty list if there is no directory. Raises ``CannotOpenYet`` if the directory
        cannot be read, and ``OSError`` if the deletion fails."""
        try:
            names = self.disk.listdir(self.path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CannotOpenYet(error.errno, error.strerror, self.path) from error
        if DELETING not in names:
            return names
        finish_deletion(self.disk, self.path, names)
        return []


@dataclass(slots=True)
class _Wanted:
    """A log that waits to be opened, is being opened, or could not be opened and will be tried again. ``state`` is
    the newest state of the partition that the metadata showed; None if this server is no replica any more. ``need``
    is its level of need, 0 for the most needed; ``begun``: its job has been started; ``deleted``: the log is to be
    deleted when the job ends."""

    config: TopicConfig
    state: PartitionState | None
    need: int
    begun: bool = False
    deleted: bool = False
    reason: str = ""
    """Why the last try to open the log failed; "" if there was none."""
    pause_s: float = RETRY_S
    """The next pause before another try, in seconds."""
    retry_at: float = 0.0
    """Time of the next try, in seconds."""


class LogOpener:
    """The part of a node that opens logs by jobs in threads, the most needed first, and keeps the deletion of a log
    apart from its opening. ``on_open(key, opened, config, state, now)`` is called for each log that is open,
    ``on_broken(key, error, config, state, now)`` for each that is damaged or has a doubtful tail. ``level()`` returns
    the cluster's feature level. It lives as long as the node."""

    def __init__(
        self,
        context: NodeContext,
        tails: LogTailCache,
        indexes: IndexCache,
        on_open: Callable[[TopicPartition, Opened, TopicConfig, PartitionState | None, float], None],
        on_broken: Callable[
            [TopicPartition, CorruptLog | DoubtfulLog, TopicConfig, PartitionState | None, float], None
        ],
        session: BrokerSession,
        level: Callable[[], int],
    ) -> None:
        self._node = context.node
        self._disk = context.disk
        self._path = context.log_directory
        self._tails = tails
        self._indexes = indexes
        self._effects = context.effects
        self._timers = context.timers
        self._jobs: Jobs = context.effects.jobs
        self._on_open = on_open
        self._on_broken = on_broken
        self._session = session
        self._level = level
        self._wanted: dict[TopicPartition, _Wanted] = {}
        self._waiting: tuple[dict[TopicPartition, None], ...] = tuple({} for _ in range(NEEDS))
        """Logs whose job has not been started, one queue for each level of need."""
        self._deleter = LogDeleter(context, self._wanted)
        self._running = 0
        self._opened = 0
        """Logs opened since the last time at which no log was being opened."""

    def __contains__(self, key: TopicPartition) -> bool:
        return key in self._wanted

    def __len__(self) -> int:
        return len(self._wanted)

    @property
    def held_back(self) -> int:
        """Return the number of logs that could not be opened when they were last tried and are still wanted."""
        return sum(1 for wanted in self._wanted.values() if wanted.reason)

    def refusal(self, key: TopicPartition) -> TidelogError:
        """Return the error ``OFFLINE`` that answers a request to a partition whose log is not open yet. It says that
        the log is being opened, or why it could not be opened. Raises ``KeyError`` if the log is not wanted."""
        reason = self._wanted[key].reason
        if reason:
            return refuse("OFFLINE", f"the partition is offline on {self._node}: its log cannot be opened: {reason}")
        return refuse("OFFLINE", f"the partition is being opened on {self._node}", opening=1)

    # --- opening -----------------------------------------------------------------------------------------

    def want(self, key: TopicPartition, config: TopicConfig, state: PartitionState) -> None:
        """Queue a log to be opened, or replace the settings and state of a log that is queued or being opened.
        ``state`` determines the level of need, and is passed to ``on_open``. ``start_jobs`` must be called afterwards
        to start the job. A failed deletion of the log is not retried any more."""
        need = 0 if state.leader == self._node else 1 if self._node in state.isr else 2
        self._deleter.forget(key)
        wanted = self._wanted.get(key)
        if wanted is None:
            wanted = self._wanted[key] = _Wanted(config, state, need)
        elif not wanted.begun:
            self._waiting[wanted.need].pop(key, None)
        wanted.config, wanted.state, wanted.need = config, state, need
        if not wanted.begun:
            self._waiting[need][key] = None

    def unwant(self, key: TopicPartition) -> None:
        """Remove a log from the queue, since this server is no replica of the partition any more; its data stays on
        the disk. If a job opens the log already, ``on_open`` is later called with None for the state. Does nothing
        for a log that is not wanted."""
        wanted = self._wanted.get(key)
        if wanted is None:
            return
        wanted.state = None
        if not wanted.begun:
            self._waiting[wanted.need].pop(key, None)
            del self._wanted[key]

    def unwant_all(self) -> None:
        """Remove all logs from the queue, as ``unwant`` does, since this incarnation of the server is over."""
        for key in list(self._wanted):
            self.unwant(key)

    def on_tick(self, key: TopicPartition, now: float) -> None:
        """Put a log that could not be opened back into the queue, since its pause is over, and start jobs. Does
        nothing if the log is not wanted any more, or if a job for it runs."""
        wanted = self._wanted.get(key)
        if wanted is not None and not wanted.begun:
            self._waiting[wanted.need][key] = None
            self.start_jobs()

    def start_jobs(self) -> None:
        """Start the jobs that open the queued logs, the most needed first, until ``AT_ONCE`` jobs run. Does nothing
        if no log is queued."""
        for waiting in self._waiting:
            while waiting and self._running < AT_ONCE:
                key = next(iter(waiting))
                del waiting[key]
                wanted = self._wanted[key]
                wanted.begun = True
                self._running += 1
                intact = self._session.began_clean
                asks = self._can_ask_others(wanted.state)
                job = OpenLog(self._disk, self._path(key), wanted.config, self._tails, self._indexes, intact, asks)
                self._jobs.start(key, job, partial(self._on_ended, key))

    def _can_ask_others(self, state: PartitionState | None) -> bool:
        """Return whether this copy is in the ISR or ELR and the partition has other replicas, which can be asked
        about a doubtful tail. False if this server is no replica, or if the cluster's feature level has no such
        questions."""
        if state is None or self._level() < DOUBTFUL_TAILS:
            return False
        return self._node in state.isr + state.elr and len(state.replicas) > 1

    def _on_ended(self, key: TopicPartition, result: object, now: float) -> None:
        """Act on the end of a job that opened a log. Pass an open log to ``on_open``, a damaged or doubtful one to
        ``on_broken``; delete the log if that was requested meanwhile; after another error try again later or stop the
        server. Then start the next jobs, and log ``logs_opened`` when no more run."""
        self._running -= 1
        wanted = self._wanted.pop(key)
        if isinstance(result, Opened):
            self._opened += 1
            if wanted.deleted:
                self.delete(key, result.log)
                self._want_again(key, wanted)
            else:
                self._report_missing(key, result.log)
                self._on_open(key, result, wanted.config, wanted.state, now)
        else:
            assert isinstance(result, OSError)
            if wanted.deleted:
                self.delete(key, None)
                self._want_again(key, wanted)
            elif isinstance(result, CorruptLog | DoubtfulLog):
                self._on_broken(key, result, wanted.config, wanted.state, now)
            else:
                self._hold_back(key, wanted, result, now)
        self.start_jobs()
        if not self._running and self._opened:
            self._effects.event("logs_opened", count=self._opened)
            self._opened = 0

    def _report_missing(self, key: TopicPartition, log: Log) -> None:
        """Log ``committed_records_missing`` if the log ends below the HW that it had when it was last open."""
        if log.end < (committed := log.written_high_watermark):
            where = {"topic_id": key.topic_id, "partition": key.partition}
            self._effects.event("committed_records_missing", **where, start=log.end, end=committed)

    def _hold_back(self, key: TopicPartition, wanted: _Wanted, error: OSError, now: float) -> None:
        """Set a timer to try again to open a log that could not be opened, after a pause that doubles each time. Log
        ``partition_offline`` the first time. Stop the server instead if the error comes from the disk. Does nothing
        if this server is no replica any more and the error says nothing about the disk."""
        if wanted.state is None and isinstance(error, CannotOpenYet):
            return
        if not wanted.reason:
            reason = f"its log cannot be opened: {error}"
            self._event("partition_offline", key, reason=reason)
        self._wanted[key], wanted.reason = wanted, str(error)
        if not isinstance(error, CannotOpenYet):
            self._effects.stop(f"{self._path(key)}: {error}")
            return
        wanted.begun = False
        if now >= wanted.retry_at:  # a try within the pause, which a change of the metadata began, makes it no longer
            wanted.retry_at = now + wanted.pause_s
            wanted.pause_s = min(2 * wanted.pause_s, RETRY_MAX_S)
        self._timers.set(KeyTimer(self, key), wanted.retry_at)

    def _want_again(self, key: TopicPartition, wanted: _Wanted) -> None:
        """Queue a log again that was deleted while it was being opened, if this server has become a replica of the
        partition again. The new copy begins empty."""
        if wanted.state is not None:
            self.want(key, wanted.config, wanted.state)

    # --- deleting ----------------------------------------------------------------------------------------

    def delete(self, key: TopicPartition, log: Log | None) -> None:
        """Close the log, if one is given, and have a job delete the partition's log directory. If the log is being
        opened, both happen when that job has ended. The caller ensures that no flush of the log is under way. A
        deletion that fails is logged and tried again after a pause; if the log cannot be closed, only the next start
        deletes it."""
        wanted = self._wanted.get(key)
        if wanted is not None and wanted.begun:
            wanted.deleted, wanted.state = True, None
            return
        self.unwant(key)
        self._deleter.delete(key, log)

    def _event(self, name: str, key: TopicPartition, **fields: str) -> None:
        self._effects.event(name, topic_id=key.topic_id, partition=key.partition, **fields)
