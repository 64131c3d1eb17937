"""``tidelog why``: the answer to a question about a partition, a record, or what a client met."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.completion import places
from tidelog.cli.explain.describe import at_option, entries_of, history_at
from tidelog.cli.explain.sentences import change_in_words, clock, event_in_words
from tidelog.cli.main import connect, gateway_option, run
from tidelog.cli.output import Table, print_for_programs, rows_output, say
from tidelog.wire.messages import HistoryEntry

if TYPE_CHECKING:
    from tidelog.explain.explanation import Explanation


@click.command()
@click.argument("question", metavar="QUESTION...", nargs=-1, required=True, shell_complete=places)
@at_option
@rows_output
@gateway_option
def why(question: tuple[str, ...], at: datetime | None, output: str, gateways: tuple[str, ...]) -> None:
    """Explain what happened: QUESTION names a partition, a record, or what was met.

    \b
    QUESTION is
    - orders/0: a partition. Every change of its leader, in-sync set and
      settings, every loss and refusal, oldest first, with cause and evidence;
      with --at up to a moment, from the timeline of the cluster;
    - orders/0@1234: a record. Who sent it, when, where it is durable, who has
      read it;
    - gap orders/0@7: a gap. Why readers get no record from offset 7 on;
    - duplicate orders/0@7 orders/0@9: whether two records are duplicates, and
      how that came about;
    - slow orders, or slow orders/0: slow acks. Which station takes the time;
    - group billing: a lag. Which member and partition, since when, and what
      the group waits for;
    - g1-692b1c40-9f86d081884c7d65: a refusal, by the id that the error shows. The facts
      that decided.

    \b
    tidelog why orders/0
    tidelog why orders/0 --at -2h
    """
    from tidelog.explain.questions import PartitionQuestion, answer_question, parse_question

    asked = parse_question(question)
    if isinstance(asked, PartitionQuestion):
        _explain_partition(asked.topic, asked.partition, at, output, gateways)
        return
    if at is not None:
        raise click.UsageError("--at goes with TOPIC/PARTITION only")

    async def task() -> Explanation:
        async with connect(gateways, operator=True) as log:
            return await answer_question(log, asked, lambda url: connect((url,), operator=True))

    print_explanation(run(task), output)


def print_explanation(found: Explanation, output: str) -> None:
    """Print an answer in the format ``output``: as a document, as rows of kind and text, or as lines for people."""
    table = Table("kind", "text")
    for kind, texts in (("sentence", found.sentences), ("unknown", found.unknown), ("next_step", found.next_steps)):
        for text in texts:
            table.add(kind, text)
    if print_for_programs(output, table, found.as_document()):
        return
    for text in found.sentences:
        say(text)
    for text in found.unknown:
        say(f"Not known: {text}")
    for text in found.next_steps:
        say(f"Next: {text}")


def _explain_partition(name: str, number: int, at: datetime | None, output: str, gateways: tuple[str, ...]) -> None:
    """Print the history of a partition: as the controllers remember it, or up to the moment ``at`` from the
    timeline."""
    words: list[str] = []
    if at is not None:
        chain, warning = history_at(name, number, at, gateways)
        entries: Any = entries_of(chain)
        words = [record["words"] for record in chain]
        if warning:
            say(warning, err=True)
    else:

        async def task() -> Any:
            async with connect(gateways, operator=True) as log:
                return await log.partitions.history(name, number)

        entries = run(task)
    _print_history(entries, words, output)


def _print_history(entries: list[HistoryEntry], words: list[str], output: str) -> None:
    """Print the entries of a partition's history, oldest first, in the format ``output``. ``words`` has the sentence
    of the timeline for each entry; if it is empty, sentences are made of the entries."""
    rows = [
        {
            "time": datetime.fromtimestamp(e.time_ms / 1000, UTC).isoformat(timespec="milliseconds"),
            "epoch": e.epoch,
            "leader_epoch": e.leader_epoch,
            "event": e.event,
            "leader": e.leader,
            "isr": list(e.isr),
            "cause": e.cause,
            "evidence": e.evidence,
            **({"words": words[i]} if words else {}),
        }
        for i, e in enumerate(entries)
    ]
    columns = ("time", "epoch", "leader_epoch", "event", "leader", "isr", "cause", "evidence")
    table = Table(*columns, *(("words",) if words else ()))
    for row in rows:
        table.add(*row.values())
    if print_for_programs(output, table, rows):
        return
    for i, e in enumerate(entries):
        if e.event == "refused":
            say(f"{clock(e)}  refused: {words[i] if words else event_in_words(e)}")
            continue
        in_sync = " ".join(e.isr) or "nobody"
        eligible = f", eligible {e.evidence['elr']}" if e.evidence.get("elr") else ""
        say(
            f"{clock(e)}  epoch {e.epoch}, leader {e.leader or 'none'} ({e.leader_epoch}), "
            f"in sync {in_sync}{eligible}"
        )
        evidence = "; ".join(f"{key} {value or '-'}" for key, value in e.evidence.items())
        say(f"              {e.event}: {e.cause}" + (f" [{evidence}]" if evidence else ""))
        before = next((b for b in reversed(entries[:i]) if b.event != "refused"), None)
        say(f"              {words[i] if words else event_in_words(e) or change_in_words(e, before)}")
