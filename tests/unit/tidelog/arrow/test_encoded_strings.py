"""Columns of byte strings as CBOR."""

from __future__ import annotations

import cbor2
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tidelog.arrow.encoded_strings import SHORT_BYTES, encode_strings

LENGTHS = st.integers(0, 30) | st.sampled_from([255, 256, 65_535]) | st.just(SHORT_BYTES)
ITEMS = st.lists(st.none() | LENGTHS.map(bytes), min_size=1, max_size=12)


@given(ITEMS, st.integers(0, 11))
def test_every_item_is_what_cbor_makes_of_it(items: list[bytes | None], first: int) -> None:
    first = min(first, len(items) - 1)
    found = encode_strings(pa.array(items, pa.binary()).slice(first))
    assert len(found.at) == len(items) - first + 1
    for number, item in enumerate(items[first:]):
        assert found.data[found.at[number] : found.at[number + 1]] == cbor2.dumps(item)
