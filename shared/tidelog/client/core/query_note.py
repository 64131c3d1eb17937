"""The note that a streaming query leaves with the positions that it commits.

A query of Spark is not a member of its consumer group: it commits positions from outside, and nobody counts its
heartbeats. From the note others know that a query commits there, where its driver runs, and how often it commits. So
``tidelog doctor`` can tell a query that has died from one that has not come to its next batch yet."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Self

FIELD = "streaming_query"
"""The key of the JSON object in the metadata of a position that holds the note."""


@dataclass(frozen=True, slots=True)
class QueryNote:
    """A streaming query as its commits describe it. ``host`` is the name of the machine on which its driver runs.
    ``every_s`` is the longest time between the ends of two of its latest batches, in seconds: at the end of each it
    commits, if it has read anything. 0.0: there was one batch."""

    host: str
    every_s: float = 0.0

    def to_metadata(self) -> str:
        """Return the note as the metadata of a committed position: a JSON object."""
        return json.dumps({FIELD: {"host": self.host, "every_s": round(self.every_s, 1)}})

    @classmethod
    def from_metadata(cls, metadata: str) -> Self | None:
        """Return the note in the metadata of a committed position; None if there is none."""
        try:
            found = json.loads(metadata)[FIELD]
            return cls(str(found["host"]), float(found["every_s"]))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):  # not a note: any program's text
            return None
