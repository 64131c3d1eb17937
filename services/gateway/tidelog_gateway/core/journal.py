"""What goes into the topic ``__audit``: who changed the cluster, who was refused, who could not say who he is.

An *event* is one JSON object, one record; its key is the principal. Events wait here until they are in the topic. Two
kinds are kept apart, so that nobody can hide what he did behind a flood of failures:

- ``change``: an op that changes the cluster, with its outcome, whatever that is;
- ``denied``, ``unauthenticated``, ``login``, and ``change`` where clients with few rights may do that as often as
  they like (``on_deed``). At most ``failures_s`` a second are kept of those who were refused, as many of each
  principal's deeds, and ``MOST`` wait; what is left out is counted, and the count goes into the topic when there is
  room.

An event may be in the topic twice, when its outcome was in doubt; ``id`` says so.
"""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Mapping
from typing import Any

from tidelog.errors import TidelogError
from tidelog.records import NewRecord
from tidelog.wire.messages import Message

from tidelog_gateway.core.quotas import Bucket

MOST = 5000
"""Events of either kind that wait at most."""
BATCH = 200
"""Events written at once."""
TEXT = 1024
"""Of one text in an event so much is kept."""
LEFT_OUT = ("client", "sequence", "asker")
"""Fields of requests that say nothing of what was asked."""


class Journal:
    """``name`` is unique among all gateways and all their lives."""

    def __init__(self, name: str, gateway: str, failures_s: int, now: float) -> None:
        self._name = name
        self._gateway = gateway
        self._bucket = Bucket(failures_s, failures_s, now)
        self._failures_s = failures_s
        self._deeds: dict[str, Bucket] = {}
        """By principal."""
        self._changes: deque[NewRecord] = deque()
        self._failures: deque[NewRecord] = deque()
        self._left_out = 0
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self._changes or self._failures)

    def on_change(
        self, who: Mapping[str, str], request: Message, answer: Message | TidelogError, time_ms: int
    ) -> None:
        """A request to change the cluster was answered."""
        if len(self._changes) < MOST:
            self._changes.append(self._event("change", who, time_ms, **_told(request, answer)))
        else:
            self._left_out += 1

    def on_deed(
        self, who: Mapping[str, str], request: Message, answer: Message | TidelogError, now: float, time_ms: int
    ) -> None:
        """The same of a request that needs few rights: who makes many leaves out his own."""
        self._keep(self._bucket_of(who, now), "change", who, now, time_ms, **_told(request, answer))

    def on_login(self, who: Mapping[str, str], now: float, time_ms: int) -> None:
        """Somebody came in."""
        self._keep(self._bucket_of(who, now), "login", who, now, time_ms)

    def _bucket_of(self, who: Mapping[str, str], now: float) -> Bucket:
        if len(self._deeds) >= MOST:
            self._deeds.clear()
        return self._deeds.setdefault(who["principal"], Bucket(self._failures_s, self._failures_s, now))

    def on_failure(self, event: str, who: Mapping[str, str], op: str, why: str, now: float, time_ms: int) -> bool:
        """Somebody was refused. Whether it is kept."""
        return self._keep(self._bucket, event, who, now, time_ms, op=op, reason=why[:TEXT])

    def _keep(
        self, bucket: Bucket, event: str, who: Mapping[str, str], now: float, time_ms: int, **told: object
    ) -> bool:
        if len(self._failures) >= MOST or bucket.pause_s(now):
            self._left_out += 1
            return False
        bucket.spend(1, now)
        if self._left_out:
            missing, self._left_out = self._left_out, 0
            self._failures.append(self._event("left_out", {}, time_ms, count=missing))
        self._failures.append(self._event(event, who, time_ms, **told))
        return True

    def take(self) -> list[NewRecord]:
        """What to write next, changes first."""
        taken: list[NewRecord] = []
        for queue in (self._changes, self._failures):
            while queue and len(taken) < BATCH:
                taken.append(queue.popleft())
        return taken

    def put_back(self, records: list[NewRecord]) -> None:
        """It was not written: it comes first."""
        self._changes.extendleft(reversed(records))

    def _event(self, event: str, who: Mapping[str, str], time_ms: int, **told: object) -> NewRecord:
        self._number += 1
        said = {"event": event, "id": f"{self._name}/{self._number}", "time_ms": time_ms, "gateway": self._gateway}
        text = json.dumps({**said, **who, **told}, ensure_ascii=False)
        principal = who.get("principal", "")
        return NewRecord(text.encode(), principal.encode() or None, time_ms)


def _told(request: Message, answer: Message | TidelogError) -> dict[str, Any]:
    outcome = answer.code if isinstance(answer, TidelogError) else "done"
    return {"op": request.OP, "outcome": outcome, "request": _fields(request)}


def _fields(request: Message) -> dict[str, Any]:
    """What was asked, without what must not be told: fields that are left out of ``repr``."""
    shown = [f.name for f in dataclasses.fields(request) if f.repr and f.name not in LEFT_OUT]
    return {name: _plain(getattr(request, name)) for name in shown}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.repr}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {key[:TEXT]: text[:TEXT] for key, text in value.items()}
    return value[:TEXT] if isinstance(value, str) else value
