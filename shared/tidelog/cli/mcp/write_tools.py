"""The tools that change the cluster. A server has them with ``--allow-writes`` only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from tidelog.cli.admin.groups import beyond_end
from tidelog.cli.mcp.tool import Answer, CallError, Tool
from tidelog.cli.mcp.topic_tools import place

if TYPE_CHECKING:
    from tidelog.client.log import Log

MOST_RECORDS = 100
"""Most records of one call."""
MOST_CHARACTERS = 100_000
"""Most characters of one value."""


class RecordToSend(BaseModel, extra="forbid"):
    """One record to send."""

    value: str | None = Field(description="Sent as UTF-8; null for a tombstone.", max_length=MOST_CHARACTERS)
    key: str | None = Field(None, max_length=1000)
    headers: dict[str, str] = Field(default_factory=dict, max_length=20)


class Produce(BaseModel, extra="forbid"):
    """Arguments of ``produce``."""

    topic: str = Field(description="Name of the topic.")
    records: list[RecordToSend] = Field(min_length=1, max_length=MOST_RECORDS)


class SentRecord(BaseModel):
    """Where a record is."""

    partition: int
    offset: int


class SentRecords(BaseModel):
    """Data of ``produce``."""

    topic: str
    sent: list[SentRecord]


async def produce(log: Log, given: Produce) -> Answer:
    """Send records, and wait until all are committed."""
    async with log.producer(given.topic) as producer:
        pending = [
            await producer.submit(
                None if one.value is None else one.value.encode(),
                key=None if one.key is None else one.key.encode(),
                headers={name: text.encode() for name, text in one.headers.items()},
            )
            for one in given.records
        ]
        acks = [await one.wait() for one in pending]
    sent = [SentRecord(partition=ack.partition, offset=ack.offset) for ack in acks]
    return Answer(f"{len(sent)} records are committed.", SentRecords(topic=given.topic, sent=sent))


class CreateTopic(BaseModel, extra="forbid"):
    """Arguments of ``create_topic``."""

    topic: str = Field(description="Name of the new topic.")
    partitions: int = Field(1, ge=1, le=1000)
    replication_factor: int = Field(1, ge=1, le=16)
    settings: dict[str, str] = Field(
        default_factory=dict, description="Settings such as retention_ms or min_insync_replicas.", max_length=50
    )


class CreatedTopic(BaseModel):
    """Data of ``create_topic``."""

    topic: str
    topic_id: str
    partitions: int
    settings: dict[str, str]


async def create_topic(log: Log, given: CreateTopic) -> Answer:
    """Create a topic, and wait until its partitions have leaders."""
    made = await log.topics.create(
        given.topic,
        partitions=given.partitions,
        replication_factor=given.replication_factor,
        config=given.settings,
    )
    data = CreatedTopic(
        topic=made.name, topic_id=made.topic_id, partitions=len(made.partitions), settings=made.config
    )
    return Answer(f"The topic is there, with {len(made.partitions)} partitions.", data)


class ResetGroup(BaseModel, extra="forbid"):
    """Arguments of ``reset_group_offsets``."""

    group: str = Field(description="Name of the consumer group, which must have no members.")
    topic: str = Field(description="Name of the topic.")
    to: str = Field(
        description="Where it is to go on: 'earliest', 'latest', an offset, or a time such as"
        " '2026-01-31T12:00:00+00:00' or '-5m'."
    )
    partitions: list[int] = Field(default_factory=list, description="Only these; empty: all partitions.")
    dry_run: bool = Field(False, description="Only say what would be set.")


class ResetPosition(BaseModel):
    """The position of a group in one partition, before and after."""

    partition: int
    before: int | None
    after: int


class ResetPositions(BaseModel):
    """Data of ``reset_group_offsets``."""

    group: str
    topic: str
    dry_run: bool
    partitions: list[ResetPosition]


async def reset_group_offsets(log: Log, given: ResetGroup) -> Answer:
    """Set the positions at which a group goes on."""
    before = await log.groups.fetch_offsets(given.group, given.topic)
    found = await log.partitions.find_positions(given.topic, place(given.to, "to"), given.partitions or None)
    if beyond := await beyond_end(log, given.topic, found):
        raise CallError("BAD_ARGUMENTS", beyond, "Give an offset up to the end, or 'latest'.")
    if not given.dry_run:
        await log.groups.reset(given.group, given.topic, found)
    rows = [
        ResetPosition(partition=p, before=before[p].offset if p in before else None, after=at.offset)
        for p, at in sorted(found.items())
    ]
    data = ResetPositions(group=given.group, topic=given.topic, dry_run=given.dry_run, partitions=rows)
    changed = sum(row.before != row.after for row in rows)
    return Answer(f"{changed} positions {'would be' if given.dry_run else 'are'} changed, of {len(rows)}.", data)


TOOLS = (
    Tool(
        "produce",
        "Send records",
        "Send records to a topic, and wait until all are committed. Adds to the topic, and changes nothing in it.",
        Produce,
        SentRecords,
        produce,
        writes=True,
        idempotent=False,
    ),
    Tool(
        "create_topic",
        "Create a topic",
        "Create a topic, and wait until its partitions have leaders. Refused if it exists.",
        CreateTopic,
        CreatedTopic,
        create_topic,
        writes=True,
    ),
    Tool(
        "reset_group_offsets",
        "Reset the offsets of a consumer group",
        "Set the offsets at which a consumer group goes on in a topic. Destructive: the offsets that it had are lost,"
        " and records are skipped or processed again. Call it with dry_run first.",
        ResetGroup,
        ResetPositions,
        reset_group_offsets,
        writes=True,
        destructive=True,
    ),
)
