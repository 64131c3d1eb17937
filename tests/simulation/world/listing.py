"""What lies in each directory of a simulated disk."""

from __future__ import annotations

from collections.abc import Iterable


class Listing:
    """Names by directory: made of all when it is asked for, and kept from then on as names come and go."""

    def __init__(self) -> None:
        self._within: dict[str, dict[str, None]] | None = None

    def forget(self) -> None:
        """Other names, all at once."""
        self._within = None

    def add(self, path: str) -> None:
        """It is there."""
        if self._within is not None and path not in ("", "/"):
            self._within.setdefault(parent(path), {})[path.rpartition("/")[2]] = None

    def remove(self, path: str) -> None:
        """It is not there any more."""
        if self._within is not None:
            self._within.get(parent(path), {}).pop(path.rpartition("/")[2], None)

    def of(self, path: str, *everything: Iterable[str]) -> list[str]:
        """What lies in a directory, of all paths."""
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
