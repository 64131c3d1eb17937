"""Next steps for agents: tools in the place of commands that read the same."""

from __future__ import annotations

import re

import pytest
from tidelog.cli.main import NEXT_STEP
from tidelog.cli.mcp.next_steps import for_agents
from tidelog.cli.mcp.server import TOOLS


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("'tidelog groups describe billing' says where.", "'describe_group' (group billing) says where."),
        ("'tidelog why orders/3' has more", "'why' (topic orders, partition 3) has more"),
        ("'tidelog why gap orders/3@7'", "'explain' (question gap orders/3@7)"),
        ("'tidelog topics list' or 'tidelog status'", "'list_topics' or 'cluster_status'"),
        ("'tidelog topics configure orders retention_ms=1'", "'tidelog topics configure orders retention_ms=1'"),
        ("Start it, and see its log.", "Start it, and see its log."),
    ],
)
def test_a_command_that_a_tool_can_replace_is_named_as_that_tool(step: str, said: str) -> None:
    assert for_agents(step) == said


def test_every_tool_that_a_next_step_names_exists() -> None:
    named = {name for step in NEXT_STEP.values() for name in re.findall(r"'([a-z]+_[a-z_]+)'", for_agents(step))}
    assert named and named <= {tool.name for tool in TOOLS}
