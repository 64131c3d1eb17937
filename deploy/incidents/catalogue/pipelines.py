"""Incidents of pipelines: a streaming query of Spark that has died; its twin is a consumer that has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import trio
from incidents.incident import Incident
from incidents.stage import Stage
from tidelog.client.core.query_note import QueryNote

PROGRAM = Path(__file__).resolve().parents[1] / "spark_query.py"
SPARK_WAITS = 3
"""How many times as long as for other things is waited for Spark on a busy machine."""
STEADY_S = 6.0
"""Longest time between two commits of a query that has got over its first batches, which take long."""
BATCHES = 3
"""Commits of the query that are waited for, so that it is known how often it commits."""


def _group(stage: Stage) -> str:
    return f"{stage.group}-table"


async def _run_query(stage: Stage) -> None:
    """Start the query in a process group of its own, and wait until it commits again and again."""
    folder = stage.cluster.folder / "query"
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(PROGRAM), stage.gateway, stage.topic, _group(stage), str(folder)]
    query = stage.facts["query"] = await stage.do(_start, command, folder / "log")
    stage.nursery.start_soon(_kill_at_the_end, query)
    seen: set[int] = set()

    async def commits() -> bool:
        progress = await stage.log.groups.progress(_group(stage))
        notes = [QueryNote.from_metadata(one.metadata) for one in progress]
        seen.update(one.committed_ms for one in progress)
        return len(seen) > BATCHES and all(note and 0 < note.every_s <= STEADY_S for note in notes)

    for _ in range(SPARK_WAITS):
        with suppress(TimeoutError):
            return await stage.until(commits, "the query commits")
    raise TimeoutError((folder / "log").read_text(errors="replace")[-2000:])


def _start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True)


async def _kill_at_the_end(query: subprocess.Popen[bytes]) -> None:
    try:
        await trio.sleep_forever()
    finally:
        _kill(query)


def _kill(query: subprocess.Popen[bytes]) -> None:
    """Kill the query, its JVM and its workers, if they run."""
    if query.poll() is None:
        os.killpg(query.pid, signal.SIGKILL)
        query.wait()


async def kill_query(stage: Stage) -> None:
    """Run a query that writes a table, and kill it."""
    await _run_query(stage)
    await stage.do(_kill, stage.facts["query"])


async def start_query(stage: Stage) -> None:
    """Start it again: it goes on at its checkpoint."""
    await _run_query(stage)


async def _consume(stage: Stage) -> None:
    """Read as a member of the group, and write a table, until cancelled."""
    async with stage.connect() as log, log.consume(stage.topic, group=_group(stage)) as member:
        async for _ in member:
            await member.commit()
            stage.facts["consumer.read"].set()


async def end_consumer(stage: Stage) -> None:
    """Run a consumer that writes a table, and end it."""
    await start_consumer(stage)
    await stage.end("consumer")


async def start_consumer(stage: Stage) -> None:
    """Start it: it goes on at its position."""
    stage.facts["consumer.read"] = trio.Event()
    stage.begin("consumer", lambda: _consume(stage))
    await stage.facts["consumer.read"].wait()


SYMPTOM = "The table that is made from a topic gets no new rows, though records come."
INCIDENTS = (
    Incident(
        name="spark-query-died",
        symptom=SYMPTOM,
        cause="streaming-query-dead",
        plant=kill_query,
        mend=start_query,
        twin="consumer-ended",
        strikes=frozenset({"pipeline"}),
        alert="TidelogGroupFallsBehind",
    ),
    Incident(
        name="consumer-ended",
        symptom=SYMPTOM,
        cause="group-without-members",
        plant=end_consumer,
        mend=start_consumer,
        strikes=frozenset({"pipeline"}),
        alert="TidelogGroupFallsBehind",
    ),
)
