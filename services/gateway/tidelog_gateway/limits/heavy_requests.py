"""Logs principals that ask a gateway for much, each at most once a minute, and computes the cost of requests.

A request costs 1, and 1 more for each ``SHARE`` names, parts or positions in it; a request for all topics costs as if
it named them. The same cost counts for the quota ``requests_s``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from tidelog.sansio.effects import Event
from tidelog.wire.messages import Message, Metadata, TopicShare

SHARE = 100
WINDOW_S = 10.0
MUCH = 20_000
"""Cost of the requests of one principal in ``WINDOW_S`` from which on it is logged."""
SILENT_S = 60.0
UNFOLDING = 2_000
"""Cost of a produce whose checks are deferred, since its batches decompress to very much."""


def cost_of(message: Message, topics: int = 0) -> int:
    """Return the cost of a request: 1, and one more for every ``SHARE`` names, parts or positions in it. ``topics``:
    the number of topics of the cluster, which a ``metadata`` request for all topics is taken to name."""
    if isinstance(message, Metadata):
        named = topics if message.all_topics else len(message.topics) + len(message.topic_ids)
        return 1 + named * (10 if message.offsets else 1) // SHARE
    named = 0
    for name in _arrays_of(type(message)):
        parts = getattr(message, name)
        named += len(parts) + sum(len(part.partitions) for part in parts if isinstance(part, TopicShare))
    return 1 + named // SHARE


_arrays: dict[type, tuple[str, ...]] = {}


def _arrays_of(kind: type[Message]) -> tuple[str, ...]:
    """Return the names of the fields of a message class that hold tuples; an empty tuple if there are none. The names
    are cached by class."""
    names = _arrays.get(kind)
    if names is None:
        names = tuple(one.name for one in fields(kind) if str(one.type).startswith("tuple["))
        _arrays[kind] = names
    return names


@dataclass(slots=True)
class _RequestCosts:
    cost: int = 0
    requests: int = 0
    by_op: dict[str, int] = field(default_factory=dict)


class HeavyRequests:
    """The number and cost of each principal's requests in the present window of ``WINDOW_S`` seconds, by which
    principals that ask for much are logged."""

    def __init__(self) -> None:
        self._began = 0.0
        self._accounts: dict[str, _RequestCosts] = {}
        self._logged_at: dict[str, float] = {}

    def count(self, principal: str, remote: str, op: str, cost: int, now: float) -> Event | None:
        """Add the cost of a request to the account of its principal. Return the event ``client_asks_for_much``, which
        the caller logs, if the principal's cost in this window reaches ``MUCH`` and the principal was not logged
        within ``SILENT_S``; None otherwise. ``now``: seconds. A new window, with empty accounts, begins ``WINDOW_S``
        after the last one."""
        if now >= self._began + WINDOW_S:
            self._began = now
            self._accounts.clear()
            self._logged_at = {name: at for name, at in self._logged_at.items() if now < at + SILENT_S}
        account = self._accounts.setdefault(principal, _RequestCosts())
        account.requests += 1
        account.cost += cost
        account.by_op[op] = account.by_op.get(op, 0) + cost
        if account.cost < MUCH or principal in self._logged_at:
            return None
        self._logged_at[principal] = now
        return Event(
            "client_asks_for_much",
            {
                "principal": principal,
                "remote": remote,
                "op": max(account.by_op, key=lambda op: account.by_op[op]),
                "requests": account.requests,
                "cost": account.cost,
                "seconds": round(now - self._began, 1),
            },
        )
