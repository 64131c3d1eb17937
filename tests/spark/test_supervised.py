"""Pipelines that are left alone: outputs that fail are started again or given up, and what is said of them is right.
Real Spark, a real cluster."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import structlog
import tidelog.sync
from click.testing import CliRunner, Result
from tidelog.acl import Acl
from tidelog.cli import main
from tidelog.net.dev_certificates import open_authority
from tidelog.runtime import logs
from tidelog.sansio.effects import Event

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

from tidelog.spark.pipelines.declaration import parse
from tidelog.spark.pipelines.run import Run
from tidelog.spark.pipelines.status.status_pages import StatusPages
from tidelog.spark.pipelines.status.status_port import status_port

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark.*"),
]
PATIENCE_S = 180.0


@pytest.fixture
def client(cluster: Any) -> Any:
    with tidelog.sync.connect(cluster.url) as log:
        yield log


def fill(client: tidelog.sync.Log, topic: str, *values: bytes) -> None:
    with client.producer(topic) as producer:
        for n, value in enumerate(values):
            producer.submit(value, partition=n % 2)


def values(client: tidelog.sync.Log, topic: str) -> list[bytes]:
    return sorted(record.value or b"" for record in client.consume(topic, start="earliest", end="latest"))


def page(url: str) -> tuple[int, str]:
    try:
        with urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


class Seen(NamedTuple):
    """A line of the log, and what ``/healthz`` said when it was written."""

    event: Event
    status: int
    outputs: dict[str, dict[str, Any]]


class Watched:
    """A pipeline that runs in a thread, with its lines and its pages."""

    def __init__(
        self, spark: Any, run: Callable[[Callable[[Event], None]], Run], url: str, pages: StatusPages
    ) -> None:
        self._spark = spark
        self.url = url
        self._lines: Queue[Seen] = Queue()
        self.run = run(self._perform)
        pages.show(lambda: self.run.statuses)
        self._pool = ThreadPoolExecutor(1)
        self.ended = self._pool.submit(self._finish)

    def _finish(self) -> None:
        self._spark.createDataFrame(
            [], "id INT"
        )  # makes the session that of this thread: Spark looks for sources there
        self.run.finish(self.run.start())

    def _perform(self, event: Event) -> None:
        self._lines.put(Seen(event, *self.health()))

    def health(self) -> tuple[int, dict[str, dict[str, Any]]]:
        status, text = page(f"{self.url}/healthz")
        return status, {one["output"]: one for one in json.loads(text)["outputs"]}

    def wait(self, name: str, output: str) -> Seen:
        """The next line of this name about this output; lines before it are dropped."""
        while True:
            seen = self._lines.get(timeout=PATIENCE_S)
            if (seen.event.name, seen.event.fields.get("output")) == (name, output):
                return seen
            assert name == "pipeline_output_failed" or seen.event.name != "pipeline_output_failed", seen

    def wait_rows(self, output: str, rows: int) -> dict[str, Any]:
        """What ``/healthz`` says of an output that has read so many rows."""
        for _ in range(int(PATIENCE_S * 5)):
            found = self.health()[1][output]
            if found["rows"] >= rows:
                return found
            assert found["state"] != "failed", found
            threading.Event().wait(0.2)
        raise AssertionError(self.health())


PERPETUAL = """
    name = "left"
    trigger = "1 second"
    [restart]
    delay = "500ms"
    [in.source]
    topic = "left-in"
    [table.numbers]
    sql = "SELECT CAST(CAST(value AS STRING) AS INT) AS n FROM source"
    [table.records]
    sql = "SELECT key, value, partition FROM source"
    [out.copies]
    from = "records"
    topic = "left-copies"
    value = "raw"
    [out.numbers]
    from = "numbers"
    parquet = "numbers"
"""


def test_a_dead_output_is_seen_started_again_and_given_up_when_that_does_not_help(
    spark: Any, cluster: Any, client: tidelog.sync.Log, tmp_path: Path
) -> None:
    for topic in ("left-in", "left-copies"):
        client.topics.create(topic, partitions=2, config={"flush": "os"})
    first, more = [[b"%d" % n for n in numbers] for numbers in (range(10), range(10, 30))]
    fill(client, "left-in", *first)
    pages = StatusPages("left")
    with status_port("127.0.0.1", 0, pages.pages) as url:
        pipeline = parse(PERPETUAL)
        watched = Watched(
            spark, lambda perform: Run(pipeline, spark, tmp_path, cluster.url, perform=perform), url, pages
        )
        watched.wait("pipeline_output_started", "numbers")
        watched.wait_rows("copies", 10)
        found = watched.wait_rows("numbers", 10)
        assert (found["state"], found["lags"], found["error"]) == ("running", {"left-in/0": 0, "left-in/1": 0}, "")
        assert watched.health()[0] == 200

        # the first query is stopped, and the second, for which nobody waits, goes on
        [copies] = [query for query in spark.streams.active if query.name == "left.copies"]
        copies.stop()
        seen = watched.wait("pipeline_output_restarts", "copies")
        assert seen.status == 503 and seen.outputs["copies"]["state"] == "waiting"
        assert seen.outputs["copies"]["error"] == "the query was stopped from outside of the pipeline"
        fill(client, "left-in", *more)
        again = watched.wait("pipeline_output_started", "copies")
        assert again.event.fields["restarts"] == 1
        assert watched.wait_rows("copies", 30)["restarts"] == 1
        watched.wait_rows("numbers", 30)
        assert 'tidelog_pipeline_restarts_total{output="copies"} 1.0' in page(f"{url}/metrics")[1]
        assert watched.health()[0] == 200

        # a value that no restart makes a number
        fill(client, "left-in", b"no number")
        seen = watched.wait("pipeline_output_failed", "numbers")
        assert seen.status == 503 and seen.outputs["numbers"]["state"] == "failed"
        assert "CAST_INVALID_INPUT" in seen.outputs["numbers"]["error"]
        with pytest.raises(Exception, match="CAST_INVALID_INPUT"):
            watched.ended.result(PATIENCE_S)
        status, outputs = watched.health()
    assert not spark.streams.active
    assert (status, outputs["copies"]["state"], outputs["numbers"]["rows"]) == (503, "stopped", 30)
    assert [value for value in values(client, "left-copies") if value != b"no number"] == sorted([*first, *more])
    assert spark.read.parquet(str(tmp_path / "numbers")).count() == 30


def test_rows_are_counted_in_every_batch_and_a_worker_that_does_not_start_costs_only_time(
    spark: Any, cluster: Any, client: tidelog.sync.Log, tmp_path: Path
) -> None:
    """Spark remembers two batches here, and there are more. Its Python fails when the query is planned for the first
    time: Spark gives that process 10 s, and no setting of Spark tries again."""
    client.topics.create("counted", config={"flush": "os"})
    with client.producer("counted") as producer:
        for n in range(7):
            producer.submit(b"%d" % n)
    python, marker = Path(os.environ["PYSPARK_PYTHON"]), tmp_path / "failed"
    works = python.read_text()
    once = f'case "$*" in *source_runner*) [ -e {marker} ] || {{ touch {marker}; exit 1; }};; esac\n'
    python.write_text(works.replace("#!/bin/sh\n", f"#!/bin/sh\n{once}"))
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "2")
    lines: list[Event] = []
    pipeline = parse(
        'name = "counted"\n[in.source]\ntopic = "counted"\noptions = { maxOffsetsPerTrigger = 1 }\n'
        '[out.rows]\nfrom = "source"\nparquet = "rows"\n'
    )
    try:
        run = Run(pipeline, spark, tmp_path, cluster.url, perform=lines.append)
        [outcome] = run.finish(run.start())
    finally:
        python.write_text(works)
        spark.conf.unset("spark.sql.streaming.numRecentProgressUpdates")
    assert (outcome.rows, outcome.batches, outcome.state, outcome.restarts) == (7, 7, "done", 1)
    assert [line.name for line in lines] == [
        "pipeline_output_started",
        "pipeline_output_restarts",
        "pipeline_output_started",
        "pipeline_output_ended",
    ]
    assert "failed to connect back" in lines[1].fields["error"]
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 7


# --- a secured cluster, and the command ----------------------------------------------------------------------

SECURED = """
name = "secured"
gateway = "{gateway}"
[security]
token-file = "token"
ca = "{ca}"
app-prefix = "secured."
[in.source]
topic = "secured-in"
value = "json"
schema = "id INT"
bad = "secured-bad"
[out.good]
from = "source"
topic = "secured-out"
"""
RIGHTS = (
    Acl("etl", "read", "topic:secured-in"),
    Acl("etl", "write", "topic:secured-out"),
    Acl("etl", "write", "topic:secured-bad"),
    Acl("etl", "transact", "app:secured.*"),
)


@pytest.fixture
def command(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """``tidelog pipeline run``, in the session of the tests, which it does not end. What it prints has lines of the
    cluster in between, which runs in this process."""
    monkeypatch.setattr(type(spark), "stop", lambda session: None)
    for name in ("TIDELOG_GATEWAY", "TIDELOG_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    shared = logging.getLogger("tidelog")
    before = shared.handlers, shared.propagate, shared.level
    sigterm = signal.getsignal(signal.SIGTERM)

    def run(*arguments: object) -> Result:
        try:
            return CliRunner().invoke(main, ["pipeline", "run", *map(str, arguments)])
        finally:
            structlog.reset_defaults()
            shared.handlers, shared.propagate, shared.level = before
            signal.signal(signal.SIGTERM, sigterm)

    return run


def test_a_pipeline_on_a_cluster_with_tls_tokens_and_rules(
    cluster: Any, client: tidelog.sync.Log, tmp_path: Path, command: Callable[..., Result]
) -> None:
    for topic in ("secured-in", "secured-out", "secured-bad"):
        client.topics.create(topic, partitions=2, config={"flush": "os"})
    fill(client, "secured-in", b'{"id": 1}', b"none", b'{"id": 2}')
    client.access.alter_acls(add=RIGHTS)
    token = client.access.create_token("etl")
    authority = open_authority(tmp_path / "ca", datetime.now(UTC), timedelta(days=1))
    files = authority.issue("g2", [], ("127.0.0.1", "localhost"), datetime.now(UTC), timedelta(days=1))
    gateway = cluster.start(
        "g2", authentication=True, authorization=True, superusers=("admin",), tls_cert=files.cert, tls_key=files.key
    )
    try:
        file = tmp_path / "secured.toml"
        file.write_text(SECURED.format(gateway=gateway, ca=authority.ca))
        (tmp_path / "token").write_text(f"{token}\n")
        done = command(file, "-o", "json", "--listen", "127.0.0.1:0")
        assert done.exit_code == 0, done.output
        told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"output"')]
        assert [(one["output"], one["state"], one["rows"]) for one in told] == [
            ("good", "done", 3),
            ("source-bad", "done", 3),
        ]
        lines = [json.loads(line) for line in done.stderr.splitlines() if '"pipeline_' in line]
        assert (lines[0]["event"], lines[-1]["event"]) == ("pipeline_started", "pipeline_ended")
        assert lines[0]["status"].startswith("http://127.0.0.1:")

        # without a rule the next run has nothing to write with: one error, no restart, status 1
        client.access.alter_acls(remove=RIGHTS[3:])
        fill(client, "secured-in", b'{"id": 3}')
        refused = command(file)
        assert refused.exit_code == 1, refused.output
        assert "FORBIDDEN" in refused.stderr and "pipeline_output_restarts" not in refused.stderr
        told = [line for line in refused.stderr.splitlines() if "pipeline_output_failed" in line]
        assert told and "good: " in refused.stdout

        for text in (done.output, refused.output):
            assert token not in text
        for path in (tmp_path / "checkpoints").rglob("*"):
            assert not path.is_file() or token.encode() not in path.read_bytes()
    finally:
        cluster.stop("g2")
    assert [json.loads(value)["id"] for value in values(client, "secured-out")] == [1, 2]
    assert values(client, "secured-bad") == [b"none"]


def test_a_pipeline_that_gets_SIGTERM_stops_its_queries_and_says_so(
    spark: Any,
    cluster: Any,
    client: tidelog.sync.Log,
    tmp_path: Path,
    command: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def perform(event: Event, **context: object) -> None:  # the cluster in this process writes lines, too
        before(event, **context)
        if event.name == "pipeline_output_started":
            os.kill(os.getpid(), signal.SIGTERM)

    client.topics.create("ended", config={"flush": "os"})
    file = tmp_path / "ended.toml"
    file.write_text(
        'name = "ended"\ntrigger = "1 second"\n[in.source]\ntopic = "ended"\n'
        '[out.one]\nfrom = "source"\nparquet = "one"\n[out.two]\nfrom = "source"\nparquet = "two"\n'
    )
    before = logs.perform
    monkeypatch.setattr(logs, "perform", perform)
    done = command(file, "--gateway", cluster.url)
    assert done.exit_code == 130, done.output
    told = [line for line in done.stdout.splitlines() if line.startswith(("one:", "two:"))]
    assert told == ["one: 0 rows read in 0 batches; stopped", "two: 0 rows read in 0 batches; stopped"]
    assert not spark.streams.active
