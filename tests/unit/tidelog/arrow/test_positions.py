"""Items of CBOR arrays are found where they are, whatever bytes the values have."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog.arrow.positions import PADDING, Strings, find_integers, find_strings

optional_bytes = st.none() | st.binary(max_size=40) | st.sampled_from([b"X" * 30, b"YYY", b"\xf6\xf6", b"", b"@A"])


def found_in(arrays: Sequence[Sequence[bytes | None]], behind: bytes = b"\x61k") -> tuple[bytes, Strings | None]:
    """Return the encoded arrays, each with other bytes behind it, and the items that are found in them."""
    pieces = [b"".join(map(cbor2.dumps, array)) + behind for array in arrays]
    limits = np.cumsum([len(piece) for piece in pieces])
    begins = limits - np.array([len(piece) for piece in pieces])
    data = b"".join(pieces) + PADDING
    return data, find_strings(data, begins, limits, np.array([len(array) for array in arrays]))


def items(data: bytes, found: Strings) -> list[bytes | None]:
    """Return the items as objects."""
    places = zip(found.starts.tolist(), found.ends.tolist(), found.nulls.tolist(), strict=True)
    return [None if is_null else data[start:end] for start, end, is_null in places]


@given(st.lists(st.lists(optional_bytes, min_size=1, max_size=50), min_size=1, max_size=4), st.binary(max_size=20))
def test_byte_strings_are_found_in_several_arrays(arrays: list[list[bytes | None]], behind: bytes) -> None:
    data, found = found_in(arrays, behind)
    assert found is not None
    assert items(data, found) == [item for array in arrays for item in array]


@pytest.mark.parametrize("size", [3, 12, 23, 24, 60, 255, 256, 400, 70_000])
@pytest.mark.parametrize(
    "alphabet", [b"\x58\x59\xf6", b"@ABCDEFGHIJKLMNOPQRSTUVWXYZ", b'{}:,"xyz0123', bytes(range(256))]
)
def test_no_value_looks_like_other_values(size: int, alphabet: bytes) -> None:
    source = random.Random(size)
    arrays = [[bytes(source.choices(alphabet, k=size - n % 2)) for n in range(300 if size < 1000 else 3)]] * 3
    data, found = found_in(arrays)
    assert found is not None and items(data, found) == [item for array in arrays for item in array]


@pytest.mark.parametrize("other", ["text", 7, [b"x"], {b"x": 1}, b"x" * 30 + b"\x00"])
def test_other_items_and_arrays_that_end_early_are_not_found(other: Any) -> None:
    good: list[Any] = [b"x" * 30] * 20
    is_cut = isinstance(other, bytes)
    pieces = [*map(cbor2.dumps, good), cbor2.dumps(other)[: 20 if is_cut else None]]
    for part in (pieces, pieces[::-1][: 1 if is_cut else None]):
        data = b"".join(part)
        at = np.array([0]), np.array([len(data)]), np.array([len(part)])
        assert find_strings(data + PADDING, *at) is None


numbers = st.integers(-(2**32), 2**32 - 1) | st.integers(-30, 300)


@given(st.lists(numbers, min_size=1, max_size=100), st.booleans(), st.binary(max_size=9))
def test_integers_are_found_or_left_to_others(values: list[int], is_rising: bool, behind: bytes) -> None:
    values = sorted(values) if is_rising else values
    data = b"".join(map(cbor2.dumps, values))
    found = find_integers(np.frombuffer(data + behind, np.uint8), len(values))
    if found is not None:
        assert (found[0].tolist(), found[1]) == (values, len(data))
    assert find_integers(np.frombuffer(data[:-1], np.uint8), len(values)) is None


@pytest.mark.parametrize("step", [0, 1, 7, 300, 100_000])
def test_rising_integers_are_found_without_an_object_for_each(step: int) -> None:
    values = [n * step for n in range(1000)]
    for signed in (values, [-value for value in values]):
        found = find_integers(np.frombuffer(b"".join(map(cbor2.dumps, signed)), np.uint8), 1000)
        assert found is not None and found[0].tolist() == signed


def test_other_items_are_no_integers() -> None:
    for other in (b"x", "x", 1.5, None, 2**40):
        data = b"".join(map(cbor2.dumps, [1, 2, other]))
        assert find_integers(np.frombuffer(data, np.uint8), 3) is None
