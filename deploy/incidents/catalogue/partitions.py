"""Incidents of partitions that take no records: on purpose, for want of replicas, or because a copy is damaged."""

from __future__ import annotations

from incidents.incident import Incident
from incidents.stage import Stage

# --- closed on purpose -----------------------------------------------------------------------------------------


async def make_read_only(stage: Stage) -> None:
    """Make a partition of the topic read-only, as somebody does before a migration and forgets."""
    partitions = len((await stage.log.topics.describe(stage.other_topic)).partitions)
    await _close(stage, "set-readonly", stage.random.randrange(partitions))


async def make_writable(stage: Stage) -> None:
    """Let the topic take records again."""
    await stage.tidelog("topics", "set-readonly", stage.other_topic, "--off")


async def pause(stage: Stage) -> None:
    """Pause a partition of the topic."""
    partitions = len((await stage.log.topics.describe(stage.other_topic)).partitions)
    await _close(stage, "pause", stage.random.randrange(partitions))


async def resume(stage: Stage) -> None:
    """Resume the partition, with all others of the topic."""
    await stage.tidelog("topics", "resume", stage.other_topic)


async def _close(stage: Stage, command: str, partition: int) -> None:
    """Run ``tidelog topics COMMAND`` for one partition, and wait until sends are refused."""
    before = sum(stage.load.errors.values())
    done = await stage.tidelog("topics", command, stage.other_topic, "--partitions", str(partition))
    if done.returncode:
        raise RuntimeError(done.stderr.decode())

    async def refused() -> bool:
        return sum(stage.load.errors.values()) > before

    await stage.until(refused, f"sends to {stage.other_topic} fail")


# --- too few in sync -------------------------------------------------------------------------------------------


async def lose_one_of_all(stage: Stage) -> None:
    """Have the topic need all of its replicas in sync, and kill the server of one."""
    await stage.log.topics.alter(stage.topic, {"min_insync_replicas": 3})
    followers = [node for node in (await stage.partition(stage.topic)).replicas]
    followers.remove(await stage.leader(stage.topic))
    stage.facts["min-in-sync"] = lost = stage.random.choice(followers)
    await stage.kill(lost)


async def return_one(stage: Stage) -> None:
    """Start the server again, and have the topic need two."""
    await stage.start(stage.facts["min-in-sync"])
    await stage.log.topics.alter(stage.topic, {"min_insync_replicas": 2})


# --- the only copy ---------------------------------------------------------------------------------------------

SEGMENT_BYTES = 1 << 16


async def damage_only_copy(stage: Stage) -> None:
    """Flip a bit in a closed segment of a partition that has one replica, while its server runs."""
    name = await _topic_with_one_replica(stage)
    topic = await stage.log.topics.describe(name)
    leader = await stage.leader(name)
    segment = sorted(stage.folder_of(leader, topic.topic_id).glob("*.log"))[0]
    data = bytearray(segment.read_bytes())
    data[stage.random.randrange(len(data) // 4, len(data) // 2)] ^= 1 << stage.random.randrange(8)
    with segment.open("r+b") as file:
        file.write(data)

    async def offline() -> bool:
        return not (await stage.partition(name)).leader

    await stage.until(offline, f"{name}/0 is offline")


async def delete_only_copy(stage: Stage) -> None:
    """Delete the topic, to restore it from a backup."""
    await stage.log.topics.delete(stage.facts["only-copy"])


async def kill_only_copy(stage: Stage) -> None:
    """Kill the server of a partition that has one replica."""
    name = await _topic_with_one_replica(stage)
    stage.facts["only-server"] = await stage.leader(name)
    await stage.kill(stage.facts["only-server"])


async def start_only_copy(stage: Stage) -> None:
    """Start the server again."""
    await stage.start(stage.facts["only-server"])


async def _topic_with_one_replica(stage: Stage) -> str:
    """Make a topic with one replica that fills some segments, and return its name."""
    name = stage.facts["only-copy"] = await stage.make_topic(replicas=1, segment_max_bytes=SEGMENT_BYTES)
    await stage.send(name, 30, size=SEGMENT_BYTES // 6)
    return name


REFUSED = "Sends to one partition of a topic fail at once, while those to its other partitions are acknowledged."
NO_ACKS = "Sends to one partition get no ack any more, while those to all others do."
INCIDENTS = (
    Incident(
        name="read-only",
        symptom=REFUSED,
        cause="partition-read-only",
        plant=make_read_only,
        mend=make_writable,
        twin="paused",
        strikes=frozenset({"topic"}),
        metric="tidelog_read_only_partitions",
        alert="TidelogPartitionsClosed",
    ),
    Incident(
        name="paused",
        symptom=REFUSED,
        cause="partition-paused",
        plant=pause,
        mend=resume,
        strikes=frozenset({"topic"}),
        metric="tidelog_paused_partitions",
        alert="TidelogPartitionsClosed",
    ),
    Incident(
        name="min-in-sync",
        symptom="Sends to one topic are refused with NOT_ENOUGH_REPLICAS, while all its partitions have leaders.",
        cause="replica-server-down",
        plant=lose_one_of_all,
        mend=return_one,
        twin="min-in-sync-unsteady",
        strikes=frozenset({"topic", "servers"}),
        metric="tidelog_under_min_isr_partitions",
        alert="TidelogUnderMinIsr",
    ),
    Incident(
        name="acks-stop",
        symptom=NO_ACKS,
        cause="log-damaged",
        plant=damage_only_copy,
        mend=delete_only_copy,
        twin="only-server-down",
        strikes=frozenset({"disk"}),
        metric="tidelog_replica_damaged_partitions",
        alert="TidelogLogsDamaged",
    ),
    Incident(
        name="only-server-down",
        symptom=NO_ACKS,
        cause="replica-server-down",
        plant=kill_only_copy,
        mend=start_only_copy,
        strikes=frozenset({"servers"}),
        metric="tidelog_offline_partitions",
        alert="TidelogPartitionsOffline",
    ),
)
