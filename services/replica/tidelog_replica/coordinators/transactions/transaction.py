"""One transaction, as its coordinator has it, and as it travels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.errors import refuse
from tidelog.types import TOPIC_NAME, TopicPartition
from tidelog.wire.messages import (
    BeginTransaction,
    ListTransactions,
    ListTransactionsAnswer,
    TopicShare,
    TransactionInfo,
)

from tidelog_replica.config import TransactionSettings
from tidelog_replica.coordinators.groups.records import shares_of
from tidelog_replica.coordinators.transactions.records import AppRecord, SlotRecord

MAX_STAGED = 2000
"""Most staged transactions in one commit."""
MAX_NAME = 249
LIVE = ("open", "prepared")
ENDED = {"committing": "committed", "aborting": "aborted"}
"""What becomes of a transaction that is at its end, by its state."""
ENDING = tuple(ENDED)


class Marker(NamedTuple):
    """A leader is to get a marker."""

    app: str
    staged: str
    partition: TopicPartition
    producer_id: int
    epoch: int
    commit: bool


@dataclass(slots=True, eq=False)
class TransactionMetadata:
    """A transaction. ``parts``: its partitions, in the order in which they were enrolled."""

    app: str
    staged: str
    producer_id: int
    epoch: int
    state: str
    owner: str
    timeout_ms: int
    until_ms: int
    expires_at: float = 0.0
    """The same in the own time."""
    parts: dict[TopicPartition, None] = field(default_factory=dict)
    left: dict[TopicPartition, None] = field(default_factory=dict)
    """Those whose leaders are not known to have the marker in their committed logs."""
    asked: dict[TopicPartition, None] = field(default_factory=dict)
    """Of those: the ones to which a marker is on its way."""
    decided_at: int | None = None
    """Where the decision ends in the log; None: it is not written yet."""
    is_decided: bool = False
    """The decision is known to be committed."""
    principal: str = ""
    """The principal that began it."""

    @property
    def key(self) -> tuple[str, str]:
        """How it is found."""
        return self.app, self.staged

    @property
    def is_over(self) -> bool:
        """Every leader has the marker, and nothing is left to do but to write that down."""
        return self.is_decided and self.state in ENDING and not self.left

    @property
    def outcome(self) -> str:
        """Its state. A transaction whose markers are all in counts as ended, though that is not written yet."""
        return ENDED[self.state] if self.is_over else self.state

    def decide(self, state: str, wall_ms: int) -> None:
        """It ends, for good; nothing of that is written yet."""
        self.state, self.left, self.until_ms = state, dict(self.parts), wall_ms
        self.decided_at, self.is_decided = None, False

    def since_ms(self, staged_timeout_ms: int) -> int:
        """Wall clock: since when it is in its state."""
        patience_ms = {"open": self.timeout_ms, "prepared": staged_timeout_ms}
        return max(-1, self.until_ms - patience_ms.get(self.state, 0))

    def record(self) -> SlotRecord:
        """As it is written."""
        parts = shares_of(self.parts)
        about = (self.producer_id, self.epoch, self.state, self.owner, parts, self.timeout_ms, self.until_ms)
        return SlotRecord(*about, self.principal)


def check_begin(asked: BeginTransaction, limits: TransactionSettings) -> None:
    """What a transaction asks for is within the bounds. Raises ``INVALID_TRANSACTION``."""
    if not asked.owner or max(len(asked.owner), len(asked.staged)) > MAX_NAME:
        raise refuse("INVALID_TRANSACTION", f"owner and staged are names of at most {MAX_NAME} characters")
    if not 1 <= asked.timeout_ms <= limits.timeout_max_ms:
        text = f"timeout_ms is {asked.timeout_ms}: it must be from 1 to {limits.timeout_max_ms}"
        raise refuse("INVALID_TRANSACTION", text)


def check_name(app: str) -> None:
    """An application's name: as a topic's."""
    if not TOPIC_NAME.fullmatch(app):
        text = f"{app[:50]!r} is no name of an application: use 1 to 249 of A-Z a-z 0-9 . _ -"
        raise refuse("INVALID_TRANSACTION", text)


def describe(
    asked: ListTransactions,
    slots: Iterable[TransactionMetadata],
    apps: Mapping[str, AppRecord],
    staged_timeout_ms: int,
) -> ListTransactionsAnswer:
    """What ``list_transactions`` is answered."""
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
        told_shares(parts) if with_parts else (),
        told_shares(slot.left) if with_parts else (),
    )


def told_shares(partitions: Iterable[TopicPartition]) -> tuple[TopicShare, ...]:
    """Partitions as messages name them, in order."""
    return tuple(TopicShare(topic_id, numbers) for topic_id, numbers in shares_of(partitions).items())
