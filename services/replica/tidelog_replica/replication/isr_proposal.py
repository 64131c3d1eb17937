"""What a leader asks of the controller: another ISR."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.wire.messages import IsrMember


@dataclass(frozen=True, slots=True)
class Proposal:
    """An ISR to be put to the controller: compare-and-set on ``epoch``."""

    epoch: int
    isr: tuple[IsrMember, ...]
    cause: str
    evidence: dict[str, str]
