"""The recorded results of seeds, revision by revision: rows of ``record.csv``, and the table of
``docs/lab/simulation.md``.

A row is one run of a range of seeds on a revision without uncommitted changes. Rows of one ``source``
(``revision.py``) add up: they are runs of the same code. No two rows of a source have a seed in common, so that no
seed counts twice.
"""

from __future__ import annotations

import csv
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tidelog.testing.runner import Tally

from simulation.revision import RECORD, ROOT, Revision

PAGE = ROOT / "docs" / "lab" / "simulation.md"
BEGIN, END = "<!-- seeds: written by python -m simulation --page -->", "<!-- end of seeds -->"
DOUBT = 0.05
"""The probability with which the true failure rate is above a printed bound."""


@dataclass(frozen=True, slots=True)
class Row:
    """One recorded run of seeds."""

    date: str
    """Day of the run, ISO 8601."""
    commit: str
    source: str
    mode: str
    """The kind of run: ``messages``, ``bytes``, ``transactions``, ``majority`` or ``foreign``."""
    first: int
    last: int
    """The end of the range of seeds, exclusive."""
    duration_s: float
    """Simulated seconds of load per seed."""
    seeds: int
    """The number of seeds of the range that were run."""
    failed: int
    failed_seeds: str
    """The seeds that failed, separated by spaces."""
    faults: int
    """The number of injected faults."""
    steps: int
    simulated_s: float
    cpu_s: float
    """The seconds of CPU of all seeds together, on any machine."""


def row_of(
    tally: Tally, revision: Revision, mode: str, seeds: range, duration_s: float, cpu_s: float, date: str
) -> Row:
    """Return the row for a finished run of seeds."""
    failed = " ".join(str(seed) for seed in sorted(result.seed for result in tally.failed))
    return Row(
        date=date,
        commit=revision.commit,
        source=revision.source,
        mode=mode,
        first=seeds.start,
        last=tally.last + 1 if tally.seeds else seeds.start,  # Ctrl-C may have ended it
        duration_s=duration_s,
        seeds=tally.seeds,
        failed=len(tally.failed),
        failed_seeds=failed,
        faults=sum(tally.faults.values()),
        steps=tally.steps,
        simulated_s=round(tally.seconds, 1),
        cpu_s=round(cpu_s, 1),
    )


def load(path: Path = RECORD) -> list[Row]:
    """Return all recorded rows, oldest first; [] if the file does not exist."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [_row(values) for values in csv.DictReader(file)]


def _row(values: dict[str, str]) -> Row:
    kinds = {"int": int, "float": float, "str": str}
    return Row(**{field.name: kinds[str(field.type)](values[field.name]) for field in fields(Row)})


def clash(rows: list[Row], revision: Revision, mode: str, seeds: range) -> Row | None:
    """Return a row of the same source and mode whose range overlaps these seeds; None if there is none."""
    same = (row for row in rows if (row.source, row.mode) == (revision.source, mode))
    return next((row for row in same if row.first < seeds.stop and seeds.start < row.last), None)


def append(row: Row, path: Path = RECORD) -> None:
    """Append a row to the file; a new file begins with the column names."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(asdict(row))


def bound(failed: int, seeds: int) -> float:
    """Return an upper bound of the failure rate, which holds except with probability ``DOUBT``: the exact limit of
    Poisson's distribution. Without a failure that is the rule of three, 3/n; without seeds it is 1."""
    if not seeds:
        return 1.0
    low, high = float(failed), failed + 10.0 * math.sqrt(failed + 1.0)
    for _ in range(60):
        mean = (low + high) / 2
        likely = sum(math.exp(i * math.log(mean) - mean - math.lgamma(i + 1)) for i in range(failed + 1))
        low, high = (mean, high) if likely > DOUBT else (low, mean)
    return min(1.0, high / seeds)


def summary(rows: list[Row], name: str) -> str:
    """Return one line with the sums and rates of the rows of one revision."""
    seeds, failed = sum(row.seeds for row in rows), sum(row.failed for row in rows)
    if not seeds:
        return f"{name}: no seeds"
    faults, steps = sum(row.faults for row in rows) / seeds, sum(row.steps for row in rows) / seeds
    simulated, cpu = sum(row.simulated_s for row in rows) / seeds, sum(row.cpu_s for row in rows) / seeds
    return (
        f"{name}: {seeds} seeds, {failed} failed, rate {failed / seeds:.3%}, at most {bound(failed, seeds):.3%} with"
        f" {1 - DOUBT:.0%} confidence; per seed {faults:.1f} faults, {steps:.0f} steps, {simulated:.1f} simulated s,"
        f" {cpu:.2f} s of CPU"
    )


def table(rows: list[Row]) -> str:
    """Return the rows, added up by source and mode and the newest source first, as a Markdown table."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.source, row.mode), []).append(row)
    lines = [
        "| revision | source | mode | last run | seeds | failed | failure rate at most | faults per seed |"
        " steps per seed | simulated s per seed | CPU s per seed |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (source, mode), found in reversed(groups.items()):
        seeds, failed = sum(row.seeds for row in found), sum(row.failed for row in found)
        cells = (
            f"`{found[-1].commit}`",
            f"`{source}`",
            mode,
            found[-1].date,
            f"{seeds:,}",
            str(failed),
            f"{bound(failed, seeds):.3%}",
            f"{sum(row.faults for row in found) / seeds:.1f}",
            f"{sum(row.steps for row in found) / seeds:,.0f}",
            f"{sum(row.simulated_s for row in found) / seeds:.1f}",
            f"{sum(row.cpu_s for row in found) / seeds:.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_page(rows: list[Row]) -> None:
    """Replace the table in the page by that of these rows."""
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{rest.split(END)[1]}")
