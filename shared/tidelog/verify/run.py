"""A whole recording: clients use a running cluster for a while, then the end state is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count

import trio

from tidelog.errors import ConfigError
from tidelog.verify.final_reads import Ending
from tidelog.verify.history_writer import Recorder
from tidelog.verify.workload import Connect, Mix, Stage, Writers, app_of
from tidelog.verify.workload_readers import Watchers
from tidelog.wire.messages import TopicInfo

OnStage = Callable[[str, Stage], None]
"""A callback for progress: gets a text about the part of the recording that begins, and the recording's state."""


def group_of(topic: str) -> str:
    """Return the name of the consumer group that the members of a recording on this topic join."""
    return f"{topic}-group"


def groups_of(topic: str, mix: Mix) -> list[str]:
    """Return the names of all groups that a recording on this topic uses, with this mix of clients; an empty list if
    there are no members and no applications."""
    members = [group_of(topic)] if mix.members else []
    return members + [app_of(topic, number) for number in range(mix.applications)]


async def record(
    recorder: Recorder,
    topic: TopicInfo,
    connect: Connect,
    mix: Mix,
    wait: Callable[[], Awaitable[None]],
    seed: int = 0,
    on_stage: OnStage = lambda what, stage: None,
) -> list[str]:
    """Start the clients of ``mix`` on ``topic``, let them run until ``wait`` returns, and record what they did and
    saw. Then stop them, and record the end state of the log, the replicas and the groups. No other client may write
    to the topic meanwhile. Return a text for each part of the end state that could not be found out; the history can
    then be checked only in part. Raises ``ConfigError`` for a compacted topic, and the client's error if the topic's
    present end cannot be looked up."""
    if topic.config["cleanup"] == "compact":
        raise ConfigError(f"{topic.name} is compacted: records vanish from it by right. Name another topic.")
    stage = Stage(recorder, topic, await _begin(recorder, topic, connect), connect, mix, seed)
    group = group_of(topic.name)
    watchers = Watchers(stage, group)
    numbers = count()
    on_stage("recording", stage)
    async with trio.open_nursery() as readers:
        watchers.start(readers, numbers)
        async with trio.open_nursery() as writers:
            Writers(stage).start(writers, numbers)
            await wait()
            stage.stopping = True
            on_stage("waiting for what is under way", stage)
        readers.cancel_scope.cancel()
    on_stage("reading what is in the log, and comparing the replicas", stage)
    groups = [group] if mix.members else []
    apps = [stage.app(number) for number in range(mix.applications)]
    return await Ending(recorder, topic.name, connect).run(groups, apps)


async def _begin(recorder: Recorder, topic: TopicInfo, connect: Connect) -> dict[int, int]:
    """Look up the present end of each partition, and record it as the start of the partition's history. Return the
    starts: partition -> offset. Raises the client's error."""
    async with connect(0) as log:
        every = range(len(topic.partitions))
        found = await log.partitions.list_offsets(topic, "latest", every, isolation="uncommitted")
    starts = {partition: answer.offset for partition, answer in found.items()}
    for partition, start in starts.items():
        recorder.partition(f"{topic.name}/{partition}", start)
    return starts
