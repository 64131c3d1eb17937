"""Which partition a record goes to: murmur2 of the key, as Kafka's clients do it, so that keys land where users of
Kafka expect them; without a key, one partition for a whole batch, then the next (KIP-480, "sticky"). Without a key,
partitions that are read-only or paused are passed over while there are others.
"""

from __future__ import annotations

from collections.abc import Iterable

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995
_SEED = 0x9747B28C
_CACHED_KEYS = 4096


def murmur2(data: bytes) -> int:
    """32-bit murmur2 with the seed of ``org.apache.kafka.common.utils.Utils.murmur2``, as an unsigned number."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if length > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of ``key`` in a topic of so many: the hash without its sign bit, modulo their number."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class Partitioner:
    """Chooses partitions for one producer. ``start``: where records without a key begin (give each producer another,
    or all begin with partition 0)."""

    def __init__(self, partitions: int, start: int = 0) -> None:
        assert partitions > 0
        self.partitions = partitions
        self.sticky = start % partitions
        """Where records without a key go now."""
        self.closed: frozenset[int] = frozenset()
        """Partitions that take no records at present."""
        self._known: dict[bytes, int] = {}

    def of_key(self, key: bytes) -> int:
        """The partition of a key. Hot keys are remembered: the hash is a Python loop."""
        partition = self._known.get(key)
        if partition is None:
            if len(self._known) >= _CACHED_KEYS:
                self._known.clear()
            partition = self._known[key] = partition_of(key, self.partitions)
        return partition

    def move_on(self) -> None:
        """A batch without keys is full: the next one goes to the next partition that takes records."""
        following = ((self.sticky + step) % self.partitions for step in range(1, self.partitions + 1))
        next_one = (self.sticky + 1) % self.partitions
        self.sticky = next((partition for partition in following if partition not in self.closed), next_one)

    def close(self, partitions: Iterable[int]) -> None:
        """Exactly these partitions take no records at present. A key stays with its partition even so."""
        self.closed = frozenset(partitions)
        if self.sticky in self.closed:
            self.move_on()
