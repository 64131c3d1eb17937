"""Decoding batches for clients over HTTP, who get single records, and other work that takes long.

Small work is done at once. What takes long (a batch that decompresses to much, a long body or answer) is done in a
thread, one at a time, and principals are served in turn, so that other clients are served meanwhile. Subscribers of
one partition get the same batches, so the events of the latest are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import trio
from tidelog.batch.format import BatchHeader, Record, decode_batch
from tidelog.errors import CorruptBatch
from tidelog.types import Buffer

from tidelog_gateway.http.record_formats import event
from tidelog_gateway.shared_requests import Seats

DECODED_AT_ONCE = 128 << 10
"""Bytes of a decompressed batch that are decoded without a thread."""
KEPT_EVENTS, KEPT_BYTES = 256, 16 << 20
"""How many batches are kept as events, and how many bytes of them."""

Result = TypeVar("Result")


class LongWork:
    """Does work that would hold up other clients, in a thread: one at a time, principals in turn. There is one for
    each gateway."""

    def __init__(self) -> None:
        self._seats = Seats(1, 1)

    async def run(self, principal: str, work: Callable[[], Result]) -> Result:
        """Do work of a principal in a thread, and return its result. Raises what the work raises."""
        async with self._seats.seat(principal):
            return await trio.to_thread.run_sync(work)


class DecodedBatches:
    """Decodes batches for all clients over HTTP. There is one for each gateway."""

    def __init__(self, long_work: LongWork) -> None:
        self._long_work = long_work
        self._events: OrderedDict[tuple[int, int], tuple[object, bytes]] = OrderedDict()
        """Payloads with their events, by the identity of the payload and the first offset of the batch in it."""
        self._kept_bytes = 0

    async def records(self, header: BatchHeader, batch: Buffer, principal: str) -> Sequence[Record]:
        """Return the records of a batch; none of a control batch. Raises ``CorruptBatch`` if it cannot be decoded."""
        if header.is_control:
            return ()
        if header.body_length <= DECODED_AT_ONCE:
            return decode_batch(batch)
        return await self._long_work.run(principal, partial(_decode, batch))

    async def events(self, header: BatchHeader, batch: memoryview, principal: str) -> bytes:
        """Return the server-sent events of all records of a batch. Raises ``CorruptBatch``."""
        if (found := self.events_now(header, batch)) is not None:
            return found
        place = id(batch.obj), header.base_offset

        def work() -> bytes:
            known = self._known(place, batch)  # another client may have waited for it
            return _events(_decode(batch)) if known is None else known

        return self._keep(place, batch, await self._long_work.run(principal, work))

    def events_now(self, header: BatchHeader, batch: memoryview) -> bytes | None:
        """Return the server-sent events of all records of a batch; None if they are not kept and decoding would take
        long. Raises ``CorruptBatch``."""
        if header.is_control:
            return b""
        place = id(batch.obj), header.base_offset
        known = self._known(place, batch)
        if known is None and header.body_length <= DECODED_AT_ONCE:
            return self._keep(place, batch, _events(decode_batch(batch)))
        return known

    def _known(self, place: tuple[int, int], batch: memoryview) -> bytes | None:
        """Return the kept events of a batch; None if there are none."""
        known = self._events.get(place)
        return known[1] if known is not None and known[0] is batch.obj else None

    def _keep(self, place: tuple[int, int], batch: memoryview, text: bytes) -> bytes:
        """Return the events of a batch, and keep them for others unless they are very long."""
        if place not in self._events and len(text) <= KEPT_BYTES // 4:
            self._events[place] = batch.obj, text
            self._kept_bytes += len(text)
            while len(self._events) > KEPT_EVENTS or self._kept_bytes > KEPT_BYTES:
                _, (_, oldest) = self._events.popitem(last=False)
                self._kept_bytes -= len(oldest)
        return text


def _events(records: Sequence[Record]) -> bytes:
    return b"".join(map(event, records))


def _decode(batch: Buffer) -> Sequence[Record]:
    """Return the records of a batch, in a thread. Raises ``CorruptBatch``."""
    try:
        return decode_batch(batch)
    except MemoryError as error:
        raise CorruptBatch("the batch needs more memory than there is") from error
