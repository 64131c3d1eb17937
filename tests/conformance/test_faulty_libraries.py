"""The suite notices a library with a fault, and the command reports it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pytest
from drivers import HERE
from real.running import Cluster
from tidelog.cli.conformance.client import Client, Failed
from tidelog.cli.conformance.suite import CASES, Outcome, run_case, run_suite

pytestmark = pytest.mark.real

FAULTY = str(HERE / "faulty_driver.py")


@pytest.mark.parametrize(
    ("fault", "case", "reason"),
    [
        ("loses", "records.every_kind_of_record_arrives_none", "key, value and headers: expected"),
        ("doubles", "records.another_consumer_continues_at_positions", "the first records: expected"),
        ("confuses", "records.order_is_kept_in_each_partition", "the offsets of partition 0: expected"),
        ("hides", "records.topics_that_exist_or_not", "expected the error TOPIC_EXISTS, got"),
        ("hangs up", "records.an_ack_says_how_durable_the_record_is", "the client ended"),
        ("babbles", "records.only_the_chosen_partitions_are_read", "is no line of the protocol: 'answer!"),
    ],
)
def test_a_fault_is_noticed(cluster: Cluster, fault: str, case: str, reason: str) -> None:
    client = Client([sys.executable, FAULTY, fault])
    try:
        outcome = run_case(CASES[case], client, cluster.gateways, cluster.local, f"faulty-{fault.replace(' ', '-')}")
    finally:
        client.kill()
    assert outcome.status == "failed" and reason in outcome.reason


def test_a_client_that_ended_is_started_again_for_the_next_case(cluster: Cluster) -> None:
    cases = [
        CASES[f"records.{name}"] for name in ("an_ack_says_how_durable_the_record_is", "offsets_of_places_are_found")
    ]
    shown: list[Outcome] = []
    report = run_suite([sys.executable, FAULTY, "hangs up"], cases, cluster.local, shown.append)
    assert [outcome.status for outcome in report.outcomes] == ["failed", "passed"]
    assert report.outcomes == shown and not report.is_passed and report.wrong_messages == []


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (["/nowhere/at/all"], "cannot be started"),
        ([sys.executable, "-c", "pass"], "the client ended"),
        ([sys.executable, "-c", "print(input())"], "has neither ok nor error"),
        ([sys.executable, "-c", 'input(); print(\'{"id": 7, "ok": {}}\')'], "names command 7"),
        ([sys.executable, "-c", 'input(); print(\'{"id": 1, "ok": {}}\')'], "'features'"),
        ([sys.executable, "-c", 'input(); print(\'{"id": 1, "error": "no"}\')'], "has no code"),
    ],
)
def test_a_program_that_is_no_driver_is_described(program: list[str], reason: str) -> None:
    with pytest.raises(Failed, match=reason):
        Client(program)


def test_the_command_starts_a_cluster_and_reports() -> None:
    def conformance(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tidelog.cli", "conformance", "--json", "--only", "records.offsets*"]
        return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=False)

    sound, faulty = [str(HERE / "trio_driver.py")], [FAULTY, "babbles"]
    for driver, code, status in ((sound, 0, "passed"), (faulty, 1, "failed")):
        done = conformance("--client", shlex.join([sys.executable, *driver]))
        assert done.returncode == code, done.stderr
        report = json.loads(done.stdout)
        assert [one["status"] for one in report["cases"]] == [status] and report["wrong_messages"] == []
    done = conformance("--client", "/nowhere")
    assert done.returncode == 2 and "/nowhere cannot be started" in done.stderr
    done = conformance("--list")
    assert [one["case"] for one in json.loads(done.stdout)] == ["records.offsets_of_places_are_found"]
