"""What the invariants remember of the system beside it, and how a failed check is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidelog.batch.format import BatchHeader
from tidelog.verify.history import Loss

from simulation.invariants.views import View

if TYPE_CHECKING:
    from simulation.cluster import Cluster
    from simulation.processes.process import SimProcess

Digest = bytes
Sequences = tuple[int, int, int]
"""Producer id, producer epoch, base sequence."""


class Violation(AssertionError):
    """An invariant does not hold; the text begins with its id."""


@dataclass(slots=True)
class Chain:
    """One log as the ghost knows it, batch by batch."""

    ends: list[int] = field(default_factory=list)
    digests: list[Digest] = field(default_factory=list)
    headers: list[BatchHeader] = field(default_factory=list)
    at: dict[int, Digest] = field(default_factory=dict)
    """Digest by end offset."""
    sequences: dict[Sequences, int] = field(default_factory=dict)
    """Where each producer's batch stands."""
    base: int = 0
    """Where the log began when it was opened; what was before it is known by ``base_digest`` only."""
    base_digest: Digest = b""

    @property
    def end(self) -> int:
        return self.ends[-1] if self.ends else self.base

    @property
    def last(self) -> Digest:
        return self.digests[-1] if self.digests else self.base_digest

    def agrees(self, end: int, digest: Digest) -> bool:
        """Whether this log holds exactly that prefix, as far as it is still there."""
        if end <= self.base:
            return end < self.base or digest == self.base_digest
        return self.at.get(end) == digest

    def before_control(self, leader_epoch: int) -> tuple[int, Digest]:
        """End and digest without the control batch that begins that leader epoch, if it is the last one."""
        if self.headers and self.headers[-1].is_control and self.headers[-1].leader_epoch == leader_epoch:
            end = self.headers[-1].base_offset
            return end, self.base_digest if end == self.base else self.at[end]
        return self.end, self.last

    def add(self, header: BatchHeader, digest: Digest) -> None:
        self.ends.append(header.end_offset)
        self.digests.append(digest)
        self.headers.append(header)
        self.at[header.end_offset] = digest
        if header.producer_id and not header.is_control:
            self.sequences[sequence_of(header)] = header.base_offset

    def cut(self, end: int) -> None:
        """Forget what ends above ``end``."""
        while self.ends and self.ends[-1] > end:
            del self.at[self.ends.pop()]
            self.digests.pop()
            header = self.headers.pop()
            if header.producer_id and not header.is_control:
                self.sequences.pop(sequence_of(header), None)


@dataclass(slots=True)
class Held:
    """One partition on one server, as last seen in its present life."""

    chain: Chain
    log: Any = None
    epochs: Any = None
    """The log's leader-epoch cache; a log that was thrown away and begun anew has another."""
    partition: Any = None
    """Its owner, which the server may have let go already."""
    view: View | None = None
    told: int = 0
    """The HW that its former life has written down."""
    durable: int = 0
    stable: int = 0
    """The last stable offset."""
    changes: int = 0


@dataclass(slots=True)
class Before:
    """One partition on one server that is down, or has not opened its log yet."""

    chain: Chain
    durable: int
    """When its last step was over: what it may have told others that it has."""
    kept: int
    """What is there when the log opens, at least."""


@dataclass(slots=True)
class Committed:
    """What leaders have committed of a partition."""

    end: int = 0
    digest: Digest = b""
    at: dict[int, Digest] = field(default_factory=dict)
    """Digest by end offset of each committed batch."""
    before: dict[tuple[int, int], Digest] = field(default_factory=dict)
    """Digest by leader epoch and end offset of each batch that was ever committed, also of those that were lost or
    committed in vain: by log matching the two name one prefix."""
    start: int = 0
    """Where the log began that began latest: retention has removed what is before."""
    lost: dict[Digest, int] = field(default_factory=dict)
    """Prefixes that were committed and may be gone, each with the leader epoch before which it was committed."""
    losses: list[Loss] = field(default_factory=list)

    def lose(self, before_epoch: int, start: int) -> None:
        """Everything from ``start`` on may be gone: the leader of that epoch, which leads now, may lack it."""
        for end in [end for end in self.at if end > start]:
            self.lost[self.at.pop(end)] = before_epoch
        if self.end > start:
            self.end, self.digest = start, self.at.get(start, b"")

    def covered(self, epoch: int, offset: int) -> bool:
        """Whether a record of that leader epoch may be gone."""
        return any(loss.covers(epoch, offset) for loss in self.losses)

    def excused(self, before: tuple[int, int], after: tuple[int, int]) -> bool:
        """Whether an end, told as (leader epoch, offset), may have gone back like this."""
        return any(
            before[0] < loss.before_epoch <= after[0] and min(loss.start, before[1]) <= after[1]
            for loss in self.losses
        )


def sequence_of(header: BatchHeader) -> Sequences:
    """What names the batch of an idempotent producer."""
    return (header.producer_id, header.producer_epoch, header.base_sequence)


class Checks:
    """What all checks need: the cluster, and what happens when one fails."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.strict = True
        """Whether a violation ends the run; else they gather in ``violations``."""
        self.violations: list[str] = []
        self._events: list[tuple[str, SimProcess]] = []

    def _demand(self, holds: bool, text: str) -> None:
        if not holds:
            self._fail(text)

    def _fail(self, text: str) -> None:
        """What a check found. (Where one is made at every step its text must not be written unless it fails.)"""
        text = f"{text} (t={self.cluster.loop.now:.4f})"
        if self.strict:
            raise Violation(text)
        self.violations.append(text)

    def _happened(self, kind: str, process: SimProcess) -> None:
        """A protocol event, told to the faults when the step has been checked: it may be the process's last."""
        self._events.append((kind, process))

    def _tell_faults(self) -> None:
        """The step has been checked: what happened in it may trigger a fault."""
        if not self._events:
            return
        events, self._events = self._events, []
        for kind, where in events:
            if where.running:
                self.cluster.faults.on_protocol_event(kind, where)
