"""The partitions of a column of keys, computed for all keys together: ``tidelog.client.core.partitioner`` with the
loops in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tidelog.client.core.partitioner import SEED, M, murmur2

LONG_BYTES = 256
"""Longer keys are hashed one by one: a round of the loop over all keys is not worth it for a few of them."""
PADDING = bytes(4)
"""What follows the bytes of the keys, so that four bytes can be read at every position."""

Hashes = np.ndarray[Any, np.dtype[np.uint32]]


def partitions_of(keys: pa.BinaryArray, partitions: int) -> Hashes:
    """Return the partition of each key, as ``partition_of`` does for one. No key is null."""
    return (hashes_of(keys) & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)


def hashes_of(keys: pa.BinaryArray) -> Hashes:
    """Return the murmur2 hash of each key, as ``murmur2`` does for one. No key is null."""
    _, offsets, data = keys.buffers()
    limits = np.frombuffer(offsets, np.int32, len(keys) + 1, 4 * keys.offset)
    starts, lengths = limits[:-1] - limits[0], np.diff(limits)
    padded = (memoryview(data)[limits[0] : limits[-1]].tobytes() if data else b"") + PADDING
    words: Hashes = np.ndarray((len(padded) - 3,), "<u4", padded, strides=(1,))  # the four bytes at every position
    hashes = np.uint32(SEED) ^ lengths.astype(np.uint32)
    short = lengths <= LONG_BYTES
    for at in range(0, int(lengths[short].max(initial=0)) & ~3, 4):
        rows = np.flatnonzero(short & (lengths >= at + 4))
        word = words[starts[rows] + at] * np.uint32(M)
        hashes[rows] = hashes[rows] * np.uint32(M) ^ (word ^ word >> np.uint32(24)) * np.uint32(M)
    rows = np.flatnonzero(lengths & 3)
    left = (lengths[rows] & 3).astype(np.uint32)
    rest = words[starts[rows] + (lengths[rows] & ~3)] & ((np.uint32(1) << np.uint32(8) * left) - np.uint32(1))
    hashes[rows] = (hashes[rows] ^ rest) * np.uint32(M)
    hashes = (hashes ^ hashes >> np.uint32(13)) * np.uint32(M)
    hashes ^= hashes >> np.uint32(15)
    for row in np.flatnonzero(~short).tolist():
        hashes[row] = murmur2(keys[row].as_py())
    return hashes
