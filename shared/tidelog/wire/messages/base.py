"""The base classes of messages, the parts that messages of several modules have, and the messages that open a
connection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.types import Buffer

ABSENT = "absent"
"""Metadata key of a dataclass field that may be absent on the wire but has no default in Python, because fields
without a default follow it. The value under this key is what an absent field stands for. An encoder leaves the field
out when it has that value."""

Payload = Buffer | list[Buffer]
"""Bulk bytes of a message: one buffer, or several buffers that are sent one after the other without being joined."""


@dataclass(frozen=True, slots=True)
class Message:
    """Base class of all messages between processes, which has no instances. ``OP`` is the name of a request or
    one-way message in the header's key ``op``; it is "" for an answer."""

    OP: ClassVar[str] = ""
    ANSWER: ClassVar[type[Message] | None] = None
    """Class of a request's answer. None for one-way messages and for answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencedRequest(Message):
    """Base class of requests that the controllers carry out at most once. A second request with the same ``client``
    and ``sequence`` is not carried out again: it gets the answer of the first. A request without these two fields is
    carried out each time it arrives. A gateway sets both if its client has not set them."""

    client: str = ""
    """Id that the client has chosen for itself, 64 bytes at most; "": none. A gateway replaces it by a name that it
    makes from the principal and this id."""
    sequence: int = 0
    """Number of the request, from 1 on, another one for each request of the ``client``; 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminRequest(SequencedRequest):
    """Base class of requests that change the cluster. ``asker`` names the client that made the request; the histories
    of partitions and the timeline show it with the change."""

    asker: str = ""
    """Principal and address of the client, for example ``alice at 10.0.0.1:52100``. The gateway sets it, and
    overwrites what its client has sent."""


BASES = (Message, SequencedRequest, AdminRequest)
"""Base classes, which have no instances."""


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """Part of error answers and of other parts: an error as it is sent, with its code, a text and details."""

    code: str
    """One of the codes of ``docs/errors.md``. It alone decides how a client reacts."""
    message: str = ""
    """Explanation for readers. Programs must not match it."""
    unknown_outcome: bool = False
    """True: the request may have been carried out. False: it changed nothing."""
    detail: dict[str, str] = field(default_factory=dict)
    """More facts as texts, by name. The code decides which names there are."""
    id: str = ""
    """Id of the refusal, under which the gateway keeps its evidence for a while (``DescribeRefusal``); "": none. Set
    by the gateway."""


@dataclass(frozen=True, slots=True)
class StableOffset:
    """Part of ``OffsetAnswer`` and ``PartitionInfo``: the last stable offset of a partition, if it is below the high
    watermark, and the open transaction that begins there. Readers with isolation ``committed`` wait there until that
    transaction ends."""

    offset: int
    """The last stable offset."""
    producer_id: int
    """Producer id of the transaction that begins there."""
    producer_epoch: int
    """Producer epoch of that transaction. -1: the leader's log has the transaction's marker, which is not committed
    yet."""
    age_ms: int
    """For how long the leader has seen the last stable offset at this place, in milliseconds. The time starts again
    in each leader epoch."""


@dataclass(frozen=True, slots=True)
class Done(Message):
    """Answer without fields: the request has succeeded. The description of each request says what that means."""


@dataclass(frozen=True, slots=True)
class Welcome(Message):
    """Answer to ``Hello``, from the end that accepted the connection: its identity and its limits. After it both ends
    may send messages. A refused hello gets an error instead, and the connection is closed."""

    version: int
    """Version of the protocol that is spoken from now on, from the range that the hello has named."""
    cluster: str
    """Id of the cluster."""
    node: str
    """Name of the sender."""
    role: str
    """Role of the sender: ``gateway``, ``replica`` or ``controller``."""
    max_message_bytes: int
    """Longest message that either end accepts, in bytes; also ``message_bytes`` in ``limits``."""
    max_in_flight: int
    """Most requests that may wait for an answer on this connection, one more is answered ``OVERLOADED``; also
    ``requests`` in ``limits``."""
    nonce: bytes = b""
    """32 random bytes if the services have a secret (``wire.proof``); otherwise empty."""
    proof: bytes = field(default=b"", repr=False)
    """MAC which proves that the sender has the secret of the services; empty if they have none."""
    capabilities: tuple[str, ...] = ()
    """What a gateway can do beyond the first release of the protocol (``wire.capabilities``)."""
    limits: dict[str, int] = field(default_factory=dict)
    """The limits of this connection that a gateway keeps, by name (docs/protocol.md). A client ignores names that it
    does not know. A gateway of an earlier release names none."""


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """First message of every connection, from the end that connected: it identifies its sender and asks for
    admission. The other end answers with ``Welcome`` or an error. The sender must wait for the welcome before it
    sends anything else."""

    OP: ClassVar[str] = "hello"
    ANSWER: ClassVar[type[Message]] = Welcome
    version: int
    """Version of the protocol, for a receiver that does not know ranges of versions."""
    role: str
    """Role of the sender: ``client``, ``gateway``, ``replica`` or ``controller``. It decides which ops the receiver
    allows."""
    node: str
    """Name of the sender. A client may choose any."""
    cluster: str = ""
    """Id of the cluster that the sender wants to talk to; "": whichever cluster the receiver belongs to. A receiver
    of another cluster refuses with ``WRONG_CLUSTER``."""
    token: str = field(default="", repr=False)
    """Bearer token of a client, which identifies its principal; "": none. It is never logged."""
    level_min: int = 1
    """Lowest feature level that a service understands (``tidelog.feature_levels``). The field has no meaning in a
    client's hello."""
    level_max: int = 1
    """Highest feature level that a service understands. The field has no meaning in a client's hello."""
    nonce: bytes = b""
    """32 random bytes if the sender is a service that has a secret (``wire.proof``); otherwise empty."""
    url: str = ""
    """URL that a service with a secret has dialed; otherwise ""."""
    version_min: int = -1
    """Lowest version of the protocol that the sender speaks; -1: ``version``. A receiver that speaks none from
    ``version_min`` to ``version_max`` refuses with ``UNSUPPORTED``, whose detail has its own range under the same
    names."""
    version_max: int = -1
    """Highest version of the protocol that the sender speaks; -1: ``version``."""
    capabilities: tuple[str, ...] = ()
    """The capabilities that a client wants to use (``wire.capabilities``)."""
    operator: bool = False
    """Whether an operator looks at the cluster with this client. A gateway that is full may let it in all the same,
    to one of the connections that are reserved for operators (``operator_reserved_connections``)."""


@dataclass(frozen=True, slots=True)
class Prove(Message):
    """One-way message of the connecting end directly after the welcome, if the services have a secret: the proof that
    the sender has the secret. The other end closes the connection if the proof is wrong."""

    OP: ClassVar[str] = "prove"
    proof: bytes = field(repr=False)
    """MAC over both nonces and both identities (``wire.proof``)."""
