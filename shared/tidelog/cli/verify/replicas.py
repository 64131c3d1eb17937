"""``tidelog verify replicas``: whether the replicas of each partition hold the same batches on their disks, or, with
``--quick``, the same hash chains in memory."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict

import click
import trio

from tidelog.cli.completion import topic_names
from tidelog.cli.exit_status import FAILED
from tidelog.cli.explain.sentences import partition_of
from tidelog.cli.main import connect, gateway_option, run
from tidelog.cli.option_types import Quantity
from tidelog.cli.output import Table, list_output, print_for_programs, say
from tidelog.cli.progress import Bar, shown
from tidelog.client.admin.replica_comparison import Comparison
from tidelog.client.log import Log
from tidelog.errors import TidelogError, refuse
from tidelog.quantities import MIB_PER_S, counted
from tidelog.wire.messages import MetadataAnswer, TopicInfo

AT_ONCE = 8
"""Number of partitions that are compared at a time with ``--quick``."""

QUICK = (
    "This was the quick form: it compared what servers have in memory, and read nothing from their disks. Run it"
    " without --quick to read every copy."
)
"""Text that is printed after a comparison with ``--quick``."""

Found = tuple[TopicInfo, int, Comparison]
"""A topic, the number of its partition, and the result of the comparison."""


@click.command()
@click.argument("where", nargs=-1, metavar="[TOPIC[/PARTITION]]...", shell_complete=topic_names)
@click.option("--quick", is_flag=True, help="Read no disks: compare what servers have in memory, their hash chains.")
@click.option(
    "--rate",
    "mib_per_s",
    type=Quantity(MIB_PER_S, least=0),
    default="16MiB/s",
    show_default=True,
    help="Read so much of each copy of a partition, a number alone being MiB per second; 0: no limit.",
)
@list_output
@gateway_option
def replicas(where: tuple[str, ...], quick: bool, mib_per_s: float, output: str, gateways: tuple[str, ...]) -> None:
    """Compare the copies of all live replicas of each partition, of the topics or partitions named, or of all.

    Every server reads its copy from its disk and checks each batch; the batches of all copies are compared one by
    one, up to the smallest high watermark (of compacted batches only the original headers). With --quick no disk is
    read: the hash chains that servers have in memory are compared. Where copies differ, the output names the first
    offset, the digest of each copy, and the copies that differ from a majority of the replicas, if there is one.
    Where rules of access hold, this takes the right to read the topics, with --quick only the right to describe them.

    Exit code 0: all copies on live servers were compared to the end, and are the same; copies on servers that are
    down are only named. Exit code 1: copies differ, or one was not compared to the end."""

    async def task() -> list[Found]:
        async with connect(gateways) as log:
            metadata = await log.cluster.status()
            chosen = list(_chosen(metadata, where))
            if quick:
                return await _compare_all(log, metadata, chosen)
            return await _read_all(log, metadata, chosen, mib_per_s * (1 << 20))

    found = run(task)
    if not print_for_programs(output, _table(found), [{"quick": quick, **_as_json(*one)} for one in found]):
        _print(found, quick)
    if any(result.difference or result.unasked for _, _, result in found):
        sys.exit(FAILED)


def _chosen(metadata: MetadataAnswer, where: tuple[str, ...]) -> Iterable[tuple[TopicInfo, int]]:
    """Yield topic and number of each partition that the command's arguments name, or of all partitions if there are
    no arguments. Raises ``UNKNOWN_TOPIC`` for a topic or partition that does not exist."""
    by_name = {topic.name: topic for topic in metadata.topics}
    for text in where or sorted(by_name):
        name, number = partition_of(text) if "/" in text else (text, None)
        if name not in by_name:
            raise refuse("UNKNOWN_TOPIC", f"there is no topic {name}", topic=name)
        topic = by_name[name]
        if number is not None and number >= len(topic.partitions):
            raise refuse("UNKNOWN_TOPIC", f"{name} has partitions 0 to {len(topic.partitions) - 1}, not {number}")
        for partition in range(len(topic.partitions)) if number is None else (number,):
            yield topic, partition


async def _compare_all(log: Log, metadata: MetadataAnswer, chosen: list[tuple[TopicInfo, int]]) -> list[Found]:
    """Compare the hash chains that the live replicas of each partition have in memory, ``AT_ONCE`` partitions at a
    time. Returns the results in the order of ``chosen``. The result of a partition that could not be compared holds
    the reason."""
    live = {server.node for server in metadata.servers if not server.fenced}
    found: dict[tuple[str, int], Found] = {}
    limit = trio.CapacityLimiter(AT_ONCE)
    bar = Bar("comparing replicas' memory", len(chosen))
    with shown(bar):

        async def one(topic: TopicInfo, partition: int) -> None:
            async with limit:
                try:
                    result = await log.partitions.compare_replicas(topic, partition, live)
                except* TidelogError as errors:
                    result = Comparison((), unasked={"": str(errors.exceptions[0])})
                found[topic.name, partition] = topic, partition, result
                bar.advance()

        async with trio.open_nursery() as nursery:
            for topic, partition in chosen:
                nursery.start_soon(one, topic, partition)
    return [found[topic.name, partition] for topic, partition in chosen]


async def _read_all(
    log: Log, metadata: MetadataAnswer, chosen: list[tuple[TopicInfo, int]], max_bytes_per_s: float
) -> list[Found]:
    """Read the copies of each partition on the servers' disks and compare them, one partition after the other, so
    that each disk is read with at most ``max_bytes_per_s``. Returns the results in the order of ``chosen``. The
    result of a partition that could not be compared holds the reason."""
    live = {server.node for server in metadata.servers if not server.fenced}
    found: list[Found] = []
    sizes = await _records_of(log, chosen)
    bar = Bar("reading replicas' disks", sum(sizes))
    with shown(bar):
        for (topic, partition), size in zip(chosen, sizes, strict=True):
            done = bar.done
            try:
                result = await log.partitions.compare_copies(topic, partition, live, max_bytes_per_s, bar.advance)
            except* TidelogError as errors:
                result = Comparison((), unasked={"": str(errors.exceptions[0])})
            found.append((topic, partition, result))
            bar.update(done=done + size)
    return found


async def _records_of(log: Log, chosen: list[tuple[TopicInfo, int]]) -> list[int]:
    """Ask the cluster how many records each partition has, and return the numbers in the order of ``chosen``, for the
    progress bar; 0 for a partition whose leader does not answer."""
    known = {topic.topic_id: topic for topic in (await log.cluster.status(offsets=True)).topics}
    sizes = []
    for topic, partition in chosen:
        info = known.get(topic.topic_id, topic).partitions[partition]
        sizes.append(max(0, info.high_watermark - max(0, info.log_start)))
    return sizes


def _as_json(topic: TopicInfo, partition: int, result: Comparison) -> dict[str, object]:
    odd = result.odd_ones(topic.partitions[partition].replicas)
    return {"topic": topic.name, "partition": partition, "odd": odd, **asdict(result)}


def _table(found: list[Found]) -> Table:
    """Return the table of the partitions for programs: offsets compared, whether the copies differ, and which were
    not compared to the end."""
    table = Table("partition", "compared", "start", "end", "differ", "odd", "unasked", "bytes_read")
    for topic, partition, result in found:
        odd = result.odd_ones(topic.partitions[partition].replicas)
        differ, unasked = result.difference is not None, list(result.unasked)
        place = f"{topic.name}/{partition}"
        table.add(place, result.compared, result.start, result.end, differ, odd, unasked, result.bytes_read)
    return table


def _print(found: list[Found], quick: bool) -> None:
    """Print for each partition how its copies differ, and which copies were not compared and why; then the totals."""
    records = 0
    for topic, partition, result in found:
        name = f"{topic.name}/{partition}"
        records += result.end - result.start
        for node, reason in result.unasked.items():
            say(f"{name}: {node or 'a replica'} was not compared to the end: {reason}")
        info = topic.partitions[partition]
        if down := [n for n in (*info.replicas, *info.learners) if n not in {*result.compared, *result.unasked}]:
            say(f"{name}: {', '.join(down)} down, not compared")
        difference = result.difference
        if difference is not None:
            place = "somewhere below" if difference.below else "from"
            say(f"{name}: replicas differ {place} offset {difference.offset}")
            for node, side in difference.sides.items():
                say(f"  {node}: {side.chain} at {side.end}")
            if odd := result.odd_ones(info.replicas):
                say(f"  the odd copy is on {', '.join(odd)}: 'tidelog servers scrub' has it fetched again")
    differing = sum(result.difference is not None for _, _, result in found)
    verdict = f"{differing} of {len(found)} partitions differ" if differing else "no difference"
    if partly := sum(bool(result.unasked) for _, _, result in found):
        verdict += f" in what was compared; {partly} of {len(found)} partitions not compared in full"
    else:
        verdict += f"; {counted(len(found), 'partition')}"
    say(f"{verdict}, {records:,} records compared")
    if quick:
        say(QUICK)
        return
    say(f"{sum(result.bytes_read for _, _, result in found):,} bytes were read from the disks of all copies")
    if thinned := sum(result.thinned for _, _, result in found):
        say(f"of {thinned:,} compacted batches only the original headers were compared")
