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
"""The name under which a core sends to the active controller, whichever that is."""


@dataclass(frozen=True, slots=True)
class Send:
    """Effect: the shell sends a one-way message to the node ``to`` (or ``CONTROLLER``). The message may be lost, and
    the core is not notified of that."""

    to: NodeId
    message: Message


@dataclass(frozen=True, slots=True)
class Call:
    """Effect: the shell sends a request to the node ``to`` (or ``CONTROLLER``). It calls the core's
    ``on_answer(token, answer_or_error, now)`` exactly one time: with the answer, with ``UNREACHABLE`` if the node
    cannot be reached, or with ``REQUEST_TIMED_OUT`` after ``timeout_s`` seconds."""

    to: NodeId
    token: int
    message: Message
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """Effect: the shell sends the answer to request ``id``, which came over link ``source``: a message or a
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
    """Effect: the shell writes one line to the log: a constant name with fields."""

    name: str
    fields: dict[str, Any] = field(default_factory=dict)
