"""Findings about transactions for which readers wait."""

from __future__ import annotations

from tidelog.cli.explain.findings.finding import NOTE, PROBLEM, WARNING, Finding
from tidelog.cli.explain.findings.snapshot import WaitingReaders
from tidelog.cli.explain.sentences import clock_time
from tidelog.quantities import counted

LONG_TRANSACTION_MS = 60_000
"""Milliseconds for which a transaction may hold up readers without a warning: the time-out of a transaction that sets
none."""
HANGING = (
    "Find out whether its program was told that it is committed; then 'tidelog transactions settle WHERE --commit',"
    " or --abort. docs/transactions.md, A transaction that no coordinator has, says more."
)
"""Next step for a transaction that no coordinator has."""


def examine_wait(one: WaitingReaders) -> Finding:
    """Return the finding for a partition whose readers wait for a transaction. Its level depends on who can end the
    transaction: a problem if nobody does, or if the leader does not take the marker."""
    stable, known, about = one.stable, one.transaction, (one.partition,)
    age = f"at least {_span(stable.age_ms)}"  # each leader measures it anew
    since = f"{one.partition}: readers of what is committed have waited at {stable.offset} for {age}"
    evidence = _waiting(one)
    whose = f"of producer {stable.producer_id} epoch {stable.producer_epoch}"
    if stable.producer_epoch < 0:
        what = f"{since}: the end of the transaction of producer {stable.producer_id} is written, and not committed"
        return Finding(
            WARNING,
            what,
            f"'tidelog why {one.partition}' says which replicas {one.leader} waits for.",
            "transaction-end-uncommitted",
            about,
            evidence,
        )
    if known is None:
        what = f"{since}: for a transaction {whose} that no coordinator has, so nothing will end it"
        place = f"{one.partition} --producer {stable.producer_id} --epoch {stable.producer_epoch}"
        return Finding(PROBLEM, what, HANGING.replace("WHERE", place), "transaction-hanging", about, evidence)
    named = f"the {'staged ' * bool(known.staged)}transaction of {known.app} ({whose[3:]})"
    if known.state in ("committing", "aborting"):
        what = f"{since}: {named} is {known.state}, and {one.leader} has not taken the marker yet"
        return Finding(
            PROBLEM,
            what,
            f"The coordinator goes on trying: see the log of {one.leader}, and its disk.",
            "transaction-marker-not-taken",
            about,
            evidence,
        )
    level = NOTE if stable.age_ms < LONG_TRANSACTION_MS else WARNING
    how = f" --staged {known.staged}" if known.staged else ""
    step = f"It is aborted when its time is over; 'tidelog transactions abort {known.app}{how}' does so now."
    return Finding(level, f"{since}: {named} is {known.state}", step, "last-stable-offset-held", about, evidence)


def _span(ms: int) -> str:
    """Return a number of milliseconds as text, in seconds or minutes."""
    return f"{ms / 1000:.0f} s" if ms < 120_000 else f"{ms / 60_000:.0f} min"


def _waiting(one: WaitingReaders) -> str:
    """Return how many records readers do not get, and until when the transaction may stay open."""
    seen: list[str] = []
    if one.records >= 0:
        are = "is" if one.records == 1 else "are"
        seen.append(f"{counted(one.records, 'record')} up to the high watermark {are} not shown to them")
    if one.transaction is not None and one.transaction.since_ms > 0:
        begun = clock_time(one.transaction.since_ms)
        until = one.transaction.until_ms
        ends = f", to be aborted at {clock_time(until)}" if until > 0 else ""
        where = counted(one.transaction.partitions, "partition")
        seen.append(f"{one.transaction.state} since {begun}{ends}, in {where}")
    return "; ".join(seen)
