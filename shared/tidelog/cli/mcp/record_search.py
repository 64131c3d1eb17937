"""Applies the regular expressions and JSONPaths of agents to records, in a process of their own that can be killed.

For some texts an expression needs more time than anybody has (CWE-1333). Python could not interrupt it, and all other
calls of the server would wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import trio
from anyio import to_process

from tidelog.batch.format import Record
from tidelog.cli.mcp.tool import CallError
from tidelog.cli.records.record_filter import RecordFilter

SEARCH_S = 15.0
"""Longest time in seconds for the records of one batch."""


async def search(grep: str | None, json_path: str | None, records: Sequence[Record]) -> list[list[Record]]:
    """Return for each record what the expressions choose of it (``RecordFilter.choose``). Raises ``CallError`` if
    that takes longer than ``SEARCH_S``; the process is killed then."""
    if not records or (grep is None and json_path is None):
        return [[record] for record in records]
    with trio.move_on_after(SEARCH_S):
        return await to_process.run_sync(_search, grep, json_path, tuple(records), cancellable=True)
    place = f"partition {records[0].partition}, offsets {records[0].offset} to {records[-1].offset}"
    text = f"the expression takes more than {SEARCH_S:g} s for the records of {place}"
    raise CallError("TOO_SLOW", text, "Use a simpler expression, or 'contains', or pass over these records.")


def _search(grep: str | None, json_path: str | None, records: Sequence[Record]) -> list[list[Record]]:
    chosen = _compiled(grep, json_path)
    return [chosen.choose(record) for record in records]


@lru_cache(maxsize=1)
def _compiled(grep: str | None, json_path: str | None) -> RecordFilter:
    return RecordFilter(grep, json_path)
