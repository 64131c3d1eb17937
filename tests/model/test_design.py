"""The design model has no reachable state in which anything committed is lost; and its rules are all needed."""

from __future__ import annotations

import pytest

from model import spin

pytestmark = pytest.mark.skipif(
    bool(spin.missing()), reason=f"the design model was NOT checked, missing here: {spin.missing()}"
)


@pytest.mark.parametrize("scope", spin.QUICK, ids=lambda scope: scope.replace(" ", "-"))
def test_R1_to_R9_hold_in_every_state_of_the_design(scope):
    found = spin.search(spin.QUICK[scope])
    assert not found.error, found.error
    assert found.states > 50_000, "a search that small proves nothing"
