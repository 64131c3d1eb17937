"""Encodes columns of byte strings as the items of a CBOR array (RFC 8949), as ``encode_batch`` writes them, without
an object for each item. The opposite of ``positions.py``."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.arrow.positions import NULL, Integers
from tidelog.wire.cbor import bytes_head

SHORT_BYTES = 1 << 16
"""Byte strings below this length get their heads from a table."""
NULL_ITEM = bytes([NULL])


class EncodedStrings(NamedTuple):
    """The encoded items of a column, one behind the other."""

    data: memoryview
    at: Integers
    """The position of each item in ``data``; behind them, the position after the last one."""


def encode_strings(column: pa.BinaryArray) -> EncodedStrings:
    """Encode each byte string and null of a column, which has at least one."""
    count = len(column)
    if column.null_count == count:
        return EncodedStrings(memoryview(NULL_ITEM * count), np.arange(count + 1))
    items = pc.binary_join_element_wise(_heads(column), column.fill_null(b""), b"")
    _, positions, data = items.buffers()
    return EncodedStrings(memoryview(data).cast("B"), np.frombuffer(positions, np.int32, count + 1))


def _heads(column: pa.BinaryArray) -> pa.BinaryArray:
    """Return what stands before the bytes of each item; of a null, that is the whole item."""
    lengths = pc.binary_length(column)
    if pc.max(lengths).as_py() < SHORT_BYTES:
        return _short_heads().take(lengths.fill_null(SHORT_BYTES))
    heads = (NULL_ITEM if size is None else bytes_head(size) for size in lengths.to_pylist())
    return pa.array(heads, pa.binary())


@functools.cache
def _short_heads() -> pa.BinaryArray:
    """Return the heads of byte strings of 0 to ``SHORT_BYTES`` - 1 bytes, and behind them a null."""
    return pa.array([*map(bytes_head, range(SHORT_BYTES)), NULL_ITEM], pa.binary())
