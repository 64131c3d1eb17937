"""Incidents of disks: one that grows, one that is full, one that is slow, whose twin is a slow server."""

from __future__ import annotations

import trio
from incidents import hardware
from incidents.incident import ClusterPlan, Incident
from incidents.stage import Stage
from tidelog.client.options import ProducerOptions
from tidelog.errors import TidelogError

RECORD = 16_000
"""Bytes of a record that is to take room: more than those of the load take together."""
BATCH = 64
"""Records that are sent at a time."""
RETAINED = {"min_insync_replicas": 1, "segment_max_bytes": 1 << 20, "retention_ms": 86_400_000}
"""Settings of a topic that keeps more than a small disk holds, though its retention is set."""
DISK_MIB = 192


async def send_some(stage: Stage, topic: str, records: int) -> None:
    """Send so many records that cannot be compressed."""
    async with stage.log.producer(topic, ProducerOptions(delivery_timeout_s=5.0)) as producer:
        for _ in range(records):
            await producer.submit(stage.random.randbytes(RECORD))


# --- a disk that grows -------------------------------------------------------------------------------------


def _extra(stage: Stage, name: str) -> str:
    """Return the name of a topic beside those under load."""
    return f"{stage.topic}-{name}"


async def grow(stage: Stage) -> None:
    """Let a program write to a topic for which nobody has set retention."""
    topic = _extra(stage, "raw")
    await stage.log.topics.create(topic, partitions=stage.random.choice((1, 2)), replication_factor=3)

    async def write() -> None:
        while True:
            await send_some(stage, topic, BATCH)
            await trio.sleep(0.5)

    stage.begin("disk-grows", write)


async def set_retention(stage: Stage) -> None:
    """Set retention, as the doctor says; the program goes on."""
    await stage.log.topics.alter(_extra(stage, "raw"), {"retention_ms": 86_400_000})


async def keep_for_a_group(stage: Stage) -> None:
    """Let retention wait for a group that reads nothing."""
    topic, group = _extra(stage, "raw"), f"{stage.group}-copy"
    bound = 12 << 20
    config = {"segment_max_bytes": 1 << 20, "retention_bytes": 1 << 20, "retention_waits_for": group}
    await stage.log.topics.create(topic, replication_factor=3, config=config | {"retention_waits_max_bytes": bound})
    await stage.log.groups.reset(group, topic, {0: 0})
    share = stage.random.uniform(0.65, 0.85)
    await send_some(stage, topic, round(((1 << 20) + bound * share) / RECORD))
    stage.facts["disk-held.group"] = group


async def read_on(stage: Stage) -> None:
    """Let the group read everything, as its program does when it runs again."""
    topic, group = _extra(stage, "raw"), stage.facts["disk-held.group"]
    end = await stage.log.partitions.list_offset(topic, 0)
    await stage.log.groups.reset(group, topic, {0: end.offset})


# --- a disk that is full -----------------------------------------------------------------------------------


async def fill_with_logs(stage: Stage) -> None:
    """Fill the disk of one server with a topic whose retention keeps more than the disk holds."""
    topic = _extra(stage, "history")
    await stage.log.topics.create(topic, replication_factor=1, config=RETAINED)
    stage.facts["disk-full.topic"] = topic
    while not await stage.metric("tidelog_replica_disk_full"):
        try:
            await send_some(stage, topic, BATCH)
        except* TidelogError:  # refused: the disk is full, which is looked at
            pass


async def shorten_retention(stage: Stage) -> None:
    """Let the topic keep less, as the doctor says."""
    await stage.log.topics.alter(stage.facts["disk-full.topic"], {"retention_bytes": 8 << 20})


async def fill_with_files(stage: Stage) -> None:
    """Let somebody else's files fill the disk of a server but for a few bytes."""
    server = stage.random.choice(stage.servers())
    file = stage.facts["disk-others.file"] = stage.cluster.data(server) / "core.dump"
    left = stage.random.randrange(1 << 10, 1 << 20)
    size = hardware.free_bytes(file.parent) - left
    await stage.do(file.write_bytes, bytes(size))


async def remove_files(stage: Stage) -> None:
    """Remove these files."""
    stage.facts["disk-others.file"].unlink()


# --- a disk that is slow, a server that is slow ------------------------------------------------------------


async def slow_disk(stage: Stage) -> None:
    """Let every sync of a server take a second or more."""
    server = stage.facts["disk-slow.server"] = stage.random.choice(stage.servers())
    hardware.set_sync_delay(stage.folder(server), stage.random.uniform(0.9, 1.5))


async def quick_disk(stage: Stage) -> None:
    """Let its syncs take what they took before."""
    hardware.set_sync_delay(stage.folder(stage.facts["disk-slow.server"]), 0.0)


async def starve(stage: Stage) -> None:
    """Let a server run for a tenth of the time only, as on a machine that has no CPU left for it."""
    server = stage.random.choice(stage.servers())
    stopped_s = stage.random.uniform(0.9, 1.3)

    async def stop_and_go() -> None:
        try:
            while True:
                stage.cluster.pause(server)
                await trio.sleep(stopped_s)
                stage.cluster.resume(server)
                await trio.sleep(stopped_s / 9)
        finally:
            stage.cluster.resume(server)

    stage.begin("server-slow", stop_and_go)


async def feed(stage: Stage) -> None:
    """Let it run all the time again."""
    await stage.end("server-slow")


GROWS = "The disks of the servers have more on them every day, and nobody has changed anything."
REFUSED = "Records of some partitions are refused with DISK_FULL."
SLOW = "Sends take a second and more, though every process runs and every partition has a leader."
OWN_DISKS = ClusterPlan(controllers=1, disk_mib=DISK_MIB)
MACHINES = ClusterPlan(controllers=1, hardware=True)
INCIDENTS = (
    Incident(
        name="disk-grows",
        symptom=GROWS,
        cause="retention-not-set",
        plant=grow,
        mend=set_retention,
        twin="disk-held-by-group",
        plan=ClusterPlan(controllers=1, disk_mib=2 * DISK_MIB),
        strikes=frozenset({"disk"}),
        alert="TidelogDiskFillsUp",
    ),
    Incident(
        name="disk-held-by-group",
        symptom=GROWS,
        cause="retention-wait-long",
        plant=keep_for_a_group,
        mend=read_on,
        plan=ClusterPlan(controllers=1, disk_mib=2 * DISK_MIB),
        strikes=frozenset({"disk"}),
        metric="tidelog_partition_retention_wait_ratio",
        alert="TidelogRetentionWaits",
    ),
    Incident(
        name="disk-full",
        symptom=REFUSED,
        cause="disk-full-of-logs",
        plant=fill_with_logs,
        mend=shorten_retention,
        twin="disk-full-of-others",
        plan=OWN_DISKS,
        strikes=frozenset({"disk", "servers"}),
        metric="tidelog_replica_disk_full",
        alert="TidelogDiskFull",
    ),
    Incident(
        name="disk-full-of-others",
        symptom=REFUSED,
        cause="disk-full-of-other-files",
        plant=fill_with_files,
        mend=remove_files,
        plan=OWN_DISKS,
        strikes=frozenset({"disk", "servers"}),
        metric="tidelog_replica_disk_full",
        alert="TidelogDiskFull",
    ),
    Incident(
        name="disk-slow",
        symptom=SLOW,
        cause="disk-slow",
        plant=slow_disk,
        mend=quick_disk,
        twin="server-slow",
        plan=MACHINES,
        strikes=frozenset({"disk", "servers"}),
        metric="tidelog_replica_recent_flush_seconds",
        alert="TidelogDiskSlow",
    ),
    Incident(
        name="server-slow",
        symptom=SLOW,
        cause="server-starved",
        plant=starve,
        mend=feed,
        twin="disk-slow",
        plan=MACHINES,
        strikes=frozenset({"servers"}),
        metric="tidelog_replica_late_ratio",
        alert="TidelogServerStarved",
    ),
)
