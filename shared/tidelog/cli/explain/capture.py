"""``tidelog capture``: saves the observable state of a cluster in one file, for a bug report or a replay."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import click
import trio

from tidelog.captures import Capture, redact
from tidelog.cli.command_group import CommandGroup
from tidelog.cli.explain.doctor import NO_RIGHT
from tidelog.cli.explain.findings.diagnosis import examine
from tidelog.cli.explain.findings.snapshot import ClusterSnapshot
from tidelog.cli.main import connect, gateway_option, run
from tidelog.cli.output import Table, names_output, print_for_programs, print_json, say
from tidelog.client.log import Log
from tidelog.errors import ConfigError, TidelogError
from tidelog.quantities import counted
from tidelog.timeline.records import decode
from tidelog.types import TIMELINE
from tidelog.wire.messages import FeaturesAnswer, MetadataAnswer, QuorumAnswer

PART_S = 60.0
"""Longest time in seconds that one part of a capture may take."""


class _WithDefault(CommandGroup):
    """The command group ``tidelog capture``. A file name in place of a sub-command means ``tidelog capture take
    FILE``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in ("--help", "-h") and not self.commands.keys() & set(args):
            args = ["take", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_WithDefault)
def capture() -> None:
    """Save the visible state of a cluster to one file, or show such a file.

    'tidelog capture FILE' is short for 'tidelog capture take FILE'. A capture has the names of topics, clients and
    machines, and no records of topics. The simulation can replay it: docs/capture.md."""


@capture.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--config",
    "configs",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="A process's configuration, to be put in without its secrets; may be given several times.",
)
@gateway_option
def take(file: Path, configs: tuple[Path, ...], gateways: tuple[str, ...]) -> None:
    """Write a capture: versions, feature levels, metadata with the settings of topics, controllers, the whole
    timeline, digests of all replicas' logs, metrics, doctor's findings.

    Parts that cannot be had (servers that are down, rights that are missing) are named in it. Exit code 0: it was
    written."""
    if file.is_dir() or not file.resolve().parent.is_dir():
        raise ConfigError(f"{file}: there is no such folder")
    taking = _Taking()

    async def task() -> None:
        async with connect(gateways, operator=True) as log:
            await taking.run(log)

    run(task)
    taking.parts["configuration"] = {str(path): redact(path.read_text(errors="replace")) for path in configs}
    Capture({"taken_ms": time.time_ns() // 1_000_000, "missing": taking.missing}, taking.parts).save(file)
    say(f"{file}: {file.stat().st_size:,} bytes; 'tidelog capture show {file}' tells what is in it")
    for name, why in taking.missing.items():
        say(f"missing: {name}: {why}", err=True)


class _Taking:
    """The collection of one capture. ``parts`` has the answers of the cluster by name of the part, and ``missing``
    the reason for each part that could not be collected. ``barred`` are the parts to which this client has no
    right."""

    def __init__(self) -> None:
        self.parts: dict[str, Any] = {}
        self.missing: dict[str, str] = {}
        self.barred: set[str] = set()

    async def run(self, log: Log) -> None:
        """Ask the cluster for every part, one after the other, and fill ``parts`` and ``missing``. Raises the
        client's error only if the metadata cannot be read; without them there is no capture."""
        metadata = await log.cluster.status()
        self.parts["metadata"] = _plain(metadata)
        quorum: QuorumAnswer | None = await self._take("controllers", log.cluster.quorum)
        features: FeaturesAnswer | None = await self._take("features", log.cluster.features)
        pages = await self._take("metrics", lambda: self._metrics(log, metadata, quorum)) or {}
        await self._take("digests", lambda: self._digests(log, metadata))
        await self._take("timeline", lambda: _timeline(log))
        if "controllers" in self.barred:  # the doctor would take what it may not see for what is not there
            self.missing["doctor"] = self.missing["controllers"]
            return
        versions = {node: page["version"] for node, page in pages.items()}
        view = ClusterSnapshot(metadata, quorum, versions=versions, features=features)
        self.parts["doctor"] = [asdict(finding) for finding in examine(view)]

    async def _take(self, name: str, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Ask for one part by calling ``ask``, store the answer as JSON values in ``parts``, and return it. If that
        fails or takes longer than ``PART_S``, store the reason in ``missing`` and return None."""
        try:
            with trio.fail_after(PART_S):
                answer = await ask()
        except trio.TooSlowError:
            self.missing[name] = f"no answer within {PART_S:.0f} s"
            return None
        except TidelogError as error:
            self.missing[name] = str(error)
            if error.code in NO_RIGHT:
                self.barred.add(name)
            return None
        self.parts[name] = _plain(answer)
        return answer

    async def _metrics(self, log: Log, metadata: MetadataAnswer, quorum: QuorumAnswer | None) -> dict[str, Any]:
        """Ask the live servers, the active controller and the gateway for their metrics page, version and clock, and
        return these by process name. A process that does not answer is added to ``missing``."""
        nodes = [server.node for server in metadata.servers if not server.fenced]
        nodes += [quorum.active] if quorum is not None and quorum.active else []
        pages = {}
        for node in (*nodes, ""):
            try:
                pages[node or "gateway"] = _plain(await log.cluster.metrics(node))
            except TidelogError as error:
                self.missing[f"metrics of {node or 'the gateway'}"] = str(error)
        return pages

    async def _digests(self, log: Log, metadata: MetadataAnswer) -> dict[str, Any]:
        """Compare the logs of the live replicas of every partition. Returns, by partition, the result and the bounds,
        leader epochs and hash chain of each replica's log. A partition that cannot be compared is added to
        ``missing``."""
        live = {server.node for server in metadata.servers if not server.fenced}
        digests: dict[str, Any] = {}
        for topic in metadata.topics:
            for info in topic.partitions:
                name = f"{topic.name}/{info.partition}"
                try:
                    same = await log.partitions.compare_replicas(topic, info.partition, live)
                    copies = {}
                    for node in same.compared:
                        digest = await log.partitions.digest(topic.topic_id, info.partition, node, (same.end,))
                        copies[node] = _plain(digest)
                    digests[name] = {"comparison": _plain(same), "replicas": copies}
                except* TidelogError as errors:
                    self.missing[f"digests of {name}"] = str(errors.exceptions[0])
        return digests


async def _timeline(log: Log) -> list[dict[str, Any]]:
    """Read the whole timeline topic, and return its records as maps, oldest first. Records in a format that this
    release does not know are left out."""
    records = []
    async for record in log.consume(TIMELINE, start="earliest", end="latest"):
        document = decode(record.value)
        if document is not None:
            records.append(document)
    return records


def _plain(value: Any) -> Any:
    """Return an answer of the cluster as a value that JSON can hold: dataclasses become maps, tuples lists, and bytes
    hexadecimal text."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(one) for name, one in asdict(value).items()}
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    return value


@capture.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--part", metavar="NAME", help="Print this part, whole, as JSON.")
@names_output
def show(file: Path, part: str | None, output: str) -> None:
    """Print what a capture holds: cluster, versions, level, findings, replicas that differ, the last events. -o names
    prints the names of its parts."""
    found = Capture.load(file)
    if part is not None:
        print_json(found.part(part))
        return
    table = Table("part")
    for name in sorted(found.parts):
        table.add(name)
    if print_for_programs(output, table, {"head": found.head, "parts": sorted(found.parts)}):
        return
    for line in _lines(found):
        say(line)


LAST_EVENTS = 10
"""Number of events that ``show`` prints."""


def _lines(found: Capture) -> list[str]:
    """Return a summary of a capture, one sentence in each line, for ``tidelog capture show``."""
    metadata = found.part("metadata")
    partitions = sum(len(topic["partitions"]) for topic in metadata["topics"])
    taken = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(found.head["taken_ms"] / 1000))
    lines = [f"cluster {metadata['cluster']}, taken {taken}; parts: {', '.join(sorted(found.parts))}"]
    servers = sorted(f"{s['node']}{' (down)' if s['fenced'] else ''}" for s in metadata["servers"])
    size = f"{counted(len(metadata['topics']), 'topic')}, {counted(partitions, 'partition')}"
    lines.append(f"servers {', '.join(servers)}; {size}")
    if "controllers" in found.parts:
        group = found.parts["controllers"]
        names = ", ".join(one["node"] for one in group["controllers"])
        lines.append(f"controllers {names}, active {group['active'] or 'none'} in term {group['term']}")
    if "features" in found.parts:
        lines.append(f"feature level {found.parts['features']['level']}")
    versions = {node: page["version"] for node, page in found.parts.get("metrics", {}).items()}
    lines += [f"versions: {', '.join(f'{n} {v}' for n, v in sorted(versions.items()))}"] if versions else []
    lines += [f"{one['level']}: {one['what']}" for one in found.parts.get("doctor", [])]
    for name, digests in sorted(found.parts.get("digests", {}).items()):
        if (difference := digests["comparison"]["difference"]) is not None:
            lines.append(f"{name}: replicas differ from offset {difference['offset']}")
    events = [record for record in found.parts.get("timeline", []) if record["type"] == "event"]
    lines.append(f"{len(events)} events" + (", the last:" if events else ""))
    for record in events[-LAST_EVENTS:]:
        at = time.strftime("%H:%M:%SZ", time.gmtime(record["time_ms"] / 1000))
        lines.append(f"  {at} {record['words']}")
    return [*lines, *(f"missing: {name}: {why}" for name, why in found.head.get("missing", {}).items())]
