"""Writes the events of ``audit/events.py`` to the topic ``__audit``, through this gateway's router, as a client
would.

One batch is in flight at a time. A batch that fails is written again, even if it may have been written. The topic is
created when there are events to write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog
import trio
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.errors import TidelogError, from_info, refuse
from tidelog.types import AUDIT, Acks
from tidelog.wire.messages import LeaveGroup, Message, PrepareAudit, Produce, Produced, ProducePart

from tidelog_gateway.audit.events import AuditEvents
from tidelog_gateway.audit.merged_events import INTERVAL_S
from tidelog_gateway.shell import GatewayShell

CALL_TIMEOUT_S = 10.0
PRODUCE_TIMEOUT_MS = 30_000
RETRY_S = 1.0


class Audit:
    """The audit of one gateway: it queues events (``on_…``), and its ``run``, which the server runs, writes them to
    the topic ``__audit``. With ``journal`` None, when the audit is off, it does nothing. ``who``: principal and
    address."""

    def __init__(self, shell: GatewayShell, journal: AuditEvents | None, wall_ms: Callable[[], int]) -> None:
        self._shell = shell
        self._journal = journal
        self._wall_ms = wall_ms
        self._has_events = trio.Event()
        self._acked: trio.Event = trio.Event()
        self._acks: dict[int, TidelogError | None] = {}
        self._number = 0
        self._log = structlog.get_logger()
        shell.on_own_acks = self._on_acks

    def on_change(self, who: Mapping[str, str], request: Message, answer: Message | TidelogError) -> None:
        """Queue the event of a request to change the cluster, to be written to ``__audit``. ``answer``: its answer,
        or the error with which it failed. Does nothing if the audit is off."""
        if self._journal is not None:
            self._journal.on_change(who, request, answer, self._shell.clock(), self._wall_ms())
            self._has_events.set()

    def on_minor_change(self, who: Mapping[str, str], request: Message, answer: Message | TidelogError) -> None:
        """Queue the event of an audited request that needs few rights, with its answer or error. Equal events within
        a minute become one with their number. Does nothing if the audit is off."""
        if self._journal is not None:
            self._journal.on_minor_change(who, request, answer, self._wall_ms())
            self._has_events.set()

    def refuse_if_full(self, who: Mapping[str, str], request: Message) -> TidelogError | None:
        """Return ``QUOTA_EXCEEDED`` if there is no room for the event of an audited request, which the caller then
        refuses; None if there is room, or the audit is off."""
        return None if self._journal is None else self._journal.refuse_if_full(who, request)

    def on_login(self, who: Mapping[str, str]) -> None:
        """Queue the event of a client that has connected. Equal events within a minute become one with their number.
        Does nothing if the audit is off."""
        if self._journal is not None:
            self._journal.on_login(who, self._wall_ms())
            self._has_events.set()

    def on_failure(self, event: str, who: Mapping[str, str], op: str, error: TidelogError) -> None:
        """Queue an event (``denied`` or ``unauthenticated``) about the refused op of a client, with the text of the
        error. If there are too many of them, the event is only counted. Does nothing if the audit is off."""
        if self._journal is not None:
            self._journal.on_failure(event, who, op, error.message, self._shell.clock(), self._wall_ms())
            self._has_events.set()

    def on_left(self, who: Mapping[str, str], request: LeaveGroup) -> None:
        """Queue the event of a member that left its group or was removed by another client. Equal events within a
        minute become one with their number. Does nothing if the audit is off."""
        if self._journal is not None:
            self._journal.on_left(who, request, self._wall_ms())
            self._has_events.set()

    def _on_acks(self, message: Message) -> None:
        """Record the acks of the audit's batches, and wake the task that waits for them."""
        if isinstance(message, Produced):
            for ack in message.acks:
                self._acks[ack.id] = None if ack.error is None else from_info(ack.error)
            self._acked.set()

    async def run(self) -> None:
        """Write queued events to the topic ``__audit``, and queue the merged events at the end of each interval,
        until cancelled. A batch that fails is logged and written again after ``RETRY_S``. Returns at once if the
        audit is off."""
        if self._journal is not None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_intervals, self._journal)
                nursery.start_soon(self._write_events, self._journal)

    async def _end_intervals(self, journal: AuditEvents) -> None:
        while True:
            await trio.sleep(INTERVAL_S)
            journal.on_interval(self._wall_ms())
            self._has_events.set()

    async def _write_events(self, journal: AuditEvents) -> None:
        """Write queued events in batches, one at a time, until cancelled. A batch that fails is logged, put back, and
        written again after ``RETRY_S``."""
        while True:
            await self._has_events.wait()
            self._has_events = trio.Event()
            while records := journal.next_batch():
                try:
                    await self._write(records)
                except TidelogError as error:
                    journal.put_back(records)
                    self._log.warning("audit_not_written", error=str(error), records=len(records))
                    await trio.sleep(RETRY_S)

    async def _write(self, records: list[NewRecord]) -> None:
        """Write some records as one batch to the topic ``__audit``, which is created if it is missing, and wait for
        the ack. Raises ``TidelogError`` if that fails."""
        topic = self._shell.cluster.topic_named(AUDIT)
        if topic is None:
            await self._shell.controllers.call(PrepareAudit(), CALL_TIMEOUT_S)
            with trio.move_on_after(CALL_TIMEOUT_S):
                while (topic := self._shell.cluster.topic_named(AUDIT)) is None:
                    await self._shell.wait_change()
        if topic is None:
            raise refuse("UNKNOWN_TOPIC", f"{AUDIT} was created, and is not in the metadata here")
        data = encode_batch(records)
        self._number += 1
        self._acked = trio.Event()
        part = ProducePart(self._number, topic.topic_id, 0, Acks.ALL, PRODUCE_TIMEOUT_MS, len(data))
        self._shell.produce(Produce((part,), data))
        while self._number not in self._acks:
            await self._acked.wait()
            self._acked = trio.Event()
        error = self._acks.pop(self._number)
        if error is not None:
            raise error
