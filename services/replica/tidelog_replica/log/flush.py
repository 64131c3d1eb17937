"""The half of a flush that runs in a thread."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.disk import Disk, File


@dataclass(frozen=True, slots=True)
class Flush:
    """What has to be synced so that everything below ``end`` is durable. ``run`` does it, in any thread."""

    files: tuple[File, ...]
    end: int
    directory: tuple[Disk, str] | None = None
    """Set where new names must be made durable too."""
    generation: int = 0
    """How often the log had been truncated."""

    def run(self) -> None:
        """Sync everything. Raises ``OSError``; the flush has then failed for good."""
        for file in self.files:
            file.sync()
        if self.directory is not None:
            disk, path = self.directory
            disk.sync_dir(path)
