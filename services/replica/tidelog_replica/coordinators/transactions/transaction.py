"""One transaction, as its coordinator has it, and as it travels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.errors import refuse
from tidelog.types import TOPIC_NAME, TopicPartition, owner_of
from tidelog.wire.messages import (
    BeginTransaction,
    CommitStaged,
    ListTransactions,
    ListTransactionsAnswer,
    TopicShare,
    TransactionInfo,
)

from tidelog_replica.config import TransactionSettings
from tidelog_replica.coordinators.groups.records import shares_of
from tidelog_replica.coordinators.transactions.records import AppRecord, SlotRecord

MAX_STAGED = 2000
"""Most staged transactions that are committed together."""
MAX_NAME = 249
LIVE = ("open", "prepared")
"""States in which a transaction is not decided."""
ENDED = {"committing": "committed", "aborting": "aborted"}
"""The final state of a transaction whose markers are all confirmed, by the state before."""
ENDING = tuple(ENDED)
"""States in which a transaction is decided and its markers are not all confirmed."""


class Marker(NamedTuple):
    """A marker that the coordinator sends to the leader of ``partition``, where it ends the producer's transaction:
    by a commit, or if ``commit`` is False by an abort."""

    app: str
    staged: str
    partition: TopicPartition
    producer_id: int
    epoch: int
    commit: bool


@dataclass(slots=True, eq=False)
class TransactionMetadata:
    """A transaction in the coordinator's memory, with its state, its partitions, and the progress of its markers. It
    stays after its end until the next transaction of the same name begins or the transactional id is deleted. A
    staged transaction is deleted at its end."""

    app: str
    staged: str
    producer_id: int
    epoch: int
    state: str
    owner: str
    timeout_ms: int
    """How long the transaction may be open, from its begin on, in ms. Each renewal makes it longer, and so does the
    wait of a prepared one for the rest of its owner's batch."""
    until_ms: int
    """In ms of the wall clock since 1970: when the transaction expires; if it is decided or has ended, when that
    happened."""
    expires_at: float = 0.0
    """When the transaction expires, in seconds of the coordinator's clock."""
    parts: dict[TopicPartition, None] = field(default_factory=dict)
    """The partitions of the transaction, in the order in which they were enrolled."""
    left: dict[TopicPartition, None] = field(default_factory=dict)
    """Partitions whose leaders are not known to have the marker in their committed logs."""
    asked: dict[TopicPartition, None] = field(default_factory=dict)
    """Partitions of ``left`` whose leader was sent a marker and has not answered."""
    decided_at: int | None = None
    """The log end after the record of the decision; None: the record is not appended yet."""
    is_decided: bool = False
    """Whether the record of the decision is known to be committed, so that markers may be sent."""
    principal: str = ""
    """The principal that began the transaction; "": not known."""

    @property
    def key(self) -> tuple[str, str]:
        """Return the application and the staged name ("" if the transaction is not staged), which identify the
        transaction."""
        return self.app, self.staged

    @property
    def is_over(self) -> bool:
        """Return whether the decision is committed and every partition has its marker, so that only the record of the
        end is missing."""
        return self.is_decided and self.state in ENDING and not self.left

    @property
    def outcome(self) -> str:
        """Return the state. A transaction whose markers are all confirmed counts as ``committed`` or ``aborted``
        already, though the record of its end may not be written yet."""
        return ENDED[self.state] if self.is_over else self.state

    def decide(self, state: str, wall_ms: int) -> None:
        """Set the state to ``committing`` or ``aborting``, which is final, and make every partition wait for a
        marker. ``wall_ms`` is the time of the decision. The caller writes the record."""
        self.state, self.left, self.until_ms = state, dict(self.parts), wall_ms
        self.decided_at, self.is_decided = None, False

    def renew(self, timeout_ms: int, most_ms: int, now: float) -> bool:
        """Let the open transaction expire ``timeout_ms`` after ``now`` (seconds of the coordinator's clock), unless
        that is earlier than before, or ``most_ms`` after its begin at the latest. Return whether it expires later
        than before. The caller writes the record."""
        open_ms = self.timeout_ms - round((self.expires_at - now) * 1000)
        longer_ms = min(open_ms + timeout_ms, most_ms) - self.timeout_ms
        if longer_ms <= 0:
            return False
        self.timeout_ms += longer_ms
        self.until_ms += longer_ms
        self.expires_at += longer_ms / 1000
        return True

    def since_ms(self, staged_timeout_ms: int) -> int:
        """Return since when the transaction is in its state, in ms of the wall clock since 1970; -1 if the result
        would be negative. ``staged_timeout_ms`` is how long a prepared transaction may wait."""
        patience_ms = {"open": self.timeout_ms, "prepared": staged_timeout_ms}
        return max(-1, self.until_ms - patience_ms.get(self.state, 0))

    def record(self) -> SlotRecord:
        """Return the ``SlotRecord`` that stores the transaction in the log."""
        parts = shares_of(self.parts)
        about = (self.producer_id, self.epoch, self.state, self.owner, parts, self.timeout_ms, self.until_ms)
        return SlotRecord(*about, self.principal)


def check_begin(asked: BeginTransaction, limits: TransactionSettings) -> None:
    """Check that owner, staged name and timeout of a request to begin a transaction are within the limits. Raises
    ``INVALID_TRANSACTION``."""
    if not asked.owner or max(len(asked.owner), len(asked.staged)) > MAX_NAME:
        raise refuse("INVALID_TRANSACTION", f"owner and staged are names of at most {MAX_NAME} characters")
    if not 1 <= asked.timeout_ms <= limits.timeout_max_ms:
        text = f"timeout_ms is {asked.timeout_ms}: it must be from 1 to {limits.timeout_max_ms}"
        raise refuse("INVALID_TRANSACTION", text)


def check_name(app: str) -> None:
    """Check that ``app`` is a valid transactional id: 1 to 249 of the characters that topic names may have. Raises
    ``INVALID_TRANSACTION``."""
    if not TOPIC_NAME.fullmatch(app):
        text = f"{app[:50]!r} is no name of an application: use 1 to 249 of A-Z a-z 0-9 . _ -"
        raise refuse("INVALID_TRANSACTION", text)


def check_owner(asked: CommitStaged, known: AppRecord) -> None:
    """Check that the application belongs to the owner that the staged names of a commit name. It belongs to the owner
    whose transactions it has committed last. If those named none, as an earlier release of the sink does, a batch
    that only another owner can send again is refused: number 0, and any but the latest. Does nothing if the request
    names no owner. Raises ``INVALID_TRANSACTION`` with the detail ``owner``."""
    mine = sorted({owner_of(name) for name in asked.staged} - {""})
    theirs = sorted({owner_of(name) for name in known.deciding} - {""})
    if mine and theirs and mine != theirs:
        text = f"application {asked.app} belongs to {', '.join(theirs)}, not to {', '.join(mine)}: use another name"
        raise refuse("INVALID_TRANSACTION", text, owner=theirs[0])
    if mine and not theirs and asked.batch in known.done and (asked.batch == 0 or asked.batch != known.done[-1]):
        text = f"batch {asked.batch} of application {asked.app} was committed by an owner that is not known"
        raise refuse("INVALID_TRANSACTION", f"{text}, perhaps not by {', '.join(mine)}: use another name", owner="")


def describe(
    asked: ListTransactions,
    slots: Iterable[TransactionMetadata],
    apps: Mapping[str, AppRecord],
    staged_timeout_ms: int,
) -> ListTransactionsAnswer:
    """Return the answer to ``ListTransactions``. If the request names an application: all its transactions with their
    partitions, and its committed batches. If it names a producer id: all transactions of that producer. Otherwise:
    one page of the transactions that have not ended, in the order of their names. All transactions of one application
    are on the same page."""
    if asked.producer_id and not asked.app:
        of = sorted((slot for slot in slots if slot.producer_id == asked.producer_id), key=lambda slot: slot.key)
        return ListTransactionsAnswer(tuple(_info(slot, staged_timeout_ms) for slot in of))
    found = sorted(slots, key=lambda slot: slot.key)
    if not asked.app:
        live = [slot for slot in found if slot.outcome in LIVE + ENDING and slot.app > asked.after]
        end = len(live) if not asked.most else min(asked.most, len(live))
        while 0 < end < len(live) and live[end].app == live[end - 1].app:
            end += 1
        return ListTransactionsAnswer(
            tuple(_info(slot, staged_timeout_ms) for slot in live[:end]), more=end < len(live)
        )
    known = apps.get(asked.app)
    mine = (slot for slot in found if slot.app == asked.app)
    infos = tuple(_info(slot, staged_timeout_ms, with_parts=True) for slot in mine)
    return ListTransactionsAnswer(infos, () if known is None else known.done)


def _info(slot: TransactionMetadata, staged_timeout_ms: int, with_parts: bool = False) -> TransactionInfo:
    """Return a transaction in the form in which messages carry it; with its partitions, and those without confirmed
    marker, if ``with_parts``."""
    parts = {} if slot.is_over else slot.parts
    return TransactionInfo(
        slot.app,
        slot.outcome,
        slot.producer_id,
        slot.epoch,
        slot.staged,
        len(parts),
        slot.since_ms(staged_timeout_ms),
        slot.until_ms if slot.state in LIVE else -1,
        topic_shares(parts) if with_parts else (),
        topic_shares(slot.left) if with_parts else (),
    )


def topic_shares(partitions: Iterable[TopicPartition]) -> tuple[TopicShare, ...]:
    """Return the partitions in the form in which messages carry them: numbers by topic, both in order."""
    return tuple(TopicShare(topic_id, numbers) for topic_id, numbers in shares_of(partitions).items())
