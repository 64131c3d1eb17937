"""Transactions as they travel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidelog.types import TopicPartition
from tidelog.wire.messages import ListTransactions, ListTransactionsAnswer, TopicShare, TransactionInfo

from tidelog_replica.coordinators.groups.records import shares_of
from tidelog_replica.coordinators.transactions.records import AppRecord
from tidelog_replica.coordinators.transactions.transaction import ENDING, LIVE, Slot


def tell(
    asked: ListTransactions, slots: Iterable[Slot], apps: Mapping[str, AppRecord], staged_timeout_ms: int
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


def _info(slot: Slot, staged_timeout_ms: int, with_parts: bool = False) -> TransactionInfo:
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
    return tuple(TopicShare(topic_id, tuple(numbers)) for topic_id, numbers in shares_of(partitions).items())
