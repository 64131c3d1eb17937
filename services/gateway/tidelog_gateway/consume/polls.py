"""Reads of clients that find no records and wait for new ones: *polls*.

A client's read is sent to a replica server as one that does not wait. Only if its answer has no records, and the read
may wait, does it become a poll. This module knows which polls a client has and how each is answered. The wait itself,
which all clients that wait for the same thing share, is in ``consume/subscriptions.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from tidelog.errors import CorruptBatch, TidelogError, Unreachable
from tidelog.wire.messages import Message, Read, ReadAnswer

from tidelog_gateway.client_faults import do_all
from tidelog_gateway.consume.server_reads import READ_TIMEOUT_S, Answered, ReaderId
from tidelog_gateway.consume.subscriptions import Effect, Polled, Subscriptions
from tidelog_gateway.consume.tail_cache import BatchRun

POLL_MAX_S = 30.0
"""Most seconds that a read waits for new records."""


class PollShell(Protocol):
    """The gateway's shell, as far as polls need it."""

    def ask_reader(self, message: Read, timeout_s: float, done: Answered, reader: ReaderId) -> None:
        """Send a client's read to a replica and pass the answer, or the error, to ``done``."""

    def is_gone(self, reader: ReaderId) -> bool:
        """Return whether the client that a read is for has disconnected."""

    def perform(self, effects: list[Effect]) -> None:
        """Perform effects of the subscriptions."""


@dataclass(frozen=True, slots=True)
class _WaitingRead:
    """A client's read that found no records and waits for new ones: the read, its empty answer (``found``), and the
    function that answers the client. It lasts until a poll of the subscriptions ends."""

    read: Read
    reader: ReaderId
    found: ReadAnswer
    done: Answered


class Polls:
    """The reads of all clients of a gateway that wait for new records. ``shell`` sends the reads to replicas and
    performs the effects of ``subscriptions``, in which the reads wait; it hands the effect ``Polled`` to
    ``on_polled``. The ``done`` of a read is called exactly once."""

    def __init__(self, shell: PollShell, subscriptions: Subscriptions, clock: Callable[[], float]) -> None:
        self._shell = shell
        self._subscriptions = subscriptions
        self._clock = clock
        self._waiting: dict[int, dict[int, _WaitingRead]] = {}
        """By client, its reads that wait, by token."""
        self._tokens = itertools.count(1)

    def on_read(self, message: Read, reader: ReaderId, done: Answered) -> None:
        """Have a replica answer a client's read, and pass the answer, or the error, to ``done``. If the answer has no
        records and the read may wait (``max_wait_ms``), it waits for new records, and ``done`` is called when the
        wait ends."""
        wait_s = min(message.max_wait_ms / 1000, POLL_MAX_S)
        until = self._clock() + wait_s
        read = replace(message, max_wait_ms=0, hard_limit=False)

        def first(answer: Message | TidelogError) -> None:
            if isinstance(answer, ReadAnswer) and not len(answer.payload) and not self._shell.is_gone(reader):
                now = self._clock()
                if now < until:
                    token = next(self._tokens)
                    self._waiting.setdefault(reader.source, {})[token] = _WaitingRead(read, reader, answer, done)
                    self._shell.perform(self._subscriptions.on_poll(reader.source, token, read, until, now))
                    return
            done(answer)

        self._shell.ask_reader(read, wait_s + READ_TIMEOUT_S, first, reader)

    def on_polled(self, polled: Polled) -> None:
        """Answer a client's read whose wait for new records has ended: with the records or the error that the wait
        brought, or if it timed out with the empty answer from before. A ``bounded`` read that timed out, and a read
        whose new records were only announced, is sent to a replica again. Does nothing if the read has ended already.
        """
        poll = self._waiting.get(polled.source, {}).pop(polled.token, None)
        if poll is None:
            return
        if isinstance(polled.answer, ReadAnswer):
            poll.done(_first_batches(polled.answer, poll.read.max_bytes))
        elif polled.answer is not None:
            poll.done(polled.answer)
        elif polled.timed_out and poll.read.consistency != "bounded":
            poll.done(poll.found)
        else:
            self._shell.ask_reader(poll.read, READ_TIMEOUT_S, poll.done, poll.reader)

    def on_link_closed(self, source: int) -> None:
        """End the waiting reads of a client that has disconnected with ``UNREACHABLE``. If the ``done`` of one
        raises, the others are called all the same."""
        gone = Unreachable("the client is gone")
        do_all(*(partial(poll.done, gone) for poll in self._waiting.pop(source, {}).values()))


def _first_batches(answer: ReadAnswer, max_bytes: int) -> ReadAnswer:
    """Return a read's answer with only those of its first batches that fit in ``max_bytes``, but at least one.
    Returns the answer unchanged if it fits, or if its payload cannot be parsed."""
    assert not isinstance(answer.payload, list)
    if len(answer.payload) <= max_bytes:
        return answer
    try:
        return replace(answer, payload=BatchRun(answer.payload).slice(0, max_bytes).payload)
    except CorruptBatch:
        return answer
