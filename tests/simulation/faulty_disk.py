"""A simulated disk that fails, or loses power in the middle of the server's work."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from tidelog.types import Buffer


class PowerLoss(BaseException):
    """The machine is gone: no handler of the server may see this; only the simulation catches it."""


class FaultyDisk:
    """``Disk`` over another one. Only changes fail; what was read is never wrong here."""

    def __init__(self, disk: Any) -> None:
        self.disk = disk
        self._error: tuple[int, int] | None = None
        self._power: int | None = None
        self._dead = False
        self.on_change: Callable[[str, str], None] | None = None
        """Called with the operation and the path, for the trace."""

    def fail_writes(self, error: int, after: int) -> None:
        """After so many more changes, each one fails with this errno until ``heal``."""
        self._error = (error, after)

    def lose_power(self, after: int) -> None:
        """Lose power at the change after so many more."""
        self._power = after

    def heal(self) -> None:
        """Changes succeed again."""
        self._error = None
        self._power = None

    def restarted(self) -> None:
        """The machine is back."""
        self._dead = False
        self._power = None

    def change(self, operation: str, path: str) -> None:
        """A change is about to happen: it may fail."""
        if self._dead:
            raise PowerLoss(f"{operation} {path} after power was lost")
        if self.on_change is not None:
            self.on_change(operation, path)
        if self._power is not None:
            self._power -= 1
            if self._power < 0:
                self._dead = True
                raise PowerLoss(f"{operation} {path}")
        if self._error is not None:
            error, after = self._error
            if after > 0:
                self._error = (error, after - 1)
            else:
                raise OSError(error, os.strerror(error), path)

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        if create:
            self.change("create", path)
        return FaultyFile(self, self.disk.open(path, create=create), path)

    def read(self, path: str) -> bytes:
        return bytes(self.disk.read(path))

    def write_atomic(self, path: str, data: bytes) -> None:
        self.change("write_atomic", path)
        self.disk.write_atomic(path, data)

    def rename(self, source: str, target: str) -> None:
        self.change("rename", source)
        self.disk.rename(source, target)

    def unlink(self, path: str) -> None:
        self.change("unlink", path)
        self.disk.unlink(path)

    def listdir(self, path: str) -> list[str]:
        return list(self.disk.listdir(path))

    def mkdir(self, path: str) -> None:
        self.change("mkdir", path)
        self.disk.mkdir(path)

    def rmtree(self, path: str) -> None:
        self.change("rmtree", path)
        self.disk.rmtree(path)

    def sync_dir(self, path: str) -> None:
        self.change("sync_dir", path)
        self.disk.sync_dir(path)


class FaultyFile:
    """``File`` of a ``FaultyDisk``."""

    def __init__(self, disk: FaultyDisk, file: Any, path: str) -> None:
        self._disk = disk
        self._file = file
        self._path = path

    def size(self) -> int:
        return int(self._file.size())

    def pread(self, length: int, position: int) -> bytes:
        return bytes(self._file.pread(length, position))

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        self._disk.change("write", self._path)
        self._file.pwritev(buffers, position)

    def truncate(self, size: int) -> None:
        self._disk.change("truncate", self._path)
        self._file.truncate(size)

    def sync(self) -> None:
        self._disk.change("sync", self._path)
        self._file.sync()

    def close(self) -> None:
        self._file.close()
