"""Where two logs part, at the edge of a log that retention has trimmed (KIP-101, KIP-279), against whole ones.
Tests ``replication/follower_state.py`` and ``replication/leader_epochs.py``.

The histories are trees: each leader epoch belongs to one leader, which appends to a log that it shares a beginning
with. In Kafka the first epoch that a trimmed log knows begins with the log; here the record before the start keeps
its epoch, so a follower that differs from it below the start is told so, and starts its copy over.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from random import Random

import pytest
from tidelog_replica.replication.follower_state import FollowerState, agreed_end
from tidelog_replica.replication.leader_epochs import LeaderEpochCache, divergence

Line = list[int]
"""The leader epoch of each record of a log, by its offset."""


def cache_of(line: Line, start: int = 0) -> LeaderEpochCache:
    """What the log knows of its epochs when it begins at ``start``."""
    cache = LeaderEpochCache()
    for offset, epoch in enumerate(line):
        cache.assign(epoch, offset)
    cache.advance_to(start)
    return cache


def common(one: Line, other: Line) -> int:
    """How many records two logs share: equal epochs at equal offsets are equal records."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def histories() -> Iterator[tuple[Line, int, Line]]:
    """A leader's log and where it begins, and a follower's: many."""
    rng = Random(1)
    for number in range(HISTORIES):
        lines: list[Line] = [[], []]
        for epoch in range(1 + number % 7):
            leader = rng.randrange(2)
            other = lines[1 - leader]
            if rng.random() < 0.5:  # it has followed the other first, so far
                lines[leader] = other[: rng.randint(common(lines[leader], other), len(other))]
            lines[leader] += [epoch] * rng.randint(0, 3)
        yield lines[0], rng.randint(0, len(lines[0])), lines[1]


HISTORIES = 20_000


def test_a_trimmed_leader_finds_a_divergence_wherever_a_whole_one_does() -> None:
    for leader, start, follower in histories():
        shared, end = common(leader, follower), len(follower)
        if end < start:
            continue  # out of range: the copy starts over in any case
        last = follower[-1] if follower else -1
        trimmed = divergence(end, last, cache_of(leader, start), start, len(leader))
        whole = divergence(end, last, cache_of(leader), 0, len(leader))
        assert (trimmed is None) == (whole is None), (leader, start, follower)
        if end <= len(leader):
            assert (trimmed is None) == (shared == end), (leader, start, follower)
        if trimmed is not None and whole != trimmed:
            assert whole is not None and max(whole[1], trimmed[1]) < start, "what is left does not reach the start"


def test_a_follower_of_a_trimmed_leader_ends_with_the_common_part_or_starts_over() -> None:
    """By fetches alone, each of which may be answered with a divergence."""
    for leader, start, follower in histories():
        shared, epochs = common(leader, follower), cache_of(leader, start)
        line, rounds = list(follower), 0
        while len(line) >= start:
            answer = divergence(len(line), line[-1] if line else -1, epochs, start, len(leader))
            if answer is None and len(line) <= len(leader):
                break
            assert answer is not None, (leader, start, follower)
            cut = agreed_end(*answer, cache_of(line), 0, len(line))
            assert cut < len(line), "each answer cuts something"
            del line[cut:]
            rounds += 1
        assert rounds <= len(set(follower)) + 1, (leader, start, follower)
        if shared >= start:
            assert len(line) == shared, "nothing that is common is cut, nothing else is left"
        else:
            assert len(line) < start, "the copy starts over: its log parts from the leader's before that begins"


def test_the_dialogue_with_a_trimmed_leader_comes_to_the_same() -> None:
    """Where an answer lies within the leader's log the cut begins no later than what differs: so a loss reported from
    there on is not too small. Where it lies below, the logs may have parted earlier."""
    for leader, start, follower in histories():
        shared, epochs, own = common(leader, follower), cache_of(leader, start), cache_of(follower)
        core = FollowerState("r1", 99, 0)
        core.enter_leader_epoch(own)
        cut: int | None = len(follower)
        while core.asking is not None:
            asked = core.asking
            epoch, end = epochs.end_of(asked, len(leader))
            if epoch < 0 and start > 0:
                epoch, end = asked, epochs.ends_before(start)
                assert end < start, "the leader's log is known to be trimmed there"
            cut = core.on_epoch_end(asked, epoch, end, own, 0, len(follower))
            assert cut is None or cut <= shared or 0 <= end < start, (leader, start, follower)
        assert cut is not None
        if shared >= start:
            assert cut == shared, (leader, start, follower)
        else:
            assert cut < start or cut <= shared, (leader, start, follower)


LEADER = cache_of([1, 1, 3, 3, 3, 5, 5], 4)
"""A log that begins at 4, in the middle of epoch 3, which began at 2; the log ends at 7."""


@pytest.mark.parametrize(
    ("offset", "epoch", "expected"),
    [
        (4, 3, None),  # the record before the start is known
        (5, 3, None),
        (6, 3, (3, 5)),
        (4, 2, (2, 2)),  # an epoch that began before the start and is not known any more: it ended before 3 began
        (4, 1, (1, 2)),
        (4, 0, (0, 2)),
        (5, 4, (3, 5)),  # an epoch that the leader never had: of the epoch before it only what the leader has
        (4, 4, (3, 5)),
        (7, 5, None),
        (8, 5, (5, 7)),
        (7, 9, (5, 7)),
        (4, -1, None),  # a position without an epoch is not judged (KIP-320)
    ],
)
def test_at_the_edge_of_a_log_that_begins_in_the_middle_of_an_epoch(
    offset: int, epoch: int, expected: tuple[int, int] | None
) -> None:
    assert divergence(offset, epoch, LEADER, 4, 7) == expected


@pytest.mark.parametrize(
    ("offset", "epoch", "expected"),
    [(5, 3, None), (5, 5, None), (5, 2, (2, 2)), (6, 5, None), (6, 3, (3, 5))],
)
def test_at_the_edge_of_a_log_that_begins_with_an_epoch(
    offset: int, epoch: int, expected: tuple[int, int] | None
) -> None:
    cache = cache_of([1, 1, 3, 3, 3, 5, 5], 5)
    assert cache.entries == [(3, 2), (5, 5)], "the epoch of the record before the start stays"
    assert divergence(offset, epoch, cache, 5, 7) == expected


@pytest.mark.parametrize(("epoch", "expected"), [(7, None), (6, (6, 19)), (8, (7, 22))])
def test_a_copy_that_was_started_over_knows_the_epoch_of_the_record_before_it(
    epoch: int, expected: tuple[int, int] | None
) -> None:
    """Where it began it does not know; it began no later than with that record."""
    assert divergence(20, epoch, LeaderEpochCache([(7, 19)]), 20, 22) == expected


def test_a_log_with_unknown_earlier_epochs_shows_no_divergence_at_its_start() -> None:
    """Its epoch file and its log start were both lost: as Kafka, which knows no more."""
    assert divergence(20, 3, LeaderEpochCache([(7, 20)]), 20, 22) is None
    assert divergence(20, 3, LeaderEpochCache(), 20, 20) is None
    assert divergence(21, 3, LeaderEpochCache([(7, 20)]), 20, 22) == (3, 20)
