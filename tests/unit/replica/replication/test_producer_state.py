"""Idempotent producers of one partition."""

from __future__ import annotations

from contextlib import suppress
from io import BytesIO

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog.batch.format import MAX_OFFSET, BatchHeader, Codec, NewRecord, encode_batch, read_header
from tidelog.errors import ProtocolError
from tidelog.types import SHARE_IDS
from tidelog_replica.replication import producer_state as producers
from tidelog_replica.replication.producer_state import AppendedBatch, ProducerState, SequenceRefusal
from tidelog_replica.replication.transaction_index import OpenTransaction

from unit.tidelog.wire.test_cddl import schema


def header(
    sequence: int,
    count: int = 1,
    *,
    id: int = 7,
    epoch: int = 0,
    offset: int = 0,
    value: bytes = b"v",
    transactional: bool = False,
) -> BatchHeader:
    records = [NewRecord(value)] * count
    batch = encode_batch(
        records, producer_id=id, producer_epoch=epoch, base_sequence=sequence, transactional=transactional
    )
    return read_header(batch)._replace(base_offset=offset)


def written(header: BatchHeader, offset: int) -> AppendedBatch:
    return AppendedBatch(header.base_sequence, header.record_count, offset, header.crc32c, header.is_transactional)


def code(verdict: AppendedBatch | SequenceRefusal | None) -> str:
    assert isinstance(verdict, SequenceRefusal)
    return verdict.code


def filled(*sequences: int, count: int = 1) -> ProducerState:
    return ProducerState(header(s, count, offset=100 + s) for s in sequences)


def of_an_earlier_release(state: ProducerState) -> bytes:
    """The state as a server wrote it that remembered no CRCs: one CBOR item."""
    rows: list[object] = [
        [id, epoch, [list(each[:3]) for each in batches]] for id, (epoch, batches) in state.snapshot().items()
    ]
    return cbor2.dumps(rows if state.transactions.is_idle else [*rows, state.transactions.to_map()])


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
        assert state.check(header(sequence)) == written(header(sequence), 100 + sequence)
    assert code(state.check(header(0))) == "UNVERIFIED_SEQUENCE"


@pytest.mark.parametrize("sequence, count", [(2, 2), (0, 2), (0, 1), (1, 1), (1, 2), (2, 1), (3, 1), (0, 4), (3, 9)])
def test_E14_the_same_sequences_with_other_bytes_are_no_copy(sequence: int, count: int) -> None:
    """Of one producer id there are two batches of two records. Another producer has the same id."""
    state = filled(0, 2, count=2)
    assert code(state.check(header(sequence, count, value=b"w"))) == "SEQUENCE_CONFLICT"
    assert state.check(header(2, 2)) == written(header(2, 2), 102)


@pytest.mark.parametrize("kind", ["timestamp", "transaction", "codec", "key"])
def test_E14_a_copy_has_the_same_header_and_body(kind: str) -> None:
    record = NewRecord(b"v", b"k" if kind == "key" else None, int(kind == "timestamp"))
    codec: Codec = "lz4" if kind == "codec" else "none"
    data = encode_batch([record], codec=codec, producer_id=7, base_sequence=0, transactional=kind == "transaction")
    assert code(filled(0).check(read_header(data))) == "SEQUENCE_CONFLICT"


def test_header_fields_written_by_the_leader_make_no_difference() -> None:
    again = header(0)._replace(base_offset=9, leader_epoch=3)
    assert filled(0).check(again) == written(header(0), 100)


def test_a_batch_before_those_that_are_remembered_cannot_be_compared() -> None:
    state = ProducerState(header(2 * s, 2, offset=100 + 2 * s) for s in range(7))
    assert [each.base_sequence for each in state.snapshot()[7][1]] == [4, 6, 8, 10, 12]
    for sequence, count in ((0, 1), (0, 2), (2, 2), (3, 1), (0, 4)):
        assert code(state.check(header(sequence, count))) == "UNVERIFIED_SEQUENCE"
    for sequence, count in ((2, 3), (3, 2), (0, 5)):  # it reaches into what is remembered, and is not there
        assert code(state.check(header(sequence, count))) == "SEQUENCE_CONFLICT"


def test_an_unknown_crc_matches_nothing_until_it_is_read_from_the_log() -> None:
    state = ProducerState.from_bytes(of_an_earlier_release(filled(0, 1)))
    assert state.snapshot() == {7: (0, (AppendedBatch(0, 1, 100, None), AppendedBatch(1, 1, 101, None)))}
    verdict = state.check(header(1))
    assert isinstance(verdict, SequenceRefusal)
    assert (verdict.code, verdict.unverified_at) == ("UNVERIFIED_SEQUENCE", 101)
    assert code(state.check(header(1, value=b"w"))) == "UNVERIFIED_SEQUENCE"
    assert code(state.check(header(1, 2))) == "SEQUENCE_CONFLICT"
    state.learn(header(1, offset=101))
    assert state.check(header(1)) == written(header(1), 101)
    assert code(state.check(header(1, value=b"w"))) == "SEQUENCE_CONFLICT"
    assert code(state.check(header(0))) == "UNVERIFIED_SEQUENCE"
    assert state.check(header(2)) is None


def test_learning_a_crc_does_not_change_the_order_in_which_producers_are_forgotten() -> None:
    state = ProducerState.from_bytes(of_an_earlier_release(ProducerState([header(0), header(0, id=8, offset=1)])))
    state.learn(header(0))
    assert list(state.snapshot()) == [7, 8]


@pytest.mark.parametrize("transactional", [True, False])
def test_a_batch_is_no_copy_of_one_of_the_other_kind_though_the_crc_is_forged(transactional: bool) -> None:
    first = header(0, transactional=transactional)
    state = ProducerState([first])
    forged = header(0, transactional=not transactional)._replace(crc32c=first.crc32c)
    assert code(state.check(forged)) == "SEQUENCE_CONFLICT"
    assert state.check(first) == written(first, 0)


def test_a_batch_of_unknown_kind_matches_nothing_until_it_is_read_from_the_log() -> None:
    rows = of_an_earlier_release(filled(0))
    state = ProducerState.from_bytes(rows + cbor2.dumps({"crcs": [[header(0).crc32c]]}))
    verdict = state.check(header(0))
    assert isinstance(verdict, SequenceRefusal)
    assert (verdict.code, verdict.unverified_at) == ("UNVERIFIED_SEQUENCE", 100)
    state.learn(header(0, offset=100))
    assert state.check(header(0)) == written(header(0), 100)


def test_a_newer_producer_epoch_begins_at_0_and_fences_the_older() -> None:
    state = filled(0, 1)
    assert state.check(header(0, epoch=1)) is None
    assert code(state.check(header(2, epoch=1))) == "OUT_OF_ORDER_SEQUENCE"
    state.record(header(0, epoch=1), 200)
    assert code(state.check(header(2, epoch=0))) == "FENCED_PRODUCER"
    assert state.check(header(0, epoch=1)) == written(header(0, epoch=1), 200)


def test_sequences_wrap_around() -> None:
    last = (1 << 32) - 1
    state = ProducerState()
    state.record(header(last), 50)
    assert state.check(header(0)) is None
    state.record(header(0), 51)
    assert state.check(header(last)) == written(header(last), 50)
    assert code(state.check(header(last - 1))) == "UNVERIFIED_SEQUENCE"


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


def in_share(share: int, number: int) -> int:
    """A producer id of that share."""
    return share * SHARE_IDS + number + 1


def test_a_producer_never_makes_another_shares_producer_forgotten() -> None:
    ids = [in_share(3, number) for number in range(5)] + [in_share(4, number) for number in range(500)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producers, "MAX_PRODUCERS", 10)
        state = ProducerState(header(0, id=id, offset=offset) for offset, id in enumerate(ids))
    assert list(state.snapshot()) == ids[:5] + ids[-5:]
    assert state.check(header(0, id=ids[0])) == written(header(0, id=ids[0]), 0)


def test_a_share_alone_may_use_all_of_the_memory_until_others_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "MAX_PRODUCERS", 10)
    ids = [in_share(9, number) for number in range(10)] + [in_share(2, number) for number in range(4)]
    state = ProducerState(header(0, id=id, offset=offset) for offset, id in enumerate(ids))
    assert list(state.snapshot()) == ids[4:]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=60), st.integers(0, 60))
def test_every_replica_forgets_the_same_also_from_a_snapshot_on(drawn: list[tuple[int, int]], cut: int) -> None:
    log = [header(0, id=in_share(*each), epoch=at, offset=at) for at, each in enumerate(drawn)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producers, "MAX_PRODUCERS", 6)
        state = ProducerState(log)
        again = ProducerState.from_bytes(ProducerState(log[:cut]).to_bytes()).copy()
        for each in log[cut:]:
            again.record(each, each.base_offset)
        assert list(again.snapshot().items()) == list(state.snapshot().items())
        assert len(state) <= 6
        assert {id: share for share, ids in state._shares.items() for id in ids}.keys() == state.snapshot().keys()


def test_a_batch_is_not_appended_that_would_push_out_one_without_an_ack() -> None:
    state = filled(*range(producers.KEPT_BATCHES))
    following = header(producers.KEPT_BATCHES)
    assert state.check(following) is None
    assert state.would_push_out(following, 100)
    assert not state.would_push_out(following, 101), "the oldest one was acked"
    assert not filled(*range(producers.KEPT_BATCHES - 1)).would_push_out(header(producers.KEPT_BATCHES - 1), 100)
    assert not state.would_push_out(header(0, epoch=1), 100), "an earlier epoch is fenced"
    assert not state.would_push_out(header(5, id=8), 100)


# --- as bytes --------------------------------------------------------------------------------------------

CRCS = st.integers(0, 2**32 - 1) | st.none()
BATCHES = st.lists(
    st.builds(
        AppendedBatch,
        st.integers(0, 2**32 - 1),
        st.integers(1, 2**32 - 1),
        st.integers(0, MAX_OFFSET),
        CRCS,
        st.booleans() | st.none(),
    ),
    min_size=1,
    max_size=producers.KEPT_BATCHES,
)  # fmt: skip
STATES = st.dictionaries(
    st.integers(1, 2**64 - 1), st.tuples(st.integers(0, 2**16 - 1), BATCHES.map(tuple)), max_size=30
)


def state_with(known: dict[int, tuple[int, tuple[AppendedBatch, ...]]], open: bool = False) -> ProducerState:
    state = ProducerState()
    for id, (epoch, batches) in known.items():
        state._put(id, producers._Producer(epoch, batches))
    if open:
        state.transactions.open[7] = OpenTransaction(1, 3)
    return state


@given(STATES, st.booleans())
def test_a_state_is_the_same_when_it_is_read_again(
    known: dict[int, tuple[int, tuple[AppendedBatch, ...]]], open: bool
) -> None:
    state = state_with(known, open)
    again = ProducerState.from_bytes(state.to_bytes())
    assert again.snapshot() == known
    assert list(again.snapshot()) == list(known)  # the order says who is forgotten first
    assert again.transactions.to_map() == state.transactions.to_map()


@given(STATES, st.booleans())
def test_an_earlier_release_reads_the_same_state_without_crcs(
    known: dict[int, tuple[int, tuple[AppendedBatch, ...]]], open: bool
) -> None:
    """It reads the first item, with ``cbor2.loads``, and passes over the rest."""
    state = state_with(known, open)
    assert cbor2.loads(state.to_bytes()) == cbor2.loads(of_an_earlier_release(state))


@settings(max_examples=20, deadline=None)
@given(STATES.filter(len))
def test_the_crcs_are_what_the_cddl_file_says(known: dict[int, tuple[int, tuple[AppendedBatch, ...]]]) -> None:
    stream = BytesIO(state_with(known).to_bytes())
    cbor2.load(stream)
    schema("producer-crcs").validate_cbor(stream.read())


@given(STATES, st.booleans())
def test_the_state_of_an_earlier_release_has_no_crcs(
    known: dict[int, tuple[int, tuple[AppendedBatch, ...]]], open: bool
) -> None:
    state = state_with(known, open)
    again = ProducerState.from_bytes(of_an_earlier_release(state)).snapshot()
    unknown = {
        id: (epoch, tuple(AppendedBatch(*b[:3], None) for b in batches)) for id, (epoch, batches) in known.items()
    }
    assert again == unknown


@given(st.binary(max_size=60))
def test_any_bytes_are_a_state_or_a_protocol_error(data: bytes) -> None:
    with suppress(ProtocolError):
        ProducerState.from_bytes(data)
    with suppress(ProtocolError):
        ProducerState.from_bytes(filled(0, 1).to_bytes() + data)


@pytest.mark.parametrize(
    "more",
    [
        {},
        [],
        {"crcs": []},
        {"crcs": [[1, 2], [3]]},
        {"crcs": [[1]]},
        {"crcs": [[1, -1]]},
        {"crcs": [[1, 2**32]]},
        {"crcs": [[1, True]]},
        {"crcs": [7]},
        {"crcs": [[1, 2]], "transactional": [[True]]},
        {"crcs": [[1, 2]], "transactional": [[True, 1]]},
        {"crcs": [[1, 2]], "transactional": []},
    ],
    ids=str,
)
def test_crcs_that_do_not_belong_to_the_batches_are_refused(more: object) -> None:
    rows = of_an_earlier_release(filled(0, 1))
    assert ProducerState.from_bytes(rows + cbor2.dumps({"crcs": [[1, None]], "later": 1})).snapshot() == {
        7: (0, (AppendedBatch(0, 1, 100, 1), AppendedBatch(1, 1, 101, None)))
    }
    with pytest.raises(ProtocolError):
        ProducerState.from_bytes(rows + cbor2.dumps(more))
