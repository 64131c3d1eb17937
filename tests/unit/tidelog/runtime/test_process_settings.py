"""Full collections of a large heap are rare: what has survived one is left alone for a while."""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator

import pytest
from tidelog.runtime.process_settings import LONG_S, OLDEST, THAW_S, Pauses, raise_open_files


class Collector:
    """What the interpreter tells of collections that take as long as a test says."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses = Pauses(lambda: self.now)

    def collect(self, seconds: float, generation: int = OLDEST) -> None:
        """Run one collection of a given length."""
        self.pauses("start", {"generation": generation})
        self.now += seconds
        self.pauses("stop", {"generation": generation})


@pytest.fixture
def collector() -> Iterator[Collector]:
    gc.unfreeze()
    yield Collector()
    gc.unfreeze()


def test_objects_that_survived_a_long_collection_are_not_examined_again(collector: Collector) -> None:
    collector.collect(2 * LONG_S)
    assert gc.get_freeze_count() > 1000


def test_short_collections_and_those_of_young_objects_change_nothing(collector: Collector) -> None:
    collector.collect(LONG_S / 2)
    collector.collect(2 * LONG_S, generation=1)
    assert gc.get_freeze_count() == 0


def test_after_a_while_everything_is_looked_at_once_more(collector: Collector) -> None:
    collector.collect(2 * LONG_S)
    collector.now += THAW_S
    collector.collect(LONG_S / 2)
    assert gc.get_freeze_count() == 0


def test_objects_frozen_by_others_stay_frozen_until_a_collection_is_long(collector: Collector) -> None:
    gc.freeze()
    collector.now += 2 * THAW_S
    collector.collect(LONG_S / 2)
    assert gc.get_freeze_count() > 1000, "some of them may have been freed meanwhile"


class Limits:
    """The limits of open files of a process, and a kernel that refuses more than it allows."""

    def __init__(self, soft: int, hard: int, most: int) -> None:
        self.soft, self.hard, self.most = soft, hard, most

    def get(self, which: int) -> tuple[int, int]:
        assert which == resource.RLIMIT_NOFILE
        return self.soft, self.hard

    def put(self, which: int, limits: tuple[int, int]) -> None:
        assert which == resource.RLIMIT_NOFILE and limits[1] == self.hard
        if limits[0] > self.most:
            raise ValueError("current limit exceeds maximum limit")
        self.soft = limits[0]


@pytest.mark.parametrize(
    ("soft", "hard", "most", "raised"),
    [
        (1024, 524_288, 1 << 30, 524_288),
        (1024, resource.RLIM_INFINITY, 1 << 30, 1 << 20),
        (256, resource.RLIM_INFINITY, 10_240, 8192),
        (256, 61_440, 10_240, 7680),
        (256, resource.RLIM_INFINITY, 256, 256),
        (4096, 4096, 4096, 4096),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 0, resource.RLIM_INFINITY),
    ],
)
def test_as_many_files_may_be_open_as_the_kernel_accepts(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, most: int, raised: int
) -> None:
    limits = Limits(soft, hard, most)
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    monkeypatch.setattr(resource, "setrlimit", limits.put)
    raise_open_files()
    assert limits.soft == raised
