"""What ``tidelog why`` says about a record, sentence by sentence. Tests ``tidelog.explain.record``."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidelog.batch.format import CONTROL_FLAG, SPARSE_FLAG, TRANSACTIONAL_FLAG, BatchHeader
from tidelog.explain.explanation import Explanation, moment
from tidelog.explain.record import Batch, Leadership, RecordEvidence, explain_record, leadership_in
from tidelog.wire.messages import (
    DigestAnswer,
    GroupPosition,
    HistoryEntry,
    OffsetAnswer,
    PartitionInfo,
    StableOffset,
    TopicInfo,
    TransactionInfo,
)

T0 = 1_795_255_109_771
PARTITION = PartitionInfo(0, ("r1", "r2", "r3"), ("r1", "r2"), "r2", 3, 7)
TOPIC = TopicInfo("abc", "orders", {"flush": "fsync", "commit_rule": "isr"}, (PARTITION,))


def header(
    attributes: int = 0, *, producer: int = 57, base: int = 100, epoch: int = 2, sequence: int = 40
) -> BatchHeader:
    return BatchHeader(base, epoch, 9, 0x544C, 1, 64, 500, attributes, 1, 10, T0, T0 + 9, producer, sequence, 400)


def copy(end: int, durable: int, start: int = 0) -> DigestAnswer:
    return DigestAnswer(start, end, 200, durable=durable)


EVIDENCE = RecordEvidence(
    TOPIC,
    PARTITION,
    103,
    0,
    OffsetAnswer(200),
    Batch(header(), 3, 10, T0 + 3, b"key", 20),
    {"r1": copy(250, 250), "r2": copy(250, 105), "r3": copy(90, 90)},
    Leadership("r1", T0 - 1000, "leader_reported"),
)


def told(evidence: RecordEvidence = EVIDENCE) -> Explanation:
    return explain_record(evidence)


def test_the_record_and_its_batch() -> None:
    first = told().sentences[0]
    assert first == (
        "orders/0@103 has a key of 3 bytes and a value of 20 bytes; it is record 4 of 10 in the batch of offsets 100"
        " to 109 (500 bytes)."
    )


def test_a_tombstone_without_a_key() -> None:
    evidence = replace(EVIDENCE, batch=Batch(header(), 3, 10, T0 + 3, None, -1))
    assert "has no key and a tombstone (no value)" in told(evidence).sentences[0]


def test_a_batch_that_cannot_be_decoded() -> None:
    evidence = replace(EVIDENCE, batch=Batch(header(), -2, unreadable="no CBOR"))
    assert "(500 bytes), which no reader can decode: no CBOR." in told(evidence).sentences[0]
    assert told(evidence).facts["batch"]["producer_id"] == 57


def test_the_sender_of_a_plain_batch() -> None:
    found = told()
    assert "It was sent by producer id 57, epoch 1, sequence number 43." in found.sentences
    assert any("principal and the program of producer id 57 are not known" in text for text in found.unknown)


def test_a_producer_that_is_not_idempotent_is_not_known() -> None:
    found = told(replace(EVIDENCE, batch=Batch(header(producer=0), 3, 10)))
    assert not any("It was sent" in text for text in found.sentences)
    assert any(text.startswith("Its sender is not known") for text in found.unknown)


def test_the_leader_of_its_epoch_and_the_present_one() -> None:
    assert f"Its timestamp is {moment(T0 + 3)}, by the clock of its producer." in told().sentences
    assert (
        f"It was taken in leader epoch 2 by r1, which led from {moment(T0 - 1000)} on (leader reported); r2 leads"
        " now." in told().sentences
    )
    assert "It was taken in leader epoch 2." in told(replace(EVIDENCE, leadership=None)).sentences


def test_where_it_is_durable_written_and_missing() -> None:
    assert (
        "It is durable (fsync) on r1; written and not flushed on r2; missing on r3 (its log ends at 90)."
        in told().sentences
    )
    cut = replace(EVIDENCE, copies={"r1": copy(250, 250), "r2": copy(250, 250, start=150)})
    assert (
        "It is durable (fsync) on r1; below the log start of r2; unknown of r3, which did not answer."
        in told(cut).sentences
    )
    assert "It is durable on no server; missing on r1 (its log ends at 5)" in " ".join(
        told(replace(EVIDENCE, copies={"r1": copy(5, 5)})).sentences
    )


def test_it_is_committed_and_by_when_at_the_latest() -> None:
    assert "It is committed (commit rule isr): the high watermark is 200." in told().sentences
    groups = {"billing": GroupPosition("abc", 0, 150, committed_ms=T0 + 5000)}
    assert f"It is committed (commit rule isr), by {moment(T0 + 5000)} at the latest" in " ".join(
        told(replace(EVIDENCE, groups=groups)).sentences
    )
    assert "When it was committed is not known: the cluster keeps no time of a commit." in told().unknown


def test_a_record_that_is_not_committed_names_what_lacks_it() -> None:
    evidence = replace(EVIDENCE, end=OffsetAnswer(103), batch=Batch(), offset=110)
    assert told(evidence).sentences[0] == (
        "orders/0@110 is written on r1 and r2 and not committed: the high watermark is 103. It waits for r2 of the"
        " in-sync set to flush it."
    )


def test_offsets_without_a_record() -> None:
    def first(**changes: object) -> str:
        return told(replace(EVIDENCE, **changes)).sentences[0]  # type: ignore[arg-type]

    assert first(batch=Batch(), log_start=104) == "orders/0 has no record 103 any more: its log starts at 104."
    assert first(batch=Batch(), offset=300) == "orders/0 has no record 300 yet: its high watermark is 200."
    control = Batch(header(TRANSACTIONAL_FLAG | CONTROL_FLAG))
    assert first(batch=control) == "orders/0 has no record at 103: the offset is that of a transaction's marker."
    thinned = Batch(header(SPARSE_FLAG), -1, 4)
    assert "compaction removed it; 4 of 10 offsets of its batch have a record" in first(batch=thinned)
    assert first(batch=None, end=None, copies={}) == "orders/0@103 could not be read."
    nobody = replace(PARTITION, leader="")
    assert first(batch=None, end=None, copies={}, partition=nobody).startswith(
        "orders/0 has no leader, so nobody can"
    )
    assert first(batch=Batch()) == "orders/0 has no record at 103, although its high watermark is 200."
    unread = "orders/0@103 is committed, since the high watermark is 200, and could not be read."
    assert first(batch=None) == unread, "the client may have no right to read"


def test_an_offset_behind_the_end_after_an_unclean_election() -> None:
    lost = HistoryEntry(T0, 3, 2, "leader_elected", "unclean_election", "r1", ("r1",), {"loss": "possible"})
    found = told(replace(EVIDENCE, batch=Batch(), offset=300, losses=(lost,)))
    assert found.sentences[0] == "orders/0 has no record 300: its high watermark is 200."
    assert "acknowledged records behind the end of its log, if there were any, are lost." in found.sentences[1]
    assert found.next_steps == ("'tidelog why orders/0' shows its history.",)


def test_a_timestamp_in_microseconds_is_shown_as_its_number() -> None:
    late = header()._replace(first_timestamp=T0 * 1000, max_timestamp=T0 * 1000)
    found = told(replace(EVIDENCE, batch=Batch(late, 3, 10, T0 * 1000, None, 20)))
    assert f"Its timestamp is {T0 * 1000} ms since 1970, which is after the year 9999" in " ".join(found.sentences)
    assert found.facts["batch"]["timestamp"] is None


IN_TRANSACTION = replace(EVIDENCE, batch=Batch(header(TRANSACTIONAL_FLAG), 3, 10, T0, b"", 1))


def test_a_transaction_that_was_committed_or_aborted() -> None:
    marker = header(TRANSACTIONAL_FLAG | CONTROL_FLAG, base=140, sequence=1)
    known = TransactionInfo("etl", "committed", 57, 1, since_ms=T0)
    batch = replace(IN_TRANSACTION.batch, marker=marker)  # type: ignore[type-var]
    found = told(replace(IN_TRANSACTION, batch=batch, transaction=known)).sentences
    assert "It was sent in a transaction of application etl, by producer id 57, epoch 1, sequence number 43." in found
    assert f"Its transaction was committed: the marker at offset 140 has the time {moment(T0 + 9)}." in found
    assert "Readers of committed records get the record." in found
    aborted = replace(batch, marker=marker._replace(base_sequence=0), visible=False)
    found = told(replace(IN_TRANSACTION, batch=aborted)).sentences
    assert any(text.startswith("Its transaction was aborted: the marker at offset 140") for text in found)
    assert "Readers of committed records do not get the record." in found


def test_a_transaction_that_is_open_holds_readers_up() -> None:
    known = TransactionInfo("etl", "open", 57, 1, until_ms=T0 + 60_000)
    evidence = replace(
        IN_TRANSACTION,
        batch=replace(IN_TRANSACTION.batch, visible=False),  # type: ignore[type-var]
        transaction=known,
        end=OffsetAnswer(200, stable=StableOffset(100, 57, 1, 5000)),
    )
    found = told(evidence).sentences
    assert f"Its transaction is open, and is aborted at {moment(T0 + 60_000)} unless it ends before." in found
    assert "Readers of committed records wait at offset 100, before the record." in found


def test_a_transaction_that_no_coordinator_keeps() -> None:
    found = told(IN_TRANSACTION)
    assert "It was sent in a transaction by producer id 57, epoch 1, sequence number 43." in found.sentences
    assert any(text.startswith("The application of its transaction is not known") for text in found.unknown)
    assert "Its transaction was committed." in found.sentences


def test_coordinators_that_did_not_answer_are_not_said_to_keep_nothing() -> None:
    found = told(replace(IN_TRANSACTION, coordinators_answered=False, unknown=("the transaction is not known: no",)))
    assert not any("no coordinator keeps" in text for text in found.unknown)


def test_readers_wait_before_a_plain_record_behind_an_open_transaction() -> None:
    end = OffsetAnswer(200, stable=StableOffset(90, 66, 1, 5000))
    found = told(replace(EVIDENCE, end=end))
    waits = (
        "Readers of committed records wait at offset 90, before the record, for the transaction of producer id 66."
    )
    assert waits in found.sentences and found.facts["batch"]["visible_to_committed_readers"] is False
    beyond = told(replace(EVIDENCE, end=OffsetAnswer(200, stable=StableOffset(104, 66, 1, 5000))))
    assert "Readers of committed records" not in " ".join(beyond.sentences)
    assert beyond.facts["batch"]["visible_to_committed_readers"] is True
    hidden = replace(IN_TRANSACTION.batch, visible=False)  # type: ignore[type-var]
    sentences = told(replace(IN_TRANSACTION, batch=hidden, end=end)).sentences
    assert "Its transaction ends further on in the log, or has not ended." in sentences and waits in sentences


def test_groups_that_have_and_have_not_passed_it() -> None:
    groups = {
        "audit": GroupPosition("abc", 0, 103, committed_ms=T0),
        "billing": GroupPosition("abc", 0, 104, committed_ms=T0 + 5000),
    }
    found = told(replace(EVIDENCE, groups=groups))
    assert f"Passed by the commits of billing (at 104, committed {moment(T0 + 5000)})." in found.sentences
    assert "Not passed yet by audit (at 103)." in found.sentences
    assert "No consumer group has a position in the partition." in told(replace(EVIDENCE, groups={})).sentences


def test_groups_that_the_caller_may_not_describe_are_counted_and_nothing_is_said_of_them() -> None:
    topic = replace(TOPIC, config={"retention_waits_for": "archive"})
    found = told(replace(EVIDENCE, topic=topic, groups={"archive": None, "other": None}))
    assert not [text for text in found.sentences if "group" in text or "archive" in text]
    assert any(text.startswith("The positions of 2 groups are not known") for text in found.unknown)
    assert found.facts["groups"] == {"archive": None, "other": None}


def test_nothing_is_said_of_groups_that_are_not_known() -> None:
    topic = replace(TOPIC, config={"retention_waits_for": "archive"})
    found = told(replace(EVIDENCE, topic=topic, groups=None))
    assert not [text for text in found.sentences if "group" in text or "archive" in text]
    assert found.facts["groups"] is None


def test_groups_that_retention_waits_for_have_archived_it() -> None:
    topic = replace(TOPIC, config={"retention_waits_for": "archive,lake"})
    groups = {"archive": GroupPosition("abc", 0, 110), "lake": GroupPosition("abc", 0, 50)}
    found = told(replace(EVIDENCE, topic=topic, groups=groups)).sentences
    assert "Archived by archive, which retention waits for (retention_waits_for)." in found
    assert any(text.startswith("Not archived yet by lake: retention keeps the record") for text in found)
    assert any(text.startswith("Whether it is archived is not known") for text in told().unknown)


def test_a_position_that_was_set_beyond_the_end_is_no_sign_of_having_read() -> None:
    topic = replace(TOPIC, config={"retention_waits_for": "arch"})
    groups = {"arch": GroupPosition("abc", 0, 300, committed_ms=T0 - 4000)}
    found = told(replace(EVIDENCE, topic=topic, groups=groups)).sentences
    assert "It is committed (commit rule isr): the high watermark is 200." in found
    assert any(
        text.startswith("Beyond the end 200, and so no sign of having read the record: arch (at 300")
        for text in found
    )
    assert any(text.startswith("Not known to be archived by arch: its position is no sign of that") for text in found)
    assert not [text for text in found if text.startswith(("Passed", "Archived"))]
    read = {"arch": GroupPosition("abc", 0, 300, 2, committed_ms=T0 + 4000)}
    lost = told(replace(EVIDENCE, groups=read)).sentences
    assert any(text.startswith("Passed by the commits of arch (at 300") for text in lost), "what is behind was lost"


@pytest.mark.parametrize(
    ("committed", "epoch", "passed"),
    [(T0 + 2, -1, False), (T0 + 3, -1, True), (T0 + 2, 2, True), (T0 + 2, 1, False)],
)
def test_a_commit_before_the_record_was_sent_bounds_nothing(committed: int, epoch: int, passed: bool) -> None:
    """Unless the committer had a record of the same leader epoch, or of a later one, before its position."""
    groups = {"arch": GroupPosition("abc", 0, 110, epoch, committed_ms=committed)}
    text = " ".join(told(replace(EVIDENCE, groups=groups)).sentences)
    assert ("Passed by the commits of arch" in text) == passed
    assert ("at the latest" in text) == (committed > T0 + 2)
    assert ("Set before the record was sent, by the clocks: arch (at 110, committed" in text) == (not passed)


def test_a_commit_before_the_leader_began_to_lead_bounds_nothing() -> None:
    groups = {"arch": GroupPosition("abc", 0, 110, committed_ms=T0 - 2000)}
    batch = Batch(header(), 3, 10, 1, b"key", 20)
    text = " ".join(told(replace(EVIDENCE, groups=groups, batch=batch)).sentences)
    assert "at the latest" not in text and "Set before the record was sent" in text


def test_what_was_not_answered_is_said() -> None:
    assert "what r3 holds is not known" in told(replace(EVIDENCE, unknown=("what r3 holds is not known",))).unknown


@pytest.mark.parametrize(("epoch", "leader", "since"), [(1, "r1", -1), (2, "r2", T0 + 1), (4, "", -1)])
def test_the_leader_of_an_epoch_from_a_history(epoch: int, leader: str, since: int) -> None:
    entries = (
        HistoryEntry(T0, 4, 1, "isr_shrunk", "behind", "r1", ("r1",)),
        HistoryEntry(T0 + 1, 5, 2, "leader_elected", "leader_reported", "r2", ("r2",)),
        HistoryEntry(T0 + 2, 6, 2, "isr_expanded", "caught_up", "r2", ("r2", "r1")),
    )
    found = leadership_in(entries, epoch)
    assert (found.leader, found.since_ms) == (leader, since) if found else leader == ""


def test_the_document_has_the_facts() -> None:
    document = told().as_document()
    assert document["facts"]["batch"]["key"] == "key"
    assert document["facts"]["copies"]["r2"] == {
        "log_start": 0,
        "log_end": 250,
        "durable": 105,
        "high_watermark": 200,
    }
    assert document["facts"]["taken_by"]["leader"] == "r1"
