"""Replica servers on a toy network: readers, and what is refused."""

from __future__ import annotations

from support.replica_network import CLIENT, KEY, cluster, code, outcome
from tidelog.backup.batches import empty_batches
from tidelog.batch.format import NewRecord, decode_batch, encode_batch, encode_control, split
from tidelog.errors import BrokerError
from tidelog.types import TopicConfig
from tidelog.wire.codec import payload_view
from tidelog.wire.messages import (
    EpochOffset,
    Fetch,
    FetchPart,
    Heartbeat,
    ListOffset,
    Message,
    OffsetAnswer,
    Read,
    ReadAnswer,
    Watch,
)
from tidelog_replica.config import ReplicaSettings
from tidelog_replica.storage.segment import CorruptLog


def read_values(answer: ReadAnswer) -> list[bytes | None]:
    return [r.value for _, batch in split(payload_view(answer.payload)) for r in decode_batch(batch)]


def test_R7_readers_see_only_what_is_committed() -> None:
    net = cluster()
    net.send("r1", b"a")
    net.slow_flush["r2"] = []
    net.send("r1", b"b")
    answer = net.answers[net.read("r1", 0)]
    assert (answer.high_watermark, read_values(answer)) == (1, [b"a"])
    assert code(net.answers[net.read("r1", 2)]) == "OFFSET_NOT_AVAILABLE"


def test_a_waiting_reader_is_woken_by_the_high_watermark_or_by_its_deadline() -> None:
    net = cluster()
    woken, patient = net.read("r1", 0, max_wait_ms=500), net.read("r1", 0, max_wait_ms=5000)
    net.advance(0.6)
    assert net.answers[woken] == ReadAnswer(0, 0, 0)
    assert patient not in net.answers
    net.send("r1", b"a")
    assert read_values(net.answers[patient]) == [b"a"]


def test_E4_a_position_whose_epoch_ends_earlier_is_refused_with_that_end() -> None:
    net = cluster()
    net.send("r1", b"a")
    net.lead("r2", "r1 r2 r3")
    net.send("r2", b"b")
    answer = net.answers[net.read("r2", 2, last_epoch=0)]
    assert (code(answer), answer.detail["end_offset"], answer.detail["leader_epoch"]) == ("LOG_TRUNCATED", 1, 0)
    assert code(net.answers[net.read("r2", 9)]) == "OFFSET_OUT_OF_RANGE"
    assert code(net.answers[net.read("r2", 2, last_epoch=7)]) == "UNKNOWN_LEADER_EPOCH"
    assert code(net.answers[net.read("r1", 0)]) == "NOT_LEADER"


def test_offsets_by_name_and_time() -> None:
    net = cluster()
    net.send("r1", b"a", b"b")
    ask = lambda **f: net.answers[net.ask("r1", ListOffset(KEY.topic_id, 0, **f))]  # noqa: E731
    assert ask(at="earliest") == OffsetAnswer(0, -1, bytes=72)
    assert ask(at="latest") == OffsetAnswer(2, 0)
    assert ask(at="timestamp", timestamp_ms=900).offset == 0
    assert ask(at="timestamp", timestamp_ms=2000) == OffsetAnswer(2, 0)
    assert code(ask(at="newest")) == "MALFORMED"
    assert code(ask(at="timestamp")) == "MALFORMED", "without a time"


def test_an_invalid_batch_is_refused_before_anything_is_appended() -> None:
    net = cluster(config=TopicConfig(min_insync_replicas=2, max_batch_bytes=1000))
    batch = bytearray(encode_batch([NewRecord(b"v")]))
    batch[-1] ^= 1
    assert code(net.acks[net.send_batch("r1", bytes(batch))]) == "CORRUPT_BATCH"
    assert code(net.acks[net.send("r1", b"x" * 2000)]) == "BATCH_TOO_LARGE"
    assert code(net.acks[net.send("r1", b"x", leader_epoch=7)]) == "UNKNOWN_LEADER_EPOCH"
    assert code(net.acks[net.send("r1", b"x", acks=3)]) == "MALFORMED"
    wrong = net.send("r1", b"x", expected_offset=1)
    assert (code(net.acks[wrong]), net.acks[wrong].error.detail) == ("UNEXPECTED_OFFSET", {"end_offset": "0"})
    assert net.values("r1") == []
    assert code(net.acks[net.send("r1", b"x", expected_offset=0)]) == ""


def test_batches_with_gaps_are_taken_only_where_they_say_they_belong() -> None:
    """They are copies of what compaction left elsewhere (``tidelog.backup``)."""
    net = cluster()
    [gap] = empty_batches(0, 1000)
    assert code(net.acks[net.send_batch("r1", gap)]) == "CORRUPT_BATCH"
    assert code(net.acks[net.send_batch("r1", gap, expected_offset=7)]) == "UNEXPECTED_OFFSET"
    assert net.acks[net.send_batch("r1", gap, expected_offset=0)].offset == 0
    assert code(net.acks[net.send_batch("r1", encode_control("leader"), expected_offset=1000)]) == "CORRUPT_BATCH"
    assert net.acks[net.send("r1", b"x", expected_offset=1000)].offset == 1000
    assert net.values("r1") == net.values("r2") == [b"x"]


def test_too_many_waiting_batches_are_refused() -> None:
    net = cluster(settings=ReplicaSettings(partition_max_waiting=2))
    net.slow_flush["r1"] = []
    ids = [net.send("r1", b"x") for _ in range(3)]
    assert code(net.acks[ids[2]]) == "OVERLOADED"


def test_C3_messages_of_an_earlier_life_or_a_stranger_are_refused() -> None:
    net = cluster()
    part = FetchPart(KEY.topic_id, 0, 0, 0, -1, 0)
    old = net.ask("r1", Fetch("r2", 0, 1000, (part,)))
    assert code(net.answers[old]) == "FENCED_BROKER_EPOCH"
    assert code(net.answers[net.ask("r1", EpochOffset("r2", 0, ()))]) == "FENCED_BROKER_EPOCH"
    stranger = net.ask("r1", Fetch("r9", 99, 1000, (part,)))
    assert code(net.answers[stranger].parts[0]) == "NOT_REPLICA"
    unknown: Message = Read("nothing", 0, 0)
    assert code(net.answers[net.ask("r1", unknown)]) == "NOT_LEADER"


def test_D6_a_failed_flush_takes_the_partition_offline_and_acks_nobody() -> None:
    net = cluster()
    net.disks["r1"].fail_syncs()
    id = net.send("r1", b"a")
    assert outcome(net.acks[id]) == ("OFFLINE", True)
    assert net.happened("partition_offline")
    assert net.stopped == ["r1"]
    net.disks["r1"].heal()
    assert outcome(net.acks[net.send("r1", b"b")]) == ("OFFLINE", False)
    net.advance(4)
    assert any(report.reason == "offline" for report in net.reports)


def test_D6_a_failed_write_has_an_unknown_outcome() -> None:
    net = cluster()
    waiting = net.read("r1", 0, max_wait_ms=1000)
    net.disks["r1"].fail_writes()
    id = net.send("r1", b"a")
    assert outcome(net.acks[id]) == ("OFFLINE", True)
    assert code(net.answers[waiting]) == "OFFLINE"


def test_D6_a_follower_whose_disk_fails_follows_nobody_and_stops_no_commit_for_ever() -> None:
    net = cluster()
    net.disks["r3"].fail_writes()
    id = net.send("r1", b"a", timeout_ms=60_000)
    assert net.partition("r3").offline is not None
    net.advance(11)
    assert net.state().isr == ("r1", "r2")
    assert net.acks[id].offset == 0


def test_D3_a_log_that_turns_out_damaged_takes_its_partition_offline_and_not_the_server() -> None:
    net = cluster()
    net.send("r1", b"a")
    leading = net.partition("r1")

    def find_damage() -> None:
        raise CorruptLog("segment", "at byte 0: bad magic")

    assert not leading.guard(find_damage)
    assert code(net.acks[net.send("r1", b"b")]) == "OFFLINE"
    assert net.stopped == []


def test_D6_a_log_that_does_not_open_is_offline() -> None:
    net = cluster()
    net.stop("r1")
    net.hold = lambda name, call: name == "r1" and isinstance(call.message, Watch)
    net.start("r1")
    net.disks["r1"].fail_reads()
    net.deliver(*net.held.pop())
    net.run()
    assert code(net.acks[net.send("r1", b"a")]) == "OFFLINE"


def test_a_follower_refuses_to_cut_committed_records() -> None:
    net = cluster(2, config=TopicConfig(min_insync_replicas=1))
    net.send("r1", b"a")
    net.send("r1", b"b")
    net.advance(4)
    assert net.partition("r2").high_watermark == 2
    net.stop("r1")
    net.disks["r1"] = type(net.disks["r1"])()
    net.start("r1")
    net.lead("r1", "r1")
    ((name, event),) = net.happened("partition_offline")
    assert name == "r2"
    assert "committed records would be lost" in event.fields["reason"]


def test_a_restart_begins_near_the_high_watermark() -> None:
    net = cluster()
    for value in (b"a", b"b", b"c"):
        net.send("r1", value)
    net.advance(6)
    net.stop("r2")
    net.start("r2")
    assert net.partition("r2").high_watermark >= 2


def test_links_that_close_leave_no_waiters() -> None:
    net = cluster()
    net.slow_flush["r2"] = []
    net.send("r1", b"a")
    net.read("r1", 0, max_wait_ms=1000)
    net._take("r1", net.nodes["r1"].on_link_closed(CLIENT, net.now))
    net.flush("r2", net.slow_flush.pop("r2")[0])
    net.run()
    net.advance(2)
    assert not net.acks
    assert not net.answers


def test_an_unknown_request_is_refused() -> None:
    net = cluster(1)
    answer = net.answers[net.ask("r1", Heartbeat("r1", 1))]
    assert isinstance(answer, BrokerError)
    assert answer.code == "UNSUPPORTED"
