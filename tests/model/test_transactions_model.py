"""Transactions under every order of messages that the dice find, and with a fault at every step."""

from __future__ import annotations

import random
from itertools import product
from unittest.mock import patch

import pytest
from tidelog.batch.format import BatchHeader
from tidelog_replica.coordinators.transactions.coordinator import TransactionCoordinator
from tidelog_replica.partition.transaction_gate import TransactionGate
from tidelog_replica.replication.producer_state import ProducerState

from model.transactions import FAULTS, World, placed, walk


def test_two_processes_without_a_fault() -> None:
    world = World()
    world.settle(random.Random(1))
    shown = {id for leader in world.leaders.values() for id in leader.shown}
    assert shown and {process.told for process in world.processes.values()} & {"committed"}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("seed", range(4))
def test_a_fault_at_every_step(seed: int, fault: str) -> None:
    for step in range(40):
        placed(seed, {step: fault})


@pytest.mark.parametrize("second", FAULTS)
def test_a_crash_at_every_step_and_another_fault_at_every_step(second: str) -> None:
    for one, two in product(range(0, 36, 3), range(1, 36, 3)):
        placed(7, {one: "crash_lossy", two: second})


@pytest.mark.parametrize("block", range(4))
def test_walks(block: int) -> None:
    ends: set[str] = set()
    for seed in range(block * 100, (block + 1) * 100):
        world = walk(seed)
        ends |= {process.told for process in world.processes.values()}
    assert {"committed", "FENCED_PRODUCER"} <= ends, "both ends are met"


def test_the_model_notices_a_decision_that_is_sent_before_it_is_committed() -> None:
    def tell_at_once(core: TransactionCoordinator, end: int) -> None:
        for slot in core._undecided:
            slot.decided_at = 0
            core._to_mark[slot.key] = slot
        core._undecided = []

    def run() -> None:
        with patch.object(TransactionCoordinator, "on_written", tell_at_once):
            for seed in range(400):
                world = World()
                dice = random.Random(seed)
                for _ in range(40):
                    world.step(dice)
                    world.flying += [("marker", marker) for marker in world.core.take_markers(world.now)]
                    if dice.random() < 0.1:
                        world.fault("crash_lossy", dice)
                world.settle(dice)

    with pytest.raises(AssertionError):
        run()


def test_markers_that_fence_nobody_would_be_noticed() -> None:
    record = ProducerState.record

    def without_fence(state: ProducerState, header: BatchHeader, base: int) -> None:
        if header.is_control:
            state.transactions.record(header, base)
        else:
            record(state, header, base)

    def run() -> None:
        fence = patch.object(ProducerState, "record", without_fence)
        with fence, patch.object(TransactionGate, "on_marker", lambda admission, id: None):
            for seed in range(400):
                walk(seed)

    with pytest.raises(AssertionError):
        run()
