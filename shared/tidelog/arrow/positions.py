"""Finds the items of CBOR arrays (RFC 8949) by their positions: byte strings, nulls and integers, many items at a
time and without an object for each. A caller that gets None decodes the arrays in another way.

Theory. The items of an array of byte strings form a chain: each has its length in its head, and the next one begins
behind it. A chain has to be followed item by item. Numpy cannot do that, and a loop in Python takes as long for an
item as decoding it. But a chain is easily *checked*. So every byte that could be the head of an item is a candidate.
A candidate stays if an array begins there, or if another candidate ends there. Items always stay. A byte of a value
that looks like a head stays only if such bytes form a chain of their own. The first link of that chain goes in every
round, so a few rounds leave the items alone. For long values the loop is the faster way, since it does not look at
their bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

Integers = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

PADDING = bytes(4)
"""What follows the bytes that are searched, so that the head of their last item can be read without a check."""
LONG_BYTES = 300
"""Average size of items from which on they are followed one by one."""
PART_BYTES = 128 << 10
"""Bytes that are searched for heads at a time."""
ROUNDS = 6
"""Most rounds in which candidates are removed."""
CROWD = 6
"""So many candidates for each item are too many: following the items is faster."""
SAMPLE = 8
"""Number of items by which the form of the others is guessed."""
LEAST_RUN = 8
"""Items of a run of integers of one size, but for the first and the last run of an array. Decoding is faster if runs
are shorter."""
NULL, SHORT, ONE_BYTE, TWO_BYTES, FOUR_BYTES = 0xF6, 0x40, 0x58, 0x59, 0x5A
"""The first bytes of a null, and of byte strings whose length is in that byte (up to 23), or in one, two or four
bytes behind it."""

_HEAD_BYTES = np.ones(256, np.int64)
_HEAD_BYTES[ONE_BYTE], _HEAD_BYTES[TWO_BYTES], _HEAD_BYTES[FOUR_BYTES] = 2, 3, 5
_SHORT_SIZE = np.zeros(256, np.int64)
_SHORT_SIZE[SHORT:ONE_BYTE] = np.arange(ONE_BYTE - SHORT)
_INTEGERS: dict[int, np.dtype[Any]] = {24: np.dtype(">u1"), 25: np.dtype(">u2"), 26: np.dtype(">u4")}
"""The low bits of an integer's first byte -> the type of what follows."""


class Strings(NamedTuple):
    """The items of arrays of byte strings and nulls, one array after the other."""

    starts: Integers
    """Position of the first byte of each item's content; of a null, the position behind it."""
    ends: Integers
    """Position behind each item."""
    nulls: np.ndarray[Any, np.dtype[np.bool_]]
    """Whether each item is null."""


def find_strings(data: bytes, begins: Integers, limits: Integers, counts: Integers) -> Strings | None:
    """Return the items of several arrays of byte strings and nulls. The first item of an array is at its position in
    ``begins``, its last one ends at ``limits`` or before, and it has as many items as ``counts`` says, at least one.
    The arrays do not overlap, and stand in order. ``data`` ends with ``PADDING``. Return None if there are other
    items."""
    if len(data) < int(counts.sum()) * LONG_BYTES:
        sample = _follow(data, begins[:1], limits[:1], np.minimum(counts[:1], SAMPLE))
        if sample is None:
            return None
        has_short = bool(((sample.ends - sample.starts < ONE_BYTE - SHORT) & ~sample.nulls).any())
        at = np.concatenate(list(_candidates(data, has_short)))
        found = _search(np.frombuffer(data, np.uint8), at, begins, limits, counts)
        if found is not None:
            return found
    return _follow(data, begins, limits, counts)


def _follow(data: bytes, begins: Integers, limits: Integers, counts: Integers) -> Strings | None:
    """Find the items one by one, as ``find_strings`` does."""
    places: list[int] = []
    behind: list[int] = []
    for at, limit, count in zip(begins.tolist(), limits.tolist(), counts.tolist(), strict=True):
        for _ in range(count):
            if at >= limit:
                return None
            places.append(at)
            head = data[at]
            if head == TWO_BYTES:
                at += 3 + (data[at + 1] << 8) + data[at + 2]
            elif head == ONE_BYTE:
                at += 2 + data[at + 1]
            elif SHORT <= head < ONE_BYTE:
                at += 1 + head - SHORT
            elif head == FOUR_BYTES:
                at += 5 + int.from_bytes(data[at + 1 : at + 5], "big")
            elif head == NULL:
                at += 1
            else:
                return None
        if at > limit:
            return None
        behind.append(at)
    begin = np.array(places)
    heads = np.frombuffer(data, np.uint8)[begin]
    ends = np.empty_like(begin)
    ends[:-1] = begin[1:]
    ends[np.cumsum(counts) - 1] = behind
    return Strings(begin + _HEAD_BYTES[heads], ends, heads == NULL)


def _search(array: Bytes, at: Integers, begins: Integers, limits: Integers, counts: Integers) -> Strings | None:
    """Find the items among the candidates at the positions ``at``, as ``find_strings`` does. Return None if there are
    too many candidates, or ``ROUNDS`` rounds do not suffice."""
    if len(at) > CROWD * int(counts.sum()):
        return None
    heads = array[at]
    second = array[at + 1].astype(np.int64)
    size = np.where(heads == ONE_BYTE, second, _SHORT_SIZE[heads])
    size = np.where(heads == TWO_BYTES, second << 8 | array[at + 2], size)
    starts = at + _HEAD_BYTES[heads]
    ends = starts + size
    for _ in range(ROUNDS):
        found = _chosen(at, ends, begins, limits, counts)
        if found is not None:
            return Strings(starts[found], ends[found], heads[found] == NULL)
        is_reached = np.zeros(len(array) + 1, np.bool_)
        is_reached[np.minimum(ends, len(array))] = True
        is_reached[begins] = True
        stays = is_reached[at]
        if stays.all():
            return None
        at, starts, ends, heads = at[stays], starts[stays], ends[stays], heads[stays]
    return None


def _candidates(data: bytes, has_short: bool) -> Iterator[Integers]:
    """Yield the positions of the bytes that could be heads, in order, part by part: what is computed for a part stays
    in the processor's cache. Byte strings of less than 24 bytes are candidates only if ``has_short``."""
    array = np.frombuffer(data, np.uint8)
    has_nulls = NULL in data  # far faster than comparing; no text in UTF-8 has this byte
    for begin in range(0, len(array) - len(PADDING), PART_BYTES):
        part = array[begin : min(begin + PART_BYTES, len(array) - len(PADDING))]
        is_head = part - np.uint8(SHORT) < FOUR_BYTES - SHORT if has_short else part & 0xFE == ONE_BYTE
        if has_nulls:
            is_head |= part == NULL
        yield np.flatnonzero(is_head) + begin


def _chosen(at: Integers, ends: Integers, begins: Integers, limits: Integers, counts: Integers) -> Integers | None:
    """Return which candidates are the items of the arrays: from the first position of each array on, as many as it
    has items. Return None if they do not form chains: other candidates stand among them."""
    lasts = np.cumsum(counts) - 1
    first = np.searchsorted(at, begins)
    if (first + counts).max() > len(at):
        return None
    chosen = np.repeat(first - (lasts + 1 - counts), counts) + np.arange(lasts[-1] + 1)
    where, behind = at[chosen], ends[chosen]
    expected = np.empty_like(where)
    expected[1:] = behind[:-1]
    expected[lasts + 1 - counts] = begins
    return chosen if (where == expected).all() and (behind[lasts] <= limits).all() else None


def find_integers(data: Bytes, count: int) -> tuple[Integers, int] | None:
    """Return the ``count`` integers that begin at the first byte of ``data``, and the position behind them. They are
    taken in runs of items of one size, as rising numbers are. Return None if there are other items, or short
    runs."""
    if len(data) >= count and data[:count].max() < 24:
        return data[:count].astype(np.int64), count
    runs: list[Integers] = []
    at = 0
    while count:
        run = _run(data[at:], count)
        if run is None:
            return None
        values, size = run
        if runs and len(values) < min(LEAST_RUN, count):
            return None
        runs.append(values)
        at += len(values) * size
        count -= len(values)
    return (runs[0] if len(runs) == 1 else np.concatenate(runs)), at


def _run(data: Bytes, most: int) -> tuple[Integers, int] | None:
    """Return the integers at the first byte of ``data`` that have the same size, ``most`` of them at most, and their
    size in bytes. Return None if there is none."""
    if not len(data):
        return None
    head = int(data[0])
    if head & 31 < 24 and head < SHORT:
        items = data[:most]
        values = items[: _length((items & 31 < 24) & (items < SHORT))].astype(np.int64)
        return np.where(values >= 32, 31 - values, values), 1
    kind = _INTEGERS.get(head & 31)
    if kind is None or head >= SHORT:
        return None
    size = 1 + kind.itemsize
    items = data[: min(most, len(data) // size) * size].reshape(-1, size)
    alike = items[: _length(items[:, 0] == head), 1:]
    if not len(alike):
        return None
    values = np.ascontiguousarray(alike).view(kind)[:, 0].astype(np.int64)
    return (-1 - values if head >= 32 else values), size


def _length(is_alike: np.ndarray[Any, np.dtype[np.bool_]]) -> int:
    """Return the number of true items before the first false one."""
    return len(is_alike) if is_alike.all() else int(is_alike.argmin())
