"""Incidents of what logs hold: batches that no reader can decode, and copies that differ."""

from __future__ import annotations

import shutil
from pathlib import Path

from incidents.incident import Incident
from incidents.stage import Stage
from tidelog.batch.format import HEADER_BYTES, NewRecord, encode_batch, read_header, seal_batch
from tidelog.net.link import PROTOCOL_VERSION, Link, connect_link
from tidelog.net.tls import TlsFiles
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.wire.messages import Hello, InitProducer, Message, Produce, ProducePart, ProducerId, UseProducer

RECORDS = 3
BODY_BYTES = 20
FILLER, CHANGED = b"..", b".!"
"""A piece of the values that ``Stage.send`` sends, and what is put in its place."""
ACKS_ALL = 2


# --- a batch that no reader can decode ---------------------------------------------------------------------------


async def send_poison(stage: Stage) -> None:
    """Send a batch with a right CRC and a body that is none to a topic that trusts its producers, and records behind
    it. A program with a library of its own does that."""
    name = stage.facts["poison"] = await stage.make_topic(validate_batches="false", segment_max_bytes=1 << 16)
    topic = await stage.log.topics.describe(name)
    transport = WebSocketTransport(tls=TlsFiles(stage.cluster.tls))
    hello = Hello(PROTOCOL_VERSION, "client", "own-library")
    async with connect_link(transport, stage.gateway, hello, _ignore) as link:
        producer = await link.call(InitProducer(), 15)
        assert isinstance(producer, ProducerId)
        await link.call(UseProducer(producer.producer_id, 0, producer.ticket), 15)
        batch = poison(producer.producer_id)
        link.post(Produce((ProducePart(1, topic.topic_id, 0, ACKS_ALL, 15_000, len(batch)),), batch))

        async def taken() -> bool:
            described = await stage.log.topics.describe(name, offsets=True)
            return described.partitions[0].high_watermark >= RECORDS

        await stage.until(taken, "the batch is taken")
    await stage.send(name, 20, size=8000)  # the scrubber reads closed segments


def poison(producer_id: int) -> bytes:
    """Return a batch of three records with a right CRC, whose body no reader can decode."""
    header = read_header(encode_batch([NewRecord(b".", None, 3000)] * RECORDS, producer_id=producer_id))
    return seal_batch(header._replace(body_length=BODY_BYTES), b"\xff" * BODY_BYTES)


def _ignore(link: Link, id: int | None, message: Message) -> None:
    """Ignore what the gateway sends without being asked: acks."""


async def delete_poison(stage: Stage) -> None:
    """Delete the topic."""
    await stage.log.topics.delete(stage.facts["poison"])


# --- copies that differ ------------------------------------------------------------------------------------------


async def change_copy(stage: Stage) -> None:
    """Change a batch on the disk of a follower, with a right CRC, while the follower is down: nothing in the protocol
    does that. There are two replicas, so no majority tells which is right."""
    name = await stage.make_topic(replicas=2)
    await stage.send(name, 30)
    topic = await stage.log.topics.describe(name)
    leader = await stage.leader(name)
    follower = next(node for node in topic.partitions[0].replicas if node != leader)
    stage.facts["copy"] = follower, stage.folder_of(follower, topic.topic_id)
    await stage.kill(follower)
    tamper(stage.facts["copy"][1], stage.random.randrange(5, 25))
    await stage.start(follower)

    async def in_sync() -> bool:
        return follower in (await stage.partition(name)).isr

    await stage.until(in_sync, f"{follower} is in sync")


def tamper(folder: Path, number: int) -> None:
    """Change a byte of a value in a batch, and its CRC with it, in the first segment of a log that is closed."""
    path = min(folder.glob("*.log"))
    data, position = bytearray(path.read_bytes()), 0
    for _ in range(number):
        position += read_header(data, position).batch_length
    header = read_header(data, position)
    end = position + header.batch_length
    stored = bytes(data[position + HEADER_BYTES : end])
    data[position:end] = seal_batch(header, stored.replace(FILLER, CHANGED, 1))
    path.write_bytes(data)
    for derived in folder.glob("*.index"):
        derived.unlink()


async def remove_copy(stage: Stage) -> None:
    """Remove the copy, so that it is fetched again."""
    follower, folder = stage.facts["copy"]
    await stage.kill(follower)
    shutil.rmtree(folder)
    await stage.start(follower)


STANDS = "Consumers of a topic do not get beyond one offset, while records come in."
DIFFER = "Two consumers of one partition report different sums."
INCIDENTS = (
    Incident(
        name="poison-batch",
        symptom=STANDS,
        cause="batch-unreadable",
        plant=send_poison,
        mend=delete_poison,
        twin="stuck-stable-offset",
        strikes=frozenset({"records"}),
        metric="tidelog_replica_unreadable_batches",
        alert="TidelogUnreadableBatches",
    ),
    Incident(
        name="diverged-copy",
        symptom=DIFFER,
        cause="copies-differ",
        plant=change_copy,
        mend=remove_copy,
        twin="isolation-differs",
        strikes=frozenset({"disk", "servers"}),
        metric="tidelog_replica_differing_partitions",
        alert="TidelogCopiesDiffer",
    ),
)
