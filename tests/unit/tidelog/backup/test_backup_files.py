"""Backups: which bytes lie in which files, what a second run adds, and what a check finds. Tests
``backup/save.py``, ``backup/store.py`` and ``backup/check.py``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fsspec.registry import _registry
from support.saved_topics import SavedTopic, batch, with_everything
from tidelog.backup.check import check_partition
from tidelog.backup.manifest import BadBackup, Manifest
from tidelog.backup.save import Saved, Saving
from tidelog.backup.store import BackupStore
from tidelog.cli.main import main
from tidelog.errors import ConfigError, TidelogError
from tidelog.types import Position


async def save(topic: Any, url: str, segment_bytes: int = 1 << 20, groups: bool = False) -> Saved:
    """A run; a lone error inside a group comes out as itself."""
    try:
        return await Saving(topic, BackupStore(url), segment_bytes).run(
            "orders", groups=groups, begun=lambda *_: None, done=lambda *_: None
        )
    except* TidelogError as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        found = error
    raise found


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_batches_are_saved_as_they_lie_in_the_log(tmp_path: Path) -> None:
    topic = with_everything()
    saved = await save(topic, str(tmp_path))
    [name] = [name for name in files(tmp_path) if name.startswith("0/")]
    assert name == "0/00000000000000000003-00000000000000000014.segment"
    assert (tmp_path / name).read_bytes() == b"".join(topic.logs[0])
    manifest = BackupStore(str(tmp_path)).manifest()
    assert (manifest.topic, manifest.topic_id, manifest.cluster) == ("orders", "id1", "old")
    assert (manifest.config["cleanup"], manifest.replication_factor) == ("compact", 2)
    [partition] = manifest.partitions
    assert (partition.start, partition.end_offset, partition.end_epoch) == (3, 14, 5)
    assert partition.end_chain == (await topic.digest("id1", 0, "r2", (14,))).entries[0].chain.hex()
    assert (saved.offsets, saved.segments, saved.bytes) == (11, 1, manifest.size)
    assert check_partition(BackupStore(str(tmp_path)), partition) == []


async def test_a_second_run_adds_only_what_is_new(tmp_path: Path) -> None:
    topic = with_everything()
    await save(topic, str(tmp_path))
    before = files(tmp_path)
    topic.reads.clear()
    assert (await save(topic, str(tmp_path))).segments == 0
    assert topic.reads == []
    topic.append(batch(b"new"))
    topic.logs.append([])  # the topic has grown
    topic.starts.append(0)
    topic.append(batch(b"other"), partition=1)
    saved = await save(topic, str(tmp_path))
    assert (saved.offsets, saved.segments) == (2, 2)
    assert sorted(topic.reads) == [(0, Position(5, 14)), (1, Position(-1, 0))]
    after = files(tmp_path)
    assert all(after[name] == data for name, data in before.items() if name.endswith(".segment"))
    assert [each.end_offset for each in BackupStore(str(tmp_path)).manifest().partitions] == [15, 1]


async def test_a_run_that_failed_is_no_backup_and_the_next_one_goes_on(tmp_path: Path) -> None:
    topic = SavedTopic()
    for number in range(6):
        topic.append(batch(b"%d" % number))
    topic.fail_at = 4
    with pytest.raises(TidelogError, match="nobody answers"):
        await save(topic, str(tmp_path), segment_bytes=1)
    with pytest.raises(BadBackup, match="no finished backup: 'tidelog backup' goes on"):
        BackupStore(str(tmp_path)).manifest()
    topic.fail_at = None
    topic.reads.clear()
    saved = await save(topic, str(tmp_path), segment_bytes=1)
    assert topic.reads == [(0, Position(3, 4)), (0, Position(3, 5))]
    assert (saved.segments, BackupStore(str(tmp_path)).manifest().offsets) == (2, 6)
    assert not (tmp_path / "unfinished.json").exists()


async def test_while_a_second_run_is_not_finished_the_first_one_is_the_backup(tmp_path: Path) -> None:
    topic = SavedTopic()
    topic.append(batch(b"a"))
    await save(topic, str(tmp_path))
    topic.append(batch(b"b"))
    topic.append(batch(b"c"))
    topic.fail_at = 2
    with pytest.raises(TidelogError, match="nobody answers"):
        await save(topic, str(tmp_path), segment_bytes=1)
    assert BackupStore(str(tmp_path)).manifest().partitions[0].end_offset == 1
    topic.fail_at = None
    assert (await save(topic, str(tmp_path))).offsets == 1
    assert BackupStore(str(tmp_path)).manifest().partitions[0].end_offset == 3


async def test_a_backup_that_cannot_be_continued_is_refused_with_the_reason(tmp_path: Path) -> None:
    topic = SavedTopic()
    topic.append(batch(b"a"))
    await save(topic, str(tmp_path))
    again = SavedTopic(topic_id="id2")
    with pytest.raises(
        BadBackup, match="backup of orders with the id id1 of cluster old; orders is id2: take another"
    ):
        await save(again, str(tmp_path))
    for _ in range(4):
        topic.append(batch(b"b"))
    topic.starts[0] = 3
    with pytest.raises(BadBackup, match="orders/0 cannot be saved from offset 1 on: 1 is below the log start 3"):
        await save(topic, str(tmp_path))
    shorter = SavedTopic()
    with pytest.raises(BadBackup, match="orders/0 ends at 0, and 1 is saved: the topic has lost records"):
        await save(shorter, str(tmp_path))


async def test_a_copy_that_is_not_what_the_replicas_have_is_no_backup(tmp_path: Path) -> None:
    topic = SavedTopic()
    topic.append(batch(b"a"))
    await save(topic, str(tmp_path))
    topic.append(batch(b"b"))
    topic.chain_is_wrong = True
    with pytest.raises(BadBackup, match="orders/0: what was read has another hash chain at 2"):
        await save(topic, str(tmp_path))


async def test_positions_of_groups_are_saved_when_asked_for(tmp_path: Path) -> None:
    topic = SavedTopic()
    topic.append(batch(b"a"))
    topic.groups_at = {"billing": {0: 1}, "elsewhere": {}}
    await save(topic, str(tmp_path))
    assert BackupStore(str(tmp_path)).manifest().groups == {}
    await save(topic, str(tmp_path), groups=True)
    assert BackupStore(str(tmp_path)).manifest().groups == {"billing": {0: 1}}


def damaged(folder: Path, change: str) -> None:
    [path] = folder.glob("0/*.segment")
    data = bytearray(path.read_bytes())
    if change == "missing":
        path.unlink()
        return
    if change == "shorter":
        del data[-1]
    elif change == "a bit":
        data[-1] ^= 1
    elif change == "a leader epoch":  # what no CRC covers
        data[11] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("missing", "is missing"),
        ("shorter", "bytes; the manifest says"),
        ("a bit", "is damaged at offset 12: batch declares CRC"),
        ("a leader epoch", "was changed: its digest is not that of the manifest"),
    ],
)
async def test_check_names_the_file_that_is_not_as_it_was(tmp_path: Path, change: str, words: str) -> None:
    await save(with_everything(), str(tmp_path))
    good = CliRunner().invoke(main, ["backup", "--check", str(tmp_path)])
    assert (good.exit_code, "1 files are sound" in good.output) == (0, True)
    damaged(tmp_path, change)
    found = CliRunner().invoke(main, ["backup", "--check", str(tmp_path)])
    assert found.exit_code == 1
    assert "0/00000000000000000003-00000000000000000014.segment" in found.output
    assert words in found.output
    assert "1 of 1 files are not as they were" in found.output


async def test_list_shows_what_is_in_a_backup(tmp_path: Path) -> None:
    topic = with_everything()
    topic.groups_at = {"billing": {0: 12}}
    await save(topic, str(tmp_path), groups=True)
    found = CliRunner().invoke(main, ["backup", "--list", str(tmp_path), "--json"])
    told = json.loads(found.stdout)
    assert (told["topic"], told["offsets"], told["groups"]) == ("orders", 11, {"billing": {"0": 12}})
    assert [(p["start"], p["end"], p["leader_epoch"]) for p in told["partitions"]] == [(3, 14, 5)]
    assert told["config"] == {"cleanup": "compact", "retention_ms": 5}
    assert "group billing: 0:12" in CliRunner().invoke(main, ["backup", "--list", str(tmp_path)]).output
    nothing = CliRunner().invoke(main, ["backup", "--list", str(tmp_path / "empty")])
    assert (nothing.exit_code, "has no backup: there is no manifest.json" in nothing.output) == (1, True)


async def test_a_backup_lies_wherever_fsspec_reaches() -> None:
    await save(with_everything(), "memory://backups/orders")
    store = BackupStore("memory://backups/orders")
    assert check_partition(store, store.manifest().partitions[0]) == []


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"nosuch://x: Protocol not known: nosuch"):
        BackupStore("nosuch://x")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(_registry, "s3", raising=False)  # another test may have loaded it
    with pytest.raises(ConfigError, match=r"s3://bucket/x: .*pip install 'tidelog\[s3\]'"):
        BackupStore("s3://bucket/x")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ConfigError, match=r"pip install 'tidelog\[backup\]'"):
        BackupStore("/tmp/x")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not the manifest of a backup"),
        ("[]", "is not the manifest of a backup"),
        ('{"format": 2}', "has format 2; this program knows 1"),
        ('{"format": 1, "topic": "x"}', "is not the manifest of a backup"),
    ],
)
def test_a_manifest_that_is_none_is_refused(text: str, words: str) -> None:
    with pytest.raises(BadBackup, match=words):
        Manifest.from_bytes(text.encode(), "manifest.json")


async def test_a_manifest_with_a_gap_is_refused(tmp_path: Path) -> None:
    topic = SavedTopic()
    for number in range(3):
        topic.append(batch(b"%d" % number))
    await save(topic, str(tmp_path), segment_bytes=1)
    path = tmp_path / "manifest.json"
    fields = json.loads(path.read_text())
    del fields["partitions"][0]["segments"][1]
    with pytest.raises(BadBackup, match="begins at 2, and is to begin at 1"):
        Manifest.from_bytes(json.dumps(fields).encode(), "manifest.json")


# --- a backup that somebody else has made --------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "../secret",
        "0/../../secret",
        "/etc/passwd",
        "0/00000000000000000003-00000000000000000014.segment/../../../secret",
        "//etc/passwd",
        "file:///etc/passwd",
        "0\\..\\secret",
        "1/00000000000000000003-00000000000000000014.segment",
        "0/00000000000000000003-00000000000000000014.segment\x00",
        "",
        "manifest.json",
        7,
        None,
    ],
)
async def test_a_manifest_names_no_file_but_its_own_segments(tmp_path: Path, name: object) -> None:
    folder = tmp_path / "backup"
    await save(with_everything(), str(folder))
    (tmp_path / "secret").write_bytes(next(folder.glob("0/*.segment")).read_bytes())
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["partitions"][0]["segments"][0]["file"] = name
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BadBackup, match="is not the name of a segment"):
        BackupStore(str(folder)).manifest()


@pytest.mark.parametrize("field", ["start", "end"])
async def test_a_manifest_whose_offsets_are_no_numbers_is_none(tmp_path: Path, field: str) -> None:
    await save(with_everything(), str(tmp_path))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["partitions"][0]["segments"][0][field] = "../.."
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BadBackup, match="is not the manifest of a backup"):
        BackupStore(str(tmp_path)).manifest()


@pytest.mark.parametrize("link", ["file", "folder", "manifest"])
async def test_no_symbolic_link_leads_out_of_the_folder(tmp_path: Path, link: str) -> None:
    folder, outside = tmp_path / "backup", tmp_path / "outside"
    outside.mkdir()
    await save(with_everything(), str(folder))
    [segment] = folder.glob("0/*.segment")
    moved = {"file": segment, "folder": folder / "0", "manifest": folder / "manifest.json"}[link]
    moved.rename(outside / moved.name)
    moved.symlink_to(outside / moved.name)
    store = BackupStore(str(folder))
    with pytest.raises(BadBackup, match="leads out of the folder"):
        store.read(store.manifest().partitions[0].segments[0].file)
    with pytest.raises(BadBackup, match="leads out of the folder"):
        store.write("manifest.json" if link == "manifest" else f"0/{segment.name}", b"x")
    assert b"x" not in [path.read_bytes() for path in outside.rglob("*") if path.is_file()]
    (tmp_path / "name").symlink_to(folder)
    if link == "file":
        BackupStore(str(tmp_path / "name")).manifest()  # the folder itself may be reached by one
