"""``make bench-peers``: what the tools of the products print is read right, and the figures become a table and
plots. The lines were recorded; the figures are made up. Tests ``bench/peers``."""

from __future__ import annotations

import json
import math
import signal
import threading
from pathlib import Path

import pytest
from bench.peers.__main__ import Round, clusters_of, gaps_of, needed, table, time_limit
from bench.peers.cases import CASES, OPTIONS, Case, quick
from bench.peers.measurements import (
    OPENING,
    STAMP,
    Acks,
    Audience,
    Order,
    longest_gap,
    moments,
    stamped,
    stamped_values,
)
from bench.peers.plots import PLOTS, draw
from bench.peers.products import PRODUCTS, JetStream, Kafka, Tidelog
from bench.peers.run_case import cause

KAFKA = """\
1608 records sent, 321.6 records/sec (3.14 MB/sec), 7751.6 ms avg latency, 9373.0 ms max latency.
60000 records sent, 15169.902913 records/sec (148.14 MB/sec), 242.96 ms avg latency, 529.00 ms max latency, 241 ms \
50th, 388 ms 95th, 462 ms 99th, 521 ms 99.9th.
50000 steady state records sent, 537.0 records/sec (154.89 MB/sec), 266.25 ms avg latency, 529.00 ms max latency, \
256 ms 50th, 394 ms 95th, 471 ms 99th, 523 ms 99.9th.
"""
NATS = """

NATS JetStream asynchronous publisher stats: 29,717 msgs/sec ~ 29 MiB/sec ~ 33.65us
"""
FIGURES = {
    "tidelog": {"produce 1 KiB, MB/s": [40.0, 50.0, 45.0], "start to the first ack, s": [3.0], "idle, CPU %": [7.25]},
    "kafka": {"produce 1 KiB, MB/s": [1144.2], "start to the first ack, s": [0.0701]},
}


def test_kafkas_tool_is_read_at_its_last_line_which_is_without_the_warm_up() -> None:
    assert Kafka.records_per_s(KAFKA) == 537.0


def test_the_tool_of_nats_is_read_with_its_commas() -> None:
    assert JetStream.records_per_s(NATS) == 29_717


def test_the_output_of_our_bench_is_parsed_behind_other_lines() -> None:
    assert Tidelog.records_per_s("opening\n" + json.dumps({"rows": [{"records_per_s": 12.5}]}, indent=2)) == 12.5


@pytest.mark.parametrize(
    ("product", "printed"), [(Kafka, "\n".join(KAFKA.splitlines()[:2])), (JetStream, "cannot connect"), (Tidelog, "")]
)
def test_a_tool_that_says_no_final_figure_is_an_error(product: type, printed: str) -> None:
    with pytest.raises(ValueError, match=r"no figure|substring not found"):
        product.records_per_s(printed)


def test_the_table_has_medians_in_the_order_of_the_cases_and_gaps() -> None:
    assert table(FIGURES, {}) == [
        "| | tidelog | kafka |",
        "|---|---|---|",
        "| start to the first ack, s | 3 | 0.0701 |",
        "| produce 1 KiB, MB/s | 45 | 1,144 |",
        "| idle, CPU % | 7.25 |  |",
    ]


def test_the_table_gives_the_reason_where_a_case_cannot_be_measured() -> None:
    figures = {"tidelog": {"fan-out to 10,000, p50 ms": [4.0], "fan-out to 10,000, p99 ms": [5.0]}, "kafka": {}}
    gaps = {"tidelog": {}, "kafka": {"fan-out to 10,000": "too many threads", "own tool, 100 B": "no tool"}}
    assert table(figures, gaps)[2:] == [
        "| own tool, 100 B |  | no tool |",
        "| fan-out to 10,000, p50 ms | 4 | too many threads |",
        "| fan-out to 10,000, p99 ms | 5 | too many threads |",
    ]


def test_every_case_that_is_not_measured_with_a_client_has_a_reason() -> None:
    gaps = {name: gaps_of(product, list(CASES)) for name, product in PRODUCTS.items()}
    assert gaps["tidelog"] == gaps["jetstream"] == {} and set(gaps["kafka"]) == {"fan-out to 10,000"}
    assert gaps["tidelog-fsync"] == {"fan-out to 1,000": "see tidelog", "fan-out to 10,000": "see tidelog"}
    liftbridge = gaps["liftbridge"]
    assert liftbridge["produce 1 KiB, tuned"] == "nothing to tune"
    assert {case.title for case in CASES if case.do == "tool"} <= {
        title for title, reason in liftbridge.items() if reason == "no tool"
    }


def test_every_size_of_the_tools_has_a_tuned_case_beside_it() -> None:
    tools = [case for case in CASES if case.do == "tool"]
    assert [(case.size, case.options) for case in tools] == [
        (size, options) for size in (100, 1 << 10, 10 << 10) for options in ("", "tuned")
    ]


def test_very_many_subscribers_have_a_cluster_of_their_own() -> None:
    shared, wide = clusters_of(list(CASES))
    assert shared[0] == wide[0] == CASES[0], "each is started"
    assert [case.name for case in wide[1:]] == ["fan-out-1000", "fan-out-10000"]
    assert [*shared, *wide[1:]] == sorted(CASES, key=lambda case: case.processes > 1)
    assert clusters_of([CASES[0]]) == [[CASES[0]]]
    assert clusters_of(wide) == [wide], "no cluster for nothing"


def test_only_the_first_rounds_have_very_many_subscribers() -> None:
    always, wide = (
        [[case.is_in(number) for number in range(5)] for case in CASES if (case.processes > 1) is is_wide]
        for is_wide in (False, True)
    )
    assert all(map(all, always)) and wide == [[True, True, False, False, False]] * 2


def test_a_case_that_takes_too_long_has_failed_and_the_next_one_runs() -> None:
    """An event that never comes stands for whatever a case waits for."""
    measured = Round(Kafka.__new__(Kafka))
    measured.attempt(Case("a", "slow", "", limit_s=0.01), lambda _: threading.Event().wait())
    measured.attempt(Case("b", "good", ""), lambda _: {"s": 1.0})
    assert measured.failures == {"slow": "slow: not done within 0.01 s"}
    assert measured.figures == {"good, s": 1.0} and set(measured.seconds) == {"good"}
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0), "the limit of a case ends with the case"
    with pytest.raises(TimeoutError, match="start"), time_limit(0.01, "start"):
        threading.Event().wait()


def test_plots_are_drawn_of_measured_cases(tmp_path: Path) -> None:
    files = draw(FIGURES, tmp_path / "plots")
    assert [file.name for file in files] == ["produce.svg", "seconds.svg", "idle-cpu.svg"]
    drawn = files[0].read_text()
    assert all(text in drawn for text in ("tidelog", "kafka", "produce 1 KiB", "MB/s", "1,144"))
    assert "produce 100 B" not in drawn


def test_every_plot_is_of_a_case() -> None:
    titles = {case.title for case in CASES}
    rows = [row for _, _, rows in PLOTS.values() for row in rows]
    assert {row.rpartition(", ")[0] for row in rows} <= titles


def test_options_are_for_clients_that_exist_and_a_tuned_case_needs_some() -> None:
    clients = {product.client for product in PRODUCTS.values()}
    assert {client for options in OPTIONS.values() for client in options} <= clients
    (tuned,) = [case for case in CASES if case.name == "produce-1k-tuned"]
    assert {client for client in clients if not tuned.obstacle(client)} == {"tidelog_client", "kafka", "jetstream"}


def test_a_chosen_case_includes_the_cases_that_it_needs() -> None:
    assert needed(("consume",)) == {"start", "consume", "produce-1k"}


def test_quick_counts_are_smaller_and_never_nothing() -> None:
    for case in CASES:
        small = quick(case)
        assert (small.name, small.size, small.partitions) == (case.name, case.size, case.partitions)
        assert 1 <= small.records <= max(1, case.records) and small.seconds <= case.seconds


def test_the_gap_is_between_acks_of_which_the_second_came_after_the_kill() -> None:
    acks = [0.0, 5.0, 5.1, 7.1, 7.2]
    assert longest_gap(acks, since=5.05) == pytest.approx(2.0)
    assert longest_gap(acks, since=0.5) == pytest.approx(5.0), "the last ack before the kill counts"
    assert longest_gap([0.0], since=0.5) == math.inf


def test_an_audience_is_done_when_each_has_everything_and_the_first_record_only_wakes() -> None:
    audience = Audience(subscribers=2, records=1)
    for _ in range(2):
        assert not audience.is_awake()
        audience.add(stamped(100, 0.0))
    assert audience.is_awake() and audience.delays == []
    for _ in range(2):
        assert not audience.is_done()
        audience.add(stamped(100, 1.0))
    assert audience.is_done()


def test_an_audience_counts_who_has_the_first_record_and_who_has_each_of_the_others() -> None:
    values = stamped_values(100)
    first, second, third = next(values), next(values), next(values)
    assert STAMP.unpack_from(first) == (0.0,) and 0.0 < STAMP.unpack_from(second)[0] <= STAMP.unpack_from(third)[0]
    audience = Audience(subscribers=2, records=2)
    for value in (first, first, second, second, third):
        audience.add(value)
    assert audience.awake == 2 and audience.has(1) and not audience.has(2)


def test_no_more_subscribers_open_at_a_time_than_are_allowed() -> None:
    audience = Audience(subscribers=2 * OPENING, records=1)
    assert audience.may_open(OPENING - 1) and not audience.may_open(OPENING)
    audience.add(stamped(100, 0.0))
    assert audience.may_open(OPENING)


def test_the_cause_of_a_group_of_errors_is_its_first_error() -> None:
    error = OSError("refused")
    assert cause(ExceptionGroup("all", [ExceptionGroup("some", [error]), ValueError()])) is error
    assert cause(error) is error


def test_failed_records_are_counted_apart_from_acked_ones() -> None:
    acks = Acks()
    acks.add()
    acks.add(TimeoutError("late"))
    acks.add(TimeoutError("later"))
    assert (len(acks.times), acks.failed, acks.settled) == (1, 2, 3)
    assert "late" in acks.first_error and "later" not in acks.first_error


def test_a_steady_rate_has_its_moments_at_equal_distances() -> None:
    first, second, third = moments(rate=200, records=3)
    assert second - first == pytest.approx(0.005) and third - second == pytest.approx(0.005)


def test_an_order_reaches_the_client_as_it_was() -> None:
    order = Order("kafka", ("a:1", "b:2"), "produce", "t", 3, {"x": 1}, {"linger.ms": 0}, 100, 1.5)
    assert Order.read(json.loads(json.dumps({name: getattr(order, name) for name in Order.__slots__}))) == order
