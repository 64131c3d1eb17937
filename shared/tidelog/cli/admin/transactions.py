"""``tidelog transactions …``: shows, aborts and settles open transactions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from tidelog.cli.completion import places
from tidelog.cli.explain.sentences import partition_of
from tidelog.cli.main import connect, gateway_option, run
from tidelog.cli.output import WIDE, Cell, Column, Table, list_output, print_for_programs, say, show

if TYPE_CHECKING:
    from tidelog.wire.messages import ListTransactionsAnswer, TopicShare, TransactionInfo

SECONDS = 1000
"""Milliseconds of a second."""


@click.group()
def transactions() -> None:
    """List, describe, abort and settle transactions."""


@transactions.command("list")
@list_output
@gateway_option
def list_transactions(output: str, gateways: tuple[str, ...]) -> None:
    """List the transactions of all applications that have not ended, those that hold readers up longest first. State:
    'open'; 'prepared' (staged, and waits to be committed with others); 'committing' and 'aborting' (decided, and a
    leader has not taken the marker yet: one that stays so has a partition without a leader)."""

    async def task() -> tuple[TransactionInfo, ...]:
        async with connect(gateways) as log:
            return await log.transactions.list()

    found = sorted(run(task), key=lambda info: (info.since_ms, info.app, info.staged))
    show(output, _table(found), [_document(info) for info in found])


@dataclass(frozen=True, slots=True)
class _Described:
    """The transactions of one application, and the name by id of every topic, for the command ``describe``."""

    answer: ListTransactionsAnswer
    topics: dict[str, str]


@transactions.command()
@click.argument("app")
@list_output
@gateway_option
def describe(app: str, output: str, gateways: tuple[str, ...]) -> None:
    """Show the transactions of an application: its last one, the staged ones, the partitions that they have written
    to, and the newest batches of staged ones that it has committed."""

    async def task() -> _Described:
        async with connect(gateways) as log:
            answer = await log.transactions.describe(app)
            return _Described(answer, {topic.topic_id: topic.name for topic in await log.topics.list()})

    found = run(task)
    answer, names = found.answer, found.topics
    table = _table(answer.transactions)
    rows = [
        _document(info) | {"parts": _named(info.parts, names), "pending": _named(info.pending, names)}
        for info in answer.transactions
    ]
    if print_for_programs(output, table, {"app": app, "transactions": rows, "batches": answer.batches}):
        return
    if not answer.transactions and not answer.batches:
        say(f"{app} has no transactions, or none for long")
        return
    table.print(wide=output == WIDE)
    for info in answer.transactions:
        if info.parts:
            say(f"{info.staged or info.app} has written to {' '.join(_named(info.parts, names))}")
        if info.pending:
            say(f"{info.staged or info.app} has yet to be ended in {' '.join(_named(info.pending, names))}")
    if answer.batches:
        newest = " ".join(map(str, answer.batches[-10:]))
        say(f"committed batches: {newest}" if len(answer.batches) <= 10 else f"newest batches: {newest}")


@transactions.command()
@click.argument("app")
@click.option("--staged", multiple=True, metavar="ID", help="This one, which it has staged; repeatable.")
@gateway_option
def abort(app: str, staged: tuple[str, ...], gateways: tuple[str, ...]) -> None:
    """Abort the open transaction of an application; with --staged, its staged transactions. Committed ones stay
    committed. The program gets an error at its next record or its commit, and may begin another transaction."""

    async def task() -> bool:
        async with connect(gateways) as log:
            if not staged:
                return await log.transactions.abort(app)
            there = {info.staged for info in (await log.transactions.describe(app)).transactions if info.staged}
            await log.abort(app, staged)
            return there.issuperset(staged)

    if run(task):
        say(f"aborted {' '.join(staged) or f'the transaction of {app}'}")
    else:
        raise click.ClickException(f"{app} has no such transaction" if staged else f"{app} has no open transaction")


@transactions.command()
@click.argument("where", metavar="TOPIC/PARTITION", shell_complete=places)
@click.option(
    "--producer", type=click.IntRange(1), required=True, help="Its producer id, as 'tidelog doctor' names it."
)
@click.option("--epoch", type=click.IntRange(0, 65535), required=True, help="Its producer epoch.")
@click.option("--commit/--abort", "commit", required=True, default=None, help="Whether its records become visible.")
@gateway_option
def settle(where: str, producer: int, epoch: int, commit: bool, gateways: tuple[str, ...]) -> None:
    """End a transaction that no coordinator has, in one partition where readers of committed records wait for it.

    'tidelog doctor' finds such transactions. The transaction may be committed in other partitions, and its program
    may know that: choose --commit then, so that all partitions show the whole transaction. This cannot be undone."""
    name, number = partition_of(where)

    async def task() -> None:
        async with connect(gateways) as log:
            await log.transactions.settle(name, number, producer, epoch, commit=commit)

    run(task)
    say(f"{where}: the transaction of producer {producer} is {'committed' if commit else 'aborted'}")


def _document(info: TransactionInfo) -> dict[str, object]:
    """Return the state of a transaction as an object for JSON, without the partitions that it has written to."""
    return {name: value for name, value in asdict(info).items() if name not in ("parts", "pending")}


def _named(shares: Iterable[TopicShare], names: dict[str, str]) -> list[str]:
    """Return the partitions of ``shares`` as texts ``TOPIC/NUMBER``. ``names`` is topic id -> name; a deleted topic
    is shown by its id."""
    return [f"{names.get(share.topic_id, share.topic_id)}/{p}" for share in shares for p in share.partitions]


def _table(found: Iterable[TransactionInfo]) -> Table:
    """Return the table of transactions: state, for how long they have been in it, when they will be aborted, and
    producer. The name of a row is that of the application."""
    now_ms = datetime.now(UTC).timestamp() * SECONDS
    table = Table(
        Column("application", "app"),
        Column("staged as", "staged"),
        "state",
        Column("for", "since_ms"),
        Column("aborted in", "until_ms"),
        "partitions",
        Column("producer id", wide=True),
        Column("producer epoch", wide=True),
    )
    for info in found:
        since = Cell(info.since_ms, _span(now_ms - info.since_ms if info.since_ms >= 0 else -1))
        until = Cell(info.until_ms, _span(info.until_ms - now_ms if info.until_ms >= 0 else -1))
        staged = Cell(info.staged, info.staged or "-")
        table.add(info.app, staged, info.state, since, until, info.partitions, info.producer_id, info.producer_epoch)
    return table


def _span(ms: float) -> str:
    """Return a number of milliseconds as text in seconds, such as ``1.5 s``; "-" if the number is negative."""
    return f"{ms / SECONDS:.1f} s" if ms >= 0 else "-"
