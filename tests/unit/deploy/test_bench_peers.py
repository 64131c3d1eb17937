"""``make bench-peers``: what the tools of the products print is read right, and the figures become a table and
plots. The lines were recorded; the figures are made up. Tests ``bench/peers``."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from bench.peers.__main__ import needed, table
from bench.peers.cases import CASES, OPTIONS, quick
from bench.peers.measurements import Acks, Audience, Order, longest_gap, moments, stamped
from bench.peers.plots import PLOTS, draw
from bench.peers.products import PRODUCTS, JetStream, Kafka, Tidelog

KAFKA = """\
1608 records sent, 321.6 records/sec (3.14 MB/sec), 7751.6 ms avg latency, 9373.0 ms max latency.
6556 records sent, 1311.2 records/sec (12.80 MB/sec), 1561.2 ms avg latency, 1964.0 ms max latency.
30000 records sent, 537.0 records/sec (5.24 MB/sec), 3639.26 ms avg latency, 10103.00 ms max latency, 2720 ms 50th, \
8079 ms 95th, 9212 ms 99th, 9827 ms 99.9th.
"""
NATS = """

NATS JetStream asynchronous publisher stats: 29,717 msgs/sec ~ 29 MiB/sec ~ 33.65us
"""
FIGURES = {
    "tidelog": {"produce 1 KiB, MB/s": [40.0, 50.0, 45.0], "start to the first ack, s": [3.0], "idle, CPU %": [7.25]},
    "kafka": {"produce 1 KiB, MB/s": [1144.2], "start to the first ack, s": [0.0701]},
}


def test_kafkas_tool_is_read_at_its_last_line_which_is_of_the_whole() -> None:
    assert Kafka.records_per_s(KAFKA) == 537.0


def test_the_tool_of_nats_is_read_with_its_commas() -> None:
    assert JetStream.records_per_s(NATS) == 29_717


def test_the_output_of_our_bench_is_parsed_behind_other_lines() -> None:
    assert Tidelog.records_per_s("opening\n" + json.dumps({"rows": [{"records_per_s": 12.5}]}, indent=2)) == 12.5


@pytest.mark.parametrize(
    ("product", "printed"), [(Kafka, KAFKA.splitlines()[0]), (JetStream, "cannot connect"), (Tidelog, "")]
)
def test_a_tool_that_says_no_figure_of_the_whole_is_an_error(product: type, printed: str) -> None:
    with pytest.raises(ValueError, match=r"no figure|substring not found"):
        product.records_per_s(printed)


def test_the_table_has_medians_in_the_order_of_the_cases_and_gaps() -> None:
    assert table(FIGURES) == [
        "| | tidelog | kafka |",
        "|---|---|---|",
        "| start to the first ack, s | 3 | 0.0701 |",
        "| produce 1 KiB, MB/s | 45 | 1,144 |",
        "| idle, CPU % | 7.25 |  |",
    ]


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


def test_options_are_for_clients_that_exist_and_a_tuned_case_is_left_out_where_there_are_none() -> None:
    clients = {product.client for product in PRODUCTS.values()}
    assert {client for options in OPTIONS.values() for client in options} <= clients
    (tuned,) = [case for case in CASES if case.name == "produce-1k-tuned"]
    assert {client for client in clients if tuned.is_for(client)} == {"tidelog_client", "kafka", "jetstream"}


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
