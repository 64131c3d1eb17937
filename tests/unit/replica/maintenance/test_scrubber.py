"""The scrubber: what the disk has lost is found while others still hold it, and costs little."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
import zstandard
from support.log_builders import PATH as LOG_PATH
from support.log_builders import STORED, build, flush, open_log
from support.replica_network import KEY, Net, cluster
from tidelog.batch.format import (
    HEADER_BYTES,
    NewRecord,
    decode_columns,
    encode_batch,
    encode_marker,
    read_header,
    seal_batch,
    stamp_prefix,
)
from tidelog.batch.sparse import thin_batch
from tidelog.testing.hardware.disk import SimDisk
from tidelog.types import TopicConfig, TopicPartition
from tidelog.wire import codec
from tidelog.wire.messages import MetricsAnswer, UnreadablePlace
from tidelog_replica.config import ReplicaSettings
from tidelog_replica.effects import StartJob
from tidelog_replica.jobs import SCRUB
from tidelog_replica.maintenance.scrubber import MOST_PLACES
from tidelog_replica.storage import segment_scrub as scrub
from tidelog_replica.storage.log import Log
from tidelog_replica.storage.segment_scrub import Scrub, ScrubTarget

PATH = f"/data/{KEY.topic_id}-0"
VALUES = [f"{number:02}".encode() * 20 for number in range(12)]
ROUND_S = 240.0
FIRST_S = ROUND_S / 24


def filled(rate: int = 4 << 20, nodes: int = 3, **settings: Any) -> Net:
    """Logs of several segments; the first round of scrubbing is still to come."""
    net = Net(
        nodes,
        config=TopicConfig(segment_max_bytes=400),
        settings=ReplicaSettings(scrub_interval_s=ROUND_S, scrub_bytes_per_s=rate, **settings),
    )
    net.start()
    net.create()
    for value in VALUES:
        net.send("r1", value)
    net.advance(5)
    return net


def segments(net: Net, name: str) -> list[str]:
    return [f"{PATH}/{file}" for file in net.disks[name].listdir(PATH) if file.endswith(".log")]


def flip(disk: SimDisk, path: str, at: int) -> None:
    data = bytearray(disk.read(path))
    data[at] ^= 1
    disk.replace(path, bytes(data))


def reopen(net: Net, name: str) -> None:
    """The server's open files see what was done to the disk."""
    for segment in net.partition(name).log.segments:
        file = segment.release()
        if file is not None:
            file.close()


def scrubbed(net: Net) -> list[tuple[str, int]]:
    return [(name, event.fields["segments"]) for name, event in net.happened("scrubbed")]


def test_a_sound_server_is_read_once_a_round_and_nothing_else_happens():
    net = filled()
    every = len(segments(net, "r1"))
    assert every > 3
    net.advance(FIRST_S)
    assert sorted(scrubbed(net)) == [(name, every) for name in net.names]
    net.advance(ROUND_S - 5)
    assert len(scrubbed(net)) == 3
    net.advance(10)
    assert sorted(scrubbed(net)) == sorted(2 * [(name, every) for name in net.names])
    assert net.happened("segment_quarantined") == net.happened("index_removed") == []


@pytest.mark.parametrize("at", [3, 11, 15, 16, 80, 100])
def test_D2_a_flipped_bit_is_found_and_repaired_though_nobody_reads_there(at: int):
    """Base offset, leader epoch's or CRC's bytes, magic, body."""
    net = filled()
    path = segments(net, "r3")[1]
    before = net.disks["r3"].read(path)
    flip(net.disks["r3"], path, at)
    reopen(net, "r3")
    net.advance(FIRST_S + 20)
    assert [name for name, _ in net.happened("segment_repaired")] == ["r3"]
    assert net.disks["r3"].read(path) == before
    assert "r3" in net.state().isr and net.values("r3") == VALUES


def test_D3_the_leader_resigns_when_its_scrubber_finds_damage():
    net = filled()
    flip(net.disks["r1"], segments(net, "r1")[0], 100)
    reopen(net, "r1")
    net.advance(FIRST_S + 20)
    assert net.state().leader == "r2" and net.hand_overs[0].lost
    assert "r1" in net.state().isr and net.values("r1") == VALUES
    assert net.stopped == []


def test_a_segment_that_is_gone_or_too_short_is_damage():
    for damage in ("gone", "short"):
        net = filled()
        path = segments(net, "r3")[2]
        if damage == "gone":
            net.disks["r3"].unlink(path)
        else:
            net.disks["r3"].replace(path, net.disks["r3"].read(path)[:-10])
        reopen(net, "r3")
        net.advance(FIRST_S + 20)
        assert [event.fields["segment"] for _, event in net.happened("segment_repaired")] == [int(path[-24:-4])]
        assert net.values("r3") == VALUES


def test_a_damaged_index_is_removed_and_made_again():
    net = filled()
    path = segments(net, "r3")[0].replace(".log", ".index")
    flip(net.disks["r3"], path, 30)
    net.advance(FIRST_S)
    assert [event.fields["segment"] for _, event in net.happened("index_removed")] == [0]
    assert path.rpartition("/")[2] not in net.disks["r3"].listdir(PATH)
    assert net.happened("segment_quarantined") == []
    net.stop("r3")
    net.start("r3")
    net.advance(5)
    assert net.values("r3") == VALUES


def test_it_reads_no_faster_than_it_may():
    net = filled(rate=100)
    size = sum(len(net.disks["r1"].read(path)) for path in segments(net, "r1"))
    net.advance(FIRST_S - 5 + size / 100 - 2)
    assert scrubbed(net) == []
    net.advance(4)
    assert len(scrubbed(net)) == 3


def test_it_can_be_switched_off():
    net = filled(rate=0)
    net.advance(2 * ROUND_S)
    assert scrubbed(net) == []


@pytest.mark.parametrize("change", ["deleted", "restarted", "cut", "retained"])
def test_a_log_that_changes_during_a_check_is_passed_over(change: str):
    net = filled()
    net.slow_job["r1"] = []
    net.advance(FIRST_S)
    (job,) = [effect for effect in net.slow_job["r1"] if effect.key == SCRUB]
    net.slow_job["r1"].remove(job)
    log = net.partition("r1").log
    if change == "deleted":
        net.delete()
    elif change == "restarted":
        net.partition("r1").fail("found by a test")
    elif change == "cut":
        log.truncate(1)
    else:
        log.advance_start(len(VALUES))
    held = net.slow_job.pop("r1")
    for effect in held:
        net.work("r1", effect)
    net.run()
    net.work("r1", job)
    net.run()
    net.advance(30)
    assert [name for name, _ in net.happened("segment_quarantined")] == []
    assert net.stopped == []


def test_one_piece_is_read_at_a_time_for_the_whole_server():
    net = cluster(
        1,
        partitions=3,
        config=TopicConfig(segment_max_bytes=400),
        settings=ReplicaSettings(scrub_interval_s=ROUND_S),
    )
    for value in VALUES:
        for partition in range(3):
            net.send("r1", value, partition=partition)
    net.slow_job["r1"] = []
    seen: list[StartJob] = []
    net.advance(2 * FIRST_S)
    while waiting := net.slow_job["r1"]:
        assert len(waiting) == 1
        seen.append(waiting.pop())
        net.work("r1", seen[-1])
        net.run()
        net.advance(1)
    paths = list(dict.fromkeys(effect.job.target.path for effect in seen))  # type: ignore[attr-defined]
    assert {path.split("/")[2] for path in paths} == {f"{KEY.topic_id}-{number}" for number in range(3)}
    assert scrubbed(net) == [("r1", len(paths))]
    assert TopicPartition(KEY.topic_id, 0) in net.nodes["r1"].partitions


def test_a_check_goes_on_where_the_last_piece_ended():
    disk = build()
    log = open_log(disk)
    for base in (-1, 0):
        segment = log.segments.closed_segment_after(base)
        assert segment is not None
        target = ScrubTarget.of(segment)
        place, pieces = target.first_position, 0
        while place.position < target.size:
            place, removed, _ = Scrub(disk, target, place, 50, log.epochs).run()
            pieces += 1
            assert not removed
        assert pieces > 2 and (place.offset, place.chain) == (target.end, target.chain)
    assert log.segments.closed_segment_after(target.base) is None, "the last one is written"
    assert sum(map(len, STORED)) > target.size and target.path.startswith(LOG_PATH)


def test_a_damaged_index_that_a_compaction_removes_meanwhile_is_no_damage_to_the_segment(monkeypatch):
    disk = build()
    log = open_log(disk)
    segment = log.segments.closed_segment_after(-1)
    assert segment is not None
    target, read = ScrubTarget.of(segment), disk.read
    flip(disk, target.index_path, 5)

    def read_and_lose(path: str) -> bytes:
        data = read(path)
        disk.unlink(path)
        return data

    monkeypatch.setattr(disk, "read", read_and_lose)
    assert Scrub(disk, target, target.first_position, 10_000, log.epochs).run().index_removed


# --- batches that no reader can decode -----------------------------------------------------------------------


def counting(values: list[bytes], record_count: int, sequence: int = 0) -> bytes:
    """A batch of producer id 9 with a right CRC whose header counts so many records."""
    records = [NewRecord(value, None, 1000) for value in values]
    batch = encode_batch(records, producer_id=9, base_sequence=sequence)
    return seal_batch(read_header(batch)._replace(record_count=record_count), batch[HEADER_BYTES:])


def written(*batches: bytes, segment_max_bytes: int = 400) -> tuple[SimDisk, Log]:
    """A log of these batches, as leaders took them before gateways checked bodies, with more segments behind."""
    disk = SimDisk()
    log = open_log(disk, config=TopicConfig(segment_max_bytes=segment_max_bytes))
    for batch in (*batches, *(counting([b"." * 90], 1) for _ in range(5))):
        header = read_header(batch)
        log.append([stamp_prefix(log.end, 1, header.crc32c) + batch[16:]])
    flush(log)
    return disk, log


def found_in(disk: SimDisk, log: Log, length: int = 1 << 20) -> list[tuple[int, int, int]]:
    """Of the first segment; what a piece does not decode is not found."""
    segment = log.segments.closed_segment_after(-1)
    assert segment is not None
    target = ScrubTarget.of(segment)
    place, found = target.first_position, []
    while place.position < target.size:
        checked = Scrub(disk, target, place, length, log.epochs).run()
        place = checked.place
        found += checked.unreadable
    return [tuple(each) for each in found]


def test_a_whole_batch_that_no_reader_can_decode_is_found_and_is_no_damage():
    sound, lying = counting([b"a", b"b"], 2), counting([b"a", b"b"], 3)
    assert found_in(*written(sound, lying, sound, lying)) == [(2, 5, 9), (7, 10, 9)]
    assert found_in(*written(sound, lying, sound, lying), length=50) == [(2, 5, 9), (7, 10, 9)]
    assert found_in(*written(sound, sound, sound, sound)) == []


def test_markers_and_compacted_batches_are_readable():
    whole = encode_batch([NewRecord(b"%d" % n, b"k", 1000) for n in range(4)])
    whole = stamp_prefix(1, 1, read_header(whole).crc32c) + whole[16:]
    thin = thin_batch(decode_columns(whole), whole, [2], 5)
    marker = encode_marker(9, 0, commit=True)
    odd = seal_batch(read_header(marker)._replace(body_length=1), b"\x00")  # no reader looks into a control batch
    disk, log = written(marker, thin, odd, odd)
    assert found_in(disk, log) == []


def test_a_piece_decodes_only_so_many_bytes_whatever_they_unfold_to(monkeypatch):
    large, lying = counting([b"." * 900] * 4, 4), counting([b"a"], 2)
    body = cbor2.dumps({"v": [b"." * 9000] * 4})
    bomb = seal_batch(
        read_header(large)._replace(attributes=1, body_length=len(body)), zstandard.ZstdCompressor().compress(body)
    )
    short = seal_batch(read_header(bomb)._replace(record_count=3), bomb[HEADER_BYTES:])
    monkeypatch.setattr(scrub, "DECODED_BYTES", 40_000)
    assert found_in(*written(bomb, short, lying)) == [(7, 9, 9)], "the second large one goes beyond"
    assert found_in(*written(short, bomb, lying)) == [(0, 3, 9), (7, 9, 9)]
    assert found_in(*written(bomb, short, lying), length=10) == [(4, 7, 9), (7, 9, 9)], "in pieces of their own"


def planted(count: int, **settings: Any) -> Net:
    """Logs with so many unreadable batches, one after each readable one."""
    net = filled(**settings)
    for number in range(count):
        net.send_batch("r1", counting([b"." * 60], 2, 2 * number))
        net.send("r1", b"." * 60)
    net.send("r1", b"." * 400)
    return net


def test_a_server_reports_where_its_scrubber_saw_such_batches_and_repairs_nothing():
    net = planted(2)
    end = len(VALUES)
    node = net.nodes["r3"]
    assert node.scrubber.unreadable() == (0, ())
    net.advance(FIRST_S)
    count, places = node.scrubber.unreadable()
    assert count == 2
    assert places == tuple(UnreadablePlace(*KEY, base, base + 1, 9) for base in (end, end + 3))
    assert net.happened("segment_quarantined") == [] and net.state().leader == "r1"
    assert {name for name, _ in net.happened("unreadable_batches")} == set(net.names)
    net.advance(ROUND_S)
    assert node.scrubber.unreadable() == (count, places), "each is counted once, however often it is seen"


def test_of_each_partition_the_first_places_are_remembered_and_all_are_counted():
    net = planted(3 * MOST_PLACES)
    net.advance(FIRST_S)
    count, places = net.nodes["r2"].scrubber.unreadable()
    assert count == 3 * MOST_PLACES
    assert [place.base_offset for place in places] == [len(VALUES) + 3 * n for n in range(MOST_PLACES)]


def test_damage_in_segments_removed_by_retention_is_not_reported_any_more():
    net = planted(4)
    net.advance(FIRST_S)
    node, log = net.nodes["r1"], net.partition("r1").log
    count, places = node.scrubber.unreadable()
    assert count == len(places) == 4
    assert log.advance_start(places[-1].base_offset)
    left = [place for place in places if place.base_offset >= log.start]
    assert 0 < len(left) < 4 and node.scrubber.unreadable() == (len(left), tuple(left))
    log.advance_start(log.end)
    assert node.scrubber.unreadable() == (0, ())


def test_a_producer_id_that_no_message_can_hold_is_cut_off():
    net = filled()
    header = read_header(counting([b"." * 60], 1))
    net.send_batch(
        "r1", seal_batch(header._replace(producer_id=2**64 - 1, record_count=2), bytes(header.body_length))
    )
    net.send("r1", b"." * 400)
    net.advance(FIRST_S)
    _, (place,) = net.nodes["r1"].scrubber.unreadable()
    assert place.producer_id == 2**63 - 1
    head, _ = codec.encode(MetricsAnswer("", unreadable=(place,)), re=1)
    assert codec.decode(head, answers=lambda re: MetricsAnswer).message.unreadable == (place,)
