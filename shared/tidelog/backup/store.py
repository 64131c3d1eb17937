"""The folder of a backup, on a disk or wherever fsspec reaches (``s3://…``). Every file is written whole, in one
step. Calls block: run them in threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from tidelog.backup.manifest import MANIFEST, UNFINISHED, BadBackup, Manifest
from tidelog.errors import ConfigError
from tidelog.extras import install_hint
from tidelog.runtime.disk import RealDisk

T = TypeVar("T")


class BackupStore:
    """The files of one backup, in a folder or at a URL for fsspec (``url``). Its methods block. Making it raises
    ``ConfigError`` if the URL is not valid, or the package for that kind of URL is not installed."""

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs
            from fsspec.implementations.local import LocalFileSystem
        except ImportError:
            raise ConfigError(f"backups need fsspec: {install_hint('backup')}") from None
        try:
            found = url_to_fs(url)
        except ImportError as error:
            raise ConfigError(f"{url}: {error} (for s3://: {install_hint('s3')})") from error
        except ValueError as error:
            raise ConfigError(f"{url}: {error}") from error
        self.url = url.rstrip("/")
        self._fs: Any = found[0]
        self._root = str(found[1]).rstrip("/")
        self._disk = RealDisk() if isinstance(self._fs, LocalFileSystem) else None

    def read(self, name: str) -> bytes:
        """Return the contents of a file of the backup. Raises ``BadBackup`` if the file does not exist or cannot be
        read."""
        found = self._read(name)
        if found is None:
            raise BadBackup(f"{self.url}/{name} is missing")
        return found

    def write(self, name: str, data: bytes) -> None:
        """Write a file of the backup durably, in one step, so that it replaces an older file. Raises ``BadBackup`` if
        that fails."""

        def write() -> None:
            path = self._path(name)
            if self._disk is None:
                self._fs.pipe_file(path, data)  # an object appears whole
                return
            self._disk.mkdir(str(Path(path).parent))
            self._disk.write_atomic(path, data)

        self._try(name, write)

    def remove(self, name: str) -> None:
        """Remove a file of the backup. Does nothing if the file does not exist; raises ``BadBackup`` if it cannot be
        removed."""

        def remove() -> None:
            with suppress(FileNotFoundError):
                self._fs.rm_file(self._path(name))

        self._try(name, remove)

    def manifest(self) -> Manifest:
        """Read and return the manifest of the last finished run. Raises ``BadBackup`` if there is none (the message
        says whether the folder has an unfinished run), if the manifest is not valid, or if the storage cannot be
        read."""
        found = self._read(MANIFEST)
        if found is not None:
            return Manifest.from_bytes(found, f"{self.url}/{MANIFEST}")
        if self._read(UNFINISHED) is not None:
            raise BadBackup(f"{self.url} has no finished backup: 'tidelog backup' goes on where it ended")
        raise BadBackup(f"{self.url} has no backup: there is no {MANIFEST}")

    def so_far(self) -> Manifest | None:
        """Read and return the manifest of all that the folder has: that of an unfinished run, else that of the last
        finished run, or None if the folder has neither. Raises ``BadBackup`` if the manifest is not valid or cannot
        be read."""
        for name in (UNFINISHED, MANIFEST):
            found = self._read(name)
            if found is not None:
                return Manifest.from_bytes(found, f"{self.url}/{name}")
        return None

    def _read(self, name: str) -> bytes | None:
        """Return the contents of a file; None if the file does not exist. Raises ``BadBackup`` if it cannot be
        read."""

        def read() -> bytes | None:
            try:
                return bytes(self._fs.cat_file(self._path(name)))
            except FileNotFoundError:
                return None

        return self._try(name, read)

    def _path(self, name: str) -> str:
        """Return the path of a file in the folder of the backup. Raises ``BadBackup`` if a symbolic link leads out of
        the folder."""
        path = f"{self._root}/{name}"
        if self._disk is not None and not Path(path).resolve().is_relative_to(Path(self._root).resolve()):
            raise BadBackup(f"{self.url}/{name} leads out of the folder of the backup")
        return path

    def _try(self, name: str, call: Callable[[], T]) -> T:
        """Return the result of ``call``. Its errors of disk and network are raised as ``BadBackup`` with the file's
        name."""
        try:
            return call()
        except BadBackup:
            raise
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise BadBackup(f"{self.url}/{name}: {reason}") from error
        except Exception as error:
            if self._disk is not None:
                raise
            # the library of a storage service raises errors of its own
            raise BadBackup(f"{self.url}/{name}: {error}") from error
