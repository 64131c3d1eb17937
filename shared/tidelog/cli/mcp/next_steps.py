"""Next steps in the words of an agent: a tool in the place of a command of ``tidelog``, where there is one that reads
the same. Commands that change the cluster stay: the tools for that are there with ``--allow-writes`` only."""

from __future__ import annotations

import re

_TOOLS = {
    r"status": "'cluster_status'",
    r"servers list": "'cluster_status'",
    r"controllers list": "'cluster_status'",
    r"doctor": "'doctor'",
    r"topics list": "'list_topics'",
    r"topics describe (\S+)": r"'describe_topic' (topic \1)",
    r"groups list": "'list_groups'",
    r"groups describe (\S+)": r"'describe_group' (group \1)",
    r"acls list": "'check_access'",
    r"why WHERE": "'why'",
    r"why ([^\s/]+)/(\d+|PARTITION)": r"'why' (topic \1, partition \2)",
    r"why (\S.*)": r"'explain' (question \1)",
}
"""A command, as the pattern of its words after ``tidelog``, and the tool that reads the same."""
_COMMAND = re.compile("'tidelog ([^']+)'")


def for_agents(step: str) -> str:
    """Return a next step that names tools of this server where it named commands between quotation marks. Commands
    without a tool stay as they are."""
    return _COMMAND.sub(lambda found: _tool_of(found[1]) or found[0], step)


def _tool_of(words: str) -> str:
    """Return the tool that does the same as a command, with its arguments; "" if there is none."""
    for pattern, tool in _TOOLS.items():
        if found := re.fullmatch(pattern, words):
            return found.expand(tool)
    return ""
