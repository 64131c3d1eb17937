"""The transaction of a task stays open for as long as the task makes progress.

The cluster aborts a transaction whose time-out is over, so that readers do not wait for a task that was killed. A
task with much to send takes longer than that. It renews the transaction while rows come from Spark and batches are
acknowledged, up to the bound of the cluster. A task that waits for either, or that was killed, renews nothing."""

from __future__ import annotations

from collections.abc import Callable

import trio

from tidelog.client.transactions import Transaction
from tidelog.errors import TidelogError

ENDED = ("TRANSACTION_ABORTED", "UNKNOWN_TRANSACTION", "FENCED_PRODUCER")
"""Errors by which the cluster says that a transaction is not open any more."""
ROUNDS = 3
"""How often in the time of its time-out a transaction is renewed."""


async def keep_open(transaction: Transaction, timeout_s: float, progress: Callable[[], int]) -> None:
    """Renew the transaction, whose time-out is ``timeout_s`` seconds, as long as the number that ``progress`` returns
    has changed each time. Runs until it is cancelled, or until the transaction cannot be renewed: then the task's
    next request fails, or the gateway is of an earlier release. An error that may pass is ignored until the next
    round."""
    seen = 0
    while True:
        await trio.sleep(timeout_s / ROUNDS)
        if progress() == seen:
            continue
        seen = progress()
        try:
            await transaction.renew()
        except TidelogError as error:
            if not error.retriable:
                return


def explain_end(timeout_s: float) -> str:
    """Return the sentence that is added to an error of ``ENDED``: why the transaction may have ended, and which
    options and settings to change."""
    return (
        "The transaction of this task has ended. Either the task made no progress for transactionTimeout "
        f"({timeout_s:g} s), waiting for rows of the step before or for the cluster, or it was open for longer than "
        "settings.transactions.open_max_ms allows, or the batch was committed or given up without it. Give a longer "
        "transactionTimeout, or smaller batches (maxOffsetsPerTrigger, more tasks)"
    )
