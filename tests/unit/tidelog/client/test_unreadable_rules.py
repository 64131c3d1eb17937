"""The rules of readers at batches that cannot be decoded, as tests that mutants can name: they call without a
fixture and without an event loop what ``test_unreadable_batches`` shows. Tests ``client/consumer.py`` and
``spark/read/task.py``."""

from __future__ import annotations

import pytest
import trio

from unit.tidelog.client import test_unreadable_batches as batches


@pytest.mark.parametrize(
    "rule",
    [
        "skipping_moves_the_groups_position_behind_the_batch_and_no_further",
        "a_batch_that_is_skipped_at_the_end_of_the_log_is_committed_as_finished",
        "the_group_stays_before_the_batch_until_a_member_goes_on_behind_it",
        "the_other_partitions_go_on_before_the_error_is_raised_again",
        "only_the_offsets_that_were_to_be_read_count_as_skipped",
        "a_batch_with_a_wrong_crc_is_never_skipped",
    ],
)
def test_readers_keep_this_rule(rule: str) -> None:
    try:
        trio.run(getattr(batches, f"test_{rule}"))
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
