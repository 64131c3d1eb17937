"""What holds for every log holds for an encrypted one: tests of the log, as they are, over sealed segments.

Left out are those that put bytes at a position of a segment's file, or ask for the words that tell of damage: what
they are about is in ``test_encryption.py``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import test_compaction
import test_log
import test_log_past
import test_recall
from tidelog.disk import Disk
from tidelog.types import TopicConfig
from tidelog_replica.keys import Keyring
from tidelog_replica.log.log import Log
from tidelog_replica.log.sealed import SealedDisk, stored_bytes

KEYS = Keyring({"k": b"k" * 32}, "k")
EXTRA_BYTES = 4 * (stored_bytes(1000) - 1000)
"""What a small segment of about four batches grows by; with it the segments hold the same batches."""
LEFT_OUT = (
    "test_the_producers_are_known_after_a_restart_without_reading_the_whole_log",
    "test_D3_a_damaged_batch_stops_it",
    "test_an_index_whose_chain_is_not_that_of_the_headers_is_noticed",
    "test_damage_that_the_job_meets_is_told",
)

for module in (test_log, test_log_past, test_recall, test_compaction):
    globals().update({n: f for n, f in vars(module).items() if n.startswith("test_") and callable(f)})
for name in LEFT_OUT:
    del globals()[name]


@pytest.fixture(autouse=True, scope="module")
def sealed() -> Iterator[None]:
    """All logs are opened over a disk that seals."""
    real = Log.open.__func__

    def open_sealed(cls: type[Log], disk: Disk, directory: str, config: TopicConfig, *rest: Any, **more: Any) -> Log:
        if config.segment_max_bytes < 1000:
            config = replace(config, segment_max_bytes=config.segment_max_bytes + EXTRA_BYTES)
        return real(
            cls, disk if isinstance(disk, SealedDisk) else SealedDisk(disk, KEYS), directory, config, *rest, **more
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Log, "open", classmethod(open_sealed))
        yield
