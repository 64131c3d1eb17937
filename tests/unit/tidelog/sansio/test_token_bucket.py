"""What a token bucket gives, and when."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog.sansio.token_bucket import KNOWN, RateShares, TokenBucket


def test_a_bucket_gives_all_while_it_has_anything_and_nothing_while_in_debt() -> None:
    bucket = TokenBucket(100, 1.0, 0.0)
    assert bucket.pause_s(0.0) == 0
    bucket.spend(250, 0.0)
    assert bucket.pause_s(0.0) == pytest.approx(1.51)
    assert bucket.pause_s(1.5) > 0
    assert bucket.pause_s(1.52) == 0


def test_a_bucket_that_rests_does_not_save_up() -> None:
    bucket = TokenBucket(100, 1.0, 0.0)
    bucket.spend(101, 1e6)
    assert bucket.pause_s(1e6) > 0


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 5000)), max_size=60), st.integers(1, 1000))
def test_nobody_gets_more_than_the_rate_but_for_a_burst_and_one_message(
    asks: list[tuple[float, int]], rate: int
) -> None:
    bucket, now, got, largest = TokenBucket(rate, 1.0, 0.0), 0.0, 0, 0
    for pause, size in asks:
        now += pause
        wait = bucket.pause_s(now)
        if not wait:
            bucket.spend(size, now)
            got, largest = got + size, max(largest, size)
        else:
            assert bucket.pause_s(now + wait + 1e-6) == 0, "who waits as told has it"
    assert got <= rate * (now + 1.0) + largest + 1e-3


def test_there_is_a_whole_token_when_the_bucket_says_so() -> None:
    bucket = TokenBucket(0.05, 40.0, -math.inf)
    assert bucket.token_at == -math.inf, "a new bucket is full"
    for _ in range(2):
        bucket.spend(1, 100.0)
    assert bucket.token_at == pytest.approx(120.0)
    bucket.fill(120.0)
    assert bucket.tokens == pytest.approx(1.0)


def test_another_rate_counts_from_when_it_is_set() -> None:
    bucket = TokenBucket(100, 1.0, 0.0)
    bucket.spend(300, 0.0)
    bucket.set_rate(10, 1.0)
    assert bucket.tokens == -100
    bucket.fill(2.0)
    assert bucket.tokens == -90


def test_each_principal_has_a_share_of_a_common_rate() -> None:
    shares = RateShares(2)
    assert [shares.try_spend("mallory", 0.0) for _ in range(100)].count(True) == 2
    assert shares.try_spend("alice", 0.0)
    assert [shares.try_spend("mallory", 10.0) for _ in range(100)].count(True) == 2


def test_shares_are_remembered_for_so_many_at_most() -> None:
    shares = RateShares(1)
    for number in range(3 * KNOWN):
        assert shares.try_spend(f"10.0.0.{number}", 0.0)
    assert not shares.try_spend(f"10.0.0.{3 * KNOWN - 1}", 0.0)
    assert len(shares._buckets) == KNOWN
