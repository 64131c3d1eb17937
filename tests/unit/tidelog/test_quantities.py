"""Durations, sizes and counts as people write them, and as they are shown."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog.quantities import (
    BYTES,
    BYTES_PER_S,
    COUNT,
    MIB_PER_S,
    MILLISECONDS,
    SECONDS,
    Unit,
    in_words,
    parse,
    parse_whole,
    unit_of,
)
from tidelog.runtime.config import settings_of
from tidelog_controller.config import ControllerConfig
from tidelog_controller.metadata.rules.topics import RANGES
from tidelog_gateway.config import GatewayConfig
from tidelog_replica.config import ReplicaConfig


@pytest.mark.parametrize(
    ("text", "unit", "number"),
    [
        ("7d", MILLISECONDS, 604_800_000),
        ("2w", MILLISECONDS, 1_209_600_000),
        ("12h", SECONDS, 43_200),
        ("5min", SECONDS, 300),
        ("500ms", SECONDS, Fraction(1, 2)),
        ("1.5H", MILLISECONDS, 5_400_000),
        ("5000", MILLISECONDS, 5000),
        ("-1", MILLISECONDS, -1),
        (" 30 s ", MILLISECONDS, 30_000),
        ("64MiB", BYTES, 64 << 20),
        ("1GB", BYTES, 10**9),
        ("1kB", BYTES, 1000),
        ("10m", BYTES, 10 << 20),
        ("1.5KiB", BYTES, 1536),
        ("1_000", BYTES, 1000),
        ("1e3", BYTES, 1000),
        ("4MiB/s", BYTES_PER_S, 4 << 20),
        ("16", MIB_PER_S, 16),
        ("512KiB/s", MIB_PER_S, Fraction(1, 2)),
        ("10k", COUNT, 10_000),
    ],
)
def test_a_quantity_is_read_in_what_the_setting_counts(text: str, unit: Unit, number: Fraction) -> None:
    assert parse(text, unit) == number


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        *[(text, MILLISECONDS) for text in ("", "d", "7 days", "7 d d", "64MiB", "1,5h", "nan", "+1", "٣", "1/2")],
        *[(text, BYTES) for text in ("7d", "4MiB/s", "0x10", "--1", "1" * 41, "1e999")],
        ("10KiB", COUNT),
    ],
)  # fmt: skip
def test_another_text_is_refused_with_what_is_accepted(text: str, unit: Unit) -> None:
    with pytest.raises(ValueError, match="must be a number") as caught:
        parse(text, unit)
    assert unit.noun in str(caught.value) and unit.example in str(caught.value)


@pytest.mark.parametrize(("text", "unit"), [("0.5ms", MILLISECONDS), ("0.3KiB", BYTES), ("1.5", BYTES), ("x", BYTES)])
def test_a_whole_number_is_asked_for(text: str, unit: Unit) -> None:
    with pytest.raises(ValueError, match=f"must be a whole number of {unit.noun}, or {unit.example}"):
        parse_whole(text, unit)


@pytest.mark.parametrize(
    ("number", "unit", "words"),
    [
        (604_800_000, MILLISECONDS, "7d"),
        (90_000, MILLISECONDS, "90s"),
        (1500, MILLISECONDS, ""),
        (86_400.0, SECONDS, "1d"),
        (0.5, SECONDS, ""),
        (64 << 20, BYTES, "64MiB"),
        (10**9, BYTES, "1GB"),
        (1001, BYTES, ""),
        (4 << 20, BYTES_PER_S, "4MiB/s"),
        (-1, BYTES, ""),
        (0, MILLISECONDS, ""),
        (10_000, COUNT, ""),
    ],
)
def test_a_number_is_shown_in_its_largest_unit(number: float, unit: Unit, words: str) -> None:
    assert in_words(number, unit) == words


@given(st.integers(1, 1 << 60), st.sampled_from([MILLISECONDS, SECONDS, BYTES, BYTES_PER_S]))
def test_what_is_shown_is_read_as_the_same_number(number: int, unit: Unit) -> None:
    words = in_words(number, unit)
    assert not words or parse_whole(words, unit) == number


def test_the_name_of_every_setting_says_what_it_counts() -> None:
    """A setting whose name ends like a time is no count, unless its declaration says so, and the other way round."""
    counts = {"settings.groups.max_joins_per_s", "audit_failures_s"}
    rows = [row for config in (ControllerConfig, GatewayConfig, ReplicaConfig) for row in settings_of(config)]
    units = {row.name: row.unit for row in rows if row.kind in ("an integer", "a number")}
    units |= {name: unit_of(name) for name in RANGES}
    for name, unit in units.items():
        if "bytes" in name:
            assert unit.noun.startswith("bytes"), name
        elif re.search("_m?s$", name) and name not in counts:
            assert unit is (MILLISECONDS if name.endswith("_ms") else SECONDS), name
        else:
            assert unit is COUNT, name
    assert counts <= units.keys()
