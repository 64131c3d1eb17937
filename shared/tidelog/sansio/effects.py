"""Effects: frozen values that a core returns, and that the shell which drives it performs in order.

A core never sends, sleeps or logs. Its methods take ``now`` (seconds of a monotonic clock) and return a list of
effects. An effect that must precede another stands before it: a ``Persist`` before the ``Send`` that depends on it.
Services add their own kinds (``Persist``, ``StartFlush``).

Link tokens: the shell gives each accepted connection an integer ``source``; it is never used again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tidelog.types import NodeId
from tidelog.wire.messages import Message

CONTROLLER = "@controller"
"""The peer name that stands for the active controller, whichever that is."""


@dataclass(frozen=True, slots=True)
class Send:
    """Effect: the shell sends a one-way message to a named node (or ``CONTROLLER``). The message may be lost."""

    to: NodeId
    message: Message


@dataclass(frozen=True, slots=True)
class Call:
    """Effect: the shell sends a request to a named node (or ``CONTROLLER``). It brings the answer, or the error, back
    to the core's ``on_answer(token, answer_or_error, now)`` exactly once: also when the peer cannot be reached
    (``UNREACHABLE``) or the time is over (``REQUEST_TIMED_OUT``)."""

    to: NodeId
    token: int
    message: Message
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """Effect: the shell answers request ``id`` that came over link ``source``, with a message or a
    ``TidelogError``."""

    source: int
    id: int
    message: Message | Exception


@dataclass(frozen=True, slots=True)
class Post:
    """Effect: the shell sends a one-way message over the accepted link ``source``. The message is lost if the link
    has ended."""

    source: int
    message: Message


@dataclass(frozen=True, slots=True)
class Event:
    """Effect: the shell writes one log line, a constant name with fields."""

    name: str
    fields: dict[str, Any] = field(default_factory=dict)
