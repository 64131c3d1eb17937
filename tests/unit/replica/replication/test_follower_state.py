"""A follower's decisions: where to cut, what to take."""

from __future__ import annotations

from math import inf

import pytest
from tidelog.batch.format import BatchHeader, NewRecord, encode_batch, read_header
from tidelog_replica.replication.follower_state import FollowerState, agreed_end, fault_of
from tidelog_replica.replication.leader_epochs import LeaderEpochCache

Log = tuple[list[tuple[int, int]], int]
"""Epoch entries and log end."""


def dialogue(own: Log, leader: Log) -> tuple[int, int]:
    """Have a follower agree with a leader; returns where its log must end, and the rounds that it took."""
    epochs, log_end = LeaderEpochCache(own[0]), own[1]
    follower = FollowerState("r1", 9, 0)
    follower.enter_leader_epoch(epochs)
    rounds = 0
    while follower.asking is not None:
        rounds += 1
        assert rounds <= len(own[0]), "each round asks for an older epoch"
        answer = LeaderEpochCache(leader[0]).end_of(follower.asking, leader[1])
        end = follower.on_epoch_end(follower.asking, *answer, epochs, 0, log_end)
        if end is not None:
            assert follower.asking is None
            return end, rounds
    return log_end, rounds


@pytest.mark.parametrize(
    ("own", "leader", "end", "rounds"),
    [
        pytest.param(([(1, 0)], 5), ([(1, 0), (2, 5)], 5), 5, 1, id="equal"),
        pytest.param(([(1, 0)], 3), ([(1, 0), (2, 5)], 9), 3, 1, id="behind"),
        pytest.param(([(1, 0)], 8), ([(1, 0), (2, 5)], 5), 5, 1, id="ahead"),
        pytest.param(([(1, 0), (2, 4)], 9), ([(1, 0), (3, 6)], 9), 4, 1, id="diverged in one epoch"),
        pytest.param(([(1, 0), (3, 4), (5, 7)], 9), ([(1, 0), (2, 2), (4, 5)], 9), 2, 3, id="diverged in several"),
        pytest.param(([], 0), ([(1, 0)], 9), 0, 0, id="empty follower"),
        pytest.param(([(3, 0)], 4), ([(5, 0)], 4), 0, 1, id="unknown epoch"),
        pytest.param(([(1, 0)], 4), ([], 0), 0, 1, id="empty leader"),
    ],
)
def test_A13_each_shape_of_two_logs_has_one_exact_truncation_offset(
    own: Log, leader: Log, end: int, rounds: int
) -> None:
    assert dialogue(own, leader) == (end, rounds)


def test_A3_the_answer_names_an_epoch_so_that_a_diverged_batch_does_not_stay() -> None:
    """B has m0 of epoch 1, then b1 of its own epoch 2; A has m0, a1, a2 of epoch 1 and a3 of epoch 3."""
    assert dialogue(([(1, 0), (2, 1)], 2), ([(1, 0), (3, 3)], 4)) == (1, 1)


def test_A5_epochs_without_records_end_the_dialogue_too() -> None:
    own: Log = ([(1, 0), (2, 5), (4, 5), (6, 5)], 5)
    end, rounds = dialogue(own, ([(1, 0), (3, 5), (5, 5), (7, 5)], 8))
    assert end == 5
    assert rounds <= 4


def test_A8_an_epoch_starts_at_the_next_offset_not_at_the_last() -> None:
    """L1 has an uncommitted record at 3 in epoch 1; epoch 2 committed another one there."""
    assert dialogue(([(1, 0)], 4), ([(1, 0), (2, 3), (3, 4)], 4)) == (3, 1)


def test_A9_without_an_answer_the_dialogue_stays_open() -> None:
    follower = FollowerState("r1", 2, high_watermark=3)
    follower.enter_leader_epoch(LeaderEpochCache([(1, 0)]))
    assert follower.asking == 1


def test_a_late_answer_to_another_question_changes_nothing() -> None:
    follower = FollowerState("r1", 9, 0)
    epochs = LeaderEpochCache([(1, 0), (3, 4)])
    follower.enter_leader_epoch(epochs)
    assert follower.on_epoch_end(1, 1, 2, epochs, 0, 9) is None
    assert follower.on_epoch_end(3, 4, 2, epochs, 0, 9) is None, "an epoch larger than the one asked makes no sense"
    assert follower.asking == 3


def test_a_diverging_fetch_answer_cuts_to_the_smaller_end() -> None:
    epochs = LeaderEpochCache([(1, 0), (2, 4)])
    assert agreed_end(1, 6, epochs, 0, 9) == 4
    assert agreed_end(1, 3, epochs, 0, 9) == 3
    assert agreed_end(0, 3, epochs, 0, 9) == 0
    assert agreed_end(2, 7, epochs, 0, 9) == 7


def header(offset: int, epoch: int, count: int = 2) -> BatchHeader:
    return read_header(encode_batch([NewRecord(b"v")] * count))._replace(base_offset=offset, leader_epoch=epoch)


def test_B14_only_a_contiguous_run_from_the_log_end_is_taken() -> None:
    assert fault_of([header(4, 1), header(6, 2)], 4, 1, 2) is None
    assert fault_of([header(5, 1)], 4, 1, 2) is not None
    assert fault_of([header(3, 1)], 4, 1, 2) is not None
    assert fault_of([header(4, 1), header(7, 1)], 4, 1, 2) is not None


def test_R6_epochs_that_go_back_or_are_newer_than_the_leader_are_refused() -> None:
    assert fault_of([header(4, 1)], 4, 2, 3) is not None
    assert fault_of([header(4, 4)], 4, 2, 3) is not None
    assert fault_of([header(4, 3), header(6, 2)], 4, 2, 3) is not None


def test_E9_a_follower_is_as_fresh_as_a_proof_says_when_it_has_reached_the_hw_of_that_proof() -> None:
    follower = FollowerState("r1", 9, 3)
    follower.on_proof(5, 100.0)
    assert follower.confirmed_at == -inf, "what was committed until then may be at 3 and 4"
    follower.on_high_watermark(5, log_end=4)
    assert (follower.high_watermark, follower.confirmed_at) == (4, -inf)
    follower.on_proof(6, 200.0)
    follower.on_high_watermark(6, log_end=5)
    assert follower.confirmed_at == 100.0, "the first proof is kept until it counts"
    follower.on_proof(5, 300.0)
    assert follower.confirmed_at == 300.0


@pytest.mark.parametrize(
    ("follower", "after", "lost"),
    [
        pytest.param(
            FollowerState("r1", 3, 10, commit_rule="leader", highest_committed=10),
            [(1, 0), (3, 6)],
            (6, 10),
            id="rule leader",
        ),
        pytest.param(
            FollowerState("r1", 8, 10, unclean_epoch=7, highest_committed=10),
            [(1, 0), (4, 5), (7, 6)],
            (6, 10),
            id="unclean",
        ),
    ],
)
def test_a_loss_begins_with_the_first_epoch_that_may_lack_records(
    follower: FollowerState, after: list[tuple[int, int]], lost: tuple[int, int]
) -> None:
    """Its log, of epoch 1, has lost its end by itself; epoch 4 began in order, and has all that was committed."""
    follower.enter_leader_epoch(LeaderEpochCache([(1, 0)]))
    assert follower.loss(LeaderEpochCache(after), 8, is_all=False) == lost
