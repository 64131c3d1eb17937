"""Which applications there are, and whose: for the bounds per principal (``tidelog.bounds``).

An application is there as long as anything is remembered of it: a transaction, what it has committed, or the
producers of its tasks. It belongs to the principal that began it."""

from __future__ import annotations

from tidelog_replica.coordinators.tally import Tally


class Applications:
    """Each record of an application is taken on with ``hold`` and let go with ``release``."""

    def __init__(self) -> None:
        self._records: dict[str, int] = {}
        self._owners: dict[str, str] = {}
        self.tally = Tally()

    def __contains__(self, app: str) -> bool:
        return app in self._records

    def owner(self, app: str) -> str:
        """Whose it is; "": not known."""
        return self._owners.get(app, "")

    def hold(self, app: str, principal: str) -> None:
        """There is one more record of it. It belongs to the principal that made the first one."""
        if principal and app not in self._records:
            self._owners[app] = principal
            self.tally.add(principal)
        self._records[app] = self._records.get(app, 0) + 1

    def release(self, app: str) -> None:
        """A record of it is gone."""
        self._records[app] -= 1
        if not self._records[app]:
            del self._records[app]
            self.tally.drop(self._owners.pop(app, ""))
