"""Every library of this repository passes the conformance suite."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tidelog.cli.conformance.cases import Case
from tidelog.cli.conformance.suite import CASES, Outcome

pytestmark = pytest.mark.real


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_library_passes(case: Case, run: Callable[[Case], Outcome]) -> None:
    outcome = run(case)
    if outcome.status == "skipped":
        pytest.skip(outcome.reason)
    assert outcome.status == "passed", outcome.reason
