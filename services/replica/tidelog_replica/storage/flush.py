"""What guards a log's changes: the half of a flush that runs in a thread, and what an error in a change means."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Protocol

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
    mark: tuple[OffsetCheckpoint, int] | None = None
    """Set where the recovery mark is to be durable too, as it is when the flush begins."""

    def run(self) -> None:
        """Sync everything. Raises ``OSError``; the flush has then failed for good."""
        for file in self.files:
            file.sync()
        if self.directory is not None:
            disk, path = self.directory
            disk.sync_dir(path)
        if self.mark is not None:
            self.mark[0].sync()


class _Changing(Protocol):
    _usable: bool
    _directory: str


class Change:
    """Around everything that writes: an ``OSError`` makes the log unusable."""

    def __init__(self, log: _Changing) -> None:
        self._log = log

    def __enter__(self) -> None:
        if not self._log._usable:
            raise OSError(errno.EIO, "the log failed earlier and must be opened again", self._log._directory)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            self._log._usable = False
