"""Choice of the partition of a record.

A record with a key goes to the partition of its murmur2 hash, as with Kafka's clients. Records without a key fill the
batch of one partition, then that of the next (KIP-480, "sticky"); partitions that are read-only or paused are passed
over while there are others.
"""

from __future__ import annotations

from collections.abc import Iterable

_MASK = 0xFFFFFFFF
M = 0x5BD1E995
SEED = 0x9747B28C
_CACHED_KEYS = 4096


def murmur2(data: bytes) -> int:
    """Return the unsigned 32-bit murmur2 hash of ``data``, equal to that of
    ``org.apache.kafka.common.utils.Utils.murmur2``."""
    length = len(data)
    h = SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * M & _MASK
        k = (k ^ k >> 24) * M & _MASK
        h = (h * M & _MASK) ^ k
    if length > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * M & _MASK
    h = (h ^ h >> 13) * M & _MASK
    return h ^ h >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key: its hash without the sign bit, modulo the number of partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class Partitioner:
    """The choice of partitions for the records of one producer. ``start``: first partition for records without a key;
    producers should start at different ones, since otherwise all begin with partition 0."""

    def __init__(self, partitions: int, start: int = 0) -> None:
        assert partitions > 0
        self.partitions = partitions
        self.sticky = start % partitions
        """Partition that records without a key go to now."""
        self.closed: frozenset[int] = frozenset()
        """Partitions that take no records at present."""
        self._known: dict[bytes, int] = {}

    def of_key(self, key: bytes) -> int:
        """Return the partition of a key (``partition_of``). The partitions of recent keys are cached, because the
        hash is a Python loop."""
        partition = self._known.get(key)
        if partition is None:
            if len(self._known) >= _CACHED_KEYS:
                self._known.clear()
            partition = self._known[key] = partition_of(key, self.partitions)
        return partition

    def move_on(self) -> None:
        """Set ``sticky`` to the next partition that takes records, because a batch of records without a key is full.
        If all partitions are closed, it is simply the next one."""
        following = ((self.sticky + step) % self.partitions for step in range(1, self.partitions + 1))
        next_one = (self.sticky + 1) % self.partitions
        self.sticky = next((partition for partition in following if partition not in self.closed), next_one)

    def close(self, partitions: Iterable[int]) -> None:
        """Replace the set of partitions that take no records at present. If ``sticky`` is among them, it moves on to
        another partition. A record with a key still goes to its partition."""
        self.closed = frozenset(partitions)
        if self.sticky in self.closed:
            self.move_on()
