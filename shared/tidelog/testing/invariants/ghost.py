"""The checks' own record of the system (the *ghost*), and the report of a failed check."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidelog.batch.format import BatchHeader
from tidelog.testing.invariants.views import View
from tidelog.verify.history import Loss

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster
    from tidelog.testing.processes.process import SimProcess

Digest = bytes
Sequences = tuple[int, int, int]
"""Producer id, producer epoch and base sequence of a batch."""


class Violation(AssertionError):
    """An invariant does not hold. The text begins with the id of the invariant."""


@dataclass(slots=True)
class Chain:
    """One log as the ghost knows it, batch by batch."""

    ends: list[int] = field(default_factory=list)
    digests: list[Digest] = field(default_factory=list)
    headers: list[BatchHeader] = field(default_factory=list)
    at: dict[int, Digest] = field(default_factory=dict)
    """The digest of the log up to a batch, by the end offset of the batch."""
    sequences: dict[Sequences, int] = field(default_factory=dict)
    """The base offset of each batch of an idempotent producer."""
    base: int = 0
    """The log start when the log was opened; earlier records are known by ``base_digest`` only."""
    base_digest: Digest = b""

    @property
    def end(self) -> int:
        """The end offset of the last batch."""
        return self.ends[-1] if self.ends else self.base

    @property
    def last(self) -> Digest:
        """The digest of the whole log."""
        return self.digests[-1] if self.digests else self.base_digest

    def agrees(self, end: int, digest: Digest) -> bool:
        """Return whether the log has exactly the prefix with this end and digest, as far as it still exists."""
        if end <= self.base:
            return end < self.base or digest == self.base_digest
        return self.at.get(end) == digest

    def before_control(self, leader_epoch: int) -> tuple[int, Digest]:
        """Return end and digest without the control batch that begins a leader epoch, if that is the last batch;
        otherwise those of the whole log."""
        if self.headers and self.headers[-1].is_control and self.headers[-1].leader_epoch == leader_epoch:
            end = self.headers[-1].base_offset
            return end, self.base_digest if end == self.base else self.at[end]
        return self.end, self.last

    def add(self, header: BatchHeader, digest: Digest) -> None:
        """Append a batch with the digest of the log up to it."""
        self.ends.append(header.end_offset)
        self.digests.append(digest)
        self.headers.append(header)
        self.at[header.end_offset] = digest
        if header.producer_id and not header.is_control:
            self.sequences[sequence_of(header)] = header.base_offset

    def cut(self, end: int) -> None:
        """Remove the batches that end above ``end``."""
        while self.ends and self.ends[-1] > end:
            del self.at[self.ends.pop()]
            self.digests.pop()
            header = self.headers.pop()
            if header.producer_id and not header.is_control:
                self.sequences.pop(sequence_of(header), None)


@dataclass(slots=True)
class Held:
    """One open partition on one server, as seen after its last step in the present run of the process."""

    chain: Chain
    log: Any = None
    epochs: Any = None
    """The leader-epoch cache of the log; a log that was replaced has another object."""
    partition: Any = None
    """The partition object of the server, which may have released it already."""
    view: View | None = None
    stored_hw: int = 0
    """The HW that the former run of the process had stored."""
    durable: int = 0
    stable: int = 0
    """The last stable offset."""
    changes: int = 0


@dataclass(slots=True)
class Before:
    """One partition on one server that is down or has not opened the log yet."""

    chain: Chain
    durable: int
    """The durable offset after its last step: the server may have reported it to others."""
    kept: int
    """The offset up to which the log must at least be there when it opens."""


@dataclass(slots=True)
class Committed:
    """What leaders have committed of a partition."""

    end: int = 0
    digest: Digest = b""
    at: dict[int, Digest] = field(default_factory=dict)
    """The digest of each committed batch, by end offset."""
    before: dict[tuple[int, int], Digest] = field(default_factory=dict)
    """The digest of each batch that was ever committed, by leader epoch and end offset, also of lost ones and of
    those committed in vain: by log matching the two name one prefix."""
    start: int = 0
    """The largest log start of any copy: retention has removed everything before it."""
    lost: dict[Digest, int] = field(default_factory=dict)
    """The prefixes that were committed and may be gone, each with the leader epoch before which it was committed."""
    losses: list[Loss] = field(default_factory=list)

    def lose(self, before_epoch: int, start: int) -> None:
        """Count everything from ``start`` on as possibly gone: the leader of ``before_epoch``, which leads now, may
        lack it."""
        for end in [end for end in self.at if end > start]:
            self.lost[self.at.pop(end)] = before_epoch
        if self.end > start:
            self.end, self.digest = start, self.at.get(start, b"")

    def covered(self, epoch: int, offset: int) -> bool:
        """Return whether a record of a leader epoch and offset may be gone."""
        return any(loss.covers(epoch, offset) for loss in self.losses)

    def excused(self, before: tuple[int, int], after: tuple[int, int]) -> bool:
        """Return whether an end (leader epoch, offset) may have gone back from ``before`` to ``after``."""
        return any(
            before[0] < loss.before_epoch <= after[0] and min(loss.start, before[1]) <= after[1]
            for loss in self.losses
        )


def sequence_of(header: BatchHeader) -> Sequences:
    """Return producer id, producer epoch and base sequence of a batch."""
    return (header.producer_id, header.producer_epoch, header.base_sequence)


class Checks:
    """The base of all checks: the cluster, and the handling of violations."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.strict = True
        """Whether a violation raises; otherwise it is added to ``violations``."""
        self.violations: list[str] = []
        self._events: list[tuple[str, SimProcess]] = []

    def _demand(self, holds: bool, text: str) -> None:
        """Report a violation unless the condition holds."""
        if not holds:
            self._fail(text)

    def _fail(self, text: str) -> None:
        """Report a violation. Checks made at every step build the text only when they fail."""
        text = f"{text} (t={self.cluster.loop.now:.4f})"
        if self.strict:
            raise Violation(text)
        self.violations.append(text)

    def _happened(self, kind: str, process: SimProcess) -> None:
        """Remember a protocol event; the faults get it after the checks of the step, since it may be the last event
        of the process."""
        self._events.append((kind, process))

    def _trigger_faults(self) -> None:
        """Pass the remembered events to the faults, which may strike."""
        if not self._events:
            return
        events, self._events = self._events, []
        for kind, where in events:
            if where.running:
                self.cluster.faults.on_protocol_event(kind, where)
