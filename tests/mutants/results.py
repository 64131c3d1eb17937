"""The results of the last runs of the mutants, and the tables of ``docs/lab`` that are made from them."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from mutants import MUTANTS
from mutants.engines import scenarios

RECORDS = Path(__file__).resolve().with_name("records.json")
LAB = RECORDS.parent.parent.parent / "docs" / "lab"
BEGIN, END = "<!-- mutants: written by python -m mutants --write -->", "<!-- end of mutants -->"
RAFT_BEGIN = "<!-- mutants of Raft: written by python -m mutants --write -->"
RAFT_END = "<!-- end of mutants of Raft -->"
SCENARIOS_BEGIN = "<!-- scenarios: written by python -m mutants --page -->"
SCENARIOS_END = "<!-- end of scenarios -->"


@dataclass(frozen=True, slots=True)
class Record:
    """The results of all engines for one mutant, as ``records.json`` stores them."""

    scenario: str = ""
    """The first scenario that notices the mutant; "" if none does."""
    scenario_steps: int = 0
    """Steps of the simulated cluster until the failure; 0 if the scenario has no cluster."""
    seed: int = -1
    """The first seed of the simulation that notices the mutant; -1 if none of the tried seeds does."""
    seeds_tried: int = 0
    seed_steps: int = 0
    faults: int = -1
    """The number of injected faults that are left when that seed is shrunk; -1 if it was not shrunk."""
    paper: str = ""
    """The first test of the Raft paper that notices the mutant; "" if none does, or if the rule is not of Raft."""
    walk: int = -1
    """The first random walk, over the cores of Raft or of replication, that notices the mutant; -1 if none of the
    tried walks does."""
    walks_tried: int = 0
    """The number of walks tried; 0 if walks cannot notice the mutant (``model/mutants.py`` says why)."""
    walk_steps: int = 0
    """The number of steps that are left when that walk is shrunk; 0 for a walk over Raft's cores, which is not
    shrunk."""
    unit: str = ""
    """The first case that notices the mutant, of the unit tests that the mutant names, or "power losses"; "" if none
    does."""
    told: str = ""
    """The error of the seed that noticed the mutant, or else of the walk, the scenario, the paper's test or the unit
    test."""

    @property
    def noticed(self) -> bool:
        """Return whether any engine noticed the mutant."""
        return bool(self.scenario or self.paper or self.unit) or self.seed >= 0 or self.walk >= 0


def load() -> dict[str, Record]:
    """Read the records from ``records.json``, by the name of the mutant."""
    return {name: Record(**record) for name, record in json.loads(RECORDS.read_text()).items()}


def save(records: dict[str, Record]) -> None:
    """Write the records to ``records.json`` in the order of the mutants, without records of mutants that no longer
    exist."""
    data = {name: asdict(records[name]) for name in MUTANTS if name in records}
    RECORDS.write_text(json.dumps(data, indent=1) + "\n")


def table(records: dict[str, Record]) -> str:
    """Return the Markdown table of the mutants that are not of Raft."""
    names = [name for name, mutant in MUTANTS.items() if not mutant.raft]
    found = _of(names, records)
    cells = {name: (_scenario(r), _walk(r), _seed(r), _unit(r), _kind(r)) for name, r in found.items()}
    several = sum(bool(r.scenario) + (r.walk >= 0) + (r.seed >= 0) + bool(r.unit) > 1 for r in found.values())
    noticed = sum(record.noticed for record in found.values())
    seen = f"{noticed} of {len(names)} mutants were noticed, {several} of them by more than one engine."
    return "\n".join([seen, "", *_rows(("scenario", "walks", "simulation", "unit test", "seen as"), cells)])


def raft_table(records: dict[str, Record]) -> str:
    """Return the Markdown table of the mutants of Raft."""
    names = [name for name, mutant in MUTANTS.items() if mutant.raft]
    found = _of(names, records)
    cells = {name: (_paper(r), _walk(r), _scenario(r), _seed(r), _kind(r)) for name, r in found.items()}
    several = sum(bool(r.paper) + bool(r.scenario) + (r.walk >= 0) + (r.seed >= 0) > 1 for r in found.values())
    noticed = sum(record.noticed for record in found.values())
    seen = f"{noticed} of {len(names)} mutants of Raft were noticed, {several} of them by more than one engine."
    return "\n".join([seen, "", *_rows(("the paper's tests", "walks", "scenario", "simulation", "seen as"), cells)])


def _of(names: list[str], records: dict[str, Record]) -> dict[str, Record]:
    return {name: records.get(name, Record()) for name in names}


def _rows(engines: tuple[str, ...], cells: dict[str, tuple[str, ...]]) -> list[str]:
    lines = [f"| rule | broken | {' | '.join(engines)} |", "|" + "---|" * (2 + len(engines))]
    for name, of_engines in cells.items():
        mutant = MUTANTS[name]
        row = (f"{mutant.rule} ({mutant.source})", mutant.broken, *of_engines)
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in row) + " |")
    return lines


def _paper(record: Record) -> str:
    return record.paper.removeprefix("test_").partition("[")[0].replace("_", " ") or "none"


def _walk(record: Record) -> str:
    if record.walk >= 0:
        steps = f", {record.walk_steps} step{'s' * (record.walk_steps != 1)}" if record.walk_steps else ""
        return f"{_ordinal(record.walk + 1)} walk{steps}"
    return f"not in {record.walks_tried} walks" if record.walks_tried else "none"


def _scenario(record: Record) -> str:
    if not record.scenario:
        return "none"
    scenario = record.scenario.removeprefix("test_").split("_")[0]
    return f"{scenario}, {record.scenario_steps} steps" if record.scenario_steps else scenario


def _seed(record: Record) -> str:
    if not record.seeds_tried:
        return "not tried"
    if record.seed < 0:
        return f"not in {record.seeds_tried} seed{'s' * (record.seeds_tried != 1)}"
    faults = f", {record.faults} faults" if record.faults >= 0 else ""
    return f"{_ordinal(record.seed + 1)} seed, {record.seed_steps} steps{faults}"


def _unit(record: Record) -> str:
    return record.unit.removeprefix("test_").partition("[")[0].replace("_", " ") or "none"


def _ordinal(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def _kind(record: Record) -> str:
    """Return the invariant, anomaly or kind of error that the mutant was noticed by, without details that differ from
    run to run."""
    text = re.sub(r"^Violation: ", "", record.told)
    found = re.match(r"(R\d+|RAFT|AssertionError: not within|[A-Z]\w+Error|[a-z][\w ]*:)", text)
    kind = found.group(1).rstrip(":") if found else text.split(":")[0]
    if kind == "AssertionError: not within":
        return "no progress"
    return "the test's own assertion" if kind in ("AssertionError", "ValueError", "AttributeError") else kind


def scenario_table() -> str:
    """Return the Markdown table of all scenarios, in the order of their ids."""
    found: dict[tuple[str, int], list[tuple[str, str, int]]] = {}
    counts: dict[tuple[str, str], int] = {}
    for name, run in scenarios().items():
        test = (run.func.__module__, name.partition("[")[0])  # type: ignore[attr-defined]
        counts[test] = counts.get(test, 0) + 1
    for (module, test), cases in counts.items():
        id, _, words = test.removeprefix("test_").partition("_")
        found.setdefault((id[0], int(id[1:])), []).append((words.replace("_", " "), module.split(".")[1], cases))
    lines = ["| id | what must hold | test | cases |", "|---|---|---|---|"]
    for (letter, number), tests in sorted(found.items()):
        for words, module, cases in tests:
            lines.append(f"| {letter}{number} | {words} | `{module}.py` | {cases} |")
    seen = f"{len(found)} scenarios, {len(counts)} tests, {sum(counts.values())} cases."
    return "\n".join([seen, "", *lines])


def sections(records: dict[str, Record]) -> list[tuple[Path, str, str, str]]:
    """Return the generated tables: the page, the mark before the table, the table, and the mark after it."""
    return [
        (LAB / "scenarios.md", SCENARIOS_BEGIN, scenario_table(), SCENARIOS_END),
        (LAB / "mutants.md", BEGIN, table(records), END),
        (LAB / "mutants.md", RAFT_BEGIN, raft_table(records), RAFT_END),
    ]


def write_pages(records: dict[str, Record]) -> None:
    """Replace the generated tables in the pages of ``docs/lab``."""
    for page, begin, content, end in sections(records):
        before, rest = page.read_text().split(begin)
        page.write_text(f"{before}{begin}\n{content}\n{end}{rest.split(end)[1]}")
