"""The names in each directory of a simulated disk."""

from __future__ import annotations

from collections.abc import Iterable


class Listing:
    """A cache of the names in each directory of a disk. The first ``of`` builds it from all paths; ``add`` and
    ``remove`` keep it up to date from then on."""

    def __init__(self) -> None:
        self._within: dict[str, dict[str, None]] | None = None

    def forget(self) -> None:
        """Drop the cache, because all names may have changed; the next ``of`` builds it again."""
        self._within = None

    def add(self, path: str) -> None:
        """Record that a file or directory was created. Does nothing while the cache is not built."""
        if self._within is not None and path not in ("", "/"):
            self._within.setdefault(parent(path), {})[path.rpartition("/")[2]] = None

    def remove(self, path: str) -> None:
        """Record that a file or directory was removed. Does nothing while the cache is not built."""
        if self._within is not None:
            self._within.get(parent(path), {}).pop(path.rpartition("/")[2], None)

    def of(self, path: str, *everything: Iterable[str]) -> list[str]:
        """Return the sorted names in a directory, [] if it has none. ``everything``: all paths of the disk, from
        which the cache is built if it does not exist."""
        if self._within is None:
            self._within = {}
            for paths in everything:
                for name in paths:
                    self.add(name)
        return sorted(self._within.get(path, ()))


def parent(path: str) -> str:
    """Return the directory of a path."""
    head = path.rpartition("/")[0]
    return head or ("/" if path.startswith("/") and path != "/" else "")
