"""What goes into the topic ``__audit``: who changed the cluster, who was refused, who could not say who he is.

An *event* is one JSON object, one record; its key is the principal. Events wait here until they are in the topic.
Three kinds are kept apart, so that nobody can hide what he did behind a flood of others:

- ``change``: an op that changes the cluster, and was done or may have been. All are kept, as long as fewer than
  ``MOST`` wait, and fewer than ``MOST_OF_ONE`` of the same principal;
- ``change`` with the code of a refusal, ``denied``, ``unauthenticated``: what clients can make as many of as they
  like. At most ``failures_s`` a second are kept, of each principal a ``PART`` of that (all who cannot say who they
  are count as one), and ``MOST`` wait. What is left out is counted, and the count goes into the topic when there is
  room;
- ``left_group``, ``login``, and ``change`` where clients with few rights may do that as often as they like
  (``on_minor_change``). The first of a group, member, application or address is kept, and those that follow within a
  minute are one event with their number (``core.merged_events``). Of ``left_group`` and ``change`` nothing is left
  out: a request is refused when there is no room for its event (``why_not``).

An event may be in the topic twice, when its outcome was in doubt; ``id`` says so.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from tidelog.batch.format import NewRecord
from tidelog.errors import TidelogError, refuse
from tidelog.sansio.token_bucket import TokenBucket
from tidelog.wire.messages import LeaveGroup, Message

from tidelog_gateway.audit.merged_events import Event, MergedEvents
from tidelog_gateway.limits.rate_shares import Shares

MOST = 5000
"""Events of either kind that wait at most."""
MOST_OF_ONE = 1000
"""Changes of one principal that wait at most."""
NAMED = 10
"""Principals of which it is told how much was left out."""
PART = 4
"""One principal has a fourth of the failures that are kept."""
BATCH = 200
"""Events written at once."""
BATCH_BYTES = 512 << 10
"""The same in bytes; the topic takes batches of 1 MiB."""
TEXT = 1024
"""Of one text in an event so much is kept."""
ITEMS = 20
"""Of one list in a request so many items are kept; a last one says how many there were."""
EVENT_BYTES = 16 << 10
"""Of an event that is larger only texts and numbers of the request are told, and no lists."""
MINOR_BYTES = 2 << 10
"""The same of changes that need few rights."""
SHORT_TEXT = 256
"""Of one text in such an event so much is kept."""
DONE, REFUSED = "done", "refused"
PAUSE_MS = 1000
"""Pause that the refusal of a request names when the audit has no room for its event, ms."""
LEFT_OUT = ("client", "sequence", "asker", "spared")
"""Fields of requests that say nothing of what was asked."""


class AuditEvents:
    """``name`` is unique among all gateways and all their lives."""

    def __init__(self, name: str, gateway: str, failures_s: int, now: float) -> None:
        self._name = name
        self._gateway = gateway
        self._refusals = _Room(failures_s, now)
        self._merged = MergedEvents()
        self._changes: deque[NewRecord] = deque()
        self._minor: deque[NewRecord] = deque()
        self._failures: deque[NewRecord] = deque()
        self._waiting: Counter[bytes | None] = Counter()
        """Changes that wait, by principal."""
        self._left_out: Counter[str] = Counter()
        """What was not kept since that was told, by principal."""
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self._changes or self._minor or self._failures)

    def on_change(
        self, who: Mapping[str, str], request: Message, answer: Message | TidelogError, now: float, time_ms: int
    ) -> None:
        """A request to change the cluster was answered."""
        if isinstance(answer, TidelogError) and not answer.unknown_outcome:
            if self._is_kept(self._refusals, who, now, time_ms):
                self._failures.append(self._event("change", who, time_ms, **_told(request, answer)))
        elif self._may_wait(who):
            event = self._event("change", who, time_ms, **_told(request, answer))
            self._changes.append(event)
            self._waiting[event.key] += 1

    def why_not(self, who: Mapping[str, str], request: Message) -> TidelogError | None:
        """The refusal of a request that needs few rights if the audit has no room for its event; None if it has."""
        if self._merged.fits((*_merged_under(who, request), DONE)):
            return None
        text = f"the audit has no room for another group or application that {who['principal']} changes this minute"
        return refuse("QUOTA_EXCEEDED", text, pause_ms=PAUSE_MS)

    def on_minor_change(
        self, who: Mapping[str, str], request: Message, answer: Message | TidelogError, time_ms: int
    ) -> None:
        """Record the answer to a change that needs few rights, merged with others like it. Refused requests are
        merged apart, and recorded too: a ``begin_transaction`` that is refused may have ended another transaction
        first."""
        refused = isinstance(answer, TidelogError) and not answer.unknown_outcome
        key = (*_merged_under(who, request), REFUSED if refused else DONE)
        self._merge(key, Event("change", who, time_ms, _bounded(_told(request, answer))))

    def on_login(self, who: Mapping[str, str], time_ms: int) -> None:
        """A client has connected."""
        key = (who["principal"], "login", who["remote"].rpartition(":")[0])
        if self._merged.fits(key):
            self._merge(key, Event("login", who, time_ms, {}))
        else:
            self._leave_out(who)

    def on_left(self, who: Mapping[str, str], request: LeaveGroup, time_ms: int) -> None:
        """A member is in its group no more."""
        told = {"op": request.OP, "request": _fields(request)}
        self._merge((*_merged_under(who, request), DONE), Event("left_group", who, time_ms, _bounded(told)))

    def _merge(self, key: tuple[str, ...], event: Event) -> None:
        if self._merged.add(key, event):
            self._minor.append(self._event(event.event, event.who, event.time_ms, **event.told))

    def on_interval(self, time_ms: int) -> None:
        """``INTERVAL_S`` have passed. While the events of earlier ones cannot be written, they are merged further."""
        if not self._minor:
            for (event, who, at_ms, told), count in self._merged.end_interval():
                self._minor.append(self._event(event, who, at_ms, count=count, **told))
        if len(self._failures) < MOST:
            self._tell_left_out(time_ms)

    def on_failure(self, event: str, who: Mapping[str, str], op: str, why: str, now: float, time_ms: int) -> bool:
        """Somebody was refused. Whether it is kept."""
        if not self._is_kept(self._refusals, who, now, time_ms):
            return False
        self._failures.append(self._event(event, who, time_ms, op=op, reason=why[:TEXT]))
        return True

    def _may_wait(self, who: Mapping[str, str]) -> bool:
        """Whether one more change of this principal may wait."""
        if len(self._changes) < MOST and self._waiting[_key(who)] < MOST_OF_ONE:
            return True
        self._leave_out(who)
        return False

    def _is_kept(self, room: _Room, who: Mapping[str, str], now: float, time_ms: int) -> bool:
        """Whether one more of what this room is for is kept; it counts then, and what was left out is told."""
        if len(self._failures) >= MOST or not room.take(who.get("principal", ""), now):
            self._leave_out(who)
            return False
        self._tell_left_out(time_ms)
        return True

    def _tell_left_out(self, time_ms: int) -> None:
        if self._left_out:
            missing, self._left_out = self._left_out, Counter()
            most = dict(missing.most_common(NAMED))
            self._failures.append(self._event("left_out", {}, time_ms, count=missing.total(), principals=most))

    def _leave_out(self, who: Mapping[str, str]) -> None:
        self._left_out[who.get("principal", "")] += 1

    def take(self) -> list[NewRecord]:
        """What to write next, changes first."""
        taken: list[NewRecord] = []
        size = 0
        for queue in (self._changes, self._minor, self._failures):
            while queue and len(taken) < BATCH and (not taken or size + len(queue[0].value or b"") <= BATCH_BYTES):
                size += len(queue[0].value or b"")
                taken.append(queue.popleft())
        self._waiting = Counter(record.key for record in self._changes)
        return taken

    def put_back(self, records: list[NewRecord]) -> None:
        """It was not written: it comes first."""
        self._changes.extendleft(reversed(records))
        self._waiting.update(record.key for record in records)

    def _event(self, event: str, who: Mapping[str, str], time_ms: int, **told: object) -> NewRecord:
        self._number += 1
        said = {"event": event, "id": f"{self._name}/{self._number}", "time_ms": time_ms, "gateway": self._gateway}
        text = json.dumps({**said, **who, **told}, ensure_ascii=False).encode()
        if len(text) > EVENT_BYTES:
            text = json.dumps({**said, **who, **_shortened(told)}, ensure_ascii=False).encode()
        return NewRecord(text, _key(who), time_ms)


class _Room:
    """So many a second, of each principal a part of that."""

    def __init__(self, most_s: int, now: float) -> None:
        self._bucket = TokenBucket(most_s, 1.0, now)
        self._shares = Shares(max(1, most_s // PART))

    def take(self, principal: str, now: float) -> bool:
        """Whether there is room for one more of this principal; it counts then."""
        if self._bucket.pause_s(now) or not self._shares.take(principal, now):
            return False
        self._bucket.spend(1, now)
        return True


def _merged_under(who: Mapping[str, str], request: Message) -> tuple[str, ...]:
    """Principal, op, and what a request that takes few rights is about."""
    about = (getattr(request, name, "") for name in ("group", "member", "app", "transaction"))
    return (who["principal"], request.OP, *about)


def _bounded(told: dict[str, Any]) -> dict[str, Any]:
    return _shortened(told) if len(json.dumps(told)) > MINOR_BYTES else told


def _shortened(told: Mapping[str, Any]) -> dict[str, Any]:
    """What is told, of the request only texts and numbers: they say which group, topic or application it is about."""
    return {**told, "request": {name: _short(value) for name, value in told.get("request", {}).items()}}


def _short(value: Any) -> Any:
    if isinstance(value, list | dict):
        return f"{len(value)} items, left out"
    return value[:SHORT_TEXT] if isinstance(value, str) else value


def _key(who: Mapping[str, str]) -> bytes | None:
    return who.get("principal", "").encode() or None


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
        more = [f"{len(value)} items"] if len(value) > ITEMS else []
        return [_plain(one) for one in value[:ITEMS]] + more
    if isinstance(value, dict):
        return {key[:TEXT]: text[:TEXT] for key, text in value.items()}
    return value[:TEXT] if isinstance(value, str) else value
