"""Following a partition over HTTP with server-sent events (WHATWG HTML §9.2).

Each record is an event whose id is its position, offset and leader epoch. A browser sends the last id that it has
seen as ``Last-Event-ID`` when it connects again, and the stream goes on with the next record. If the log was cut at
that position meanwhile (KIP-320), the client gets LOG_TRUNCATED, and never other records in silence.

A stream is a subscription like that of a WebSocket. The gateway gives credit back when the socket has taken the
events of a batch. So a client that reads slowly holds up nobody else, and is disconnected when it reads nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Protocol

import trio
from tidelog.batch.format import split
from tidelog.errors import CorruptBatch, TidelogError, from_info
from tidelog.types import Position
from tidelog.wire.messages import Credit, Delivery, Subscribe

from tidelog_gateway.http.decoded_batches import DecodedBatches
from tidelog_gateway.http.http_link import HttpLink
from tidelog_gateway.http.reads import Place, unreadable
from tidelog_gateway.http.record_formats import (
    EVENTS,
    HEARTBEAT,
    end_event,
    error_event,
    event,
    first_event,
    negotiate,
)
from tidelog_gateway.http.request_head import RequestHead
from tidelog_gateway.http.responses import Headers, HttpError
from tidelog_gateway.shell import GatewayShell

CREDIT_BYTES = 256 << 10
"""Bytes of batches that a stream may have that the socket has not taken. Half of them are given back together."""
HEARTBEAT_S = 15.0
"""After so many seconds without an event a comment is sent."""
SUB = 1
"""The number of the subscription: a link has one stream at a time."""
_POSITION = re.compile(r"(-1|[0-9]{1,19}):(-1|[0-9]{1,10})", re.ASCII)


class EventSender(Protocol):
    """Sends the text of events to one client."""

    @property
    def is_free(self) -> bool:
        """Return whether ``send_now`` may be called: all that was sent before has left."""

    def send_now(self, text: bytes) -> bool:
        """Send text without waiting. Return False if a part of it is left for ``flush``."""

    async def send(self, text: bytes) -> None:
        """Send text, and wait until the socket has taken it. Raises an exception if the client does not take it."""

    async def flush(self) -> None:
        """Wait until the socket has taken what ``send_now`` has left."""


class EventStreams:
    """The part of the port that serves streams of events. There is one for each gateway."""

    def __init__(self, shell: GatewayShell, decoded: DecodedBatches) -> None:
        self._shell = shell
        self._decoded = decoded

    async def open(self, link: HttpLink, head: RequestHead, names: Mapping[str, str]) -> EventStream:
        """Subscribe the client, and return its stream. Raises the refusal, before anything was sent."""
        negotiate(head.header("accept"), (EVENTS,))
        place = Place(self._shell, names)
        try:
            last_id = head.headers.get("last-event-id", "")
            start = _behind(last_id) if last_id else await place.position(link, head.query, "latest")
            stream = EventStream(link, place, self._decoded, start)
            await stream.subscribe()
        except TidelogError as error:
            raise place.named(error) from None
        return stream


class EventStream:
    """The stream of one client: what has arrived from its subscription and is not sent yet.

    While ``run`` waits, a delivery is sent at once, without a switch of tasks, if its events are known and the socket
    is free. Otherwise ``run`` sends it."""

    def __init__(self, link: HttpLink, place: Place, decoded: DecodedBatches, start: Position) -> None:
        self._link = link
        self._place = place
        self._decoded = decoded
        self._position = start
        self._arrived: list[Delivery] = []
        self._waiting_on: EventSender | None = None
        """Where a delivery may be sent at once; None while ``run`` has something to do."""
        self._sent_at = -math.inf
        self._owed = 0
        """Bytes of credit that are to be given back."""
        self.headers: Headers = ()
        """Headers of the response besides those of every stream of events."""
        self._news = trio.Event()
        link.on_closing = self.wake

    async def subscribe(self) -> None:
        """Begin the subscription. Raises its refusal."""
        at = self._position
        request = Subscribe(
            SUB, self._place.topic_id, self._place.partition, at.offset, CREDIT_BYTES, last_epoch=at.leader_epoch
        )
        await self._link.subscribe(request, self._on_delivery)

    def _on_delivery(self, delivery: Delivery) -> None:
        if self._waiting_on is None or self._arrived or not self._send_at_once(delivery, self._waiting_on):
            self._arrived.append(delivery)
            self._news.set()

    def wake(self) -> None:
        """Have ``run`` look whether the link is closed."""
        self._news.set()

    async def run(self, sender: EventSender) -> None:
        """Send events as records arrive, and a comment when none do, until an error ends the stream or the gateway
        closes the link. The last event says which."""
        await sender.send(first_event(self._position))
        while True:
            arrived, self._arrived = self._arrived, []
            for delivery in arrived:
                if delivery.error is not None:
                    await sender.send(error_event(self._place.named(from_info(delivery.error))))
                    return
                error = await self._send_batches(delivery, sender)
                if error is not None:
                    await sender.send(error_event(error))
                    return
            await sender.flush()
            if self._link.closed:
                await sender.send(end_event(self._link.reason))
                return
            if self._owed >= CREDIT_BYTES // 2:
                owed, self._owed = self._owed, 0
                self._link.send(Credit(SUB, owed))
            if not self._arrived:
                await self._wait(sender)

    async def _wait(self, sender: EventSender) -> None:
        """Wait until ``run`` has something to do, and send comments meanwhile."""
        self._news = trio.Event()
        self._sent_at, self._waiting_on = trio.current_time(), sender
        while not self._news.is_set():
            with trio.move_on_at(self._sent_at + HEARTBEAT_S):
                await self._news.wait()
            if not self._news.is_set() and trio.current_time() >= self._sent_at + HEARTBEAT_S:
                await sender.send(HEARTBEAT)
                self._sent_at = trio.current_time()
        self._waiting_on = None

    def _send_at_once(self, delivery: Delivery, sender: EventSender) -> bool:
        """Send the records of a delivery as events, without waiting. Return False, and send nothing, if that is not
        possible."""
        assert not isinstance(delivery.payload, list)
        if delivery.error is not None or not sender.is_free:
            return False
        texts: list[bytes] = []
        position = self._position
        for header, batch in split(delivery.payload):
            try:
                text = self._decoded.events_now(header, batch) if header.base_offset >= position.offset else None
            except CorruptBatch:
                return False
            if text is None:
                return False
            texts.append(text)
            position = Position(header.leader_epoch, header.end_offset)
        self._position, self._sent_at = position, trio.current_time()
        self._owed += len(delivery.payload)
        if not sender.send_now(b"".join(texts)) or self._owed >= CREDIT_BYTES // 2:
            self._news.set()
        return True

    async def _send_batches(self, delivery: Delivery, sender: EventSender) -> TidelogError | None:
        """Send the records of a delivery as events, and wait until the socket has taken them. Return the error that
        ends the stream, if a batch cannot be decoded."""
        assert not isinstance(delivery.payload, list)
        for header, batch in split(delivery.payload):
            start = self._position.offset
            if header.end_offset <= start:
                continue
            try:
                if header.base_offset >= start:
                    text = await self._decoded.events(header, batch, self._link.principal)
                else:
                    records = await self._decoded.records(header, batch, self._link.principal)
                    text = b"".join(event(record) for record in records if record.offset >= start)
            except CorruptBatch as error:
                return unreadable(header.base_offset, header.end_offset, error)
            self._position = Position(header.leader_epoch, header.end_offset)
            await sender.send(text)
        self._owed += len(delivery.payload)
        return None


def _behind(last_id: str) -> Position:
    """Return the position behind the record that a ``Last-Event-ID`` names. Raises ``HttpError`` if it names none."""
    match = _POSITION.fullmatch(last_id)
    if match is None or int(match[1]) >= 2**63 - 1:
        raise HttpError(400, "Last-Event-ID is the id of an event: OFFSET:EPOCH")
    return Position(int(match[2]), int(match[1]) + 1)
