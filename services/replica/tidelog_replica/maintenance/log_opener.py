"""Logs on their way: opened by jobs, so that a server with ten thousand partitions keeps its heartbeats.

    waiting    nothing is done yet; by need: what this server leads first, then what it is in sync for, then the rest
    opening    the job runs: recovery, and the producers' state from the log
    open       the owner has the log; this module has forgotten it
    held back  it could not be opened, for a reason that says nothing of its content: a directory that cannot be
               read, missing rights, no descriptors. It is never taken for empty, nothing of it is touched, and it is
               tried again after a pause that doubles, or when the state of the partition changes. Where the disk
               fails in writing, the process ends instead: only the next incarnation knows what is there

While a log is on its way the controller's states for it are kept, the newest only; the owner acts on it when the log
is open. A log that is not wanted any more before its job began is not opened at all; one whose topic is deleted
meanwhile is closed again, and then its data goes (``log_deletion.py``).
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
"""Logs that are opened at the same time: enough to keep the threads busy, few enough for the order of need to
count."""
NEEDS = 3
"""Levels of need: what this server leads, what it is in sync for, the rest."""
RETRY_S = 1.0
"""First pause before a log that could not be opened is tried again …"""
RETRY_MAX_S = 60.0
"""… and the longest."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The result of ``OpenLog``: the log, and the state of the producers whose batches it holds."""

    log: Log
    producers: ProducerState


class CannotOpenYet(OSError):
    """The log cannot be opened now, for a reason that says nothing of its content; it is tried again."""


_HOLDING_BACK = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOTDIR, errno.EISDIR)
"""Errors that say nothing of the medium."""


@dataclass(frozen=True, slots=True)
class OpenLog:
    """The job that opens a log with recovery, or makes an empty one. The result is ``Opened``."""

    disk: Disk
    path: str
    config: TopicConfig
    tails: LogTailCache
    indexes: IndexCache | None = None
    intact: bool = False
    has_peers: bool = False
    """This field and ``intact`` have the meaning that ``Log.open`` gives them."""

    def run(self) -> Opened:
        """Open the log; see ``Job``. Raises ``CorruptLog`` if the log is damaged or an earlier incarnation has left a
        hole in it, ``DoubtfulLog`` if its end is doubtful, ``CannotOpenYet`` if it should be tried again, and other
        ``OSError`` if the disk fails."""
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
        """Return the names of the files in the log's directory: none if there is no directory, or if a deletion of
        the log was begun, which is then finished. Raises ``CannotOpenYet`` if the directory cannot be read, and
        ``OSError`` if the deletion fails."""
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
    """A log that waits to be opened or is being opened. ``state`` is the newest one of the partition; None if this
    server has no part in it any more."""

    config: TopicConfig
    state: PartitionState | None
    need: int
    begun: bool = False
    deleted: bool = False
    reason: str = ""
    """Why the last try to open the log failed; "" if there was none."""
    pause_s: float = RETRY_S
    """The next pause before a retry."""
    retry_at: float = 0.0
    """When the present pause ends."""


class LogOpener:
    """The part of a node that has logs opened by jobs, and deleted when no job opens them.
    ``on_open(key, opened, config, state, now)`` is called for a log that is open,
    ``on_broken(key, error, config, state, now)`` for one that is damaged or doubtful.
    ``level()`` returns the cluster's feature level."""

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
        """Logs whose job has not begun, by need."""
        self._deleter = LogDeleter(context, self._wanted)
        self._running = 0
        self._opened = 0
        """Logs opened since there was last nothing to open."""

    def __contains__(self, key: TopicPartition) -> bool:
        return key in self._wanted

    def __len__(self) -> int:
        return len(self._wanted)

    @property
    def held_back(self) -> int:
        """Number of logs that could not be opened when they were last tried."""
        return sum(1 for wanted in self._wanted.values() if wanted.reason)

    def refusal(self, key: TopicPartition) -> TidelogError:
        """Return the error ``OFFLINE`` for a request to a partition whose log is being opened, with the reason if it
        could not be opened."""
        reason = self._wanted[key].reason
        if reason:
            return refuse("OFFLINE", f"the partition is offline on {self._node}: its log cannot be opened: {reason}")
        return refuse("OFFLINE", f"the partition is being opened on {self._node}", opening=1)

    # --- opening -----------------------------------------------------------------------------------------

    def want(self, key: TopicPartition, config: TopicConfig, state: PartitionState) -> None:
        """Queue a log to be opened, or replace the settings and state of a queued one; ``start_jobs`` starts the job.
        ``state`` is given to ``on_open`` and determines the need."""
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
        """Take a log from the queue, since this server has no part in the partition any more; its data stays. If its
        job runs already, ``on_open`` gets None for the state. Does nothing for a log that is not wanted."""
        wanted = self._wanted.get(key)
        if wanted is None:
            return
        wanted.state = None
        if not wanted.begun:
            self._waiting[wanted.need].pop(key, None)
            del self._wanted[key]

    def unwant_all(self) -> None:
        """Take all logs from the queue, since this incarnation is over."""
        for key in list(self._wanted):
            self.unwant(key)

    def on_tick(self, key: TopicPartition, now: float) -> None:
        """Queue the partition's log again, which could not be opened before the pause, and start jobs. Does nothing
        if the log is not wanted, or if a job opens it."""
        wanted = self._wanted.get(key)
        if wanted is not None and not wanted.begun:
            self._waiting[wanted.need][key] = None
            self.start_jobs()

    def start_jobs(self) -> None:
        """Start jobs that open the waiting logs, the most needed ones first, up to ``AT_ONCE`` at a time."""
        for waiting in self._waiting:
            while waiting and self._running < AT_ONCE:
                key = next(iter(waiting))
                del waiting[key]
                wanted = self._wanted[key]
                wanted.begun = True
                self._running += 1
                intact = self._session.began_clean
                asks = self._counts(wanted.state)
                job = OpenLog(self._disk, self._path(key), wanted.config, self._tails, self._indexes, intact, asks)
                self._jobs.start(key, job, partial(self._on_ended, key))

    def _counts(self, state: PartitionState | None) -> bool:
        """Return whether others rely on this copy, and there are other replicas that can be asked what its torn end
        was."""
        if state is None or self._level() < DOUBTFUL_TAILS:
            return False
        return self._node in state.isr + state.elr and len(state.replicas) > 1

    def _on_ended(self, key: TopicPartition, result: object, now: float) -> None:
        """Act on the end of a job: hand over an open log, delete one that is not wanted any more, report a damaged or
        doubtful one, or try again later. Then start the next jobs."""
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
        """Log ``committed_records_missing`` if the log ends below the HW that it had before."""
        if log.end < (committed := log.written_high_watermark):
            where = {"topic_id": key.topic_id, "partition": key.partition}
            self._effects.event("committed_records_missing", **where, start=log.end, end=committed)

    def _hold_back(self, key: TopicPartition, wanted: _Wanted, error: OSError, now: float) -> None:
        """Record that a log could not be opened: try again after a pause that doubles, or end the process if the disk
        failed. Logs ``partition_offline`` the first time."""
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
        """Queue a log that was deleted before it was open, if this server has a part in the partition again, with a
        new copy."""
        if wanted.state is not None:
            self.want(key, wanted.config, wanted.state)

    # --- deleting ----------------------------------------------------------------------------------------

    def delete(self, key: TopicPartition, log: Log | None) -> None:
        """Close the log, if it is given, and have a job remove its data. No flush of it may be under way; if a job is
        opening it, the deletion follows that job. A failure is logged and tried again."""
        wanted = self._wanted.get(key)
        if wanted is not None and wanted.begun:
            wanted.deleted, wanted.state = True, None
            return
        self.unwant(key)
        self._deleter.delete(key, log)

    def _event(self, name: str, key: TopicPartition, **fields: str) -> None:
        self._effects.event(name, topic_id=key.topic_id, partition=key.partition, **fields)
