"""What a controller's store has promised is there after a loss of power at any system call, and it is never called
damaged; with one bit flipped besides it may be, and it is never an older one."""

from __future__ import annotations

import pytest

from crash_points import recording
from crash_points.store import LIVES, run

needs_strace = pytest.mark.skipif(
    bool(recording.missing()), reason=f"the real Raft store was NOT checked: {recording.missing()}"
)


@needs_strace
@pytest.mark.parametrize("seed", range(len(LIVES)))
def test_a_store_keeps_its_last_commit_through_a_power_loss_at_any_system_call(seed):
    replayed = run(seed, losses=1)
    assert not replayed.fault, replayed.fault
    assert replayed.calls > 180 and replayed.outcomes > 500, "a replay that small proves nothing"
