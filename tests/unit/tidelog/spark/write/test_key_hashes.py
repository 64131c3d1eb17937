"""The partitions of a column of keys are those of each key."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tidelog.client.core.partitioner import murmur2, partition_of
from tidelog.spark.write.key_hashes import LONG_BYTES, hashes_of, partitions_of

ROOT = Path(__file__).resolve().parents[5]
VECTORS = json.loads((ROOT / "docs" / "vectors" / "partitioner.json").read_text())


def test_hashes_are_those_of_the_vectors() -> None:
    keys = pa.array([bytes.fromhex(each["key"]) for each in VECTORS])
    assert hashes_of(keys).tolist() == [each["murmur2"] for each in VECTORS]
    for partitions in (1, 3, 12, 1000):
        wanted = [each["partition_of"][str(partitions)] for each in VECTORS]
        assert partitions_of(keys, partitions).tolist() == wanted


KEYS = st.binary(max_size=40) | st.integers(LONG_BYTES - 4, LONG_BYTES + 8).map(lambda size: b"\xfek" * (size // 2))


@given(st.lists(KEYS, min_size=1, max_size=30), st.integers(0, 29), st.integers(1, 1000))
def test_every_key_of_a_slice_has_the_hash_that_it_has_alone(keys: list[bytes], first: int, partitions: int) -> None:
    first = min(first, len(keys) - 1)
    column = pa.array(keys, pa.binary()).slice(first)
    assert hashes_of(column).tolist() == [murmur2(key) for key in keys[first:]]
    assert partitions_of(column, partitions).tolist() == [partition_of(key, partitions) for key in keys[first:]]
