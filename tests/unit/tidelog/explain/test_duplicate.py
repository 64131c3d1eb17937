"""What ``tidelog why duplicate`` says of two records. Tests ``tidelog.explain.duplicate``."""

from __future__ import annotations

from dataclasses import replace

from tidelog.batch.format import TRANSACTIONAL_FLAG, BatchHeader, Record
from tidelog.explain.duplicate import DuplicateEvidence, Side, explain_duplicate
from tidelog.explain.explanation import Explanation
from tidelog.wire.messages import TransactionInfo

T0 = 1_795_255_109_771


def side(
    offset: int, *, producer: int = 57, epoch: int = 1, sequence: int = 40, value: bytes = b"v", attributes: int = 0
) -> Side:
    """A record of the partition ``orders/0``, the first of its batch."""
    header = BatchHeader(offset, 2, 9, 0x544C, 1, 64, 500, attributes, epoch, 1, T0, T0, producer, sequence, 400)
    record = Record("orders", 0, offset, 2, T0 + offset, b"k", value, ())
    return Side("orders", 0, offset, header, record)


def told(first: Side, second: Side) -> Explanation:
    return explain_duplicate(DuplicateEvidence(first, second))


def said(first: Side, second: Side) -> str:
    return " ".join(told(first, second).sentences)


def test_two_producers() -> None:
    text = said(side(3), side(9, producer=58))
    assert text.startswith("orders/0@3 and orders/0@9 are the same, byte for byte: key, value and headers.")
    assert "orders/0@9 was sent by producer id 58, epoch 1, sequence number 40." in text
    assert ", 6 ms apart." in text
    assert "The producer ids differ: two producers sent the record, or one program that was started again" in text


def test_no_duplicates() -> None:
    text = said(side(3), side(9, value=b"other"))
    assert "are no duplicates: their values differ (key, headers the same)." in text
    assert "producer ids differ" not in text and not told(side(3), side(9, value=b"other")).next_steps


def test_one_producer_that_sent_twice() -> None:
    text = said(side(3, sequence=40), side(9, sequence=46))
    assert "under different sequence numbers (40 and 46): its application sent the record twice." in text


def test_one_producer_in_two_epochs() -> None:
    assert "in the epochs 1 and 2: the producer began anew" in said(side(3), side(9, epoch=2))


def test_the_same_sequence_number_cannot_be_a_repetition() -> None:
    assert "which a leader refuses: that cannot be a repetition" in said(side(3), side(9))


def test_a_producer_without_idempotence() -> None:
    found = told(side(3, producer=0), side(9))
    assert "orders/0@3 was sent by a producer without idempotence." in found.sentences
    assert "a producer that repeats a batch writes it twice." in " ".join(found.sentences)
    assert any("is not known" in text for text in found.unknown)


def test_one_producer_and_two_partitions() -> None:
    text = said(side(3), replace(side(9), partition=1))
    assert "orders/1@9" in text and "each partition has sequence numbers of its own." in text


def test_one_application_in_two_transactions() -> None:
    sides = [
        replace(
            side(at, producer=id, attributes=TRANSACTIONAL_FLAG),
            transaction=TransactionInfo("etl", "committed", id, 1),
        )
        for at, id in ((3, 57), (9, 58))
    ]
    text = said(sides[0], replace(sides[1], visible=False))
    assert "Both belong to application etl, which sent the record in two transactions." in text
    assert "orders/0@3 was sent in a transaction of application etl by producer id 57" in text
    assert "Readers of committed records do not get orders/0@9." in text


def test_what_cannot_be_compared() -> None:
    found = told(side(3), Side("orders", 0, 9, missing="is not in the log yet"))
    assert found.sentences == ("orders/0@9 is not in the log yet.",)
    assert found.next_steps == ("'tidelog why gap orders/0@9' explains that.",)
    assert told(side(3), side(3)).sentences == ("Both are the same offset: one record, read twice.",)
    nothing = Side("orders", 0, 9, missing="is not in the log yet")
    assert told(nothing, nothing).sentences == found.sentences, "no record was read twice"
    assert told(nothing, nothing).next_steps == found.next_steps
