"""Pipelines as a user declares them: real Spark, a real cluster."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import cbor2
import pytest
import tidelog.sync

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

from tidelog.spark.pipelines.declaration import parse
from tidelog.spark.pipelines.run import Run, load

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("TIDELOG_TEST_DATA", ROOT.parent / "shared" / "data"))
SSH_LOG = DATA / "OpenSSH_2k.log"

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark.*"),
]


@pytest.fixture
def client(cluster: Any) -> Any:
    with tidelog.sync.connect(cluster.url) as log:
        yield log


def by_hand(lines: list[str]) -> dict[tuple[str, str], int]:
    """5 or more failures, per address and 5-minute window that the watermark has passed."""
    counts: Counter[tuple[str, datetime]] = Counter()
    for line in lines:
        at = datetime.strptime(f"2016 {line[:15]}", "%Y %b %d %H:%M:%S")
        found = re.search(r"from (\d+\.\d+\.\d+\.\d+)", line)
        if "Failed password" in line and found:
            counts[found[1], at - timedelta(minutes=at.minute % 5, seconds=at.second)] += 1
    over = at - timedelta(minutes=10 + 5)
    return {(who, str(start)): count for (who, start), count in counts.items() if count >= 5 and start <= over}


@pytest.mark.skipif(not SSH_LOG.exists(), reason=f"{SSH_LOG} is not there: set TIDELOG_TEST_DATA")
def test_attacks_on_an_ssh_server(spark: Any, cluster: Any, client: tidelog.sync.Log, tmp_path: Path) -> None:
    lines = SSH_LOG.read_text().splitlines()
    client.topics.create("ssh", partitions=3, config={"flush": "os"})
    client.topics.create("ssh-attacks", config={"flush": "os"})
    client.topics.create("ssh-bad", config={"flush": "os"})
    pipeline = load(ROOT / "docs" / "examples" / "ssh_attacks.toml")

    def run() -> None:
        started = Run(pipeline, spark, tmp_path, cluster.url)
        started.finish(started.start())

    def produce(part: list[str]) -> None:
        with client.producer("ssh") as producer:
            for n, line in enumerate(part):
                producer.submit(line.encode(), partition=n % 3)

    wrong = ["", "Feb 30 06:55:46 host sshd[1]: no such day", "no line of a log"]
    produce([*lines[:600], *wrong, *lines[600:1200]])
    run()
    produce(lines[1200:])
    run()  # goes on where it stopped, windows that are open included
    rows = spark.read.parquet(str(tmp_path / "ssh-rows"))
    assert rows.count() == len(lines)
    failed = Counter(row.address for row in rows.where("failed").select("address").collect())
    assert (sum(failed.values()), failed["183.62.140.253"]) == (520, 286)
    assert "Failed passwords per address" in (tmp_path / "ssh-attempts.svg").read_text()
    alerts = {
        record.key: json.loads(record.value or b"") for record in client.consume("ssh-attacks", start=0, end="latest")
    }
    told = {(a["address"], a["start"][:19].replace("T", " ")): a["failures"] for a in alerts.values()}
    assert told == by_hand(lines)
    bad = {
        record.value: dict(record.headers)["reason"] for record in client.consume("ssh-bad", start=0, end="latest")
    }
    assert bad == {
        b"": b"the line is not a message of syslog (RFC 5424, RFC 3164)",
        wrong[1].encode(): b"timestamp: Feb 30 06:55:46 2016 is no time",
        wrong[2].encode(): b"the line is not a message of syslog (RFC 5424, RFC 3164)",
    }


@pytest.mark.parametrize("form", ["json", "cbor"])
def test_bad_records_go_where_they_are_looked_for(
    form: str, spark: Any, cluster: Any, client: tidelog.sync.Log, tmp_path: Path
) -> None:
    encode = {"json": lambda value: json.dumps(value).encode(), "cbor": cbor2.dumps}[form]
    client.topics.create(f"{form}-in", config={"flush": "os"})
    client.topics.create(f"{form}-out", config={"flush": "os"})
    client.topics.create(f"{form}-bad", config={"flush": "os"})
    with client.producer(f"{form}-in") as producer:
        producer.submit(encode({"id": 1, "what": "a"}), key=b"1")
        producer.submit(b"\xff{", key=b"2")
        producer.submit(encode({"id": "no number"}), key=b"3")
        producer.submit(None, key=b"4")
        producer.submit(encode({"id": 5}), key=b"5")
    (tmp_path / "steps.py").write_text(
        "def doubled(spark):\n    return spark.table('events').selectExpr('id * 2 AS twice', 'what', '_offset')\n"
    )
    pipeline = parse(f"""
        name = "{form}"
        delivery = "at-least-once"
        [in.events]
        topic = "{form}-in"
        value = "{form}"
        schema = "id INT, what STRING"
        bad = "{form}-bad"
        [table.twice]
        python = "steps.py:doubled"
        [out.twice]
        from = "twice"
        topic = "{form}-out"
        value = "{form}"
        key = "what"
    """)
    run = Run(pipeline, spark, tmp_path, cluster.url)
    outcomes = run.finish(run.start())
    assert [(one.output, one.rows, one.batches) for one in outcomes] == [("twice", 5, 1), ("events-bad", 5, 1)]
    decode = {"json": json.loads, "cbor": cbor2.loads}[form]
    out = [(r.key, decode(r.value)) for r in client.consume(f"{form}-out", start=0, end="latest")]
    assert out == [
        (b"a", {"twice": 2, "what": "a", "_offset": 0}),
        (None, {"twice": 10, "what": None, "_offset": 4}),
    ]
    bad = {r.key: dict(r.headers) for r in client.consume(f"{form}-bad", start=0, end="latest")}
    assert {key: headers["offset"] for key, headers in bad.items()} == {b"2": b"1", b"3": b"2", b"4": b"3"}
    said = {"json": b"the value is not UTF-8: ", "cbor": b"the value is not CBOR: "}[form]
    assert bad[b"2"]["reason"].startswith(said)
    assert bad[b"3"]["reason"] == b'id: "no number" is not INT'
    assert bad[b"4"]["reason"] == b"there is no value"
