"""``make bench-check``: what counts as slower, and what is the noise of a busy machine. All figures are made up.
Tests ``bench/regression/check.py`` and ``bench/regression/verdict.py``."""

from __future__ import annotations

from random import Random

import pytest
from bench.harness.rows import Row
from bench.regression.check import figures_of, main
from bench.regression.verdict import FEWEST, Figure, judge
from click.testing import CliRunner


def figure(*ratios: float, less: bool = False) -> Figure:
    """Return a figure with pairs of these ratios, now to base."""
    made = Figure("128k", "MB/s", less)
    for ratio in ratios:
        made.add(100.0, 100.0 / ratio if less else 100.0 * ratio)
    return made


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([0.85, 0.8, 0.88, 0.86, 0.84, 0.87], "worse"),
        ([0.85, 0.8, 0.99, 0.86, 0.84, 0.87], "worse"),
        ([0.85, 0.8, 1.01, 0.86, 0.84, 0.87], "same"),
        ([0.85, 0.8, 1.01, 0.86, 0.84, 0.87, 0.8, 0.8], "worse"),
        ([0.91, 0.92, 0.93, 0.91, 0.92, 0.93], "same"),
        ([0.5, 0.5, 0.5, 1.2, 1.3, 0.6], "same"),
        ([1.2, 1.3, 1.15, 1.2, 1.3, 1.4], "better"),
        ([1.2, 1.3, 1.15, 1.2, 0.9, 1.4], "same"),
        ([0.1] * (FEWEST - 1), "same"),
        ([0.1] * FEWEST, "worse"),
    ],
    ids=str,
)
def test_worse_is_a_median_below_0_9_on_which_the_pairs_agree(ratios: list[float], verdict: str) -> None:
    assert judge(ratios) == verdict


def test_a_ratio_above_1_is_better_whichever_way_a_figure_counts() -> None:
    assert figure(0.5, 2.0).ratios == [0.5, 2.0]
    assert figure(0.5, 2.0, less=True).ratios == [0.5, 2.0]
    assert figure(0.5, 2.0, less=True).now == [200.0, 50.0]


def test_a_figure_that_looks_worse_is_worse_only_if_it_looks_so_again() -> None:
    made = figure(*[0.8] * 6)
    assert made.suspect and made.verdict == "worse"
    made.first = 6
    for _ in range(6):
        made.add(100.0, 97.0)
    assert made.verdict == "same"
    made = figure(*[0.8] * 12)
    made.first = 6
    assert made.verdict == "worse"


def test_noise_of_a_third_is_seldom_taken_for_a_loss_and_a_steady_loss_is_seen() -> None:
    random = Random(1)

    def verdict(loss: float, noise: float) -> str:
        made = figure(*(loss * random.lognormvariate(0, noise) for _ in range(6)))
        if made.suspect:
            made.first = 6
            for _ in range(6):
                made.add(100.0, 100.0 * loss * random.lognormvariate(0, noise))
        return made.verdict

    assert [verdict(1.0, 0.33) for _ in range(1000)].count("worse") <= 5
    assert [verdict(0.8, 0.05) for _ in range(1000)].count("worse") >= 950


def test_each_case_has_a_rate_or_a_latency_and_the_cpu_of_all_processes() -> None:
    cpu = {"c1": 0.1, "g1": 0.2, "r1": 0.1, "r2": 0.1, "r3": 0.1, "client": 0.4}
    batches = Row("produce, opaque batches of 16 KiB, 64 in flight", "os", 50.0, 50_000.0, 1.0, 2.0, cpu)
    assert list(figures_of(batches)) == [("MB/s", 50.0, False), ("CPU ms/MB", pytest.approx(20.0), True)]
    requests = Row("produce, batches of one record of 100 B, 64 in flight", "os", None, 5_000.0, 1.0, 2.0, cpu)
    cost = ("CPU ms/1000 records", pytest.approx(200.0), True)
    assert list(figures_of(requests)) == [("records/s", 5_000.0, False), cost]
    one = Row("produce, one record of 100 B at a time, Python client", "os", None, 5_000.0, 1.5, 2.0, cpu)
    assert list(figures_of(one)) == [("p50 ms", 1.5, True), cost]


def test_the_comparison_requires_enough_rounds_for_a_verdict() -> None:
    assert CliRunner().invoke(main, ["--rounds", str(FEWEST - 1)]).exit_code == 2
    assert "nothing is measured" in CliRunner().invoke(main, ["--base", "no-such-revision"]).output
