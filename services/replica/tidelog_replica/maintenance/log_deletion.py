"""Deletion of a partition's log from the disk: of a deleted topic, or of a copy that this server is to keep no more.

    marked     the directory has the file ``deleting``. From here on the log is as good as deleted: a crash leaves the
               mark, and the job that next opens or deletes the log finishes the deletion (``finish_deletion``)
    emptied    all other files are gone, and the directory is synced
    gone       the mark and the directory are removed

The mark goes first and last. So no crash leaves half of a log that would pass for a whole one.

``LogDeleter`` runs the deletions as jobs in threads. A deletion that fails is tried again after a pause that doubles,
unless this server is to open the partition's log again. ``assignment/assignment.py`` decides which logs are deleted.
``log_opener.py`` decides when a deletion may begin: after the job that opens the log, if such a job runs.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from functools import partial

from tidelog.runtime.disk import Disk
from tidelog.sansio.timers import KeyTimer
from tidelog.types import TopicPartition

from tidelog_replica.context import NodeContext
from tidelog_replica.storage.log import Log

DELETING = "deleting"
"""Name of the file that marks a directory whose log is being deleted."""
RETRY_S = 1.0
"""First pause before a deletion that failed is tried again, in seconds. It doubles with each failure."""
RETRY_MAX_S = 60.0
"""Longest pause before a deletion that failed is tried again, in seconds."""


@dataclass(frozen=True, slots=True)
class DeleteLog:
    """The job that removes a log from the disk. ``path`` is the log's directory. The result is whether there was a
    directory."""

    disk: Disk
    path: str

    def run(self) -> bool:
        """Mark the log's directory as being deleted, remove its files, and then remove the directory. Return False,
        and do nothing, if there is no directory. Raises ``OSError`` if the disk fails; the deletion may then be
        half done."""
        try:
            names = self.disk.listdir(self.path)
        except FileNotFoundError:
            return False
        self.disk.write_atomic(f"{self.path}/{DELETING}", b"")
        finish_deletion(self.disk, self.path, names)
        return True


def finish_deletion(disk: Disk, path: str, names: list[str]) -> None:
    """Remove the files ``names``, and then the directory ``path`` of a log. The caller has listed the directory,
    which is marked as being deleted; the mark is removed last. Raises ``OSError`` if the disk fails; the mark then
    stays."""
    for name in names:
        if name != DELETING:
            disk.unlink(f"{path}/{name}")
    disk.sync_dir(path)
    disk.rmtree(path)


class LogDeleter:
    """The part of a node that deletes logs by jobs in threads, and retries the deletions that failed. A failed
    deletion is not retried if its partition is in ``wanted``: this server is to open that log again. It lives as long
    as the node."""

    def __init__(self, context: NodeContext, wanted: Container[TopicPartition]) -> None:
        self._context = context
        self._effects = context.effects
        self._timers = context.timers
        self._wanted = wanted
        self._failed: dict[TopicPartition, float] = {}
        """Logs whose deletion has failed, each with its next pause in seconds."""

    def delete(self, key: TopicPartition, log: Log | None) -> None:
        """Close the log, if it is given, discard the partition's other jobs, and have a job remove the log's
        directory. No flush of the log may be under way. If the log cannot be closed, log ``delete_failed``; the next
        start deletes the directory then. The end of the job is logged as ``partition_deleted`` or ``delete_failed``;
        a job that failed is tried again after a pause."""
        self._effects.jobs.forget(key)
        try:
            if log is not None:
                log.close(for_good=True)
        except OSError as error:
            self._event("delete_failed", key, reason=str(error))
        else:
            self._start(key)

    def forget(self, key: TopicPartition) -> None:
        """Stop retrying a failed deletion of the partition's log, since the log is to be opened again. A job that
        deletes it now still ends. Does nothing if no deletion has failed."""
        self._failed.pop(key, None)

    def on_tick(self, key: TopicPartition, now: float) -> None:
        """Start the partition's failed deletion again. Does nothing if no deletion of its log has failed."""
        if key in self._failed:
            self._start(key)

    def _start(self, key: TopicPartition) -> None:
        """Start the job that removes the log from the disk."""
        job = DeleteLog(self._context.disk, self._context.log_directory(key))
        self._effects.jobs.start(key, job, partial(self._on_deleted, key))

    def _on_deleted(self, key: TopicPartition, result: object, now: float) -> None:
        """Log ``partition_deleted`` if the job has deleted a log, and nothing if there was none. After an error log
        ``delete_failed``, and set the timer of the next try unless the partition's log is wanted again."""
        pause_s = self._failed.pop(key, RETRY_S)
        if isinstance(result, OSError):
            self._event("delete_failed", key, reason=str(result))
            if key not in self._wanted:
                self._failed[key] = min(2 * pause_s, RETRY_MAX_S)
                self._timers.set(KeyTimer(self, key), now + pause_s)
        elif result:
            self._event("partition_deleted", key)

    def _event(self, name: str, key: TopicPartition, **fields: str) -> None:
        self._effects.event(name, topic_id=key.topic_id, partition=key.partition, **fields)
