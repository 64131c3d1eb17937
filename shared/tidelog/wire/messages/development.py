"""Faults and recordings in a cluster of ``tidelog dev``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidelog.wire.messages.base import Message


@dataclass(frozen=True, slots=True)
class PlayedNode:
    """Part: a node that faults can be played with. ``state``: ``running``, ``paused``, ``cut`` or ``killed``."""

    node: str
    state: str


@dataclass(frozen=True, slots=True)
class PlayedMessage:
    """Part: what one service said to another. ``op``: that of the request, of an answer, too ("" where the request
    was not heard); ``words``: what it holds, for people, perhaps cut off."""

    time_ms: int
    sender: str
    receiver: str
    op: str = ""
    answer: bool = False
    words: str = ""


@dataclass(frozen=True, slots=True)
class PlayAnswer(Message):
    """Answer: the nodes, as they are now; to ``stop`` the messages that were heard, in order."""

    nodes: tuple[PlayedNode, ...] = ()
    messages: tuple[PlayedMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class Play(Message):
    """Have something happen to a node of a cluster that ``tidelog dev`` runs; all others answer ``UNSUPPORTED``.

    ``act``: ``kill``: it ends at once; ``pause``: it is silent, its connections stay; ``cut``: its connections break
    and nobody reaches it; ``heal``: it runs and is reached again; "": nothing, the answer tells what is so. Without a
    node: ``record``: listen from now on to what the services say to each other; ``stop``: no more, and tell it."""

    OP: ClassVar[str] = "play"
    ANSWER: ClassVar[type[Message]] = PlayAnswer
    node: str = ""
    act: str = ""
