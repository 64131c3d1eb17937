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
    """What has to be synced so that everything below ``end`` is durable. ``run`` does it, in any thread."""

    files: tuple[File, ...]
    end: int
    directory: tuple[Disk, str] | None = None
    """Set where new names must be made durable too."""
    generation: int = 0
    """How often the log had been truncated."""
    recovery_point: tuple[OffsetCheckpoint, int] | None = None
    """Set where the recovery point is to be durable too, as it is when the flush begins."""

    def run(self) -> None:
        """Sync everything. Raises ``OSError``; the flush has then failed for good."""
        for file in self.files:
            file.sync()
        if self.directory is not None:
            disk, path = self.directory
            disk.sync_dir(path)
        if self.recovery_point is not None:
            self.recovery_point[0].sync()


class WriteGuard:
    """A guard around everything that writes: after an ``OSError`` the log takes no further change."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.is_possible = True
        """Whether no write has failed yet, and the log is open."""

    def __enter__(self) -> None:
        if not self.is_possible:
            raise OSError(errno.EIO, "the log failed earlier and must be opened again", self._directory)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            self.is_possible = False

    def stop(self) -> None:
        """Refuse every further write."""
        self.is_possible = False
