"""The course of a run: a healthy cluster under load, an incident is planted, ``tidelog doctor`` is run until it names
the cause, the incident is mended, and ``tidelog doctor`` is run until it is silent."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import trio
from incidents.incident import ClusterPlan, Incident
from incidents.prometheus import Labels, Prometheus, scraped
from incidents.stage import Diagnosis, Stage, staged

NAMED_S = 30.0
"""Seconds within which the cause must be named."""
BEGIN_S = 120.0
"""Seconds that a new cluster may take until it is healthy, on a busy machine."""
EVERY_S = 1.0
"""Seconds from the beginning of one run of ``tidelog doctor`` to that of the next."""
FIGURES = Path(__file__).parent / "figures"
"""Folder with the last row of each incident, from which the table of the documentation is made."""


class Missed(Exception):
    """Raised if a run shows something else than it should: the text says what."""


@dataclass(frozen=True, slots=True)
class Row:
    """The outcome of one incident: what was said about the cause, and the seconds until it was named and until
    nothing was said any more."""

    name: str
    symptom: str
    cause: str
    level: str
    said: str
    evidence: str
    next_step: str
    consequences: tuple[str, ...]
    twin: str
    seed: int
    named_s: float
    silent_s: float

    def save(self) -> None:
        """Write the row to ``FIGURES``."""
        (FIGURES / f"{self.name}.json").write_text(json.dumps(asdict(self), indent=2) + "\n")


async def play(
    turns: Sequence[Sequence[Incident]], seed: int, limit_s: float = NAMED_S, program: Path | None = None
) -> list[Row]:
    """Plant incidents in a new cluster, and mend them: those of one turn at once, one turn after the other. Returns a
    row for each. Raises ``Missed`` if a cause is not named within ``limit_s`` or without evidence and next step, if
    anything else is called a cause, or if something is said before the incidents or long after the mend. ``program``
    is the executable file of Prometheus. With it, ``TimeoutError`` is raised if the alert of an incident does not
    fire."""
    plan = reduce(ClusterPlan.joined, (one.plan for incidents in turns for one in incidents))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="tidelog-incident-") as folder:
        async with staged(plan, seed, Path(folder)) as stage:
            await wait_silent(stage, set(), BEGIN_S, "before the incident")
            for incidents in turns:
                async with scraped(program, stage.cluster, at_once=True) as prometheus:
                    rows += await _turn(stage, incidents, seed, limit_s, prometheus)
    return rows


async def _turn(
    stage: Stage, incidents: Sequence[Incident], seed: int, limit_s: float, prometheus: Prometheus | None
) -> list[Row]:
    """Plant these incidents at once, wait until they are named and their alerts fire, mend them, and wait until
    nothing is said."""
    before = await prometheus.firing() if prometheus else {}
    for one in incidents:
        await one.plant(stage)
    began = dict.fromkeys((one.name for one in incidents), trio.current_time())  # all are there now
    said, named = await wait_named(stage, incidents, began, limit_s)
    for one in incidents:
        if one.metric and not await stage.metric(one.metric):
            raise Missed(f"{one.name}: no process shows {one.metric}")
        if one.unready and not await stage.unready(one.unready):
            raise Missed(f"{one.name}: every {one.unready} says that it is ready")
        if prometheus and one.alert:
            await prometheus.wait_fires(one.alert, before, stage.group)
    for one in reversed(incidents):
        await one.mend(stage)
    mended = trio.current_time()
    limit = max(one.silent_s for one in incidents)
    await wait_silent(stage, {one.cause for one in incidents}, limit, "after the mend")
    silent = trio.current_time() - mended
    return [_row(one, seed, said, named[one.name], silent) for one in incidents]


def _row(one: Incident, seed: int, said: Diagnosis, named_s: float, silent_s: float) -> Row:
    finding = said.named(one.cause)
    assert finding is not None
    follow = tuple(other["cause"] for other in said.findings if other["because_of"] == one.cause)
    return Row(
        one.name,
        one.symptom,
        one.cause,
        finding["level"],
        finding["what"],
        finding["evidence"],
        finding["next_step"],
        tuple(dict.fromkeys(follow)),
        one.twin,
        seed,
        round(named_s, 1),
        round(silent_s, 1),
    )


async def wait_named(
    stage: Stage, incidents: Sequence[Incident], began: Mapping[str, float], limit_s: float = NAMED_S
) -> tuple[Diagnosis, dict[str, float]]:
    """Run ``tidelog doctor`` until it names all causes, and nothing else as a cause. Returns what it said then, and
    the seconds from the beginning of each incident until its cause was named first."""
    named: dict[str, float] = {}
    said = Diagnosis(())
    while True:
        started = trio.current_time()
        said = await stage.doctor()
        for one in incidents:
            if said.named(one.cause) and one.name not in named:
                named[one.name] = trio.current_time() - began[one.name]
        others = _others(said, incidents)
        if all(said.named(one.cause) for one in incidents) and not others:
            break
        if trio.current_time() - max(began.values()) > limit_s:
            missing = [one.name for one in incidents if not said.named(one.cause)]
            wrong = f"{', '.join(missing)}: not named" if missing else f"called causes, too: {_in_words(others)}"
            raise Missed(f"{wrong} after {limit_s:g} s; doctor says {_in_words(said.findings)}")
        await trio.sleep_until(started + EVERY_S)
    for one in incidents:
        if named[one.name] > limit_s:
            raise Missed(f"{one.name}: named after {named[one.name]:.1f} s only")
        finding = said.named(one.cause)
        if finding and not (finding["evidence"] and finding["next_step"]):
            raise Missed(f"{one.name}: named without evidence or next step: {finding}")
    return said, named


def _others(said: Diagnosis, incidents: Sequence[Incident]) -> list[Mapping[str, Any]]:
    """Return the findings that are called causes, and are none of these incidents'."""
    expected = {one.cause for one in incidents}
    return [one for one in said.causes() if one["cause"] not in expected]


async def wait_silent(stage: Stage, gone: set[str], limit_s: float, when: str) -> None:
    """Run ``tidelog doctor`` until it finds nothing but notes, and no note with a code in ``gone``."""
    until = trio.current_time() + limit_s
    while True:
        said = await stage.doctor()
        left = [one for one in said.findings if one["level"] != "note" or one["cause"] in gone]
        if not left:
            return
        if trio.current_time() > until:
            raise Missed(f"{when}, after {limit_s:g} s, doctor still says {_in_words(left)}")
        await trio.sleep(EVERY_S)


def _in_words(findings: Sequence[Mapping[str, Any]]) -> str:
    def words(one: Mapping[str, Any]) -> str:
        because = f", because of {one['because_of']}" if one["because_of"] else ""
        return f"{one['cause']} ({one['level']}{because}): {one['what']}"

    return "; ".join(map(words, findings)) or "nothing"


def pairs(catalogue: Mapping[str, Incident], seed: int, count: int) -> list[tuple[Incident, Incident]]:
    """Return so many pairs of incidents that can be planted at once, drawn by the seed, no incident twice unless
    there are too few."""
    able = [
        (one, other)
        for one, other in combinations(catalogue.values(), 2)
        if one.twin and other.twin and one.cause != other.cause and not one.strikes & other.strikes
    ]
    Random(seed).shuffle(able)
    chosen: list[tuple[Incident, Incident]] = []
    used: set[str] = set()
    for pair in able:
        if not used & {one.name for one in pair}:
            chosen.append(pair)
            used |= {one.name for one in pair}
    return [*chosen, *(pair for pair in able if pair not in chosen)][:count]


async def healthy(minutes: float, seed: int, program: Path | None = None) -> tuple[int, list[str], list[str]]:
    """Run a healthy cluster under load for so many minutes, while topics, transactions and members come and go.
    Returns the number of runs of ``tidelog doctor``, everything that it found but notes, and the summaries of the
    alerts that fired. ``program`` is the executable file of Prometheus; without it no alert is looked for."""
    false: list[str] = []
    alerts: dict[Labels, str] = {}
    runs = 0
    with tempfile.TemporaryDirectory(prefix="tidelog-incident-") as folder:
        async with staged(ClusterPlan(), seed, Path(folder)) as stage:
            await wait_silent(stage, set(), BEGIN_S, "at the beginning")
            async with scraped(program, stage.cluster, at_once=False) as prometheus:
                until = trio.current_time() + minutes * 60
                stage.begin("healthy", lambda: _come_and_go(stage))
                while trio.current_time() < until:
                    said = await stage.doctor()
                    runs += 1
                    wrong = [one for one in said.findings if one["level"] != "note"]
                    if wrong:
                        false.append(_in_words(wrong))
                    if prometheus:
                        alerts |= await prometheus.firing()
                    await trio.sleep(EVERY_S)
                await stage.end("healthy")
    return runs, false, list(alerts.values())


async def _come_and_go(stage: Stage) -> None:
    """Do what users do all day: make and delete topics, commit transactions, let members join and leave."""
    number = 0
    while True:
        number += 1
        name = f"{stage.topic}-{number}"
        await stage.log.topics.create(name, partitions=2, replication_factor=3, config={"retention_ms": 86_400_000})
        async with stage.log.transaction(f"{name}-app") as transaction:
            for _ in range(10):
                await transaction.send(name, b"{}")
        async with stage.log.consume(stage.topic, group=stage.group) as member:
            for _ in range(20):
                await member.__anext__()
            await member.commit()
        await stage.log.topics.delete(name)
        await trio.sleep(EVERY_S)
