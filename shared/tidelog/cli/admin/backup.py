"""``tidelog backup`` and ``tidelog restore``: saves a topic in files, and restores it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.admin.topics import config_of, typed_config
from tidelog.cli.completion import topic_names
from tidelog.cli.exit_status import FAILED
from tidelog.cli.main import connect, gateway_option, run
from tidelog.cli.option_types import Quantity
from tidelog.cli.output import WIDE, Column, Table, list_output, print_for_programs, print_json, result_output, say
from tidelog.cli.progress import Bar, shown
from tidelog.quantities import BYTES

if TYPE_CHECKING:
    from tidelog.backup.manifest import Manifest
    from tidelog.backup.restore import Restored
    from tidelog.backup.save import Saved

MB = 1e6


@click.command()
@click.argument(
    "where", nargs=-1, required=True, metavar="TOPIC DIR | --list DIR | --check DIR", shell_complete=topic_names
)
@click.option("--list", "listing", is_flag=True, help="Only show what is in the backup; no cluster is needed.")
@click.option("--check", "checking", is_flag=True, help="Only check every byte of the backup; no cluster is needed.")
@click.option("--groups", is_flag=True, help="Save the positions that consumer groups have in the topic, too.")
@click.option(
    "--segment-bytes",
    type=Quantity(BYTES, least=1, whole=True),
    default="32MiB",
    show_default=True,
    help="Close a file at this size; four are held in memory at a time.",
)
@list_output
@gateway_option
def backup(
    where: tuple[str, ...],
    listing: bool,
    checking: bool,
    groups: bool,
    segment_bytes: int,
    output: str,
    gateways: tuple[str, ...],
) -> None:
    """Save the committed records of TOPIC in the folder DIR, or at a URL that fsspec knows (s3://bucket/folder), byte
    for byte as in the log. DIR holds one topic.

    A second run adds what is new; a run after an interrupted one continues where that ended. Producers may write
    meanwhile: everything that is committed when it begins is saved. What was copied is compared with the hash chain
    of a replica.

    With --check: exit code 1 if a file is missing, damaged or changed; each is named."""
    if listing or checking:
        if len(where) != 1:
            raise click.UsageError("--list and --check take a DIR")
        _show(where[0], checking, output)
        return
    if len(where) != 2:
        raise click.UsageError("say which TOPIC to save, and in which DIR")
    name, url = where
    from tidelog.backup.save import Saving
    from tidelog.backup.store import BackupStore

    store = BackupStore(url)
    begun = monotonic()

    async def task() -> Saved:
        with _bars("saved") as bars:
            async with connect(gateways) as log:
                return await Saving(log, store, segment_bytes).run(
                    name, groups=groups, begun=bars.expect, done=bars.advance
                )

    saved = run(task)
    seconds = monotonic() - begun
    manifest = saved.manifest
    added = {"offsets": saved.offsets, "bytes": saved.bytes, "segments": saved.segments, "seconds": seconds}
    if print_for_programs(output, _table(manifest), {"added": added} | _document(manifest)):
        return
    say(
        f"{name}: saved {saved.offsets:,} offsets, {_size(saved.bytes)} in {saved.segments} files,"
        f" {seconds:.1f} s; {url} has {manifest.offsets:,} offsets now, {_size(manifest.size)}"
    )


@click.command()
@click.argument("url", metavar="DIR")
@click.argument("name", metavar="[TOPIC]", required=False, default="")
@click.option("--replication-factor", type=click.IntRange(1), default=None, help="[default: as it was]")
@click.option(
    "--config", "settings", multiple=True, metavar="KEY=VALUE", help="A setting other than it was; repeatable."
)
@click.option("--groups", is_flag=True, help="Have the consumer groups that are in the backup go on where they were.")
@click.option("--resume", is_flag=True, help="Go on with a restore of the same backup that was not finished.")
@result_output
@gateway_option
def restore(
    url: str,
    name: str,
    replication_factor: int | None,
    settings: tuple[str, ...],
    groups: bool,
    resume: bool,
    output: str,
    gateways: tuple[str, ...],
) -> None:
    """Create a topic from the backup in DIR, under its old name or as TOPIC, and read it back: every record has its
    old offset, key, value, headers and timestamp. A topic that exists is refused.

    Every file is checked before anything of it is written. Until everything is read back the topic keeps all records;
    then its retention and compaction begin, for old records at once, unless --config says otherwise
    (retention_ms=-1)."""
    from tidelog.backup.restore import RestoreSettings, Restoring
    from tidelog.backup.store import BackupStore

    store = BackupStore(url)
    manifest = store.manifest()
    config = config_of(settings, "--config")
    wanted = RestoreSettings(name or manifest.topic, replication_factor or 0, config, resume, groups)
    begun = monotonic()

    async def task() -> Restored:
        with _bars("written", "read back") as bars:
            bars.expect(manifest.offsets, manifest.size)
            async with connect(gateways) as log:
                written, verified = bars.of("written"), bars.of("read back")
                return await Restoring(log, store, manifest, wanted).run(written, verified)

    restored = run(task)
    seconds = monotonic() - begun
    if output:
        print_json(
            {
                "topic": restored.topic,
                "offsets": restored.offsets,
                "bytes": restored.bytes,
                "seconds": seconds,
                "groups": restored.groups,
                "groups_refused": restored.groups_refused,
            }
        )
    else:
        say(
            f"{restored.topic}: {restored.offsets:,} offsets, {_size(restored.bytes)}, written and read back"
            f" in {seconds:.1f} s"
        )
        for group in restored.groups:
            say(f"group {group} goes on where it was")
    for group, reason in restored.groups_refused.items():
        say(f"group {group} was not set: {reason}", err=True)
    if restored.groups_refused:
        sys.exit(FAILED)


# --- without a cluster -----------------------------------------------------------------------------------------


def _show(url: str, checking: bool, output: str) -> None:
    """Read the backup at ``url``, and print its contents in the format ``output``; with ``checking``, read and check
    every file instead, and print the faults. Ends the command with status ``FAILED`` if there are faults."""
    from tidelog.backup.check import check_partition
    from tidelog.backup.store import BackupStore

    store = BackupStore(url)
    manifest = store.manifest()
    faults: list[str] = []
    if checking:
        with _bars("checked") as bars:
            bars.expect(manifest.offsets, manifest.size)
            for saved in manifest.partitions:
                faults += check_partition(store, saved)
                bars.advance(saved.end_offset - saved.start, sum(segment.bytes for segment in saved.segments))
    document = _document(manifest) | ({"faults": faults} if checking else {})
    if print_for_programs(output, _table(manifest), document):
        pass
    elif not checking:
        _print(manifest, wide=output == WIDE)
    else:
        for fault in faults:
            say(fault)
        files = sum(len(saved.segments) for saved in manifest.partitions)
        verdict = f"{len(faults)} of {files} files are not as they were" if faults else f"{files} files are sound"
        say(f"{manifest.topic}: {verdict}; {_size(manifest.size)}")
    if faults:
        sys.exit(FAILED)


def _document(manifest: Manifest) -> dict[str, object]:
    """Return the contents of a backup as an object for JSON (``summary`` of ``tidelog.backup.check``), with the
    settings of the topic as numbers and truth values."""
    from tidelog.backup.check import summary

    return summary(manifest) | {"config": typed_config(manifest.config)}


def _table(manifest: Manifest) -> Table:
    """Return the table of the partitions in a backup: offsets, bytes and files."""
    table = Table("partition", Column("from", "start"), Column("to", "end"), "bytes", "files")
    for saved in manifest.partitions:
        size = sum(segment.bytes for segment in saved.segments)
        name = f"{manifest.topic}/{saved.partition}"
        table.add(saved.partition, saved.start, saved.end_offset, size, len(saved.segments), name=name)
    return table


def _print(manifest: Manifest, *, wide: bool) -> None:
    """Print the contents of a backup for people: its topic, offsets and bytes by partition, and the positions of
    groups. With ``wide`` the topic's id is printed, too."""
    topic = f"{manifest.topic} ({manifest.topic_id})" if wide else manifest.topic
    say(f"{topic} of cluster {manifest.cluster}, saved {manifest.saved}")
    _table(manifest).print(wide=wide)
    for group, positions in sorted(manifest.groups.items()):
        say(f"group {group}: " + " ".join(f"{p}:{offset}" for p, offset in sorted(positions.items())))


def _size(size: int) -> str:
    """Return a number of bytes as text, in MB (10^6 bytes)."""
    return f"{size / MB:,.1f} MB"


# --- progress --------------------------------------------------------------------------------------------------


class _Bytes:
    """The bytes that a bar has done; as text their number, and how many a second."""

    def __init__(self) -> None:
        self.done = 0
        self._begun = monotonic()

    def __str__(self) -> str:
        seconds = monotonic() - self._begun
        return _size(self.done) + (f", {_size(round(self.done / seconds))}/s" if seconds else "")


class _Bars:
    """The progress bars of one command, one for each name. They count offsets, and show bytes beside."""

    def __init__(self, *names: str) -> None:
        self.bars = {name: Bar(name, note=_Bytes()) for name in names}

    def expect(self, offsets: int, _: int) -> None:
        """Set the total of every bar to this number of offsets. The number of bytes, which the callers pass too, is
        ignored."""
        for bar in self.bars.values():
            bar.update(total=offsets)

    def advance(self, offsets: int, size: int) -> None:
        """Advance the first bar by this many offsets, and add the bytes to its size."""
        self.of(next(iter(self.bars)))(offsets, size)

    def of(self, name: str) -> Any:
        """Return a callback (offsets, bytes) that advances the bar of this name."""
        bar = self.bars[name]

        def advance(offsets: int, size: int) -> None:
            bar.advance(offsets)
            bar.note.done += size  # type: ignore[attr-defined]

        return advance


@contextmanager
def _bars(*names: str) -> Iterator[_Bars]:
    """Return a context manager that shows a progress bar for each name on stderr while its block runs. Nothing is
    shown if stderr is not a terminal."""
    bars = _Bars(*names)
    with shown(*bars.bars.values()):
        yield bars
