"""What ``tidelog why gap`` says of each kind of offset without a record. Tests ``tidelog.explain.gap``."""

from __future__ import annotations

from dataclasses import replace

from tidelog.batch.format import NewRecord, encode_batch, encode_marker, read_header, seal_batch, split
from tidelog.batch.sparse import emptied
from tidelog.explain.explanation import Explanation, moment
from tidelog.explain.gap import GapEvidence, Part, divide, explain_gap, joined
from tidelog.wire.messages import (
    DigestAnswer,
    HistoryEntry,
    OffsetAnswer,
    PartitionInfo,
    StableOffset,
    TopicInfo,
    TransactionInfo,
)

T0 = 1_795_255_109_771
PARTITION = PartitionInfo(0, ("r1", "r2"), ("r1", "r2"), "r1", 3, 7)
TOPIC = TopicInfo("abc", "orders", {"cleanup": "delete", "retention_ms": "3600000"}, (PARTITION,))
EVIDENCE = GapEvidence(TOPIC, PARTITION, 7, 0, OffsetAnswer(200), DigestAnswer(0, 200, 200), (), 12, 20)


def told(**changes: object) -> Explanation:
    return explain_gap(replace(EVIDENCE, **changes))  # type: ignore[arg-type]


def said(**changes: object) -> str:
    return " ".join(told(**changes).sentences)


def at(base: int, batch: bytes) -> bytes:
    """The batch as the log has it at an offset."""
    return seal_batch(read_header(batch)._replace(base_offset=base), batch[read_header(batch).header_length :])


def records(base: int, count: int, *, transactional: bool = False) -> bytes:
    batch = encode_batch([NewRecord(b"v", b"k", T0)] * count, producer_id=5, transactional=transactional)
    return at(base, batch)


def parts(stored: list[bytes], seen: list[bytes], start: int = 0, stable: int = -1) -> tuple[list[Part], int]:
    return divide(split(b"".join(stored)), split(b"".join(seen)), start, stable)


def test_no_gap_begins_at_a_record() -> None:
    assert parts([records(0, 5)], [records(0, 5)], 3) == ([], 3)
    assert told(next_record=7).sentences == (
        "orders/0 has a record at 7 that readers of committed records get: no gap begins there.",
    )


def test_aborted_records_and_their_marker() -> None:
    aborted, marker = records(0, 2, transactional=True), at(2, encode_marker(5, 0, commit=False, timestamp_ms=T0))
    after = records(3, 1)
    found, record = parts([aborted, marker, after], [bytes(emptied(aborted)), marker, after])
    assert [(part.start, part.end, part.kind, part.text) for part in found] == [
        (0, 2, "aborted", ""),
        (2, 3, "marker", "aborted"),
    ]
    assert record == 3
    text = said(
        offset=0, parts=tuple(found), next_record=3, transactions={(5, 0): TransactionInfo("etl", "aborted", 5, 0)}
    )
    assert "From 0 on, orders/0 has 3 offsets without a record for readers; the next is 3." in text
    assert "Offsets 0 to 1: records of a transaction that was aborted (producer id 5, application etl)." in text
    assert f"Offset 2: the marker of a transaction that was aborted at {moment(T0)} (producer id 5" in text


def test_compacted_offsets_of_neighbours_are_one_part() -> None:
    gone = [bytes(emptied(records(base, 2))) for base in (0, 2)]
    found, record = parts([*gone, records(4, 1)], [*gone, records(4, 1)], 1)
    assert joined(found) == [Part(1, 4, "compacted")] and record == 4
    assert "Offsets 7 to 8: removed by compaction" in said(parts=(Part(7, 9, "compacted"),))


def test_markers_stay_apart() -> None:
    markers = [Part(0, 1, "marker", 5, 0, "committed"), Part(1, 2, "marker", 5, 0, "committed")]
    assert joined(markers) == markers


def test_an_open_transaction_holds_readers() -> None:
    held = records(0, 2, transactional=True)
    found, record = parts([held, records(2, 1)], [], stable=0)
    assert [(part.start, part.end, part.producer_id) for part in found] == [(0, 2, 5), (2, 3, 0)] and record == -1
    end = OffsetAnswer(10, stable=StableOffset(7, 5, 0, 1500))
    found_text = told(parts=(Part(7, 9, "open", 5), Part(9, 10, "open")), next_record=-1, end=end, looked_to=10)
    text = " ".join(found_text.sentences)
    assert "Offsets 7 to 8: records of a transaction that has not ended (producer id 5); readers" in text
    assert "Offset 9: records behind an open transaction" in text
    assert "wait at 7 for the transaction of producer id 5, for at least 1.5 s." in text
    assert "'tidelog transactions list' shows the open transactions." in found_text.next_steps


def test_a_batch_that_cannot_be_decoded() -> None:
    sound = records(0, 2)
    header = read_header(sound)
    broken = seal_batch(header, b"\xff" * (len(sound) - header.header_length))
    found, record = parts([broken, records(2, 1)], [broken, records(2, 1)])
    assert [(part.start, part.end, part.kind) for part in found] == [(0, 2, "unreadable")] and record == 2
    part = Part(7, 9, "unreadable", 5, 0, "no CBOR")
    assert "Offsets 7 to 8: in a batch of producer id 5 that no reader can decode: no CBOR." in said(parts=(part,))


def test_retention() -> None:
    text = said(log_start=12)
    assert "Offsets 7 to 11: deleted; the log starts at 12." in text
    assert "Retention deletes the oldest segments of the topic: retention_ms 60 min." in text
    plain = replace(TOPIC, config={"cleanup": "delete", "retention_ms": "-1"})
    assert "No bound of retention is set now" in said(log_start=12, topic=plain)
    assert "no retention now (cleanup)" in said(log_start=12, topic=replace(TOPIC, config={"cleanup": "compact"}))


def test_losses_of_the_history() -> None:
    facts = {"node": "r2", "start": "5", "end": "9", "count": "4", "leader_epoch": "2"}
    lost = HistoryEntry(T0, 3, 2, "records_lost", "unclean_election", evidence=facts)
    assert (
        f"At {moment(T0)} committed records were lost: r2 cut off offsets 5 to 8 (unclean election). What is there"
        " now are other records." in said(losses=(lost,))
    )
    assert "records were possibly lost" in said(losses=(replace(lost, event="records_possibly_lost"),))


def test_an_unclean_election_may_have_lost_what_was_at_the_end() -> None:
    """No log has these records, so nobody reports them as cut off."""
    facts = {"trigger": "alter_topic", "loss": "possible", "in_sync_before": "r1"}
    unclean = HistoryEntry(T0, 3, 2, "leader_elected", "unclean_election", "r1", ("r1",), facts)
    found = told(offset=200, next_record=-1, looked_to=200, losses=(unclean,))
    assert found.sentences[1] == (
        f"At {moment(T0)} r1 became leader although it may have lacked committed records (unclean election):"
        " acknowledged records behind the end of its log, if there were any, are lost."
    )
    assert found.facts["losses"][0] | {"leader": "r1", "in_sync_before": "r1"} == found.facts["losses"][0]
    earlier = replace(unclean, time_ms=T0 - 9000)
    assert "(unclean election, the last one of 2)" in said(losses=(earlier, unclean), offset=200, next_record=-1)


def test_the_end() -> None:
    found = told(offset=200, next_record=-1, looked_to=200, leader=DigestAnswer(0, 205, 200))
    assert found.sentences == (
        "orders/0 ends at 200 (high watermark): nothing behind it is committed.",
        "The leader r1 has records up to 204, not committed yet.",
    )
    further = told(next_record=-1, looked_to=90)
    assert "'tidelog why gap orders/0@90' looks further." in further.next_steps
    assert "orders/0 could not be read from offset 7 on." in said(end=None)
    nobody = told(end=None, partition=replace(PARTITION, leader=""))
    assert nobody.sentences == ("orders/0 has no leader, so nobody can read it from offset 7 on.",)
    assert nobody.next_steps == ("'tidelog why orders/0' shows why nobody leads.",)
