"""The base class of messages, the part for errors, and the messages that open a connection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.types import Buffer

ABSENT = "absent"
"""Metadata key of a field that may be left out on the wire but has no default in Python, since fields without a
default follow it. Its value is what a missing field means; the same value is not sent."""

Payload = Buffer | list[Buffer]
"""Bulk bytes of a message: one buffer, or several that are sent one after the other without joining them."""


@dataclass(frozen=True, slots=True)
class Message:
    """Base of all. ``OP`` is the text of ``op``; answers have none."""

    OP: ClassVar[str] = ""
    ANSWER: ClassVar[type[Message] | None] = None
    """Class of the answer; None for one-way messages and answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencedRequest(Message):
    """Base of requests that the controllers do at most once: the same ``client`` and ``sequence`` (from 1) again gets
    the same answer. Without them the request is done each time. A gateway sets both where its client does not."""

    client: str = ""
    sequence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminRequest(SequencedRequest):
    """Base of requests to change the cluster whose history names who asked: the ``asker``. A gateway sets it,
    whatever its client says."""

    asker: str = ""


BASES = (Message, SequencedRequest, AdminRequest)
"""Classes of which there are no instances."""


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """Part: an error as it travels; see ``tidelog.errors``."""

    code: str
    message: str = ""
    unknown_outcome: bool = False
    detail: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done(Message):
    """Answer: it was done; nothing more to say."""


@dataclass(frozen=True, slots=True)
class Welcome(Message):
    """Answer to hello: who answers, and its limits."""

    version: int
    cluster: str
    node: str
    role: str
    max_message_bytes: int
    max_in_flight: int
    nonce: bytes = b""
    """32 random bytes, where the services have a secret (``wire.proof``)."""
    proof: bytes = field(default=b"", repr=False)
    """That the sender has the secret."""


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """First message of every connection. ``cluster`` "" means: whichever this is."""

    OP: ClassVar[str] = "hello"
    ANSWER: ClassVar[type[Message]] = Welcome
    version: int
    role: str
    """``client``, ``gateway``, ``replica`` or ``controller``: decides which ops are allowed."""
    node: str
    cluster: str = ""
    token: str = field(default="", repr=False)
    """A client's bearer token: says who it is. Never logged."""
    level_min: int = 1
    level_max: int = 1
    """The feature levels that a service understands (``tidelog.feature_levels``); of a client they say nothing."""
    nonce: bytes = b""
    """32 random bytes of a service that has a secret (``wire.proof``)."""
    url: str = ""
    """Likewise: where it connects to."""


@dataclass(frozen=True, slots=True)
class Prove(Message):
    """One-way, after welcome and before all else, where the services have a secret: the one that connects has it."""

    OP: ClassVar[str] = "prove"
    proof: bytes = field(repr=False)
