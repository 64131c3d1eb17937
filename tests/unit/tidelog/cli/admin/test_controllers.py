"""The state of a controller in the list. Tests ``tidelog.cli.admin.controllers``."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidelog.cli.admin.controllers import state_in_words
from tidelog.wire.messages import ControllerInfo

ONE = ControllerInfo("c2", "ws://c2", "follower")


@pytest.mark.parametrize(
    ("one", "active", "text"),
    [
        (ONE, "c1", "votes"),
        (ONE, "c2", "active"),
        (replace(ONE, voter=False), "c1", "learns"),
        (replace(ONE, role="unknown"), "c1", "silent"),
        (replace(ONE, role="unknown"), "", "votes"),
        (replace(ONE, role="unknown", lost=True), "c1", "lost its disk: add it again"),
    ],
)
def test_the_state_of_a_controller(one: ControllerInfo, active: str, text: str) -> None:
    assert state_in_words(one, active) == text
