"""``deploy/bench/validation.py``: what is summed up, and what it divides. All figures are made up. Tests
``bench/validation.py``."""

from __future__ import annotations

import pytest
from bench.validation import IN_FLIGHT, SHAPES, Sample, cost, pair_ratios, records_of
from tidelog.batch.format import check_batch, check_body, encode_batch


def sample(batches: int, gateway: float, rest: float) -> Sample:
    return Sample(batches, 2.0, {"g1": gateway, "r1": rest / 2, "client": rest / 2})


def test_costs_are_ratios_of_sums() -> None:
    found = cost([sample(100, 1.0, 3.0), sample(300, 1.0, 3.0)], 10_000)
    assert (found.gateway_ms_per_mb, found.all_ms_per_mb) == (500.0, 2000.0)
    assert (found.all_us_per_batch, found.mb_per_s) == (20_000.0, 1.0)


def test_a_pair_compares_cpu_per_batch() -> None:
    assert pair_ratios([sample(100, 2.0, 2.0)], [sample(50, 0.5, 0.5)]) == [2.0]


@pytest.mark.parametrize("name", SHAPES)
def test_every_case_is_a_sound_batch_of_its_shape(name: str) -> None:
    codec, size, record_bytes = SHAPES[name]
    batch = encode_batch(records_of(codec, size, record_bytes), codec=codec)
    header = check_batch(batch)
    check_body(header, batch)
    assert header.record_count == size // record_bytes and size in IN_FLIGHT
    assert codec == "none" or len(batch) < 0.6 * size, "it is compressible"
