"""The tutorial of ``docs/testing-your-programs.md``: the first program fails with a seed, the mended one passes it.
The test's own is the number of seeds that the mended program runs."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from pages.place import ROOT, Place

PAGE = (ROOT / "docs" / "testing-your-programs.md").read_text()
FIRST, TEST, MENDED = re.findall(r"Save\s+this as `\w+\.py`[^:]*:\n\n```python\n(.*?)^```$", PAGE, re.M | re.S)
COMMANDS = re.findall(r"^(pytest test_bills\.py.*)$", PAGE, re.M)
SEEDS = 2


def run(place: Place, command: str, codes: tuple[int, ...]) -> str:
    """Run a pytest command of the page, with the plugin also where Tidelog was installed before it had one."""
    if not metadata.entry_points(group="pytest11", name="tidelog"):
        command = command.replace("pytest", "pytest -p tidelog.testing.plugin", 1)
    return place.run("bash", "-euo", "pipefail", "-c", command, codes=codes)


def test_the_first_program_fails_with_a_seed_and_the_mended_one_passes(tmp_path: Path) -> None:
    place = Place(tmp_path)
    (tmp_path / "billing.py").write_text(FIRST)
    (tmp_path / "test_bills.py").write_text(TEST)
    every, one, many = COMMANDS
    said = run(place, every, (1,))
    found = re.search(r"InvariantBroken: bills (?:has|lacks) .*\nE +seed (\d+), with \d+ of \d+ faults:", said)
    assert found is not None, said
    replay = re.search(r"replay: (pytest .+)\n.*trace: +(\S+)", said)
    assert replay is not None and (tmp_path / replay[2]).stat().st_size > 1000
    assert (
        replay[1].removeprefix("pytest ")
        in f"test_bills.py::test_every_order_is_billed_once --tidelog-seed {found[1]}"
    )
    (tmp_path / "billing.py").write_text(MENDED)
    assert "1 passed" in run(place, re.sub(r"-seed \d+", f"-seed {found[1]}", one), (0,))
    assert "1 passed" in run(place, many.replace("1000", str(SEEDS)), (0,))
