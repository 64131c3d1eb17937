"""The partitioner: Kafka's murmur2, and stickiness without a key."""

from __future__ import annotations

import pytest
from tidelog.client.core.partitioner import Partitioner, murmur2, partition_of

KAFKA_VECTORS = [  # org.apache.kafka.common.utils.UtilsTest.testMurmur2
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


@pytest.mark.parametrize(("data", "signed"), KAFKA_VECTORS)
def test_murmur2_is_the_one_of_kafka(data: bytes, signed: int) -> None:
    assert murmur2(data) == signed % 2**32


def test_the_sign_bit_is_dropped_before_the_modulo() -> None:
    assert partition_of(b"21", 7) == (-973932308 & 0x7FFFFFFF) % 7


def test_a_key_always_goes_to_the_same_partition() -> None:
    partitioner = Partitioner(12)
    first = [partitioner.of_key(b"%d" % n) for n in range(10_000)]
    assert first == [partition_of(b"%d" % n, 12) for n in range(10_000)]
    assert [partitioner.of_key(b"%d" % n) for n in range(10_000)] == first


def test_keys_spread_over_all_partitions() -> None:
    partitioner = Partitioner(12)
    assert {partitioner.of_key(b"%d" % n) for n in range(1000)} == set(range(12))


def test_without_a_key_a_partition_is_kept_until_its_batch_is_full() -> None:
    partitioner = Partitioner(3, start=5)
    assert partitioner.sticky == 2
    partitioner.move_on()
    assert partitioner.sticky == 0


def test_without_a_key_partitions_that_take_no_records_are_passed_over_while_others_do() -> None:
    partitioner = Partitioner(4, start=1)
    partitioner.close([1, 2])
    chosen = []
    for _ in range(4):
        chosen.append(partitioner.sticky)
        partitioner.move_on()
    assert chosen == [3, 0, 3, 0]
    assert {partitioner.of_key(b"%d" % n) for n in range(100)} == {0, 1, 2, 3}, "keys stay where they are"
    partitioner.close([0, 1, 2, 3])
    before = partitioner.sticky
    partitioner.move_on()
    assert partitioner.sticky == (before + 1) % 4, "all refuse: one after the other"
    partitioner.close([])
    partitioner.move_on()
    assert partitioner.sticky == (before + 2) % 4
