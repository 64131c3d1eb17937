"""Copies are compared by what their disks hold: every batch is read and checked, and nothing comes from memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module

import pytest
import trio
from click.testing import CliRunner
from simulation.faults.altered import alter, segment_of
from support.replica_network import CLIENT, KEY, Net, cluster, code
from tidelog.batch.fingerprints import FINGERPRINT_BYTES, fingerprint_of, pack, unpack
from tidelog.batch.format import NewRecord, decode_columns, encode_batch, read_header, stamp_prefix
from tidelog.batch.sparse import thin_batch
from tidelog.client.admin.copy_comparison import compare_copies
from tidelog.client.admin.replica_comparison import Comparison, Difference, Side, compare
from tidelog.client.trio_loop import TrioLoop
from tidelog.errors import TidelogError
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.types import TopicConfig
from tidelog.wire.codec import payload_view
from tidelog.wire.messages import CopyRead, Digest, DigestAnswer, Message, PartitionInfo, ReadCopy, TopicInfo
from tidelog_replica.config import ReplicaSettings
from tidelog_replica.copies.reads import MOST_WAITING, PATIENCE_S
from tidelog_replica.jobs import READ_COPY, SYNC_FILES
from tidelog_replica.maintenance.file_pool import Tidy
from tidelog_replica.node import StartJob
from tidelog_replica.storage.copy_reader import ReadBatches
from tidelog_replica.storage.open_files import OpenFiles
from trio.testing import MockClock

PATH = f"/data/{KEY.topic_id}-0"
VALUES = [f"{number:02}".encode() * 20 for number in range(12)]
SMALL = TopicConfig(min_insync_replicas=2, segment_max_bytes=400)


def filled(config: TopicConfig = SMALL, nodes: int = 3) -> Net:
    """Logs of several segments, everything committed; r1 leads."""
    net = cluster(nodes, config=config, settings=ReplicaSettings(scrub_bytes_per_s=0, retention_check_interval_s=10))
    for value in VALUES:
        net.send("r1", value)
    net.advance(20)
    return net


def ask(net: Net, name: str, message: Message) -> Message:
    answer = net.answers[net.ask(name, message)]
    if isinstance(answer, TidelogError):
        raise answer
    assert isinstance(answer, Message)
    return answer


def compared(net: Net, *names: str) -> Comparison:
    """What comes of reading and comparing the copies of these servers."""
    told: list[int] = []

    async def bounds(name: str, offsets: Sequence[int]) -> DigestAnswer:
        answer = ask(net, name, Digest(name, *KEY, tuple(offsets)))
        assert isinstance(answer, DigestAnswer)
        return answer

    async def read(name: str, offset: int) -> CopyRead:
        await trio.lowlevel.checkpoint()
        answer = ask(net, name, ReadCopy(name, *KEY, offset, 200))
        assert isinstance(answer, CopyRead)
        return answer

    async def run() -> Comparison:
        loop = TrioLoop(WebSocketTransport())
        return await compare_copies(loop, names or net.names, bounds, read, 0, told.append)

    result = trio.run(run, clock=MockClock(autojump_threshold=0))
    assert result.difference or sum(told) == result.end - result.start
    return result


def alter_on_disk(net: Net, name: str, offset: int) -> str:
    """While the server runs; its memory does not change."""
    path = segment_of(net.disks[name], PATH, offset)
    alter(net.disks[name], path, offset)
    for segment in net.partition(name).log.segments:
        if (file := segment.release()) is not None:
            file.close()
    return path


def test_a_record_that_was_altered_on_one_disk_is_found_though_memory_says_that_nothing_differs():
    for offset in (4, 7, 11):
        net = filled()
        alter_on_disk(net, "r3", offset)

        async def bounds(name: str, offsets: Sequence[int], net: Net = net) -> DigestAnswer:
            answer = ask(net, name, Digest(name, *KEY, tuple(offsets)))
            assert isinstance(answer, DigestAnswer)
            return answer

        quick = trio.run(compare, TrioLoop(WebSocketTransport()), net.names, bounds)
        assert quick.difference is None and quick.end == 12
        result = compared(net)
        assert result.difference is not None and result.difference.offset == offset
        assert result.odd_ones(("r1", "r2", "r3")) == ("r3",)


def test_sound_copies_are_read_whole_and_are_the_same():
    net = filled()
    result = compared(net)
    sizes = [sum(extent.bytes for extent in net.partition(name).log.segments.extents()) for name in net.names]
    assert (result.start, result.end, result.difference, result.unasked) == (0, 12, None, {})
    assert result.bytes_read == sum(sizes) and result.thinned == 0


def test_a_copy_with_a_wrong_crc_is_named_and_the_others_are_compared_on():
    net = filled()
    path = segment_of(net.disks["r3"], PATH, 4)
    net.disks["r3"].flip(path, 100, 0)
    for segment in net.partition("r3").log.segments:
        if (file := segment.release()) is not None:
            file.close()
    result = compared(net)
    assert result.compared == ("r1", "r2") and result.end == 12 and result.difference is None
    assert "damaged" in result.unasked["r3"]
    net.advance(20)
    assert net.values("r3") == VALUES, "and it was repaired"


def test_a_single_copy_is_read_to_its_end():
    net = filled(replace(SMALL, min_insync_replicas=1), 1)
    result = compared(net)
    assert (result.end, result.compared) == (12, ("r1",)) and result.bytes_read > 0


def test_copies_that_begin_elsewhere_are_compared_where_all_are():
    net = filled()
    assert net.partition("r2").log.advance_start(6)
    result = compared(net)
    assert result.start == net.partition("r2").log.start > 0 and result.end == 12 and result.difference is None


def test_retention_may_overtake_the_reading():
    net = filled()
    work, seen = net.work, []

    def retain(name: str, effect: object) -> None:
        work(name, effect)  # type: ignore[arg-type]
        if effect.key == READ_COPY and not seen:  # type: ignore[attr-defined]
            seen.append(name)
            assert net.partition("r2").log.advance_start(6)

    net.work = retain  # type: ignore[method-assign,assignment]
    result = compared(net)
    assert seen and result.end == 12 and result.difference is None and result.unasked == {}


def test_a_copy_that_compaction_has_thinned_out_is_compared_by_the_headers_that_producers_sent():
    net = cluster(2, config=replace(SMALL, min_insync_replicas=1, cleanup="compact"))
    for number in range(30):
        net.send_batch("r1", encode_batch([NewRecord(b"%d" % number * 20, b"key-%d" % (number % 3))]))
    net.advance(20)
    log = net.partition("r2").log
    log.compact(log.end, 10_000)
    result = compared(net)
    assert (result.end, result.difference) == (30, None) and result.thinned > 10


def test_a_copy_read_ends_before_uncommitted_or_unsynced_records():
    net = filled(replace(SMALL, min_insync_replicas=1), 1)
    net.slow_flush["r1"] = []
    net.send("r1", b"not durable")
    answer = ask(net, "r1", ReadCopy("r1", *KEY, 11))
    assert isinstance(answer, CopyRead) and answer.next_offset == 12
    answer = ask(net, "r1", ReadCopy("r1", *KEY, 12))
    assert isinstance(answer, CopyRead)
    assert (answer.next_offset, answer.bytes, len(payload_view(answer.payload))) == (12, 0, 0)


def slow(net: Net) -> list[StartJob]:
    """The reads that r1 has begun and that have not ended: they wait for ``net.work``."""
    return [job for job in net.slow_job["r1"] if job.key == READ_COPY]


def test_a_copy_is_read_while_the_files_of_the_server_are_synced():
    net = filled(replace(SMALL, min_insync_replicas=1), 1)
    net.slow_job["r1"] = []
    net.nodes["r1"]._effects.jobs.start(SYNC_FILES, Tidy(OpenFiles(net.disks["r1"], 10)), lambda result, now: None)
    net.ask("r1", ReadCopy("r1", *KEY, 0, 200))
    assert [type(job.job) for job in net.slow_job["r1"]] == [Tidy, ReadBatches]


def test_a_server_reads_one_piece_at_a_time_and_refuses_more_than_a_few():
    net = filled(replace(SMALL, min_insync_replicas=1), 1)
    net.slow_job["r1"] = []
    ids = [net.ask("r1", ReadCopy("r1", *KEY, 0, 200)) for _ in range(MOST_WAITING + 3)]
    assert [code(net.answers[id]) for id in ids if id in net.answers] == ["OVERLOADED"] * 2
    for number in range(MOST_WAITING + 1):
        assert len(slow(net)) == number + 1
        net.work("r1", slow(net)[-1])
        net.run()
    assert [code(net.answers[id]) for id in ids] == [""] * (MOST_WAITING + 1) + ["OVERLOADED"] * 2


def test_a_read_that_nobody_waits_for_any_more_is_not_run():
    net = filled(replace(SMALL, min_insync_replicas=1), 1)
    net.slow_job["r1"] = []
    first, late = (net.ask("r1", ReadCopy("r1", *KEY, 0, 200)) for _ in range(2))
    net.advance(PATIENCE_S)
    gone = net.ask("r1", ReadCopy("r1", *KEY, 0, 200), CLIENT + 1)
    new = net.ask("r1", ReadCopy("r1", *KEY, 0, 200))
    net._take("r1", net.nodes["r1"].on_link_closed(CLIENT + 1, net.now))
    for number in range(2):
        assert len(slow(net)) == number + 1
        net.work("r1", slow(net)[-1])
        net.run()
    assert len(slow(net)) == 2 and gone not in net.answers
    assert [code(net.answers[id]) for id in (first, late, new)] == ["", "REQUEST_TIMED_OUT", ""]


def test_copies_that_are_nowhere_synced_are_named_and_not_taken_for_the_same():
    net = filled(replace(SMALL, flush="os", segment_max_bytes=1 << 20))
    result = compared(net)
    assert (result.compared, result.end, set(result.unasked)) == ((), 0, {"r1", "r2", "r3"})
    assert "from offset 0 on" in result.unasked["r1"] and "up to 12" in result.unasked["r1"]


def test_a_copy_that_is_not_synced_is_named_and_the_others_are_compared_on():
    net = filled()
    net.slow_flush["r3"] = []
    net.partition("r3").log._synced = 6
    result = compared(net)
    assert (result.compared, result.end, result.difference) == (("r1", "r2"), 12, None)
    assert set(result.unasked) == {"r3"} and "up to 12" in result.unasked["r3"]
    alter_on_disk(net, "r2", 11)
    found = compared(net).difference
    assert found is not None and found.offset == 11 and set(found.sides) == {"r1", "r2"}


def test_verify_says_where_a_copy_was_not_compared_to_the_end(monkeypatch: pytest.MonkeyPatch):
    module = import_module("tidelog.cli.verify.replicas")
    partition = PartitionInfo(0, ("r1", "r2"), ("r1", "r2"), "r1", 1, 1)
    topic = TopicInfo(KEY.topic_id, "orders", {}, (partition,))

    def verify(result: Comparison) -> tuple[int, str]:
        monkeypatch.setattr(module, "run", lambda task: [(topic, 0, result)])
        done = CliRunner().invoke(module.replicas, [])
        return done.exit_code, done.output

    code, output = verify(Comparison(("r1", "r2"), 0, 12))
    assert code == 0 and "no difference; 1 partition, 12 records compared" in output
    code, output = verify(Comparison(("r1",), 0, 12, unasked={"r2": "not synced"}))
    assert code == 1 and "orders/0: r2 was not compared to the end: not synced" in output
    assert "no difference in what was compared; 1 of 1 partitions not compared in full, 12 records compared" in output


def test_copy_reads_at_the_wrong_server_or_below_the_log_start_are_refused():
    net = filled()
    for message, expected in (
        (ReadCopy("r2", *KEY, 0), "NOT_REPLICA"),
        (ReadCopy("r1", "nothing", 0, 0), "NOT_LEADER"),
    ):
        assert code(net.answers[net.ask("r1", message)]) == expected
    assert net.partition("r1").log.advance_start(6)
    refused = net.answers[net.ask("r1", ReadCopy("r1", *KEY, 0))]
    assert code(refused) == "OFFSET_OUT_OF_RANGE" and refused.detail["log_start"] == net.partition("r1").log.start


def test_a_log_that_is_cut_while_it_is_read_is_asked_again():
    net = filled(replace(SMALL, min_insync_replicas=1), 1)
    net.slow_job["r1"] = []
    id = net.ask("r1", ReadCopy("r1", *KEY, 4))
    (job,) = net.slow_job.pop("r1")
    log = net.partition("r1").log
    path = job.job.target.path  # type: ignore[attr-defined]
    log.segments.segment_at(4).rewrites += 1  # compaction has put another file there
    alter(net.disks["r1"], path, 4)
    data = net.disks["r1"].read(path)
    net.disks["r1"].replace(path, data[:-7])
    net.work("r1", job)
    net.run()
    answer = net.answers[id]
    assert isinstance(answer, CopyRead) and answer.next_offset == 4
    assert net.partition("r1").offline is None


def test_a_fingerprint_matches_thinned_batches_and_survives_packing():
    whole = encode_batch([NewRecord(b"%d" % n, b"k", 1000) for n in range(4)])
    whole = stamp_prefix(7, 1, read_header(whole).crc32c) + whole[16:]
    thin = thin_batch(decode_columns(whole), whole, [2], 5)
    other = stamp_prefix(7, 2, read_header(whole).crc32c) + whole[16:]
    first, second, third = (fingerprint_of(read_header(each), each) for each in (whole, thin, other))
    assert (first.base_offset, first.end_offset, first.is_sparse, second.is_sparse) == (7, 11, False, True)
    assert first.agrees(second) and second.agrees(first) and not first.agrees(third)
    assert list(unpack(pack(first) + pack(second))) == [first, second] and len(pack(first)) == FINGERPRINT_BYTES


def test_the_odd_one_is_named_by_a_majority_of_the_replicas_only():
    good, bad, other = Side(4, "aa"), Side(4, "bb"), Side(4, "cc")

    def odd(**sides: Side) -> tuple[str, ...]:
        return Comparison(tuple(sides), 0, 9, Difference(3, sides)).odd_ones(("r1", "r2", "r3"))

    assert odd(r1=good, r2=bad, r3=good) == ("r2",)
    assert odd(r1=good, r2=bad) == odd(r1=good, r2=bad, r3=other) == odd(r1=good, l1=good, r2=bad) == ()
    assert Comparison(("r1",)).odd_ones(("r1",)) == ()
