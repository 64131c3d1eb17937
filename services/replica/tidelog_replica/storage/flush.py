"""The flush of a log, which makes appended records durable, and the guard that ends all writing after an error.

A flush is in two halves, so that the sync between them can run in a thread while appends go on: ``Log.begin_flush``
names the files that hold what is not durable yet (full segments among them, the leader-epoch file where it has grown,
the directory where it has), and ``Log.complete_flush`` moves the durable offset. Whatever is appended meanwhile is
the next flush's: group commit.

After an ``OSError`` in a call that writes it is not known what is on the disk: half a batch, or a whole one that was
reported as failed. Its offsets must not be used again in the same leader epoch, so the log refuses every further
change until it is opened again. A flush that failed is not completed, and no other is begun.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from tidelog.runtime.disk import Disk, File

from tidelog_replica.storage.checkpoints import OffsetCheckpoint


@dataclass(frozen=True, slots=True)
class Flush:
    """A job that syncs files so that everything below offset ``end`` is durable. ``Log.begin_flush`` makes it, any
    thread runs it, and then it goes to ``Log.complete_flush``."""

    files: tuple[File, ...]
    end: int
    directory: tuple[Disk, str] | None = None
    """Disk and path of the directory to sync, because file names in it are new; None: none is."""
    generation: int = 0
    """How often the log had been cut or reset when the flush began."""
    recovery_point: tuple[OffsetCheckpoint, int] | None = None
    """The recovery point and its value when the flush began, if it must become durable too."""

    def run(self) -> None:
        """Sync the files, and then the directory and the recovery point if they are set. Blocks on the disk. Raises
        ``OSError``; the flush has then failed for good and must not be completed."""
        for file in self.files:
            file.sync()
        if self.directory is not None:
            disk, path = self.directory
            disk.sync_dir(path)
        if self.recovery_point is not None:
            self.recovery_point[0].sync()


class WriteGuard:
    """A context manager around everything that changes the files of one open log. An ``OSError`` that leaves the
    guarded block makes every later entry raise ``OSError``, and so does ``stop``, which closing the log calls."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.is_possible = True
        """Whether the log is open and no write has failed yet."""

    def __enter__(self) -> None:
        if not self.is_possible:
            raise OSError(errno.EIO, "the log failed earlier and must be opened again", self._directory)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            self.is_possible = False

    def stop(self) -> None:
        """Make every later entry into the guard raise ``OSError``, so that the log takes no further change."""
        self.is_possible = False
