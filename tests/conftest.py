"""What all tests share: who runs beside whom, and what the end of a run tells. With several workers this file is the
only ``conftest.py`` that the process reads which shares out the tests and writes the summary."""

from __future__ import annotations

import contextlib
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")  # no property fails because the machine is busy
# commands of a run in the background would ignore these two
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

pytest_plugins = ["pytester"]

IN_TURN = {
    "clusters": ("tests/cluster/", "tests/real/"),
    "spark": ("tests/spark/",),
    "programs": ("tests/conformance/", "tests/pages/", "tests/strangers/", "tests/streams/"),
    "site": ("tests/unit/deploy/test_site.py",),
}
"""Folders whose tests start whole clusters, and a file whose set-up takes long. Those of one name run one after the
other, on one worker."""


@pytest.hookimpl(trylast=True)
def pytest_addoption(parser: pytest.Parser) -> None:
    """Know the setting of pytest-asyncio also in a run without that plugin, which only the tests of Tidelog's own
    plugin load."""
    with contextlib.suppress(ValueError):
        parser.addini("asyncio_default_fixture_loop_scope", "See pytest-asyncio.")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The whole clusters of one group run one after the other, on one worker; the others have the rest."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((name for name, folders in IN_TURN.items() if nodeid.startswith(folders)), nodeid)

    return Scheduling(config, log)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The longest gaps, as the tests with a ``report_gap`` recorded them; which seeds the simulation has run."""
    passed = terminalreporter.getreports("passed")
    gaps = [gap for report in passed for what, gap in report.user_properties if what == "gap"]
    if gaps:
        terminalreporter.section("longest time without an ack in a partition")
        for gap in gaps:
            terminalreporter.write_line(gap)
    for outcome in ("passed", "failed"):
        reports = terminalreporter.getreports(outcome)
        seeds = sorted(seeds for report in reports for what, seeds in report.user_properties if what == "seeds")
        if seeds:
            terminalreporter.section(f"seeds of the simulation that {outcome}")
            for each in seeds:
                terminalreporter.write_line(each)
