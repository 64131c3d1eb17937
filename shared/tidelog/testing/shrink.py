"""Makes a failing case small: fewer strikes, fewer clients, a shorter run, as long as it fails the same way.

Delta debugging (Zeller): leave out ever smaller parts of the list of strikes. What is left out changes what follows,
so a smaller case is kept only if its run fails with the same ``Fault.kind``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tidelog.testing.clients import applications, streams
from tidelog.testing.faults.strikes import Strike
from tidelog.testing.runner import Case, Result, run_case


class Shrinker:
    """Searches for the smallest case that still fails like ``failed``. ``runs`` bounds the runs that it may try;
    ``on_smaller`` is called with each smaller case."""

    def __init__(
        self,
        failed: Result,
        runs: int = 300,
        run: Callable[[Case], Result] = run_case,
        on_smaller: Callable[[Case], None] | None = None,
    ) -> None:
        assert failed.fault is not None
        self.kind = failed.fault.kind
        self.best = replace(failed.case, strikes=failed.strikes)
        self.left = runs
        self._run = run
        self._on_smaller = on_smaller

    def shrink(self) -> Case:
        """Return the smallest failing case found: fewer strikes, fewer clients, a shorter duration. Returns the full
        case if it does not fail again."""
        if not self._fails(self.best):
            return self.best  # the harness is at fault: with all its strikes the case must fail
        size = None
        while size != (size := self._size()) and self.left > 0:
            self._drop_strikes()
            self._drop_clients()
            self._shorten()
        return self.best

    def _size(self) -> tuple[int, int, float]:
        clients = self.best.clients
        return (len(self._strikes), -1 if clients is None else len(clients), self.best.duration)

    @property
    def _strikes(self) -> Sequence[Strike]:
        return self.best.strikes or ()

    def _fails(self, case: Case) -> bool:
        """Run a case; if it fails in the same way, keep it as the best one and return True. Returns False without a
        run if no runs are left."""
        if self.left <= 0:
            return False
        self.left -= 1
        fault = self._run(case).fault
        if fault is None or fault.kind != self.kind:
            return False
        self.best = case
        if self._on_smaller is not None:
            self._on_smaller(case)
        return True

    def _drop_strikes(self) -> None:
        """Leave out parts of the strikes, first halves and then ever smaller parts, as long as the case fails."""
        size = max(1, len(self._strikes) // 2)
        while self._strikes and self.left > 0:
            place, dropped = 0, False
            while place < len(self._strikes):
                strikes = (*self._strikes[:place], *self._strikes[place + size :])
                if self._fails(replace(self.best, strikes=strikes)):
                    dropped = True
                else:
                    place += size
            if size == 1 and not dropped:
                return
            size = max(1, size // 2)

    def _drop_clients(self) -> None:
        """Leave out each client without which the case still fails."""
        clients = self.best.clients
        if clients is None:
            options = self.best.options()
            clients = (
                *(f"p{index + 1}" for index in range(len(options.producers))),
                *(f"k{index + 1}" for index in range(options.consumers)),
                *([applications.NAME] if options.transactions else ()),
                *([streams.NAME] if options.streams else ()),
            )
        for name in clients:
            fewer = tuple(other for other in self.best.clients or clients if other != name)
            self._fails(replace(self.best, clients=fewer))

    def _shorten(self) -> None:
        """Take the shortest of four smaller durations with which the case still fails."""
        for part in (0.3, 0.5, 0.7, 0.9):
            if self._fails(replace(self.best, duration=round(self.best.duration * part, 2))):
                return
