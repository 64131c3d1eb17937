"""The case that measures what a batch costs each service on one core and on more, and what that predicts for more
gateways and replica servers than this machine can run."""

from __future__ import annotations

import os
from pathlib import Path

from bench import throughput
from bench.scaling.load import Run
from bench.scaling.report import Panel, Table
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.cli.local.local_cluster import LocalCluster

BATCHES = ((0, 64), *throughput.BATCHES)
"""(bytes, number in flight) of the batches; 0 stands for a single record of 100 B."""
ROLES = {"client": "client, µs", "g": "gateway, µs", "r": "replicas, µs"}
"""The column of each kind of process, by how the names of its processes begin."""


def pin(cluster: LocalCluster, cpus: set[int]) -> None:
    """Let all processes of the cluster, and this one, run on these CPUs only."""
    for pid in (os.getpid(), *(process.pid for process in cluster.processes)):
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), cpus)


async def cores(run: Run) -> list[Table]:
    """Measure the CPU of each service per batch, with all processes on one CPU of this machine and then on all. The
    model says that a batch costs each service the same CPU however many cores there are, so the rate is the number of
    cores divided by the CPU of all. ``of the model`` compares the measured rate with that. By the same model a
    gateway that has a core to itself passes on ``a gateway's core, MB/s``, and three replica servers with a core each
    take ``three replicas' cores, MB/s``."""
    table = Table(
        "cores",
        "CPU of a batch on one core and on all, and what that predicts",
        {
            "batch": 0,
            "batches/s": 0,
            "MB/s": 1,
            **dict.fromkeys(ROLES.values(), 0),
            "of the model": 2,
            "a gateway's core, MB/s": 0,
            "three replicas' cores, MB/s": 0,
        },
        (Panel("CPU of a batch, µs", tuple(ROLES.values())), Panel("rate, of the model", ("of the model",))),
    )
    run.tables.append(table)
    all_cpus = sorted(os.sched_getaffinity(0))
    for size, window in run.some(BATCHES):
        batch, name = _batch_of(size)
        topic = f"cores-{size}"
        await run.create(topic, throughput.PARTITIONS)
        for cpus in (all_cpus[:1], all_cpus):
            pin(run.cluster, set(cpus))
            try:
                acked, seconds, _, used = await throughput.send_batches(
                    run.cluster, topic, lambda batch=batch: batch, window, lambda _, past_s: past_s >= run.seconds
                )
            finally:
                pin(run.cluster, set(all_cpus))
            costs = {
                column: sum(cores for node, cores in used.items() if node.startswith(role)) * seconds / acked * 1e6
                for role, column in ROLES.items()
            }
            row = {"batch": size + len(cpus) / 100.0, "batches/s": acked / seconds} | costs
            row["MB/s"] = acked * len(batch) / seconds / 1e6
            row["of the model"] = row["batches/s"] * sum(costs.values()) / 1e6 / len(cpus)
            row["a gateway's core, MB/s"] = len(batch) / costs["gateway, µs"]
            row["three replicas' cores, MB/s"] = 3 * len(batch) / costs["replicas, µs"]
            table.labels[row["batch"]] = f"{name}, {len(cpus)} core{'s' * (len(cpus) > 1)}"
            table.add(row)
    return [table]


def _batch_of(size: int) -> tuple[bytes, str]:
    """Return a batch of about ``size`` bytes, or of one record for 0, and the text that names its size."""
    if not size:
        return encode_batch([NewRecord(os.urandom(100), timestamp_ms=0)]), "one record"
    return throughput.opaque_batch(size)[0], f"{size >> 10} KiB"
