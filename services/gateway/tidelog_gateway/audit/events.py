"""The events of the topic ``__audit``: changes of the cluster, refused requests, and failed authentications.

An *event* is one JSON object in one record, whose key is the principal. Events wait here until they are written.
Three kinds are kept apart, so that no client can hide an event behind a flood of others:

- ``change``: an op that changes the cluster, and that was done or may have been. All are kept, as long as fewer than
  ``MOST`` wait, and fewer than ``MOST_OF_ONE`` of the same principal;
- ``change`` with the code of a refusal, ``denied``, ``unauthenticated``: events that clients can cause as often as
  they like. At most ``failures_s`` a second are kept, of each principal a ``PART`` of that (all who cannot say who
  they are count as one), and ``MOST`` wait. What is left out is counted, and the count goes into the topic when there
  is room;
- ``left_group``, ``login``, and ``change`` where clients with few rights may do that as often as they like
  (``on_minor_change``). The first of a group, member, application or address is kept, and those that follow within a
  minute are one event with their number (``audit/merged_events.py``). Of ``left_group`` and ``change`` nothing is
  left out: a request is refused when there is no room for its event (``refuse_if_full``).

If the outcome of a write was unknown, an event may be in the topic twice, with the same ``id``.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from tidelog.batch.format import NewRecord
from tidelog.errors import TidelogError, refuse
from tidelog.sansio.token_bucket import RateShares, TokenBucket
from tidelog.wire.messages import LeaveGroup, Message

from tidelog_gateway.audit.merged_events import AuditEvent, MergedEvents

MOST = 5000
"""Most events of a kind that wait."""
MOST_OF_ONE = 1000
"""Most changes of one principal that wait."""
NAMED = 10
"""Principals that an event ``left_out`` lists, with their numbers."""
PART = 4
"""One principal gets at most this part (a fourth) of the failures that are kept."""
BATCH = 200
"""Most events in one batch."""
BATCH_BYTES = 512 << 10
"""Most bytes of events in one batch; the topic allows batches of 1 MiB."""
TEXT = 1024
"""Characters that are kept of one text in an event."""
ITEMS = 20
"""Items that are kept of one list in a request; a last item has the number of all."""
EVENT_BYTES = 16 << 10
"""A larger event has only the texts and numbers of its request, and no lists."""
MINOR_BYTES = 2 << 10
"""The bound ``EVENT_BYTES`` for changes that need few rights."""
SHORT_TEXT = 256
"""Characters that are kept of one text in an event that exceeds its bound."""
DONE, REFUSED = "done", "refused"
PAUSE_MS = 1000
"""Milliseconds to wait that a refusal names when the audit has no room for the event of a request."""
LEFT_OUT = ("client", "sequence", "asker", "spared")
"""Fields of requests that are not part of what was asked, and are not recorded."""


class AuditEvents:
    """The queues of audit events that wait to be written to the topic ``__audit``, with the bounds on what is
    recorded. ``name`` is unique among all incarnations of all gateways. ``now`` is in seconds of a monotonic clock,
    ``time_ms`` in milliseconds of the wall clock. ``who`` has the principal and the address."""

    def __init__(self, name: str, gateway: str, failures_s: int, now: float) -> None:
        self._name = name
        self._gateway = gateway
        self._refusals = _FailureBudget(failures_s, now)
        self._merged = MergedEvents()
        self._changes: deque[NewRecord] = deque()
        self._minor: deque[NewRecord] = deque()
        self._failures: deque[NewRecord] = deque()
        self._waiting: Counter[bytes | None] = Counter()
        """Number of changes that wait, by principal."""
        self._left_out: Counter[str] = Counter()
        """Number of events left out since the last ``left_out``, by principal."""
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self._changes or self._minor or self._failures)

    def on_change(
        self, who: Mapping[str, str], request: Message, answer: Message | TidelogError, now: float, time_ms: int
    ) -> None:
        """Queue the event of a request to change the cluster, with its answer or error. If the request was refused,
        the event is kept only within the budget of ``failures_s``; otherwise it is left out only if too many changes
        wait. Events left out are counted."""
        if isinstance(answer, TidelogError) and not answer.unknown_outcome:
            if self._is_kept(self._refusals, who, now, time_ms):
                self._failures.append(self._event("change", who, time_ms, **_details_of(request, answer)))
        elif self._may_wait(who):
            event = self._event("change", who, time_ms, **_details_of(request, answer))
            self._changes.append(event)
            self._waiting[event.key] += 1

    def refuse_if_full(self, who: Mapping[str, str], request: Message) -> TidelogError | None:
        """Return ``QUOTA_EXCEEDED`` for an audited request that needs few rights, if there is no room for its event,
        so that the caller does not do it; None if there is room."""
        if self._merged.fits((*_merged_under(who, request), DONE)):
            return None
        text = f"the audit has no room for another group or application that {who['principal']} changes this minute"
        return refuse("QUOTA_EXCEEDED", text, pause_ms=PAUSE_MS)

    def on_minor_change(
        self, who: Mapping[str, str], request: Message, answer: Message | TidelogError, time_ms: int
    ) -> None:
        """Queue the event of a change that needs few rights, with its answer or error. Events with the same
        principal, op and object that follow within an interval are merged: the last of them is queued with their
        number at its end. Refused requests are merged apart, and recorded, too: a refused ``begin_transaction`` may
        have ended another transaction first."""
        refused = isinstance(answer, TidelogError) and not answer.unknown_outcome
        key = (*_merged_under(who, request), REFUSED if refused else DONE)
        self._merge(key, AuditEvent("change", who, time_ms, _bounded(_details_of(request, answer))))

    def on_login(self, who: Mapping[str, str], time_ms: int) -> None:
        """Queue the event of a client that has connected. Logins with the same principal and address that follow
        within an interval are merged: the last of them is queued with their number at its end. If there is no room,
        the event is left out and counted."""
        key = (who["principal"], "login", who["remote"].rpartition(":")[0])
        if self._merged.fits(key):
            self._merge(key, AuditEvent("login", who, time_ms, {}))
        else:
            self._leave_out(who)

    def on_left(self, who: Mapping[str, str], request: LeaveGroup, time_ms: int) -> None:
        """Queue the event of a member that has left its group or was removed. Events with the same principal, group
        and member that follow within an interval are merged: the last of them is queued with their number at its end.
        """
        details = {"op": request.OP, "request": _fields(request)}
        self._merge((*_merged_under(who, request), DONE), AuditEvent("left_group", who, time_ms, _bounded(details)))

    def _merge(self, key: tuple[str, ...], event: AuditEvent) -> None:
        """Queue an event at once if it is the first of its key in the interval. Otherwise merge it with those that
        follow the first, which are queued as one at the end of the interval."""
        if self._merged.add(key, event):
            self._minor.append(self._event(event.event, event.who, event.time_ms, **event.details))

    def on_interval(self, time_ms: int) -> None:
        """End an interval of ``INTERVAL_S``: queue the events that were merged in it, unless minor changes still
        wait, and an event ``left_out`` with the number of events left out, if there are any."""
        if not self._minor:
            for (event, who, at_ms, details), count in self._merged.end_interval():
                self._minor.append(self._event(event, who, at_ms, count=count, **details))
        if len(self._failures) < MOST:
            self._record_left_out(time_ms)

    def on_failure(self, event: str, who: Mapping[str, str], op: str, why: str, now: float, time_ms: int) -> bool:
        """Queue the event of a refused request or connection, with the reason ``why``, and return True. If there are
        too many of them, count the event as left out and return False."""
        if not self._is_kept(self._refusals, who, now, time_ms):
            return False
        self._failures.append(self._event(event, who, time_ms, op=op, reason=why[:TEXT]))
        return True

    def _may_wait(self, who: Mapping[str, str]) -> bool:
        """Return whether the queue has room for one more change of this principal. If not, count the change as left
        out."""
        if len(self._changes) < MOST and self._waiting[_key(who)] < MOST_OF_ONE:
            return True
        self._leave_out(who)
        return False

    def _is_kept(self, budget: _FailureBudget, who: Mapping[str, str], now: float, time_ms: int) -> bool:
        """Return whether the event of a refusal is recorded: it is within the budget, which is charged, and the queue
        has room. If so, first queue the number of events left out before; if not, count it as left out."""
        if len(self._failures) >= MOST or not budget.try_spend(who.get("principal", ""), now):
            self._leave_out(who)
            return False
        self._record_left_out(time_ms)
        return True

    def _record_left_out(self, time_ms: int) -> None:
        """Queue an event with the number of events left out since the last one, and the principals with most. Does
        nothing if none was left out."""
        if self._left_out:
            missing, self._left_out = self._left_out, Counter()
            most = dict(missing.most_common(NAMED))
            self._failures.append(self._event("left_out", {}, time_ms, count=missing.total(), principals=most))

    def _leave_out(self, who: Mapping[str, str]) -> None:
        self._left_out[who.get("principal", "")] += 1

    def next_batch(self) -> list[NewRecord]:
        """Remove the events to write next from the queues and return them as the records of one batch: changes first,
        then minor changes, then failures. An empty list if none waits."""
        taken: list[NewRecord] = []
        size = 0
        for queue in (self._changes, self._minor, self._failures):
            while queue and len(taken) < BATCH and (not taken or size + len(queue[0].value or b"") <= BATCH_BYTES):
                size += len(queue[0].value or b"")
                taken.append(queue.popleft())
        self._waiting = Counter(record.key for record in self._changes)
        return taken

    def put_back(self, records: list[NewRecord]) -> None:
        """Put records whose write has failed back to the front of the queue of changes, in their order, so that they
        are written first."""
        self._changes.extendleft(reversed(records))
        self._waiting.update(record.key for record in records)

    def _event(self, event: str, who: Mapping[str, str], time_ms: int, **details: object) -> NewRecord:
        """Return the record of an event, with a new id. If it is too large, the lists of its request are left out."""
        self._number += 1
        header = {"event": event, "id": f"{self._name}/{self._number}", "time_ms": time_ms, "gateway": self._gateway}
        text = json.dumps({**header, **who, **details}, ensure_ascii=False).encode()
        if len(text) > EVENT_BYTES:
            text = json.dumps({**header, **who, **_shortened(details)}, ensure_ascii=False).encode()
        return NewRecord(text, _key(who), time_ms)


class _FailureBudget:
    """The rate, in events a second, up to which refusals are recorded; each principal gets at most a ``PART`` of
    it."""

    def __init__(self, most_s: int, now: float) -> None:
        self._bucket = TokenBucket(most_s, 1.0, now)
        self._shares = RateShares(max(1, most_s // PART))

    def try_spend(self, principal: str, now: float) -> bool:
        """Return whether the rate allows to record an event of this principal at ``now`` (seconds). If it does,
        charge the event."""
        if self._bucket.pause_s(now) or not self._shares.try_spend(principal, now):
            return False
        self._bucket.spend(1, now)
        return True


def _merged_under(who: Mapping[str, str], request: Message) -> tuple[str, ...]:
    """Return the key under which the events of equal requests are merged: principal and op, and the group, member,
    application and transaction that the request names."""
    about = (getattr(request, name, "") for name in ("group", "member", "app", "transaction"))
    return (who["principal"], request.OP, *about)


def _bounded(details: dict[str, Any]) -> dict[str, Any]:
    """Return the details of an event, shortened if they are larger than ``MINOR_BYTES``."""
    return _shortened(details) if len(json.dumps(details)) > MINOR_BYTES else details


def _shortened(details: Mapping[str, Any]) -> dict[str, Any]:
    """Return the details of an event with only the texts and numbers of its request, which name a group, topic or
    application; its lists are replaced by their lengths."""
    return {**details, "request": {name: _short(value) for name, value in details.get("request", {}).items()}}


def _short(value: Any) -> Any:
    if isinstance(value, list | dict):
        return f"{len(value)} items, left out"
    return value[:SHORT_TEXT] if isinstance(value, str) else value


def _key(who: Mapping[str, str]) -> bytes | None:
    return who.get("principal", "").encode() or None


def _details_of(request: Message, answer: Message | TidelogError) -> dict[str, Any]:
    outcome = answer.code if isinstance(answer, TidelogError) else "done"
    return {"op": request.OP, "outcome": outcome, "request": _fields(request)}


def _fields(request: Message) -> dict[str, Any]:
    """Return the fields of a request as plain JSON values, with long texts and lists cut. Secrets (the fields without
    ``repr``) and what the gateway itself has added are left out."""
    shown = [f.name for f in dataclasses.fields(request) if f.repr and f.name not in LEFT_OUT]
    return {name: _plain(getattr(request, name)) for name in shown}


def _plain(value: Any) -> Any:
    """Return a value as plain JSON, with texts cut to ``TEXT`` characters and lists to ``ITEMS`` items. Secrets are
    left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.repr}
    if isinstance(value, tuple):
        more = [f"{len(value)} items"] if len(value) > ITEMS else []
        return [_plain(one) for one in value[:ITEMS]] + more
    if isinstance(value, dict):
        return {key[:TEXT]: text[:TEXT] for key, text in value.items()}
    return value[:TEXT] if isinstance(value, str) else value
