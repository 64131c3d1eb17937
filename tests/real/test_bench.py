"""The benchmarks run against real processes and write down what they say. What they measured is not judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from bench.profile.yardstick import chain, limit
from bench.regression.check import Side, ended, measure
from bench.regression.verdict import Figure
from tidelog.cli.local.local_cluster import LocalCluster

BENCHES = Path(__file__).resolve().parents[2] / "deploy" / "bench"

pytestmark = pytest.mark.real


def test_the_benchmark_writes_down_its_figures(tmp_path: Path) -> None:
    report_file = tmp_path / "report.json"
    command = [
        sys.executable,
        str(BENCHES / "throughput.py"),
        "--smoke",
        "--seconds",
        "0.5",
        "--flush",
        "os",
        "--flush",
        "fsync",
    ]
    command += ["--data", str(tmp_path / "data"), "--json", str(report_file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    report = json.loads(report_file.read_text())
    assert set(report) == {"machine", "seconds", "rounds", "start_s", "resident_mb", "rows"}
    assert report["resident_mb"] > 0 and report["start_s"] > 0
    rows = report["rows"]
    assert [row["flush"] for row in rows] == ["os"] * 3 + ["fsync"] * 3
    for row in rows:
        assert set(row) == {"case", "flush", "mb_per_s", "records_per_s", "p50_ms", "p99_ms", "cpu"}
        assert row["case"] and row["records_per_s"] > 0
        assert set(row["cpu"]) == {"c1", "g1", "r1", "r2", "r3", "client"}
    for row in (rows[0], rows[1]):
        assert 0 < row["p50_ms"] <= row["p99_ms"]
    assert list((tmp_path / "data").iterdir()) == [], "the cluster's folder is gone"


def test_http_is_measured_beside_websocket(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(BENCHES / "over_http.py"), "--rounds", "1", "--seconds", "0.3"]
    command += ["--subscribers", "3", "--records", "2", "--json", str(figures)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(figures.read_text())
    assert [row["case"] for row in rows] == ["one at a time", "3 subscribers"]
    for row in rows:
        for way in ("websocket", "http"):
            (found,) = row[way]
            assert found["records_per_s"] > 0 and 0 < found["p50_ms"] <= found["p99_ms"] and found["gateway_us"] > 0


def test_the_cpu_time_of_short_commands_is_measured(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(BENCHES / "cli.py"), "--runs", "1", "--json", str(figures)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(figures.read_text())
    assert len(rows) >= 4 and all(0 < row["least_ms"] <= row["median_ms"] <= row["most_ms"] for row in rows)
    assert len(done.stdout.splitlines()) == len(rows) + 2


def test_every_subscriber_has_every_record_of_the_fan_out(tmp_path: Path) -> None:
    """Subscribers that read the socket themselves, in two processes."""
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(BENCHES / "fan_out.py"), "--subscribers", "5", "--records", "3"]
    done = subprocess.run(
        [*command, "--json", str(figures)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(figures.read_text())
    assert row["subscribers"] == 5 and 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]


def test_pairs_are_measured_in_turn_by_a_process_for_each_source(tmp_path: Path) -> None:
    """Here one process is both sides."""
    figures: dict[tuple[str, str], Figure] = {}
    with ended(Side(BENCHES.parents[1], tmp_path / "side", "os", 0.1)) as side:
        assert side.line() == "ready\n"
        measure({"base": side, "now": side}, ["one"], 2, figures)
    assert set(figures) == {("one", "p50 ms"), ("one", "CPU ms/1000 records")}
    for figure in figures.values():
        assert len(figure.base) == len(figure.now) == 2 and min(figure.base + figure.now) > 0
    assert not any(process.is_there() for process in LocalCluster.load(tmp_path / "side").processes)


def test_the_yardstick_counts_records_written_by_all_three_replicas(tmp_path: Path) -> None:
    with chain(tmp_path / "yardstick") as made:
        for name in ("16k", "one"):
            row = trio.run(limit, made, name, 0.0)
            assert row.cpu is not None and set(row.cpu) == {"g1", "r1", "r2", "r3", "client"}
            assert row.p50_ms and row.records_per_s and bool(row.mb_per_s) == (name == "16k")
    assert not any(Path(f"/proc/{process.pid}").exists() for process in made.processes)


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_cut_link_is_noticed_and_healed_on_hosts_of_their_own(tmp_path: Path) -> None:
    """The followers lose their leader without a word: another is elected, no record fails."""
    report_file = tmp_path / "report.json"
    command = [sys.executable, str(BENCHES / "failover.py"), "--runs", "1", "--case", "cut-followers"]
    done = subprocess.run(
        [*command, "--json", str(report_file)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

    ((run,),) = json.loads(report_file.read_text()).values()
    assert "leader_elected: leader_reported" in run["changes"], run
    assert " records acked, 0 failed" in done.stdout


def test_the_comparison_runs_its_cases_against_tidelog(tmp_path: Path) -> None:
    """The others are not there: what drives the cases, kills, counts and draws is the same for all."""
    cases = ["produce-1k", "consume", "latency", "fan-out-1000", "failover"]
    command = [sys.executable, str(BENCHES / "peers"), "--quick", "--products", "tidelog"]
    command += ["--out", str(tmp_path), *(word for case in cases for word in ("--cases", case))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    figures = json.loads((tmp_path / "figures.json").read_text())["figures"]["tidelog"]
    assert set(figures) == {
        *("start to the first ack, s", "start to the first ack, memory MB"),
        *(f"produce 1 KiB, {name}" for name in ("MB/s", "records/s", "servers' CPU ms/MB", "disk/value")),
        "consume 1 KiB, MB/s",
        *(f"single record, {name}" for name in ("p50 ms", "p99 ms", "p99.9 ms")),
        *(f"fan-out to 1,000, {name}" for name in ("p50 ms", "p99 ms", "p99.9 ms")),
        *("fan-out to 1,000, servers' CPU us/delivery", "fan-out to 1,000, servers' memory MB"),
        *("kill -9 of the leader: no ack for, s", "kill -9 of the leader: no ack for, failed records"),
    }
    assert all(value > 0 for row, (value,) in figures.items() if "failed" not in row)
    assert figures["kill -9 of the leader: no ack for, failed records"] == [0]
    assert figures["produce 1 KiB, disk/value"][0] >= 3, "three replicas"
    assert list((tmp_path / "data").iterdir()) == [], "the cluster's folder is gone"
    assert (tmp_path / "plots" / "produce.svg").exists()
    assert len(done.stdout.splitlines()) == len(figures) + 2
