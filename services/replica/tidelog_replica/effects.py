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
"""The link number of this server's requests to itself, which no link carries."""

ACKS_AT_ONCE = 4096
"""Most acks in one message, well below what a header may hold."""

NOTICE_MAX_BYTES = 1 << 20
"""Most bytes of batches that one ``Notify`` carries, since the follower has not asked for them."""

OnAnswer = Callable[[Message | TidelogError, float], None]
"""Called with the answer of a call, or the error with which it failed, and the time ``now`` in seconds."""


@dataclass(frozen=True, slots=True)
class StartFlush:
    """From the node to the shell: run ``flush.run()`` in a thread, which syncs the log of partition ``key``; then
    call the node's ``on_flushed(key, flush, error, now)``, where ``error`` is the ``OSError`` that ended the flush,
    or None."""

    key: TopicPartition
    flush: Flush


@dataclass(frozen=True, slots=True)
class StartJob:
    """From the node to the shell: run ``job.run()`` in a thread, then call the node's ``on_job(key, job, result,
    now)`` with the value that ``run`` returned, or with the ``OSError`` that it raised. A flush must never wait for a
    job."""

    key: TopicPartition
    job: Job


@dataclass(frozen=True, slots=True)
class Stop:
    """From the node to the shell: the disk failed, so end the process. The next start is another, unclean
    incarnation, which reads what is on the disk."""

    reason: str


Effect = Answer | Call | Event | Post | Send | StartFlush | StartJob | Stop


@dataclass(slots=True)
class _Notices:
    """The content of the ``Notify`` message that is collected for one link: its parts, the batches that it carries,
    and their size in bytes."""

    parts: list[NotifyPart] = field(default_factory=list)
    batches: list[Buffer] = field(default_factory=list)
    size: int = 0


class Effects:
    """The effects of the present input in their order, the calls that are not answered yet, and the queues of disk
    jobs. All parts of a node share one instance, which lives as long as the node."""

    def __init__(self, own: NodeId = "") -> None:
        self._own = own
        self.to_self: list[tuple[int, Message]] = []
        """Calls of this server to itself that are not served yet: token and message."""
        self.from_self: list[tuple[int, Message | TidelogError]] = []
        """Answers to calls of this server to itself, not delivered yet: token and answer."""
        self.failed: list[TopicPartition] = []
        """Partitions that went offline during this input."""
        self._effects: list[Effect] = []
        self._acks: dict[int, list[ProduceAck]] = {}
        self._notices: dict[int, _Notices] = {}
        self._calls: dict[int, OnAnswer] = {}
        self._tokens = 0
        self.counts = ReplicaCounts()
        """Counters for the metrics."""
        self.stopping = False
        """Whether ``stop`` was called: the process is to end."""
        self.full = ""
        """Why nothing may be appended for want of disk space (``maintenance/disk_space.py``); "" while appends are
        allowed."""
        self.jobs = Jobs(lambda key, job: self._effects.append(StartJob(key, job)))
        """The queues of disk work that threads do: ``effects.jobs.start(key, job, done)``."""

    def answer(self, source: int, id: int | None, message: Message | TidelogError) -> None:
        """Send an answer, or an error, to the request ``id`` that came over link ``source``. Does nothing if ``id``
        is None, since the message was one-way. If this server itself sent the request, the answer is kept for
        ``take_own``."""
        if id is not None and source == LOOP:
            self.from_self.append((id, message))
        elif id is not None:
            self._effects.append(Answer(source, id, message))

    def ack(self, source: int, ack: ProduceAck) -> None:
        """Send the producer behind link ``source`` the acknowledgement, or the refusal, of one batch. All acks of an
        input to one link travel in one message. Refusals are counted by their code."""
        self._acks.setdefault(source, []).append(ack)
        if ack.error is not None:
            count(self.counts.produce_refusals, ack.error.code)

    def notify(self, node: NodeId, source: int, part: NotifyPart, batches: Sequence[Buffer] = ()) -> None:
        """Send the idle follower ``node``, over link ``source``, a ``Notify`` about one partition. The message
        carries ``batches`` as long as all batches in it stay within ``NOTICE_MAX_BYTES``; otherwise it says only that
        there is something to fetch. All notices of an input to one link travel in one message."""
        notices = self._notices.setdefault(source, _Notices())
        if part.size and notices.size + part.size > NOTICE_MAX_BYTES:
            part, batches = replace(part, size=0), ()
        notices.parts.append(part)
        notices.batches += batches
        notices.size += part.size
        count(self.counts.notices, node)
        count(self.counts.fetched_bytes, node, part.size)

    def call(self, to: NodeId, message: Message, timeout_s: float, done: OnAnswer) -> None:
        """Send a request to server ``to``, to the active controller or to this server itself. ``done`` is called one
        time, with the answer or the error and the time. If the other server is silent for ``timeout_s`` seconds, the
        shell answers with an error in its place."""
        self._tokens += 1
        self._calls[self._tokens] = done
        if to == self._own:
            self.to_self.append((self._tokens, message))
            return
        self._effects.append(Call(to, self._tokens, message, timeout_s))

    def take_own(self) -> tuple[list[tuple[int, Message]], list[tuple[OnAnswer, Message | TidelogError]]]:
        """Return and remove the calls of this server to itself that wait, and the answers to earlier such calls, each
        with the function that takes the answer. An answer to a call that was answered before is dropped."""
        calls, self.to_self = self.to_self, []
        answers, self.from_self = self.from_self, []
        return calls, [(self._calls.pop(token), answer) for token, answer in answers if token in self._calls]

    def take_call(self, token: int) -> OnAnswer | None:
        """Return the function that takes the answer to the call ``token``, and remove the call. Return None if the
        call was answered before."""
        return self._calls.pop(token, None)

    def send(self, to: NodeId, message: Message) -> None:
        """Send server ``to`` a one-way message, over the link that this server has opened to it."""
        self._effects.append(Send(to, message))

    def start_flush(self, key: TopicPartition, flush: Flush) -> None:
        """Have a thread sync the log of partition ``key``. Its end comes back as the node's input ``on_flushed``."""
        self._effects.append(StartFlush(key, flush))

    def stop(self, reason: str) -> None:
        """Have the process end, because the disk failed: set ``stopping`` and add a ``Stop`` with this reason."""
        self.stopping = True
        self._effects.append(Stop(reason))

    def event(self, name: str, **fields: Any) -> None:
        """Add a log event: the shell writes a line with this name and these fields to the server's log."""
        self._effects.append(Event(name, fields))

    def drain(self) -> list[Effect]:
        """Return and remove all effects of the input, in order. Behind them come the acks, at most ``ACKS_AT_ONCE``
        per message, and last one ``Notify`` for each link."""
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
