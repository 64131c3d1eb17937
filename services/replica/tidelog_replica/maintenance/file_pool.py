"""Keeps the number of open files bounded, though some files are never flushed: see ``storage/open_files.py``.

After every input, two comparisons show whether most of the files that may be open are unsynced. If so, a job syncs
the least recently used ones. A sync that fails there belongs to no partition, so this module stops the server then.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.runtime.disk import Disk

from tidelog_replica.context import NodeContext
from tidelog_replica.jobs import SYNC_FILES
from tidelog_replica.storage.encryption.files import EncryptedDisk
from tidelog_replica.storage.open_files import OpenFiles


def open_files_of(disk: Disk) -> OpenFiles | None:
    """Return the object that limits how many files ``disk`` keeps open, also if ``disk`` encrypts; None if nothing
    limits the open files."""
    below = disk.below if isinstance(disk, EncryptedDisk) else disk
    return below if isinstance(below, OpenFiles) else None


@dataclass(frozen=True, slots=True)
class Tidy:
    """The job that syncs the files of ``files`` that were not used for longest, so that they can be closed. It has no
    result."""

    files: OpenFiles

    def run(self) -> None:
        """Sync the least recently used files. Raises nothing: an error is recorded in ``files.failure``, on which
        ``FilePoolFlusher`` stops the server."""
        self.files.tidy()


class FilePoolFlusher:
    """The part of a node that has files synced by a job when most of the files that may be open have unsynced writes,
    and so cannot be closed. It lives as long as the node."""

    def __init__(self, context: NodeContext) -> None:
        self._files = open_files_of(context.disk)
        self._effects = context.effects

    def on_input_over(self) -> None:
        """Start a job that syncs files if too many open files are unsynced and no such job runs. Stop the server if
        an earlier sync failed. Does nothing if nothing limits the open files."""
        files, jobs = self._files, self._effects.jobs
        if files is None:
            return
        if files.failure:
            if not self._effects.stopping:
                self._effects.stop(f"a file could not be synced: {files.failure}")
        elif files.crowded and not jobs.busy(SYNC_FILES):
            jobs.start(SYNC_FILES, Tidy(files), lambda result, now: None)
