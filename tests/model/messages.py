"""The messages in flight between the servers of a model and its controller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidelog.errors import TidelogError
from tidelog.types import NodeId
from tidelog.wire.messages import AlterIsr, EpochEnd, EpochPart, FetchedPart, FetchPart, Message, Registered

CONTROLLER = "controller"


@dataclass(frozen=True, slots=True)
class Sent:
    """A message in flight. ``life``: the run of the process that waits for this answer; "" for requests."""

    source: NodeId
    to: NodeId
    body: Any
    life: str = ""
    held: bool = False
    """Whether it arrives late or again (``search.py``)."""

    @property
    def kind(self) -> str:
        """The class of its body: for people, and to find the message again while a walk is shrunk."""
        return type(self.body).__name__


@dataclass(frozen=True, slots=True)
class Asked:
    """A follower's question: a fetch or one of the epoch dialogue. ``epochs``: those of the state that it acts on."""

    node: NodeId
    broker_epoch: int
    part: FetchPart | EpochPart
    life: str


@dataclass(frozen=True, slots=True)
class Told:
    """The leader's answer to a follower's question."""

    asked: Asked
    part: FetchedPart | EpochEnd
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Registering:
    """The controller's answer to a registration, for one try of a process."""

    answer: Registered
    asking: str


@dataclass(frozen=True, slots=True)
class LossNoted:
    """The controller's answer to a server that reported a lost copy, in this epoch and incarnation."""

    broker_epoch: int
    epoch: int


@dataclass(frozen=True, slots=True)
class IsrAnswer:
    """The controller's answer to a proposal."""

    asked: AlterIsr
    answer: Message | TidelogError
