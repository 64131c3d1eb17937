"""The notebook of docs/examples does what it shows, over a cluster, and is stored without what it has shown."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pages.place import ROOT, Place, commands_of, started

NOTEBOOK = ROOT / "docs" / "examples" / "orders.ipynb"
CELLS = json.loads(NOTEBOOK.read_text())["cells"]
(DEV, _INSTALL) = commands_of(*re.findall(r"```sh\n(.*?)\n```", "".join(CELLS[0]["source"]), re.S))


def test_it_is_stored_without_outputs() -> None:
    code = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def outputs(notebook: Path) -> list[dict[str, Any]]:
    """Return what the cells of a notebook have printed and shown, in their order."""
    return [output for cell in json.loads(notebook.read_text())["cells"] for output in cell.get("outputs", ())]


@pytest.mark.real
def test_every_cell_runs_and_then_all_once_more(tmp_path: Path) -> None:
    place = Place(tmp_path)
    (tmp_path / "orders.ipynb").write_text(place.own(NOTEBOOK.read_text()))
    with started(place, DEV, b"Ctrl-C ends it"):
        for run in ("first", "second"):
            place.run("jupyter", "execute", "--output", run, "orders.ipynb")
            shown = outputs(tmp_path / f"{run}.ipynb")
            printed = "".join("".join(one["text"]) for one in shown if one["output_type"] == "stream")
            assert printed.splitlines() == [
                "notebook-orders has 3 partitions",
                "1000 orders are safe",
                "1 new order: Oslo",
            ]
            results = ["".join(one["data"]["text/plain"]) for one in shown if one["output_type"] != "stream"]
            assert sum(all(city in each for city in ("Bern", "Oslo", "Porto", "Turin")) for each in results) == 3
            assert sum("image/png" in one.get("data", {}) for one in shown) == 1
