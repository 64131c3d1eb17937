"""What one input of a replica server brings about, collected until the input is over.

Effects come out in the order in which they were put in, except that the acks to one link travel as one ``Produced``
and the notices to one link as one ``Notify``, both behind everything else: a fetch answer precedes a notice that
was caused with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tidelog.errors import TidelogError
from tidelog.sansio.counters import count
from tidelog.sansio.effects import Answer, Call, Event, Post, Send
from tidelog.types import Buffer, NodeId, TopicPartition
from tidelog.wire.messages import Message, Notify, NotifyPart, ProduceAck, Produced

from tidelog_replica.counters import ReplicaCounts
from tidelog_replica.jobs import Job, Jobs
from tidelog_replica.storage.flush import Flush

LOOP = -1
"""The source of this server's own requests to itself."""

ACKS_AT_ONCE = 4096
"""Most acks in one message, well below what a header may hold."""

NOTICE_MAX_BYTES = 1 << 20
"""Most bytes of batches in one notice, which no fetch has asked for."""

OnAnswer = Callable[[Message | TidelogError, float], None]
"""Takes the answer of a call, or its failure, and ``now``."""


@dataclass(frozen=True, slots=True)
class StartFlush:
    """Run ``flush.run()`` in a thread, then call the node's ``on_flushed(key, flush, error, now)``."""

    key: TopicPartition
    flush: Flush


@dataclass(frozen=True, slots=True)
class StartJob:
    """Run ``job.run()`` in a thread, then call the node's ``on_job(key, job, result, now)``; an ``OSError`` that it
    raises is its result. Flushes must not wait for jobs."""

    key: TopicPartition
    job: Job


@dataclass(frozen=True, slots=True)
class Stop:
    """The disk failed: end the process. The next start is another, unclean incarnation, which reads what is there."""

    reason: str


Effect = Answer | Call | Event | Post | Send | StartFlush | StartJob | Stop


@dataclass(slots=True)
class _Notices:
    """The notices for one link."""

    parts: list[NotifyPart] = field(default_factory=list)
    batches: list[Buffer] = field(default_factory=list)
    size: int = 0


class Effects:
    """Effects under way, the calls that are not answered yet, the jobs that have not ended."""

    def __init__(self, own: NodeId = "") -> None:
        self._own = own
        self.to_self: list[tuple[int, Message]] = []
        """Calls of this server to itself, which no link carries."""
        self.from_self: list[tuple[int, Message | TidelogError]] = []
        """Their answers."""
        self.failed: list[TopicPartition] = []
        """Partitions that went offline during this input."""
        self._effects: list[Effect] = []
        self._acks: dict[int, list[ProduceAck]] = {}
        self._notices: dict[int, _Notices] = {}
        self._calls: dict[int, OnAnswer] = {}
        self._tokens = 0
        self.counts = ReplicaCounts()
        """What has happened, for the metrics."""
        self.stopping = False
        """The process is to end."""
        self.full = ""
        """Why nothing may be appended for want of disk space (``maintenance/disk_space.py``); "": it may."""
        self.jobs = Jobs(lambda key, job: self._effects.append(StartJob(key, job)))
        """Long disk work in threads: ``effects.jobs.start(key, job, done)``."""

    def answer(self, source: int, id: int | None, message: Message | TidelogError) -> None:
        """Answer a request. Does nothing if the request has no id, since it is then one-way."""
        if id is not None and source == LOOP:
            self.from_self.append((id, message))
        elif id is not None:
            self._effects.append(Answer(source, id, message))

    def ack(self, source: int, ack: ProduceAck) -> None:
        """Answer a producer about one batch."""
        self._acks.setdefault(source, []).append(ack)
        if ack.error is not None:
            count(self.counts.produce_refusals, ack.error.code)

    def notify(self, node: NodeId, source: int, part: NotifyPart, batches: Sequence[Buffer] = ()) -> None:
        """Notify the idle follower ``node`` of a partition, with the batches that it lacks where the message can hold
        them."""
        notices = self._notices.setdefault(source, _Notices())
        if part.size and notices.size + part.size > NOTICE_MAX_BYTES:
            part, batches = replace(part, size=0), ()
        notices.parts.append(part)
        notices.batches += batches
        notices.size += part.size
        count(self.counts.notices, node)
        count(self.counts.fetched_bytes, node, part.size)

    def call(self, to: NodeId, message: Message, timeout_s: float, done: OnAnswer) -> None:
        """Ask another server; ``done`` is called exactly once."""
        self._tokens += 1
        self._calls[self._tokens] = done
        if to == self._own:
            self.to_self.append((self._tokens, message))
            return
        self._effects.append(Call(to, self._tokens, message, timeout_s))

    def take_own(self) -> tuple[list[tuple[int, Message]], list[tuple[OnAnswer, Message | TidelogError]]]:
        """Take the calls of this server to itself, and its own answers to such calls, each with the function that
        takes it."""
        calls, self.to_self = self.to_self, []
        answers, self.from_self = self.from_self, []
        return calls, [(self._calls.pop(token), answer) for token, answer in answers if token in self._calls]

    def take_call(self, token: int) -> OnAnswer | None:
        """Take the function that waits for the answer to a call; None: it was answered before."""
        return self._calls.pop(token, None)

    def send(self, to: NodeId, message: Message) -> None:
        """Send another server a message that needs no answer."""
        self._effects.append(Send(to, message))

    def start_flush(self, key: TopicPartition, flush: Flush) -> None:
        """Have a log flushed in a thread."""
        self._effects.append(StartFlush(key, flush))

    def stop(self, reason: str) -> None:
        """End the process."""
        self.stopping = True
        self._effects.append(Stop(reason))

    def event(self, name: str, **fields: Any) -> None:
        """Log a transition."""
        self._effects.append(Event(name, fields))

    def drain(self) -> list[Effect]:
        """Return all effects, in order. None is left then."""
        effects, self._effects = self._effects, []
        if self._acks:
            for source, acks in self._acks.items():
                for first in range(0, len(acks), ACKS_AT_ONCE):
                    effects.append(Post(source, Produced(tuple(acks[first : first + ACKS_AT_ONCE]))))
            self._acks = {}
        if self._notices:
            for source, notices in self._notices.items():
                effects.append(Post(source, Notify(tuple(notices.parts), notices.batches or b"")))
            self._notices = {}
        return effects
