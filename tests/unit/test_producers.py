"""Idempotent producers of one partition."""

from __future__ import annotations

import pytest
from tidelog.records import BatchHeader, NewRecord, encode_batch, read_header
from tidelog_replica.core import producers
from tidelog_replica.core.producers import ProducerState, Refused, Written


def header(sequence: int, count: int = 1, *, id: int = 7, epoch: int = 0, offset: int = 0) -> BatchHeader:
    batch = encode_batch([NewRecord(b"v")] * count, producer_id=id, producer_epoch=epoch, base_sequence=sequence)
    return read_header(batch)._replace(base_offset=offset)


def code(verdict: Written | Refused | None) -> str:
    assert isinstance(verdict, Refused)
    return verdict.code


def filled(*sequences: int, count: int = 1) -> ProducerState:
    return ProducerState(header(s, count, offset=100 + s) for s in sequences)


def test_a_batch_without_producer_id_is_always_new() -> None:
    state = ProducerState([header(0, id=0)])
    assert state.check(header(0, id=0)) is None
    assert state.snapshot() == {}


def test_an_unknown_producer_begins_at_sequence_0() -> None:
    assert ProducerState().check(header(0)) is None
    assert code(ProducerState().check(header(3))) == "OUT_OF_ORDER_SEQUENCE"


def test_the_next_sequence_is_new_and_a_later_one_is_a_gap() -> None:
    state = filled(0, 2, count=2)
    assert state.check(header(4)) is None
    assert code(state.check(header(5))) == "OUT_OF_ORDER_SEQUENCE"


def test_E1_a_copy_of_one_of_the_last_five_batches_has_the_originals_offset() -> None:
    state = filled(0, 1, 2, 3, 4, 5)
    for sequence in range(1, 6):
        assert state.check(header(sequence)) == Written(sequence, 1, 100 + sequence)
    assert code(state.check(header(0))) == "DUPLICATE_SEQUENCE"


def test_an_overlap_that_is_no_exact_copy_is_refused_for_good() -> None:
    assert code(filled(0, 2, count=2).check(header(2, 1))) == "DUPLICATE_SEQUENCE"


def test_a_newer_producer_epoch_begins_at_0_and_fences_the_older() -> None:
    state = filled(0, 1)
    assert state.check(header(0, epoch=1)) is None
    assert code(state.check(header(2, epoch=1))) == "OUT_OF_ORDER_SEQUENCE"
    state.record(header(0, epoch=1), 200)
    assert code(state.check(header(2, epoch=0))) == "FENCED_PRODUCER"
    assert state.check(header(0, epoch=1)) == Written(0, 1, 200)


def test_sequences_wrap_around() -> None:
    last = (1 << 32) - 1
    state = ProducerState()
    state.record(header(last), 50)
    assert state.check(header(0)) is None
    state.record(header(0), 51)
    assert state.check(header(last)) == Written(last, 1, 50)
    assert code(state.check(header(last - 1))) == "DUPLICATE_SEQUENCE"


def test_E1_truncation_makes_the_batches_that_it_cut_new_again() -> None:
    kept = [header(0, offset=0), header(1, offset=1)]
    state = ProducerState([*kept, header(2, offset=2)])
    state.rebuild(kept)
    assert state.check(header(2)) is None
    assert state.snapshot() == ProducerState(kept).snapshot()


def test_only_the_latest_producers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "MAX_PRODUCERS", 2)
    log = [header(0, id=1), header(0, id=2, offset=1), header(1, id=1, offset=2), header(0, id=3, offset=3)]
    state = ProducerState(log)
    assert list(state.snapshot()) == [1, 3]
    assert code(state.check(header(1, id=2))) == "OUT_OF_ORDER_SEQUENCE"
