"""How many simulated seconds a world makes in one second of CPU, with and without work.

    .venv/bin/python deploy/bench/world.py [--seconds 60]

The cluster is that of ``tidelog.testing.World``: a controller, three replica servers and a gateway, topics with
three replicas. *Idle* is the cluster alone. *Moderate* is a producer of five records a second, and a member of a
group that reads them and writes a copy of each. The start of the cluster is measured by itself. No fault strikes.
Seconds of CPU are those of this process, so a machine that is busy with other things changes them little.
"""

from __future__ import annotations

import argparse
import time

import tidelog
import trio
from tidelog.testing import World
from tidelog.testing.world.run import WorldRun
from tidelog.testing.world.search import warm_up

RECORDS_PER_S = 5


def measure(seconds: float, *, load: bool) -> tuple[float, float]:
    """Run a world whose programs work for some virtual seconds. Return the virtual and the CPU seconds."""
    began: list[float] = []

    async def produce(address: str) -> None:
        began.extend((time.process_time(), trio.current_time()))
        if not load:
            await trio.sleep(seconds)
        else:
            async with tidelog.connect(address) as log, log.producer("orders") as producer:
                end = trio.current_time() + seconds
                while trio.current_time() < end:
                    await producer.send(b"x" * 100)
                    await trio.sleep(1 / RECORDS_PER_S)
        began.extend((time.process_time(), trio.current_time()))

    async def copy(address: str) -> None:
        async with tidelog.connect(address) as log, log.producer("bills") as producer:
            async for record in log.consume("orders", group="billing"):
                await producer.send(record.value)

    runs: list[WorldRun] = []
    world = World()
    world.prepare(0, faults=(), on_end=runs.append)
    world.topic("orders", partitions=2)
    world.topic("bills", partitions=2)
    world.program(produce)
    if load:
        world.program(copy, ends=False)
    world.run()
    cpu_from, virtual_from, cpu_to, virtual_to = began
    return virtual_to - virtual_from, cpu_to - cpu_from


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="virtual seconds of each case")
    seconds = parser.parse_args().seconds
    warm_up()
    began = time.process_time()
    measure(0.1, load=False)
    print(f"start and end of a world: {time.process_time() - began:.2f} s of CPU")
    for name, load in (("idle", False), ("moderate", True)):
        virtual, cpu = measure(seconds, load=load)
        print(f"{name}: {virtual / cpu:.0f} simulated seconds per second of CPU ({virtual:.0f} in {cpu:.2f})")


if __name__ == "__main__":
    main()
