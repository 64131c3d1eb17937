"""Faults and recordings in a cluster of ``tidelog dev``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidelog.wire.messages.base import Message


@dataclass(frozen=True, slots=True)
class PlayedNode:
    """Part of ``PlayAnswer``: a node of a ``tidelog dev`` cluster, and whether a fault was injected into it."""

    node: str
    state: str
    """``running``, ``paused``, ``cut`` or ``killed``."""


@dataclass(frozen=True, slots=True)
class PlayedMessage:
    """Part of ``PlayAnswer``: one recorded message between two services, with time, sender, receiver and a
    summary."""

    time_ms: int
    """Wall clock when the message was recorded, in milliseconds."""
    sender: str
    receiver: str
    op: str = ""
    """Op of the request; for an answer that of its request, or "" if the request was not recorded."""
    answer: bool = False
    """The message is an answer."""
    words: str = ""
    """Content of the message, for people. It may be cut off."""


@dataclass(frozen=True, slots=True)
class PlayAnswer(Message):
    """Answer to ``Play``: the state of all nodes after the action, and, if a recording was stopped, its messages."""

    nodes: tuple[PlayedNode, ...] = ()
    messages: tuple[PlayedMessage, ...] = ()
    """To ``stop``: the messages that were recorded, in order."""


@dataclass(frozen=True, slots=True)
class Play(Message):
    """Request of a client to the gateway of a cluster that ``tidelog dev`` runs: inject a fault into a node, or
    record the messages between the services. The gateways of all other clusters answer ``UNSUPPORTED``."""

    OP: ClassVar[str] = "play"
    ANSWER: ClassVar[type[Message]] = PlayAnswer
    node: str = ""
    """Node to act on; "" for ``record``, ``stop`` and ""."""
    act: str = ""
    """``kill``: end the node at once. ``pause``: stop the node, but keep its connections. ``cut``: break its
    connections and let none through. ``heal``: run the node and let connections through again. ``record``: start to
    record the messages between the services. ``stop``: end the recording and answer it. "": change nothing, only
    answer the states."""
