"""Random walks over the real cores: R1 to R9 and R11 hold after every step, and enough happens on the way."""

from __future__ import annotations

import pytest

from model.walks import command, shrink, walk

CHUNKS = 16
CHUNK = 150

HAPPENED = {
    "records acked": 250,
    "leader epochs": 250,
    "power": 150,
    "die": 80,
    "stop": 40,
    "wipe": 15,
    "damage": 25,
    "expire": 150,
    "replace": 40,
    "hand_over": 5,
    "lag": 60,
    "lose": 500,
    "double": 400,
}
"""What must have happened in a chunk, at least."""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_R1_to_R11_hold_on_random_walks(chunk):
    totals: dict[str, int] = {}
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        result = walk(seed)
        assert not result.fault, f"{result.fault}\nreplay: {command(result.setting, shrink(result))}"
        for name, count in result.counts.items():
            totals[name] = totals.get(name, 0) + count
    rare = {name: totals.get(name, 0) for name, least in HAPPENED.items() if totals.get(name, 0) < least}
    assert not rare, f"too little happened on these walks to prove anything: {rare}"
