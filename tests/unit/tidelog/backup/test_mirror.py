"""Copies in another log: where they go on, what they refuse, and that every record is there once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from support.saved_topics import CopiedTopic, SavedTopic, batch, compacted, records_of, with_everything
from tidelog.backup.mirror import Mirror, MirrorSettings
from tidelog.backup.restore import MEANWHILE, Restoring
from tidelog.backup.restore import RestoreSettings as Restore
from tidelog.backup.save import Saving
from tidelog.backup.store import BackupStore
from tidelog.batch.format import read_header
from tidelog.errors import ConfigError, TidelogError

NOBODY: Any = (lambda *_: None, lambda *_: None)


async def mirror(source: Any, target: Any, **wishes: Any) -> Mirror:
    """Up to the end of the source."""
    found = Mirror(source, target, "orders", MirrorSettings("orders", to_end=True, **wishes))
    await found.run()
    return found


async def refusal(task: Callable[[], Awaitable[object]]) -> TidelogError:
    """What it is refused with, be it alone in its groups."""
    try:
        await task()
    except* TidelogError as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            [error] = error.exceptions
        found = error
    assert isinstance(found, TidelogError)
    return found


async def after_a_while() -> None:
    """On a clock that jumps."""
    with trio.move_on_after(20):
        await trio.sleep_forever()


def ends(topic: SavedTopic) -> list[list[int]]:
    return [[read_header(data).end_offset for data in log] for log in topic.logs]


async def test_a_log_with_everything_has_its_records_at_their_offsets() -> None:
    source, target = with_everything(), CopiedTopic()
    done = await mirror(source, target)
    assert records_of(target) == records_of(source)
    assert ends(target) == [[3, *ends(source)[0]]]  # one empty batch for what the source has no more
    assert target.config == (await source.topics.describe("orders")).config
    assert (done.partitions[0].copied, done.partitions[0].lag) == (11, 0)


async def test_it_goes_on_where_the_target_ends_also_when_either_was_compacted() -> None:
    source, target = with_everything(), CopiedTopic()
    await mirror(source, target)
    target.replace(-1, compacted(target.logs[0][-1], 1))
    source.append(batch(b"k", b"l"), epoch=5)
    source.reads.clear()
    done = await mirror(source, target)
    assert done.partitions[0].copied == 2
    assert (
        min(at.offset for _, at in source.reads) == 12
    )  # the last batch that is copied, to compare, and what follows
    source.replace(-1, compacted(source.logs[0][-1], 0))
    assert (await mirror(source, target)).partitions[0].copied == 0


@pytest.mark.parametrize("seed", range(12))
async def test_every_record_is_mirrored_once_whatever_is_lost_on_the_way(seed: int, autojump_clock: object) -> None:
    """Acks, batches, the mirror itself; and two of them at a time."""
    chance = Random(seed)
    source, target = SavedTopic(partitions=2), CopiedTopic(lambda: chance.random() < 0.1)

    async def killed() -> None:
        with trio.move_on_after(chance.uniform(0, 3)):
            await mirror(source, target)

    for round in range(6):
        for number in range(chance.randrange(20)):
            source.append(batch(b"%d-%d" % (round, number)), partition=chance.randrange(2))
        await target.topics.grow("orders", 2)
        target.exists = True
        async with trio.open_nursery() as nursery:
            for _ in range(chance.choice((1, 1, 2))):
                nursery.start_soon(killed)
        assert records_of(target) == [row for row in records_of(source) if row in set(records_of(target))]
    await mirror(source, target)
    assert records_of(target) == records_of(source)
    assert ends(target) == ends(source)


async def test_records_deleted_before_they_were_copied_end_the_mirror_unless_skip_lost_is_set() -> None:
    source, target = with_everything(), CopiedTopic()
    await mirror(source, target)
    for value in (b"k", b"l", b"m"):
        source.append(batch(value), epoch=5)
    del source.logs[0][:-1]
    source.starts[0] = 16
    error = await refusal(lambda: mirror(source, target))
    assert (error.code, "orders/0 ends at 14, the source begins at 16" in error.message) == (
        "OFFSET_OUT_OF_RANGE",
        True,
    )
    await mirror(source, target, skip_lost=True)
    assert records_of(target)[-2:] == [(0, 13, None), (0, 16, b"m")]


async def test_a_source_that_was_cut_ends_it() -> None:
    source, target = SavedTopic(), CopiedTopic()
    for value in (b"a", b"b"):
        source.append(batch(value))
    await mirror(source, target)
    cut = SavedTopic()
    cut.append(batch(b"a"))
    error = await refusal(lambda: mirror(cut, target))
    assert (error.code, "orders/0 ends at 2, the source at 1" in error.message) == ("LOG_TRUNCATED", True)
    cut.append(batch(b"b", b"other"))
    error = await refusal(lambda: mirror(cut, target))
    assert (error.code, "another batch at offset 1" in error.message) == ("LOG_TRUNCATED", True)


async def test_another_writer_to_the_target_is_noticed() -> None:
    source, target = SavedTopic(), CopiedTopic()
    source.append(batch(b"a"))
    await mirror(source, target)
    target.append(batch(b"mine", b"mine too"))
    source.append(batch(b"b"))
    source.append(batch(b"c"))
    error = await refusal(lambda: mirror(source, target))
    assert (error.code, "another batch at offset 1" in error.message) == ("LOG_TRUNCATED", True)


async def test_partitions_that_come_and_positions_of_groups_are_copied_while_it_runs(autojump_clock: object) -> None:
    source, target = SavedTopic(), CopiedTopic()
    source.append(batch(b"a"))
    source.groups_at = {"billing": {0: 1}}
    target.groups_at = {"audit": {0: 9}}
    async with trio.open_nursery() as nursery:
        found = Mirror(source, target, "orders", MirrorSettings("orders", groups=True))  # type: ignore[arg-type]
        nursery.start_soon(found.run)
        await after_a_while()
        source.logs.append([])
        source.starts.append(0)
        source.append(batch(b"b"), partition=1)
        source.groups_at = {"billing": {0: 1, 1: 1}, "audit": {0: 1}}
        await after_a_while()
        nursery.cancel_scope.cancel()
    assert records_of(target) == [(0, 0, b"a"), (1, 0, b"b")]
    assert target.groups_at == {"billing": {0: 1, 1: 1}, "audit": {0: 9}}  # never back


async def test_a_topic_whose_leaders_write_records_of_their_own_cannot_be_a_copy(tmp_path: Path) -> None:
    source, target = SavedTopic(), CopiedTopic()
    error = await refusal(lambda: mirror(source, target, config={"commit_rule": "quorum"}))
    assert isinstance(error, ConfigError) and "--config commit_rule=isr" in error.message
    store = await saved(source, tmp_path)
    wishes = Restore("orders", config={"commit_rule": "quorum"})
    error = await refusal(lambda: Restoring(target, store, store.manifest(), wishes).run(*NOBODY))  # type: ignore[arg-type]
    assert isinstance(error, ConfigError) and not target.exists


# --- restore -----------------------------------------------------------------------------------------------------


async def saved(source: Any, folder: Path, segment_bytes: int = 200) -> BackupStore:
    store = BackupStore(str(folder))
    await Saving(source, store, segment_bytes).run("orders", groups=True, begun=lambda *_: None, done=lambda *_: None)
    return store


async def restore(store: BackupStore, target: CopiedTopic, **wishes: Any) -> Any:
    return await Restoring(target, store, store.manifest(), Restore("orders", **wishes)).run(*NOBODY)  # type: ignore[arg-type]


async def test_a_restored_log_is_the_one_that_was_saved(tmp_path: Path) -> None:
    source, target = with_everything(), CopiedTopic()
    source.groups_at = {"billing": {0: 12}}
    store = await saved(source, tmp_path)
    done = await restore(store, target, groups=True)
    assert records_of(target) == records_of(source)
    assert (target.config["cleanup"], target.config["retention_ms"]) == ("delete", "-1")  # until it is read back
    assert target.configured == [MEANWHILE, {"cleanup": "compact", "retention_ms": "5"}]
    assert (done.groups, target.groups_at) == (["billing"], {"billing": {0: 12}})


async def test_a_restore_that_broke_off_is_gone_on_with(tmp_path: Path) -> None:
    store = await saved(with_everything(), tmp_path)
    broken = tmp_path / store.manifest().partitions[0].segments[2].file
    good = broken.read_bytes()
    broken.write_bytes(b"")
    target = CopiedTopic()
    assert (await refusal(lambda: restore(store, target))).code == "BAD_BACKUP"
    assert target.configured == [MEANWHILE]
    reached = target.end()
    broken.write_bytes(good)
    assert 3 < reached < 14
    done = await restore(store, target, resume=True)
    assert (done.offsets, records_of(target)) == (14 - reached, records_of(with_everything()))


async def test_a_restore_whose_copy_differs_from_the_backup_is_refused(tmp_path: Path) -> None:
    store = await saved(with_everything(), tmp_path)
    target = CopiedTopic()
    await restore(store, target)
    target.configured.clear()
    other = target.logs[0][-1]
    target.replace(-1, compacted(other, 0))
    error = await refusal(lambda: restore(store, target, resume=True))
    at = read_header(other).base_offset
    assert f"orders/0 is not the same as the backup from offset {at} on" in error.message
    target.config = {"cleanup": "compact"}
    error = await refusal(lambda: restore(store, target, resume=True))
    assert "orders is not a topic whose restore was not finished" in error.message
    assert target.configured == [MEANWHILE]


async def test_a_log_that_took_something_else_is_found_when_it_is_read_back(tmp_path: Path) -> None:
    store = await saved(with_everything(), tmp_path)
    target = CopiedTopic()
    taken = target.append

    def append(data: bytes, partition: int = 0, epoch: int = 3) -> bytes:
        whole = read_header(data).record_count > 1 and not read_header(data).is_sparse
        return taken(compacted(data, 0) if whole else data, partition, epoch)

    target.append = append  # type: ignore[method-assign]
    error = await refusal(lambda: restore(store, target))
    assert "orders/0 is not the same as the backup from offset 3 on" in error.message
    assert target.configured == [MEANWHILE]
