"""Bounds and times of the coordinator of transactions."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.config import setting


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Every setting's meaning and range is in its metadata."""

    timeout_max_ms: int = setting(
        900_000, "Longest time-out of a transaction: readers may have to wait so long for it.", 10, 86_400_000
    )
    staged_timeout_ms: int = setting(
        3_600_000,
        "A staged transaction that is prepared, and that nobody commits for so long, is aborted.",
        10,
        1 << 50,
    )
    retention_ms: int = setting(
        604_800_000,
        "An application that had no transaction and began no numbered batch for so long is forgotten.",
        10,
        1 << 50,
    )
    visible_wait_ms: int = setting(
        2000,
        "The answer to a commit waits so long for its markers, then it names the partitions without one.",
        0,
        2500,
    )
    retry_ms: int = setting(100, "Pause before a leader that did not answer is told again.", 1, 60_000)
    max_transactions: int = setting(
        10_000, "Most transactions and applications of one partition of __transactions.", 1, 1 << 20
    )
    principal_max_applications: int = setting(
        2000, "Most applications of one partition of __transactions that one principal has begun.", 1, 1 << 20
    )
    principal_max_open: int = setting(
        5000, "Most transactions of one partition of __transactions that one principal has open.", 1, 1 << 20
    )
    max_partitions: int = setting(1000, "Most partitions of one transaction.", 1, 1 << 16)
    batches_kept: int = setting(
        100, "Of so many batches of an application is known, one by one, that they are committed.", 1, 10_000
    )
