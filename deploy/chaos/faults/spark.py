"""Faults that end a part of a Spark query: its driver, or the processes that run its tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import trio
from chaos.cluster import capabilities
from chaos.cluster.supervisor import Stage, Unfit, Unhealed
from chaos.faults.registry import fault
from chaos.workload.spark_copy import Copier

AGAIN_S = 300.0
"""Seconds that the query may take to commit one more batch: Java starts slowly on a busy machine, under other
faults."""


def copier(stage: Stage) -> Copier:
    """Return the Spark query of the run, which must have one."""
    assert stage.copier is not None
    return stage.copier


async def _again(stage: Stage) -> None:
    with trio.move_on_after(AGAIN_S):
        program = copier(stage).program
        await program.goes_on(program.batches())
        return
    raise Unhealed(f"the Spark query committed no batch for {AGAIN_S:g} s")


@fault(
    "kill-spark",
    "kill -9 of the driver of the Spark query in the midst of a batch; it is started again on its checkpoint",
    "spark",
    needs=(capabilities.SPARK,),
)
async def _kill_spark(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    with trio.move_on_after(AGAIN_S):
        await copier(stage).program.in_batch()
    await trio.sleep(random.uniform(0.0, 1.0))
    if not copier(stage).program.kill_driver():
        raise Unfit("the query is between two starts")
    yield
    await _again(stage)


@fault(
    "kill-spark-workers",
    "kill -9 of the processes that run the tasks of the Spark query: the tasks are run again",
    "spark",
    needs=(capabilities.SPARK,),
)
async def _kill_workers(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    if not await stage.do(copier(stage).program.kill_workers):
        raise Unfit("no task of the query runs")
    yield
    await _again(stage)
