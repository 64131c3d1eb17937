"""A follower's side of replication, per partition and leader epoch: first agree on the past, then copy.

    dialogue    the follower asks the leader where the follower's last epoch ends in the leader's log; it fetches
                nothing yet
    fetching    the follower copies from its own log end on

Every new leader epoch begins with the dialogue (an empty epoch cache has nothing to agree on). The follower asks
for its latest epoch; the leader answers the largest epoch that it knows at or below the one asked, and where that
ends. If the follower knows that epoch too, both logs agree up to the smaller of the two ends, and the rest is cut.
If not, all of its own log above that epoch is wrong, and it asks again for its next older epoch (KIP-279: an
answer without an epoch would leave a diverged batch). The log is cut when the answer is known; each round
asks for an older epoch, so there are at most as many rounds as epochs. Without an answer the follower waits: the high
watermark is never a reason to truncate (KIP-101).

A fetch answer may report a divergence in the same way ("diverging epoch"), for logs that diverge later.

Freshness, for bounded reads. The follower asks its leader at its own time ``s``, by a fetch or for the latest offset.
The leader processes the request at some moment ``m`` >= ``s``. It answers with a high watermark ``h`` and with ``c``:
how long before ``m`` its leadership was last proved. Until ``m - c`` no other replica committed anything, and what
the leader had committed itself lies below ``h``. So everything that any replica committed until ``s - c`` <= ``m -
c`` lies below ``h``. When the own HW has reached ``h``, nothing committed until ``s - c`` is missing here: that time
is ``confirmed_at``. Each of the two times is measured by one clock, so clocks need not agree, only run at the same
rate. An answer whose HW is not reached yet is kept until the own HW reaches it. Later answers are ignored meanwhile,
so that one is reached at last.

Records below the HW are committed, and are cut only where the topic's settings allow their loss. That is so after an
unclean election, for a replica whose log has no leader epoch of that election or later. (A log that has one has
agreed with that history before, and loses nothing more.) It is also so under commit rule ``leader``, where copies may
lag. Then the HW goes back to where the logs diverge, which counts as a loss. In every other case a cut below the HW
is refused (R4).

A log that had lost its committed end by itself has nothing to cut. What the leader's log lacks of that end begins
where the leader's log enters ``unclean_epoch``, or where the leader's log ends (``loss``). Where a cut below the HW
is allowed, the HW with which this replica enters the leader epoch may belong to a history that is lost. So readers
get nothing (``agrees``) until a fetch has shown that the log is the beginning of the leader's.

Invariants: the HW is at most the log end, and goes back in such a loss only; a batch is appended only at the log end,
in the expected leader epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from tidelog.batch.format import BatchHeader
from tidelog.errors import TidelogError
from tidelog.types import NodeId

from tidelog_replica.replication.leader_epochs import LeaderEpochCache, refuse_leader_epoch


@dataclass(slots=True)
class FollowerState:
    """The state and the decisions of a follower of one partition in one leader epoch: the epoch dialogue, the HW, and
    how fresh the copy is. It is created when this server begins to follow a leader, and dropped when the leader epoch
    ends. It does no I/O: the log belongs to the caller, which passes its epoch cache and offsets."""

    leader: NodeId
    leader_epoch: int
    high_watermark: int
    asking: int | None = None
    """The own epoch that the dialogue asks the leader about; None when the dialogue is over and the follower
    fetches."""
    confirmed_at: float = -inf
    """Everything that was committed anywhere until this time (seconds of the own clock) lies below the HW; ``-inf``:
    no such time is known."""
    asked_at: float = -inf
    """A request waits for ``confirmed_at`` to reach this time; ``-inf``: none has waited yet."""
    unclean_epoch: int = -1
    """The leader epoch that the last unclean election of the partition began; -1: there was none."""
    commit_rule: str = "isr"
    highest_committed: int = 0
    """The highest committed offset. It is above the log end if the log has lost the records between."""
    agreed: bool = False
    """Whether the last fetch has shown that the own log is the beginning of the leader's."""
    _may_diverge: bool = False
    """Whether records below the HW at the beginning of this leader epoch may be lost in the leader's log."""
    _lossy_epoch: int = -1
    """The first leader epoch of the history in which committed records may be missing; -1: none may be missing."""
    _proof: tuple[int, float] | None = None
    """A proof that does not count yet: an offset that the HW must reach, and what ``confirmed_at`` becomes then."""

    @property
    def knows_end(self) -> bool:
        """Return whether readers may see the HW. Always True: readers of a follower know that its HW may lag."""
        return True

    @property
    def agrees(self) -> bool:
        """Return whether the local log is known to match the leader's up to the HW. While it is False the follower
        serves no readers."""
        return self.agreed or not self._may_diverge

    def refuse_epoch(self, leader_epoch: int) -> TidelogError | None:
        """Return the error, with the leader's name, for a request that names another leader epoch than this
        follower's. Return None if it names that epoch, or -1 for none."""
        return refuse_leader_epoch(leader_epoch, self.leader_epoch, self.leader)

    def enter_leader_epoch(self, epochs: LeaderEpochCache) -> None:
        """Begin the epoch dialogue: set ``asking`` to the latest leader epoch of the local log, or to None (fetch at
        once) if the log has none. Also determine whether records below the HW may be lost in the leader's log."""
        latest = epochs.latest()
        self.asking = latest if latest >= 0 else None
        self._may_diverge = self.may_lose(latest)
        if self._may_diverge:
            self._lossy_epoch = max(self.unclean_epoch, latest + 1)

    def loss(self, epochs: LeaderEpochCache, log_end: int, *, is_all: bool) -> tuple[int, int] | None:
        """Return the range of committed offsets (start, exclusive end) that the local log had lost by itself and the
        leader's log lacks, too. Return None if there is none, or if that cannot be known yet. May be called only when
        a fetch has shown that the local log is the beginning of the leader's, with ``is_all`` if it is the whole of
        it. Each range is returned a single time."""
        if self._lossy_epoch < 0:
            return None
        start = next(
            (start for epoch, start in epochs.entries if epoch >= self._lossy_epoch), log_end if is_all else None
        )
        if start is None:
            return None
        self._lossy_epoch = -1
        return (start, self.highest_committed) if start < self.highest_committed else None

    def on_epoch_end(
        self, asked: int, epoch: int, end: int, epochs: LeaderEpochCache, log_start: int, log_end: int
    ) -> int | None:
        """Apply the leader's answer in the epoch dialogue: ``epoch`` is the largest leader epoch at or below
        ``asked`` that the leader's log has, and it ends there at ``end``. Return the offset at which the local log
        must end, at most ``log_end``; the dialogue is over then. Return None if the dialogue goes on: the caller then
        asks for ``asking``, which is an older epoch now, or unchanged if the answer was invalid or late."""
        if asked != self.asking or epoch > asked:
            return None
        own_epoch = epochs.end_of(epoch, log_end)[0] if epoch >= 0 else -1
        if 0 <= own_epoch < epoch:
            self.asking = own_epoch
            return None
        self.asking = None
        return agreed_end(epoch, end, epochs, log_start, log_end)

    def may_cut(self, end: int, latest: int) -> bool:
        """Return whether the local log may be cut at offset ``end``: no record below the HW would be cut, or their
        loss is allowed (``may_lose``). ``latest`` is the latest leader epoch of the local log."""
        return end >= self.high_watermark or self.may_lose(latest)

    def may_lose(self, latest: int) -> bool:
        """Return whether committed records may be lost where the local log diverges from the leader's: under commit
        rule ``leader``, or after an unclean election in a leader epoch newer than ``latest``, the latest of the local
        log."""
        return self.commit_rule == "leader" or self.unclean_epoch > latest

    def on_loss(self, end: int) -> None:
        """Record that committed records from offset ``end`` on were cut: lower the HW to ``end``, and forget every
        proof of freshness (``confirmed_at``)."""
        self.high_watermark, self.confirmed_at, self._proof, self._lossy_epoch = end, -inf, None, -1

    def start_over(self, start: int) -> None:
        """Record that the local log was emptied and begins at offset ``start`` now: set the HW to ``start``, below
        which the leader has committed everything, and forget every proof of freshness (``confirmed_at``)."""
        self.high_watermark, self.agreed, self.confirmed_at, self._proof = start, False, -inf, None

    def on_high_watermark(self, leader_high_watermark: int, log_end: int) -> bool:
        """Raise the local HW to the leader's, which came with a fetch answer, but not above ``log_end``, the local
        log end after that answer's batches were appended. If the HW reaches the offset of a proof that waits for it,
        ``confirmed_at`` rises, too. Return whether the HW moved."""
        high_watermark = min(leader_high_watermark, log_end)
        if high_watermark <= self.high_watermark:
            return False
        self.high_watermark = high_watermark
        if self._proof is not None and high_watermark >= self._proof[0]:
            self.confirmed_at, self._proof = max(self.confirmed_at, self._proof[1]), None
        return True

    def on_proof(self, high_watermark: int, until: float) -> None:
        """Record the leader's proof that everything committed until time ``until`` (seconds) lies below
        ``high_watermark``. If the local HW has reached that offset, ``confirmed_at`` rises to ``until``. Otherwise
        the proof is kept until the HW gets there, unless another proof waits already."""
        if high_watermark <= self.high_watermark:
            self.confirmed_at = max(self.confirmed_at, until)
        elif self._proof is None:
            self._proof = high_watermark, until

    @property
    def fresh_at(self) -> float:
        """Return the time, in seconds, that bounded reads go by. For a follower that is ``confirmed_at``."""
        return self.confirmed_at

    def ask_confirmation(self, now: float) -> None:
        """Record that a request waits for ``confirmed_at`` to reach ``now``, so that the fetcher requests a proof
        from the leader."""
        self.asked_at = now

    @property
    def is_asked(self) -> bool:
        """Return whether the leader must be asked for a newer proof, because a request waits for one. False if a
        sufficient proof has come and only the HW has to reach its offset."""
        return max(self.confirmed_at, -inf if self._proof is None else self._proof[1]) < self.asked_at


def agreed_end(epoch: int, end: int, epochs: LeaderEpochCache, log_start: int, log_end: int) -> int:
    """Return the offset at which the local log must end so that it is the beginning of the leader's. ``epoch`` is the
    largest leader epoch at or below the one asked for that the leader's log has, and ``end`` is its end there. Return
    ``log_start`` if the logs have nothing in common: ``epoch`` is -1, or the local log has no epoch that old."""
    if epoch < 0:
        return log_start
    own_epoch, own_end = epochs.end_of(epoch, log_end)
    if own_epoch < 0:
        return log_start
    if own_epoch < epoch:  # everything above the older own epoch is unknown to the leader
        return own_end
    return max(log_start, min(end, own_end))


def fault_of(headers: Iterable[BatchHeader], log_end: int, last_epoch: int, leader_epoch: int) -> str | None:
    """Return a text that says why these batches must not be appended to a log that ends at ``log_end`` with leader
    epoch ``last_epoch``: there is a gap or an overlap, an epoch goes back, or an epoch is newer than the leader's.
    Return None if they may be appended."""
    expected, epoch = log_end, last_epoch
    for header in headers:
        if header.base_offset != expected:
            return f"batch at offset {header.base_offset}, expected {expected}"
        if not epoch <= header.leader_epoch <= leader_epoch:
            return f"batch of leader epoch {header.leader_epoch} after {epoch}, from the leader of {leader_epoch}"
        expected, epoch = header.end_offset, header.leader_epoch
    return None
