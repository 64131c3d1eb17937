"""Rules of the real disk, broken: only the power losses of ``crash_points`` can notice them."""

from __future__ import annotations

from pathlib import Path

from tidelog.runtime import disk as disk_module
from tidelog.runtime.disk import RealDisk

from mutants.rules import Patch, breaks


@breaks("POSIX", "A sync of a file reaches the disk before it returns.", disk=True)
def never_sync_a_file(patch: Patch) -> None:
    """A sync of a file returns at once."""
    patch.setattr(disk_module._RealFile, "sync", lambda self: None)


@breaks("POSIX", "A sync of a directory reaches the disk before it returns.", disk=True)
def never_sync_a_directory(patch: Patch) -> None:
    """A sync of a directory returns at once."""
    patch.setattr(RealDisk, "sync_dir", lambda self, path: None)


@breaks("POSIX", "The new bytes are durable before they take the place of the old ones.", disk=True)
def replace_a_file_by_one_that_is_not_synced(patch: Patch) -> None:
    """An atomic write writes, renames and syncs the directory only."""

    def write(self, path, data):
        Path(path + ".new").write_bytes(data)
        Path(path + ".new").replace(path)
        self.sync_dir(str(Path(path).parent))

    patch.setattr(RealDisk, "write_atomic", write)


@breaks("POSIX", "The name of a file that was replaced is durable before the call returns.", disk=True)
def replace_a_file_without_a_sync_of_its_directory(patch: Patch) -> None:
    """An atomic write leaves the directory to others."""
    write = RealDisk.write_atomic

    def leave(self, path, data):
        sync_dir, self.sync_dir = self.sync_dir, lambda path: None
        try:
            write(self, path, data)
        finally:
            self.sync_dir = sync_dir

    patch.setattr(RealDisk, "write_atomic", leave)


@breaks("POSIX", "A new directory is durable when the call returns.", disk=True)
def make_a_directory_without_a_sync(patch: Patch) -> None:
    """The parent directory is not synced."""
    patch.setattr(RealDisk, "mkdir", lambda self, path: Path(path).mkdir(mode=0o750, parents=True, exist_ok=True))
