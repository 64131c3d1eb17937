"""The note that a streaming query leaves with its positions."""

from __future__ import annotations

import pytest
from tidelog.client.core.query_note import QueryNote


def test_a_note_is_read_as_it_was_written() -> None:
    note = QueryNote("etl-1", 2.5)
    assert QueryNote.from_metadata(note.to_metadata()) == note


@pytest.mark.parametrize(
    "metadata",
    [
        *("", "by hand", "{}", "[1]", "7", '{"streaming_query": 3}', '{"streaming_query": {"host": "a"}}'),
        "[" * 4096,
        f'{{"streaming_query": {{"host": "a", "every_s": {"9" * 400}}}}}',
    ],
    ids=lambda text: text[:40],
)
def test_metadata_of_other_programs_has_no_note(metadata: str) -> None:
    assert QueryNote.from_metadata(metadata) is None
