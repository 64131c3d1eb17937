"""No deleted key comes back: not by replication from a leader that has dropped its tombstone, not by a repair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

import pytest
from support.log_builders import PATH, after_power_losses, flush, reset
from support.replica_network import KEY, Net
from tidelog.batch.format import NO_CHAIN, NewRecord, encode_batch, read_header
from tidelog.testing.hardware.disk import SimDisk
from tidelog.types import TopicConfig
from tidelog.wire.messages import Fetch, Read
from tidelog_replica.config import ReplicaSettings
from tidelog_replica.storage.checkpoints import COMPACTED, TOMBSTONES
from tidelog_replica.storage.log import Log
from tidelog_replica.storage.recovery.damage import CloseHole, DivergentRepair, FillHole, Hole, Quarantine
from tidelog_replica.storage.tombstones import Compacted

from unit.replica.storage.test_compaction import NOW, keyed, log_of, records, stamped, stored, table

CONFIG = TopicConfig(min_insync_replicas=1, segment_max_bytes=300, cleanup="compact", tombstone_retention_ms=1000)
DATA = f"/data/{KEY.topic_id}-0"
LATER = NOW + 5000
"""A tombstone that was compacted at ``NOW`` has had its time."""


# --- servers ---------------------------------------------------------------------------------------------


def cluster(config: TopicConfig = CONFIG, **settings: float) -> Net:
    """r1 leads. No server compacts by itself before an hour has passed."""
    net = Net(config=config, settings=replace(ReplicaSettings(retention_check_interval_s=3600), **settings))
    net.wall_ms = NOW
    net.start()
    net.create()
    return net


def put(net: Net, *rows: tuple[bytes, bytes | None], leader: str = "r1") -> None:
    for key, value in rows:
        net.send_batch(leader, encode_batch([NewRecord(value, key, 1000)]))


def fill_up(net: Net, count: int = 6, leader: str = "r1") -> None:
    """So that whatever came before is in closed segments."""
    put(net, *[(b"other", b"." * 200)] * count, leader=leader)
    net.advance(4)


def compact(net: Net, *names: str) -> None:
    """Two passes on these servers: the first takes the values, the second, later, the tombstones."""
    for now_ms in (NOW, LATER):
        fill_up(net)
        for name in names:
            partition = net.partition(name)
            partition.log.compact(partition.high_watermark, now_ms)


def known(net: Net, name: str) -> dict[bytes, bytes]:
    """What a reader of that copy knows, also after later passes over it."""
    partition = net.partition(name)
    for now_ms in (LATER + 5000, LATER + 10_000):
        partition.log.compact(partition.high_watermark, now_ms)
    return table(records(stored(partition.log)))


def has_tombstone(net: Net, name: str, key: bytes = b"k") -> bool:
    rows = records(stored(net.partition(name).log))
    return any(row.key == key and row.value is None for row in rows)


def is_whole(net: Net) -> None:
    """Every copy is in sync, holds the same table, and nothing counts as lost."""
    net.advance(10)
    assert net.state().isr == ("r1", "r2", "r3") and not net.losses and not net.stopped
    tables = [known(net, name) for name in net.names]
    assert tables[0] == tables[1] == tables[2]
    logs = [net.partition(name).log for name in net.names]
    assert len({log.chain_at(log.end) for log in logs}) == 1
    assert len({str(log.producers.snapshot()) for log in logs}) == 1


def left_behind() -> Net:
    """r3 was away while ``k`` was deleted and the leader dropped the tombstone, too."""
    net = cluster()
    put(net, (b"k", b"secret"))
    fill_up(net, 2)
    net.close("r3")
    net.lead("r1", "r1 r2")
    put(net, (b"k", None))
    compact(net, "r1", "r2")
    assert not has_tombstone(net, "r1") and b"k" not in table(records(stored(net.partition("r1").log)))
    return net


def test_a_follower_that_missed_a_tombstone_starts_over() -> None:
    net = left_behind()
    net.start("r3")
    net.advance(10)
    assert b"k" not in known(net, "r3")
    [(name, event)] = net.happened("copy_restarted")
    assert (name, event.fields["start"]) == ("r3", 0) and event.fields["old_end"] > 0
    is_whole(net)
    net.stop("r3", power=True)
    net.start("r3")
    net.lead("r3", "r1 r2 r3")
    fill_up(net, leader="r3")
    assert len(net.happened("copy_restarted")) == 1
    is_whole(net)


def test_a_follower_whose_leader_still_has_the_tombstones_goes_on() -> None:
    net = cluster()
    put(net, (b"k", b"secret"))
    fill_up(net, 2)
    net.stop("r3")
    net.lead("r1", "r1 r2")
    put(net, (b"k", None))
    fill_up(net)
    net.partition("r1").log.compact(net.partition("r1").high_watermark, NOW)
    assert has_tombstone(net, "r1")
    net.start("r3")
    net.advance(10)
    assert not net.happened("copy_restarted") and b"k" not in known(net, "r3")
    is_whole(net)


def test_a_new_leader_passes_on_that_its_copy_misses_tombstones() -> None:
    """r2 was empty when it copied from r1, has never compacted anything itself, and leads r3."""
    net = left_behind()
    net.stop("r2")
    for file in net.disks["r2"].listdir(DATA):
        net.disks["r2"].unlink(f"{DATA}/{file}")
    net.lead("r1", "r1")
    net.start("r2")
    net.advance(10)
    assert not has_tombstone(net, "r2") and not net.happened("copy_restarted")
    net.lead("r2", "r1 r2")
    fill_up(net, 1, leader="r2")
    net.start("r3")
    net.advance(10)
    assert b"k" not in known(net, "r3")
    is_whole(net)


def slow_copy() -> Net:
    """r3 copies an empty log from r1, one large batch after the other: its next fetch is held each time. r1 has
    compacted all that is closed, and still has the tombstone of ``a``."""
    net = cluster(fetch_max_bytes=1 << 16)
    net.stop("r3")
    net.lead("r1", "r1 r2")
    put(net, (b"a", b"secret"), *[(b"large %d" % number, b"." * 40_000) for number in range(8)], (b"a", None))
    fill_up(net)
    net.partition("r1").log.compact(net.partition("r1").high_watermark, NOW)
    assert has_tombstone(net, "r1", b"a")
    net.hold = lambda name, call: name == "r3" and isinstance(call.message, Fetch)
    net.start("r3")
    step(net, 2)
    assert 0 < net.partition("r3").log.end < 8
    return net


def step(net: Net, count: int) -> None:
    """So many fetches of r3."""
    for _ in range(count):
        if not net.held:
            net.advance(10)
        net.deliver(*net.held.pop(0))
        net.run()


def go_on(net: Net) -> None:
    net.hold = lambda name, call: False
    while net.held:
        net.deliver(*net.held.pop(0))
    net.run()


def test_tombstones_whose_values_were_gone_when_the_copy_began_may_go_while_it_copies() -> None:
    net = slow_copy()
    fill_up(net)
    net.partition("r1").log.compact(net.partition("r1").high_watermark, LATER)
    assert not has_tombstone(net, "r1", b"a")
    assert net.partition("r1").log.compacted.tombstones_to > net.partition("r3").log.end
    go_on(net)
    is_whole(net)
    assert not net.happened("copy_restarted")


def test_a_copy_that_begins_again_with_every_restart_of_its_server_would_never_end() -> None:
    net = slow_copy()
    fill_up(net)
    net.partition("r1").log.compact(net.partition("r1").high_watermark, LATER)
    net.held.clear()
    net.close("r3")
    net.start("r3")
    step(net, 2)
    go_on(net)
    is_whole(net)
    assert not net.happened("copy_restarted")


def test_a_tombstone_that_is_compacted_and_goes_while_a_copy_is_made_has_it_start_over_once() -> None:
    net = slow_copy()
    put(net, (b"other", None))
    for now_ms in (NOW, LATER):
        put(net, *[(b"more", b"." * 200)] * 6)
        net.partition("r1").log.compact(net.partition("r1").high_watermark, now_ms)
    assert not has_tombstone(net, "r1", b"other")
    go_on(net)
    is_whole(net)
    assert len(net.happened("copy_restarted")) == 1
    assert b"other" not in known(net, "r3") and b"more" in known(net, "r3")


def test_a_restarted_copy_that_changes_its_leader_reports_no_loss() -> None:
    """Though an unclean election is in the partition's past, and the copy once knew more to be committed."""
    net = left_behind()
    net.push(unclean_epoch=0)
    net.hold = lambda name, call: name == "r3" and isinstance(call.message, Fetch)
    net.start("r3")
    step(net, 1)
    net.advance(1)
    assert net.partition("r3").high_watermark == net.partition("r3").log.end == 0
    net.held.clear()
    net.lead("r2", "r1 r2")
    go_on(net)
    fill_up(net, leader="r2")
    is_whole(net)
    assert not net.happened("committed_records_lost") and not net.happened("records_possibly_lost")


# --- repair ----------------------------------------------------------------------------------------------


def written() -> Net:
    """``k`` was deleted, and nothing is compacted yet."""
    net = cluster()
    put(net, (b"k", b"secret"))
    fill_up(net)
    put(net, (b"k", None))
    fill_up(net)
    return net


def damage(net: Net, name: str, key: bytes, *, deleted: bool) -> int:
    """Flip a bit in the segment that holds the value of a key, or its tombstone, while the server is down; where that
    begins."""
    log = net.partition(name).log
    row = next(r for r in records(stored(log)) if r.key == key and (r.value is None) is deleted)
    return flip(net, name, log.segments.segment_at(row.offset).base)


def flip(net: Net, name: str, base: int) -> int:
    net.stop(name)
    disk, path = net.disks[name], f"{DATA}/{base:020d}"
    data = bytearray(disk.read(f"{path}.log"))
    data[16] ^= 1
    disk.replace(f"{path}.log", bytes(data))
    disk.unlink(f"{path}.index")
    disk.sync_dir(DATA)
    return base


def test_a_repair_brings_no_value_back_whose_tombstone_this_copy_has_dropped() -> None:
    net = written()
    compact(net, "r3")
    assert not has_tombstone(net, "r3") and has_tombstone(net, "r1")
    flip(net, "r3", 0)
    net.start("r3")
    net.advance(20)
    assert b"k" not in known(net, "r3")
    [(_, event)] = net.happened("copy_restarted")
    assert "lost tombstones" in str(event.fields["reason"])
    is_whole(net)


def test_a_repair_brings_no_tombstone_back_where_the_leader_has_dropped_it_and_this_copy_needs_it() -> None:
    net = written()
    compact(net, "r1", "r2")
    damage(net, "r3", b"k", deleted=True)
    net.start("r3")
    net.advance(20)
    assert b"k" not in known(net, "r3")
    assert len(net.happened("copy_restarted")) == 1
    is_whole(net)


def test_copies_that_are_compacted_alike_are_repaired_segment_by_segment() -> None:
    net = written()
    compact(net, "r1", "r2", "r3")
    assert not has_tombstone(net, "r3") and not has_tombstone(net, "r1")
    flip(net, "r3", 0)
    net.start("r3")
    net.advance(20)
    assert net.happened("segment_repaired") and not net.happened("copy_restarted")
    assert b"k" not in known(net, "r3")
    is_whole(net)


def test_values_that_a_repair_brings_back_go_before_their_tombstones_do() -> None:
    """The copy has not dropped the tombstone yet, but has passed over it."""
    net = written()
    log = net.partition("r3").log
    log.compact(net.partition("r3").high_watermark, NOW)
    assert has_tombstone(net, "r3") and log.compacted_to > 8
    flip(net, "r3", 0)
    net.start("r3")
    net.advance(20)
    assert net.happened("segment_repaired") and not net.happened("copy_restarted")
    log = net.partition("r3").log
    assert any(row.value == b"secret" for row in records(stored(log)))
    fill_up(net)
    assert b"k" not in known(net, "r3") and has_tombstone(net, "r3")
    fill_up(net)
    assert b"k" not in known(net, "r3") and not has_tombstone(net, "r3")
    is_whole(net)


def test_a_server_that_leads_by_now_does_not_start_over() -> None:
    """It was elected because nobody else is left: what is whole of its log is all there is."""
    net = written()
    compact(net, "r3")
    base = net.partition("r3").log.segments.segment_at(4).base
    assert base > 0
    flip(net, "r3", base)
    net.hold = lambda name, call: name == "r3" and isinstance(call.message, Read)
    net.start("r3")
    net.advance(5)
    net.slow_job["r3"] = []
    net.deliver(*net.held.pop())
    net.run()
    (job,) = net.slow_job.pop("r3")
    assert isinstance(job.job, FillHole)
    net.stop("r1")
    net.stop("r2")
    epoch = net.state().leader_epoch + 1
    net.push(leader="r3", isr=("r3",), leader_epoch=epoch, unclean_epoch=epoch)
    net.run()
    net.work("r3", job)
    net.run()
    net.advance(5)
    assert not net.happened("copy_restarted")
    log = net.partition("r3").log
    assert net.partition("r3").leading is not None and log.end >= base


# --- the log ---------------------------------------------------------------------------------------------

ROWS = [(b"k", b"secret"), (b"x", b"1"), (b"k", None), *((b"y", b"." * 100) for _ in range(12))]


def deleted(disk: SimDisk | None = None, config: TopicConfig = CONFIG) -> Log:
    """A log with a tombstone at offset 2, which one pass has covered."""
    log = log_of(*(keyed(n, row) for n, row in enumerate(ROWS)), config=config, disk=disk)
    log.compact(log.end, NOW)
    for n in range(log.end, log.end + 4):
        log.append([keyed(n, (b"z", b"." * 100))])
    flush(log)
    return log


def test_where_tombstones_are_gone_is_durable_before_the_first_of_them_goes() -> None:
    prepared = SimDisk()
    deleted(prepared).close()
    for name in prepared.listdir(PATH):
        prepared.replace(f"{PATH}/{name}", prepared.read(f"{PATH}/{name}"))

    def ready(disk: SimDisk) -> Callable[[], object]:
        log = Log.open(disk, PATH, CONFIG)
        return partial(log.compact, log.end, LATER)

    told = set()
    for after in after_power_losses(prepared.clone, ready, seeds=3, changes=8):
        log = Log.open(after, PATH, CONFIG)
        is_there = any(row.offset == 2 for row in records(stored(log)))
        assert is_there or log.compacted.tombstones_to == 3
        assert log.compacted.tombstones_to <= log.compacted.compacted_to
        told.add((is_there, log.compacted.tombstones_to))
    assert {(True, 0), (False, 3)} <= told


def test_a_pass_drops_no_tombstone_that_no_earlier_pass_over_the_same_log_has_covered() -> None:
    """Its batch was compacted by the server that it came from; here older values of its key may still be there."""
    leader = deleted()
    copy = log_of(*(keyed(n, row) for n, row in enumerate(ROWS[:2])))
    for batch in stored(leader)[2:]:
        copy.append([batch])
    flush(copy)
    copy.compact(copy.end, LATER)
    assert any(row.offset == 2 for row in records(stored(copy))) and copy.compacted.tombstones_to == 0
    assert b"k" not in table(records(stored(copy)))


def test_a_copy_is_compacted_no_further_than_the_leaders_that_it_came_from() -> None:
    """What it gets from the second one has values in it that the first one had compacted away."""
    first, second = deleted(), log_of(*(keyed(n, row) for n, row in enumerate(ROWS)))
    copy = log_of()
    copy.append([stored(first)[0]], first.compacted)
    assert copy.compacted.compacted_to == 1 and not copy.lacks(Compacted(9, 9))
    copy.append([stored(second)[1]], second.compacted)
    assert copy.compacted.compacted_to == 1 and copy.lacks(Compacted(9, 9))


def test_of_a_log_of_an_earlier_release_every_tombstone_that_was_compacted_may_be_gone() -> None:
    disk = SimDisk()
    log = deleted(disk)
    compacted_to = log.compacted_to
    log.close()
    disk.unlink(f"{PATH}/{TOMBSTONES}")
    log = Log.open(disk, PATH, CONFIG)
    assert log.compacted == Compacted(compacted_to, compacted_to)
    log.compact(log.end, NOW)
    assert log.compacted_to > compacted_to == log.compacted.tombstones_to
    log.close()
    disk.unlink(f"{PATH}/{COMPACTED}")
    assert Log.open(disk, PATH, CONFIG).compacted == Compacted(compacted_to, compacted_to)


def test_a_log_that_starts_over_or_is_cut_forgets_compactions_beyond_its_end() -> None:
    log = deleted()
    log.compact(log.end, LATER)
    assert log.compacted.tombstones_to == 3
    log.truncate(2)
    assert log.compacted == Compacted(2, 2)
    reset(log, 0, -1, NO_CHAIN)
    assert log.compacted == Compacted()


# --- at random -------------------------------------------------------------------------------------------


class Copies:
    """Three copies of a log. One leads, the others fetch from it, as ``FollowerReplica`` does; each is compacted,
    damaged and repaired in its own time. ``committed``: every batch, as it was appended."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.disks = [SimDisk() for _ in range(3)]
        self.logs = [Log.open(disk, PATH, CONFIG) for disk in self.disks]
        self.committed: list[bytes] = []
        self.leader = 0
        self.epoch = 1
        self.now = NOW
        self.counts = {"starts over": 0, "filled": 0, "not filled": 0}

    @property
    def end(self) -> int:
        return read_header(self.committed[-1]).end_offset if self.committed else 0

    def write(self) -> None:
        key = b"%d" % self.rng.randrange(6)
        value = None if self.rng.random() < 0.4 else b"%d" % self.end + b"." * self.rng.choice((0, 150))
        batch = stamped(encode_batch([NewRecord(value, key, 1000)]), self.end, self.epoch)
        self.logs[self.leader].append([batch])
        self.committed.append(batch)

    def fetch(self, name: int) -> None:
        log, leader = self.logs[name], self.logs[self.leader]
        found = leader.read(log.end, self.rng.choice((1, 400, 4000)))
        if not found:
            return
        if log.lacks(leader.compacted):
            reset(log, 0, -1, NO_CHAIN)
            self.counts["starts over"] += 1
            return
        log.append([bytes(batch) for batch in found], leader.compacted)
        flush(log)

    def lead(self, name: int) -> None:
        """Whoever holds everything can lead."""
        if self.logs[name].end == self.end:
            self.leader, self.epoch = name, self.epoch + 1

    def compact(self, name: int) -> None:
        log = self.logs[name]
        flush(log)
        pass_ = log.begin_compaction(log.end, self.now, 0.0, self.rng.choice((2, 1 << 18)))
        while pass_ is not None and log.complete_compaction(pass_, pass_.run()):
            continue

    def reopen(self, name: int) -> None:
        flush(self.logs[name])
        self.logs[name].close()
        self.logs[name] = Log.open(self.disks[name], PATH, CONFIG)

    def repair(self, name: int) -> None:
        """A segment is set aside, and fetched again from the leader, which may go on meanwhile."""
        log, disk, leader = self.logs[name], self.disks[name], self.logs[self.leader]
        if name == self.leader or len(log.segments.extents()) < 2:
            return
        flush(log)
        base = self.rng.choice(log.segments.extents()[:-1]).base
        log.close()
        hole = Quarantine(disk, PATH, base).run()
        assert isinstance(hole, Hole)
        offset, size = hole.base, 0
        while offset < hole.end:
            batches = b"".join(map(bytes, leader.read(offset, self.rng.choice((1, 4000)), hole.end)))
            filled = FillHole(disk, PATH, hole, offset, size, batches, leader.compacted).run()
            if isinstance(filled, DivergentRepair):
                self.counts["not filled"] += 1
                for file in disk.listdir(PATH):
                    disk.unlink(f"{PATH}/{file}")
                break
            offset, size = filled
            if self.rng.random() < 0.3:
                self.now += self.rng.choice((0, 2000))
                self.compact(self.leader)
        else:
            self.counts["filled"] += 1
            CloseHole(disk, PATH, hole).run()
        self.logs[name] = Log.open(disk, PATH, CONFIG)

    def check(self) -> None:
        """A copy that ends at an offset holds of each key what was written up to there; or that is still to be
        replaced by what follows."""
        rows = records(self.committed)
        last = {row.key: row.offset for row in rows}
        for log in self.logs:
            held, true = table(records(stored(log))), table([row for row in rows if row.offset < log.end])
            wrong = {key for key in held.keys() | true.keys() if held.get(key) != true.get(key)}
            assert all(last[key] >= log.end for key in wrong)
            assert log.compacted.tombstones_to <= log.compacted.compacted_to

    def run(self, steps: int) -> None:
        actions = [self.fetch] * 6 + [self.compact] * 2 + [self.lead, self.reopen, self.repair]
        for _ in range(steps):
            if self.rng.random() < 0.5:
                self.write()
            else:
                name = self.rng.randrange(3)
                action = self.rng.choice(actions)
                if action != self.fetch or name != self.leader:
                    action(name)
                self.now += self.rng.choice((0, 0, 300, 2000))
            self.check()


@pytest.mark.parametrize("seed", range(6))
def test_no_copy_holds_deleted_values_in_any_order_of_elections_and_repairs(seed: int) -> None:
    Copies(seed).run(250)


def test_the_random_runs_start_over_fill_and_refuse_to_fill() -> None:
    counts: dict[str, int] = {}
    for seed in range(3):
        copies = Copies(seed)
        copies.run(250)
        counts = {name: counts.get(name, 0) + count for name, count in copies.counts.items()}
    assert all(counts.values()), counts
