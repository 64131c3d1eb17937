"""Tests ``tidelog.testing.world``: right programs pass, a bug of each kind is found, and a seed replays."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import tidelog
import trio
from tidelog.errors import ConfigError
from tidelog.testing import Found, Outcome, World, at_least_once, exactly_once, in_order, no_gap, search
from tidelog.testing.world.faults import KINDS, Calm, WorldFault
from tidelog.testing.world.run import WorldRun
from tidelog.testing.world.search import Attempt, Result, run_each, run_here
from tidelog.testing.world.swarm import LEADING, OUTAGES, draw
from trio import sleep  # of virtual time: no test waits

ORDERS = 12
MANUAL = tidelog.GroupOptions(auto_commit_s=None)
SEEDS = range(60)
"""The seeds in which a bug must show."""


async def produce_orders(address: str) -> None:
    """Send each order once: the number of the next one is what the topic has. The transaction fences an earlier
    process of this program before the topic is read."""
    async with tidelog.connect(address) as log:
        while True:
            async with log.transaction("orders") as tx:
                written = [record async for record in log.consume("orders", start="earliest", end="latest")]
                if len(written) == ORDERS:
                    return
                await tx.send("orders", b"%d" % len(written), key=b"customer")
            await sleep(0.05)


async def bill_once(address: str) -> None:
    """Copy each order to a bill in the transaction that commits its position."""
    async with (
        tidelog.connect(address) as log,
        log.consume("orders", group="billing", group_options=MANUAL) as consumer,
    ):
        while True:
            records = await consumer.next_records()
            async with log.transaction("billing") as tx:
                for record in records:
                    await tx.send("bills", record.value, key=record.key)
                await tx.commit_offsets(consumer)


async def bill_again(address: str) -> None:
    """Copy each order to a bill and commit afterwards: a bill is written twice where the program dies in between."""
    async with tidelog.connect(address) as log, log.producer("bills") as bills:
        async for record in log.consume("orders", group="billing"):
            await bills.send(record.value, key=record.key)


async def commit_first(address: str) -> None:
    """Commit before the bill is written: a bill is lost where the program dies in between."""
    async with (
        tidelog.connect(address) as log,
        log.producer("bills") as bills,
        log.consume("orders", group="billing", group_options=MANUAL) as consumer,
    ):
        async for record in consumer:
            await consumer.commit()
            await bills.send(record.value, key=record.key)


def declare(world: World, bill: Callable[[str], object], *invariants: object) -> None:
    """Run producer and biller, and judge by these invariants."""
    world.topic("orders")
    world.topic("bills")
    world.program(produce_orders)
    world.program(bill, name="bill", ends=False)  # type: ignore[arg-type]
    for invariant in invariants:
        world.invariant(invariant)  # type: ignore[arg-type]
    world.run()


def number_of(record: tidelog.Record) -> int:
    """Return the number of an order."""
    assert record.value is not None
    return int(record.value)


def find(bill: Callable[[str], object], *invariants: object, shrink: bool = False) -> Found:
    """Return the failure that the search finds."""
    found = search(lambda world: declare(world, bill, *invariants), SEEDS, shrink=shrink)
    assert found is not None and not found.without_faults
    return found


ALL = (
    exactly_once("bills", of="orders"),
    at_least_once("bills", of="orders"),
    in_order("bills", by=number_of),
    no_gap("bills", by=number_of),
)


def all_broken(*invariants: Callable[[Outcome], object]) -> Callable[[Outcome], str | None]:
    """Return an invariant that is broken if each of these is; it says what they say, a line each."""

    def judge(outcome: Outcome) -> str | None:
        said = [invariant(outcome) for invariant in invariants]
        return "\n".join(map(str, said)) if None not in said else None

    return judge


def test_a_right_program_passes_all_invariants_in_four_seeds() -> None:
    results: list[Result] = []
    assert search(lambda world: declare(world, bill_once, *ALL), range(4), on_result=results.append) is None
    assert sum(len(result.struck) for result in results) > 4


def test_a_lost_record_breaks_each_invariant_that_counts() -> None:
    found = find(commit_first, all_broken(ALL[0], ALL[1], ALL[3]))
    assert found.result.kind == "InvariantBroken"
    assert re.search(r"bills lacks .*\nbills lacks .*\n.*next after", found.result.text)


def test_a_doubled_record_is_shrunk_to_few_faults_and_replays() -> None:
    invariant = all_broken(exactly_once("bills"), in_order("bills", by=number_of))
    found = find(bill_again, invariant, shrink=True)
    assert re.search(r"more than once\n.* behind", found.result.text)
    assert 1 <= len(found.attempt.faults or ()) <= 3
    again = run_here(lambda world: declare(world, bill_again, invariant), found.attempt)
    assert (again.kind, again.digest) == (found.result.kind, found.result.digest)


def test_an_exception_of_a_program_is_the_exception_of_the_run() -> None:
    async def fails(address: str) -> None:
        await sleep(1.0)
        raise ZeroDivisionError("of the program")

    world = World()
    world.program(fails)
    with pytest.raises(ZeroDivisionError, match="of the program") as caught:
        world.run()
    assert any(frame.name == "fails" for frame in caught.traceback)


def test_a_program_that_never_returns_is_named_with_its_last_error() -> None:
    async def refused(address: str) -> None:
        async with tidelog.connect(address) as log, log.producer("no such topic") as producer:
            await producer.send(b"")

    world = World()
    world.program(refused)
    with pytest.raises(AssertionError, match=r"refused-1 has not returned .*\n.*UNKNOWN_TOPIC"):
        world.run()


def test_a_killed_program_runs_no_further_and_is_started_again() -> None:
    steps: list[str] = []

    async def runs(address: str) -> None:
        try:
            steps.append("starts")
            await sleep(10.0)
            steps.append("is through")
        finally:
            steps.append("cleans up")

    world = World()
    world.prepare(0, faults=[WorldFault("kill_program", "runs-1", at=5.0, back_s=3.0)])
    world.program(runs)
    world.invariant(lambda outcome: None if steps == ["starts", "starts", "is through", "cleans up"] else str(steps))
    world.run()


def test_a_program_that_is_asked_to_stop_cleans_up_with_its_network_and_is_started_again() -> None:
    steps: list[str] = []

    async def runs(address: str) -> None:
        async with tidelog.connect(address) as log, log.producer("notes") as notes:
            try:
                steps.append("starts")
                await sleep(10.0)
                steps.append("is through")
            finally:
                with trio.CancelScope(shield=True):
                    await notes.send(b"cleans up")

    world = World()
    world.prepare(0, faults=[WorldFault("stop_program", "runs-1", at=5.0, back_s=3.0)])
    world.topic("notes")
    world.program(runs)
    assert [record.value for record in world.run().records("notes")] == [b"cleans up"] * 2
    assert steps == ["starts", "starts", "is through"]


def test_a_program_that_does_not_stop_is_killed() -> None:
    ended: list[float] = []

    async def runs(address: str) -> None:
        if ended:
            return
        with trio.CancelScope(shield=True):
            for _ in range(60):
                ended.append(trio.current_time())
                await sleep(1.0)

    world = World()
    world.prepare(0, faults=[WorldFault("stop_program", "runs-1", at=5.0, back_s=3.0)])
    world.program(runs)
    world.invariant(lambda outcome: None if 34.0 <= ended[-1] <= 36.5 else f"it ran until {ended[-1]} s")
    world.run()


def test_a_program_in_a_restart_loop_is_stopped_again_and_again() -> None:
    began: list[float] = []

    async def runs(address: str) -> None:
        began.append(round(trio.current_time() - began[0], 1) if began else trio.current_time())
        await sleep(20.0)

    world = World()
    world.prepare(0, faults=[WorldFault("restart_loop", "runs-1", at=5.0, seconds=1.0, back_s=0.5, times=3)])
    world.program(runs)
    world.run()
    assert began[1:] == [5.5, 7.0, 8.5]


async def send_numbers(address: str, errors: list[str]) -> None:
    """Send 0 to 19, two in each second, and go on after an error."""
    options = tidelog.ProducerOptions(delivery_timeout_s=5)
    async with tidelog.connect(address) as log, log.producer("numbers", options) as numbers:
        for number in range(20):
            try:
                await numbers.send(b"%d" % number)
            except tidelog.TidelogError as error:
                errors.append(error.code)
            await sleep(0.5)


@pytest.mark.parametrize(
    ("fault", "missing", "codes"),
    [
        (WorldFault("refuse_sends", "sends-1", at=5.2, seconds=1.5), [11, 12, 13], {"TOPIC_READ_ONLY"}),
        (WorldFault("lose_request", "sends-1", moment="send", number=8, program="sends-1", seconds=8.0), [7], None),
        (WorldFault("lose_answer", "sends-1", moment="send", number=8, program="sends-1", seconds=8.0), [], None),
    ],
    ids=lambda value: value.kind if isinstance(value, WorldFault) else "",
)
def test_a_program_sees_the_errors_of_sends(fault: WorldFault, missing: list[int], codes: set[str] | None) -> None:
    """The second fault loses the record that is on its way, and the third loses only its ack. Seed 1 has
    a fast network."""
    errors: list[str] = []
    world = World()
    world.prepare(1, faults=[fault])
    world.topic("numbers")
    world.program(lambda address: send_numbers(address, errors), name="sends")
    found = {int(record.value or b"") for record in world.run().records("numbers")}
    assert sorted({*range(20)} - found) == missing
    assert set(errors) == codes if codes else errors


def test_a_copy_that_starts_late_takes_partitions_from_one_that_lives() -> None:
    """The group rebalances without a death."""
    revoked: list[float] = []
    moments: list[dict[str, int]] = []

    async def consumes(address: str) -> None:
        hooks = tidelog.Hooks(on_revoked=lambda gone: revoked.append(trio.current_time()))
        async with (
            tidelog.connect(address) as log,
            log.consume("orders", group="readers", group_options=MANUAL, hooks=hooks) as orders,
        ):
            async for _ in orders:
                pass

    world = World()
    late = WorldFault("start_late", "consumes-2", seconds=20.0)
    world.prepare(0, faults=[late], on_end=lambda run: moments.append(dict(run.calm.moments["consumes-1"])))
    world.topic("orders", partitions=2)
    world.program(consumes, copies=2, ends=False)
    world.run()
    assert len(revoked) == 1 and revoked[0] > 20.0
    assert moments[0]["rebalanced"] == 1


def test_a_fault_strikes_while_a_group_recovers_from_another_one() -> None:
    """The partition of the dead process goes to its successor when its session is over, long after the work."""
    struck: list[WorldFault] = []

    async def consumes(address: str) -> None:
        async with tidelog.connect(address) as log, log.consume("orders", group="readers") as orders:
            async for _ in orders:
                pass

    def keep(run: WorldRun) -> None:
        struck.extend(run.struck)

    world = World()
    death = WorldFault("kill_program", "consumes-1", moment="deliver", program="consumes-1", back_s=1.0)
    later = WorldFault("stop_program", "consumes-1", moment="rebalanced", number=2, program="consumes-1", back_s=1.0)
    world.prepare(0, faults=[death, later], on_end=keep)
    world.topic("orders", partitions=2)
    world.program(produce_orders)
    world.program(consumes, copies=2, ends=False)
    world.run()
    assert struck == [death, later]
    (stopped,) = [line for line in world.trace if line.endswith("is asked to stop")]
    assert float(stopped.split()[0]) > 45.0


MOMENTS = {
    "bill-1": {"joined": 1, "deliver": 9, "commit": 3},
    "bill-2": {"joined": 1, "deliver": 4, "commit": 2},
    "order-1": {"send": 12, "ack": 12},
}


def draw_runs(seeds: range, kinds: Sequence[str] = KINDS) -> list[list[WorldFault]]:
    """Return the faults of each seed for two copies of a program and another one."""
    calm = Calm(10.0, MOMENTS, session_s=20.0)
    return [draw(Random(seed), seed, ["bill-1", "bill-2", "order-1"], kinds, calm) for seed in seeds]


def test_each_way_to_lose_a_place_leads_once_in_as_many_runs_as_there_are_ways() -> None:
    """Only one of them strikes in a run; in one of six runs none does."""
    ways = [set(family) for family in LEADING]
    for first in range(0, 600, len(ways) + 1):
        runs = draw_runs(range(first, first + len(ways) + 1))
        found = [{fault.kind for fault in run} for run in runs]
        assert all(found)
        assert all(sum(bool(kinds & way) for kinds in found) == 1 for way in ways)
        assert all(sum(bool(kinds & way) for way in ways) <= 1 for kinds in found)


def test_each_other_kind_strikes_beside_each_way_and_also_does_not() -> None:
    found = [frozenset(fault.kind for fault in run) for run in draw_runs(range(2000))]
    others = set(KINDS).difference(*LEADING)
    for other in others:
        for way in LEADING:
            assert any(other in kinds and kinds & set(way) for kinds in found), f"{other} never strikes beside {way}"
            assert any(other not in kinds and kinds & set(way) for kinds in found)


def test_faults_strike_at_moments_of_the_programs_and_repeatedly() -> None:
    runs = draw_runs(range(400))
    timed = [fault for run in runs for fault in run if fault.kind != "start_late"]
    assert 0.5 < sum(bool(fault.moment) for fault in timed) / len(timed) < 0.9
    assert {fault.moment for fault in timed if fault.moment} == {
        *("joined", "deliver", "commit", "rebalanced", "send", "ack")
    }
    repeated = [run for run in runs if len({(fault.kind, fault.target, fault.seconds) for fault in run}) < len(run)]
    assert len(repeated) > 50


def test_a_long_outage_outlives_the_session_while_others_have_work() -> None:
    """It begins in the first half of the work: while the program works, or while an answer is on its way that gets
    lost."""
    long = [fault for run in draw_runs(range(600)) for fault in run if fault.kind in OUTAGES and fault.seconds > 20.0]
    assert max(fault.seconds for fault in long) < 20.0 + 1.5 * 10.0 + 0.1
    assert all(fault.number <= max(1, MOMENTS[fault.program][fault.moment] // 2) for fault in long)
    lost = [fault for fault in long if fault.kind in ("lose_answer", "lose_request")]
    at_work = [fault for fault in long if fault not in lost]
    assert min(len(lost), len(at_work)) > 20
    assert {(fault.program[:-2], fault.moment) for fault in lost} == {("bill", "commit"), ("order", "send")}
    assert {(fault.program[:-2], fault.moment) for fault in at_work} == {("bill", "deliver"), ("order", "ack")}
    assert all(0.0 < fault.delay_s <= 0.01 for fault in lost)
    assert all(0.0 < fault.delay_s <= 0.3 for fault in at_work)


def test_sends_are_refused_of_programs_that_send() -> None:
    refused = [fault for run in draw_runs(range(400)) for fault in run if fault.kind == "refuse_sends"]
    assert {fault.program for fault in refused} <= {"", "order-1"}


def test_only_kinds_that_are_allowed_are_drawn() -> None:
    for kind in KINDS:
        runs = [draw(Random(seed), seed, ["bill-1"], (kind,), Calm()) for seed in range(20)]
        assert {fault.kind for run in runs for fault in run} == {kind}
        assert all(runs)


def test_a_slow_program_loses_time_between_its_waits_until_it_is_slow_no_more() -> None:
    """Code between two waits takes no time else."""
    ticks: list[float] = []

    async def ticks_often(address: str) -> None:
        for _ in range(600):
            await sleep(0.1)
            ticks.append(trio.current_time())

    world = World()
    world.prepare(0, faults=[WorldFault("slow_program", "ticks_often-1", at=5.0, seconds=10.0)])
    world.program(ticks_often)
    world.run()
    gaps = [(before, after - before) for before, after in pairwise(ticks)]
    late = [before for before, gap in gaps if gap > 0.11]
    assert len(late) > 5
    assert min(late) > 4.0 and max(late) < 17.0


def test_a_program_that_ends_by_an_error_of_the_cluster_is_started_again_after_some_time() -> None:
    """Not always after the same time: two processes that fence each other must fall out of step."""
    began: list[float] = []

    async def fails(address: str) -> None:
        began.append(trio.current_time())
        if len(began) < 20:
            raise tidelog.TidelogError("too slow")

    world = World()
    world.faults()
    world.program(fails)
    world.run()
    pauses = [after - before for before, after in pairwise(began)]
    assert len(pauses) == 19
    assert 0.3 <= min(pauses) < 1.0 and 2.0 < max(pauses) <= 3.0


def test_a_program_that_stands_still_wakes_when_its_timers_have_passed() -> None:
    woke: list[float] = []

    async def sleeps(address: str) -> None:
        await sleep(10.0)
        woke.append(trio.current_time())

    world = World()
    world.prepare(0, faults=[WorldFault("pause_program", "sleeps-1", at=5.0, seconds=60.0)])
    world.program(sleeps)
    world.run()
    assert 65.0 <= woke[0] < 66.0


def test_a_world_without_topics_takes_every_kind_of_fault() -> None:
    async def sleeps(address: str) -> None:
        await sleep(10.0)

    world = World()
    world.prepare(0, faults=[WorldFault("move_leader", "r1", at=5.0)])
    world.program(sleeps)
    world.run()
    assert any("FAULT" in line for line in world.trace)


def test_a_member_that_lost_its_partition_cannot_commit_what_it_made_of_it() -> None:
    """The transaction of a member that stood still for longer than its session must not commit without positions."""
    calm = run_here(lambda world: declare(world, bill_once, *ALL), Attempt(0, Calm(), ()))
    assert not calm.failed, calm.text
    pauses = [
        WorldFault("pause_program", "bill-1", moment=moment, number=2, program="bill-1", seconds=55.0)
        for moment in ("begun", "send", "ack", "commit")
    ]
    attempts = [Attempt(0, calm.calm, (pause,)) for pause in pauses]
    for _, result in run_each(lambda world: declare(world, bill_once, *ALL), attempts, 2):
        assert result.struck and not result.failed, result.text


def test_a_seed_replays_in_other_processes() -> None:
    """Also with another PYTHONHASHSEED."""
    program = (
        "from test_world import *\n"
        "calm = Calm(5.0, {'bill-1': {'send': 8, 'deliver': 8}, 'produce_orders-1': {'send': 12}})\n"
        "print(run_here(lambda world: declare(world, bill_again), Attempt(3, calm)).digest)"
    )
    digests = set()
    for hash_seed in ("0", "1"):
        paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": paths}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1 and len(digests.pop()) == 32


def test_chance_and_clocks_are_those_of_the_seed() -> None:
    import random
    import time
    import uuid

    def drawn(seed: int) -> list[object]:
        values: list[object] = []

        async def draws(address: str) -> None:
            values.extend((random.random(), random.Random().random(), uuid.uuid4(), os.urandom(4), time.time()))

        world = World(seed)
        world.faults()
        world.program(draws)
        world.run()
        return values

    state = random.getstate()
    assert drawn(1) == drawn(1) != drawn(2)
    assert random.getstate() == state


def test_what_a_world_does_not_know_is_refused() -> None:
    world = World()
    with pytest.raises(ConfigError, match="there is no fault nonsense"):
        world.faults("kill", "nonsense")
    with pytest.raises(ConfigError, match="there is no setting no_such_setting"):
        world.topic("orders", no_such_setting=1)
    world.topic("orders")
    with pytest.raises(ConfigError, match="has topic orders already"):
        world.topic("orders", partitions=2)
    world.program(bill_once)
    with pytest.raises(ConfigError, match="two programs with the name bill_once"):
        world.program(bill_once)
    with pytest.raises(ConfigError, match="never: 0 copies"):
        world.program(bill_once, copies=0, name="never")
    with pytest.raises(ConfigError, match="give the async function itself"):
        world.program("bill_once")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("invariant", "error"),
    [
        (lambda outcome: True, "returns None, or a sentence that says what is wrong, not True"),
        (lambda outcome: outcome.records("ordres"), "the world has no topic ordres: it has orders"),
    ],
)
def test_an_invariant_that_is_wrong_itself_is_told_so(invariant: Callable[..., Any], error: str) -> None:
    world = World()
    world.topic("orders")
    world.invariant(invariant)
    with pytest.raises((TypeError, KeyError), match=error):
        world.run()


async def blocks(address: str) -> None:
    tidelog.sync.connect(address)


@pytest.mark.parametrize(
    ("main", "error"),
    [
        (lambda address: 5, "main is no async function: it returns 5"),
        (blocks, "programs of a world are on trio: those with tidelog.sync need tidelog_cluster"),
    ],
)
def test_a_program_that_is_none_for_a_world_is_told_so(main: Callable[..., Any], error: str) -> None:
    world = World()
    world.program(main, name="main")
    with pytest.raises((TypeError, RuntimeError), match=error):
        world.run()
