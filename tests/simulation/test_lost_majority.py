"""Runs in which the majority of the controllers is dead or cut off for a while: leaders go on and lose no record."""

from __future__ import annotations

from tidelog.testing.runner import run_seed

SEEDS = (
    *range(16),
    47000451,  # the model: a replica server lost its power while it heard of the calls that a broken link had ended
)
COMMITS = 40
"""So many there must be at least without a session, or these runs prove nothing."""


def test_R12_nothing_acked_is_lost_while_the_majority_of_the_controllers_is_gone():
    commits = 0
    for seed in SEEDS:
        result = run_seed(seed, majority=True)
        assert result.fault is None, (
            f"{result.fault}\nreplay: cd tests; python -m simulation --seed {seed} --majority --trace"
        )
        commits += result.counts.get("commits without a session", 0)
    assert commits >= COMMITS
