"""Incidents of transactions that do not end."""

from __future__ import annotations

import trio
from incidents.incident import Incident
from incidents.stage import Stage

OPEN_S = 600.0


async def leave_open(stage: Stage) -> None:
    """Begin a transaction, send into it, and do nothing more, as a program that waits for another service."""
    app = stage.facts["transaction"] = (
        f"{stage.random.choice(('billing', 'export', 'sync'))}-{stage.random.randrange(90)}"
    )
    partition = stage.random.randrange(len((await stage.log.topics.describe(stage.topic)).partitions))
    sent = trio.Event()

    async def work() -> None:
        async with stage.connect() as log, log.transaction(app, timeout_s=OPEN_S) as transaction:
            await transaction.send(stage.topic, b"{}", partition=partition)
            sent.set()
            await trio.sleep_forever()

    stage.begin("transaction", work)
    await sent.wait()


async def abort(stage: Stage) -> None:
    """End the program, and abort what it left."""
    await stage.end("transaction")
    await stage.log.transactions.abort(stage.facts["transaction"])


STANDS = "Consumers of a topic do not get beyond one offset, while records come in."
DIFFER = "Two consumers of one partition report different sums."
INCIDENTS = (
    Incident(
        name="stuck-stable-offset",
        symptom=STANDS,
        cause="last-stable-offset-held",
        plant=leave_open,
        mend=abort,
        twin="poison-batch",
        strikes=frozenset({"transactions", "group"}),
        metric="tidelog_replica_stable_offset_age_seconds",
        alert="TidelogStableOffsetStands",
    ),
    Incident(
        name="isolation-differs",
        symptom=DIFFER,
        cause="last-stable-offset-held",
        plant=leave_open,
        mend=abort,
        strikes=frozenset({"transactions", "group"}),
        alert="TidelogStableOffsetStands",
    ),
)
