"""What all tests share: who runs beside whom, and what the end of a run tells. With several workers this file is the
only ``conftest.py`` that the process which writes the summary reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

FOLDERS_OF_PROCESSES = {"cluster", "real", "spark"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole clusters run one after the other, on one worker; the others have the rest."""
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).parts[0] in FOLDERS_OF_PROCESSES:
            item.add_marker(pytest.mark.xdist_group("processes"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The longest gaps, as the tests with a ``report_gap`` recorded them."""
    passed = terminalreporter.getreports("passed")
    gaps = [gap for report in passed for what, gap in report.user_properties if what == "gap"]
    if gaps:
        terminalreporter.section("longest time without an ack in a partition")
        for gap in gaps:
            terminalreporter.write_line(gap)
