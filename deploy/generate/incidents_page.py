"""The page ``docs/incidents.md``: every planted incident, what ``tidelog doctor`` said about it, and after how long.

The incidents come from ``deploy/incidents/catalogue``, the figures from the runs that ``make incidents`` recorded in
``deploy/incidents/figures``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from incidents.incident import Incident

DEPLOY = Path(__file__).resolve().parents[1]
FIGURES = DEPLOY / "incidents" / "figures"

HEAD = """# Incidents

Generated from what runs recorded, by `make incidents` and `make pages`.

An incident is planted in a cluster of real processes under load: three replica servers, controllers and
a gateway on one machine. The table shows what a newcomer sees first, and the cause that `tidelog doctor`
names, with its evidence. It has 30 seconds for that, may call nothing else a cause, and must be silent
after the mend. Names, the servers that are struck and the times come from a seed, so no rule knows them.

Each incident has a *twin* with the same first symptom and another cause. Twins are in the second table.

```sh
make incidents NAME=disk-full SEED=7    # one incident
make incidents                          # all of them, their twins, and five runs with two at once
```

`tidelog doctor -o json` has the code of the cause in the field `cause`. What follows from a cause has it in
`because_of`: repair the cause, and that goes, too. [metrics.md](metrics.md) says how to have Prometheus call
you.

Without an incident there is nothing to say: `deploy/incidents --healthy 60` asked the doctor 1,136 times in an
hour of the same load, beside other programs (2 cores, load 1 to 8), and it found nothing.

`deploy/incidents --all --prometheus FILE` runs a Prometheus beside each cluster, and fails unless the alert of
each incident fires. With `--healthy 20` no alert fired (Prometheus 2.42).
"""


def page() -> str:
    """Return the text of the page."""
    if str(DEPLOY) not in sys.path:
        sys.path.insert(0, str(DEPLOY))
    catalogue: Mapping[str, Incident] = import_module("incidents.catalogue").load_catalogue()
    named_as_twin = {one.twin for one in catalogue.values() if one.twin}
    first = [one for one in catalogue.values() if one.twin]
    twins = [one for one in catalogue.values() if not one.twin and one.name in named_as_twin]
    others = [one for one in catalogue.values() if one not in first and one not in twins]
    lines = [
        HEAD,
        *_not_seen([*first, *twins, *others]),
        "## Incidents and what is said",
        "",
        *_table(first),
        "",
        "## Twins",
        "",
        *_table([*twins, *others]),
    ]
    return "\n".join(lines) + "\n"


def _not_seen(incidents: list[Incident]) -> Iterator[str]:
    """Yield the paragraph that names the incidents of which no run is recorded, and an empty line; nothing if there
    are none."""
    names = [f"`{one.name}`" for one in incidents if not _run(one.name)]
    if names:
        yield "No run is recorded of these incidents. Tests of the rules show that `tidelog doctor` names their"
        yield "causes, but that has not been seen in a cluster of real processes:"
        yield f"{', '.join(names)}."
        yield ""


def _table(incidents: list[Incident]) -> Iterator[str]:
    """Yield the lines of a table of these incidents."""
    yield "| incident | a newcomer sees | cause | what is said | named after | silent after the mend | twin | alert |"
    yield "|---|---|---|---|---|---|---|---|"
    for one in incidents:
        run = _run(one.name)
        said = f"{_sentence(run['said'])} *{_sentence(run['evidence'])}*" if run else "no run is recorded"
        times = [f"{run[name]:.0f} s" for name in ("named_s", "silent_s")] if run else ["", ""]
        twin, alert = (f"`{text}`" if text else "" for text in (one.twin, one.alert))
        cells = (f"`{one.name}`", one.symptom, f"`{one.cause}`", said, *times, twin, alert)
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _run(name: str) -> Mapping[str, Any]:
    """Return the recorded run of an incident; an empty mapping if there is none."""
    file = FIGURES / f"{name}.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


def _sentence(text: str) -> str:
    """Return a text of the doctor as a sentence for a cell of a table, without marks of Markdown. It begins with a
    capital letter unless its first word is the name of a server or a partition."""
    plain = text.translate({ord(mark): f"\\{mark}" for mark in "*_<>"})
    first = plain[:1].upper() if plain.partition(" ")[0].strip(":,").isalpha() else plain[:1]
    return f"{first}{plain[1:].rstrip('.')}."
