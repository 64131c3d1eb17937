"""When an accepting end stops taking requests: before it would hang up. Tests ``net/link.py`` and
``net/send_queue.py``."""

from __future__ import annotations

import pytest
from tidelog.net.send_queue import OUTBOX_BYTES, OUTBOX_MESSAGES, SendQueue
from tidelog.net.transport import outgoing


@pytest.mark.parametrize(("size", "full"), [(1 << 20, OUTBOX_BYTES >> 20), (0, OUTBOX_MESSAGES)])
def test_an_outbox_is_filling_long_before_it_is_full_and_after_senders_wait(size: int, full: int) -> None:
    outbox, data = SendQueue(None), bytes(size)  # type: ignore[arg-type]  # nothing is sent
    seen = []
    for _ in range(full + 2):
        outbox.put(outgoing(b"", data))
        seen.append((outbox.has_room, outbox.is_filling, outbox.is_overfull))
    states = list(dict.fromkeys(seen))
    assert states == [(True, False, False), (False, False, False), (False, True, False), (False, True, True)]
    assert seen.count((False, True, False)) >= full // 3
