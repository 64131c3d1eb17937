"""The folder of a table, on a disk or in an object store that fsspec reaches (``s3://…``). Calls block."""

from __future__ import annotations

import errno
import math
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tidelog.errors import ConfigError
from tidelog.extras import install_hint

DRAFT = "."
"""The name of a local file that is not complete begins with this, and ends with a dot and a random number."""


class TableFolder:
    """The files below a folder or a URL (``url``). Names are relative to it, with ``/`` between their parts."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        try:
            from fsspec.core import url_to_fs
            from fsspec.implementations.local import LocalFileSystem
        except ImportError:
            raise ConfigError(f"tables need fsspec: {install_hint('backup')}") from None
        try:
            found = url_to_fs(url, **(_of_s3fs(options) if url.startswith("s3://") else {}))
        except ImportError as error:
            raise ConfigError(f"{url}: {error} (for s3://: {install_hint('s3')})") from error
        except ValueError as error:
            raise ConfigError(f"{url}: {error}") from error
        self.url = url.rstrip("/")
        self._fs: Any = found[0]
        self._root = str(found[1]).rstrip("/")
        self._is_local = isinstance(self._fs, LocalFileSystem)

    def path(self, name: str) -> str:
        """Return the whole path or URL of a file, as other programs open it."""
        return f"{self._root}/{name}" if self._is_local else self._fs.unstrip_protocol(f"{self._root}/{name}")

    def read(self, name: str) -> bytes | None:
        """Return the contents of a file, or None if it does not exist."""
        try:
            return bytes(self._fs.cat_file(f"{self._root}/{name}"))
        except FileNotFoundError:
            return None

    def open_new(self, name: str) -> Any:
        """Open a file for writing, and return the file object. The name must be one that nobody else uses."""
        path = f"{self._root}/{name}"
        if self._is_local:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        return self._fs.open(path, "wb")

    def open_read(self, name: str) -> Any:
        """Open a file for reading, and return the file object."""
        return self._fs.open(f"{self._root}/{name}", "rb")

    def put_new(self, name: str, data: bytes) -> bool:
        """Create a file with all of its contents in one step, durably. Returns False, and changes nothing, if there
        is a file of this name. An object store must support conditional puts (``If-None-Match``)."""
        path = f"{self._root}/{name}"
        if self._is_local:
            return _link_new(Path(path), data)
        try:
            self._fs.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno == errno.EEXIST or "PreconditionFailed" in f"{error!r} {error.__cause__!r}":
                return False
            raise
        return True

    def names(self, folder: str) -> dict[str, float]:
        """Return the names of all files below a folder of this one, each with the time of its last change, in seconds
        since 1970; infinity if that is not known."""
        self._fs.invalidate_cache()
        found = self._fs.find(f"{self._root}/{folder}", detail=True)
        start = len(self._root) + 1
        return {path[start:]: _changed_s(details) for path, details in found.items()}

    def linked(self) -> str:
        """Return the name of a symbolic link to a folder that is somewhere below this one; "" if there is none, as in
        an object store."""
        for folder, below, _ in os.walk(self._root) if self._is_local else ():
            for path in (Path(folder, name) for name in below):
                if path.is_symlink():
                    return str(path.relative_to(self._root))
        return ""

    def remove(self, name: str) -> None:
        """Remove a file. Does nothing if it does not exist."""
        with suppress(FileNotFoundError):
            self._fs.rm_file(f"{self._root}/{name}")


def _link_new(path: Path, data: bytes) -> bool:
    """Create a local file with contents in one step; return False if it exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{DRAFT}{path.name}.{secrets.token_hex(16)}")
    try:
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            return False
    finally:
        draft.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return True


def _changed_s(details: Mapping[str, Any]) -> float:
    """Return the time of a file's last change. Local files and objects have it under different names. Infinity if it
    is not known, so that nobody takes the file for old."""
    found = details.get("mtime") or details.get("LastModified") or details.get("last_modified") or math.inf
    return float(found.timestamp() if hasattr(found, "timestamp") else found)


def _of_s3fs(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of an S3 store, which are in Iceberg's words, in those of s3fs. What is not given comes from
    AWS's environment."""
    words = {"s3.access-key-id": "key", "s3.secret-access-key": "secret", "s3.session-token": "token"}
    known: dict[str, Any] = {word: options[name] for name, word in words.items() if name in options}
    client = {"s3.endpoint": "endpoint_url", "s3.region": "region_name"}
    known["client_kwargs"] = {word: options[name] for name, word in client.items() if name in options}
    return known | {"use_listings_cache": False}
