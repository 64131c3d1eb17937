"""What the servers keep is written to the byte as before: commands of the metadata log, snapshots of the metadata,
its images and deltas, remembered answers, the records of ``__groups`` and ``__transactions``, and snapshots of
producers. Tests ``wire/schema.py``.

An earlier release has to read each of them. When a class has got a field, ``python test_golden_bytes.py`` writes the
file anew."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tidelog.batch.format import BatchHeader
from tidelog.errors import TidelogError
from tidelog.timeline.records import Subject
from tidelog.types import (
    Access,
    ClusterImage,
    PartitionState,
    ServerState,
    TicketKey,
    TopicConfig,
    TopicPartition,
    TopicState,
)
from tidelog.wire.codec import MESSAGES
from tidelog.wire.messages import MetadataUpdate
from tidelog.wire.metadata_image import apply_update, encode_delta, encode_image
from tidelog_controller.metadata.client_sessions import ClientSessions, RequestId, digest_of
from tidelog_controller.metadata.commands import KINDS, decode_command, encode_command
from tidelog_controller.metadata.state import MetadataState
from tidelog_controller.metadata.state_machine import Replicated, decode_state, encode_proposal, encode_state
from tidelog_controller.metadata.timeline_state import PendingTimeline, TimelineEvent
from tidelog_replica.coordinators.groups import records as groups
from tidelog_replica.coordinators.transactions import records as transactions
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.replication.transaction_index import OpenTransaction, TransactionIndex

GOLDEN = Path(__file__).parent / "golden" / "kept.json"

Written = dict[str, list[str]]
"""Names of things, and their bytes in hexadecimal."""
PLAIN: dict[Any, tuple[Any, Any]] = {
    int: (0, 2**40),
    bool: (False, True),
    str: ("", "ä"),
    bytes: (b"", b"b"),
    dict[str, str]: ({}, {"b": "a", "a": "b"}),
    dict[str, int]: ({}, {"b": 70_000, "a": 1}),
    dict[str, int | str | bool]: ({}, {"b": 70_000, "a": "b", "c": True}),
}
HEADER = BatchHeader(0, 0, 0, 0, 1, 64, 64, 0, 2, 1, 0, 0, 1, 0, 0)


def example(cls: type, *, full: bool) -> Any:
    """An instance with every field that has no default, or with all of them set to something else."""
    hints = typing.get_type_hints(cls)
    return cls(
        **{
            field.name: value(hints[field.name], full=full)
            for field in dataclasses.fields(cls)
            if full or (field.default is field.default_factory is dataclasses.MISSING)
        }
    )


def value(hint: Any, *, full: bool) -> Any:
    if hint in PLAIN:
        return PLAIN[hint][full]
    arguments = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return value(arguments[0], full=full) if full else None
    if typing.get_origin(hint) is tuple:
        return (value(arguments[0], full=full),) * (2 if full else 0)
    if typing.get_origin(hint) is dict:
        return {value(arguments[0], full=True): value(arguments[1], full=full)} if full else {}
    return example(hint, full=full)


def both(cls: type) -> list[Any]:
    return [example(cls, full=full) for full in (False, True)]


def commands() -> Written:
    """Also one that is somebody's request, with and without a digest of it."""
    found = {name: [encode_command(command).hex() for command in both(kind)] for name, kind in KINDS.items()}
    command = example(KINDS["remove_topic"], full=True)
    requests = (RequestId("g1-7", 300), RequestId("g1-7", 300, b"digest"))
    return found | {"proposal": [encode_proposal(command, request).hex() for request in requests]}


def states() -> list[Replicated]:
    """One that is empty, at feature level 1 and 2; one with everything; one with more of it than a byte can count."""
    whole = example(MetadataState, full=True)
    events = tuple(
        dataclasses.replace(example(TimelineEvent, full=True), after=subject)
        for kind in typing.get_args(Subject)
        for subject in both(kind)
    )
    timeline = dataclasses.replace(example(PendingTimeline, full=True), pending=events)
    many = {f"r{number}": example(ServerState, full=False) for number in range(300)}
    return [
        Replicated(MetadataState("c", level=1)),
        Replicated(MetadataState("c", level=2)),
        Replicated(dataclasses.replace(whole, timeline=timeline), sessions()),
        Replicated(MetadataState("c", servers=many, level=5, timeline=PendingTimeline(1))),
    ]


def sessions() -> ClientSessions:
    """With the answers to two clients; the first ones without digests."""
    table = ClientSessions()
    for number, answer in enumerate(answers(), 1):
        table = table.with_answer(RequestId(f"g{number % 2}", number, b"d" if number > 9 else b""), answer)
    refusal = TidelogError("why", unknown_outcome=True, leader="r1", leader_epoch=7)
    return table.with_answer(RequestId("g1", 800), refusal).with_answer(RequestId("g2", 1, b"d"), refusal)


def answers() -> list[Any]:
    """Every answer that has no payload, in the order in which they were recorded."""
    found = [cls for cls in MESSAGES if not cls.OP and "payload" not in typing.get_type_hints(cls)]
    found.sort(key=lambda cls: (cls.__module__.replace("description", "metadata"), cls.__name__.lower()))
    return [each for cls in found for each in both(cls)]


def digests() -> Written:
    """Of the requests that can be made of a controller once."""
    asked = [cls for cls in MESSAGES if "sequence" in typing.get_type_hints(cls) and cls.OP]
    return {cls.OP: [digest_of(request).hex() for request in both(cls)] for cls in asked}


def images() -> list[bytes]:
    topics = (TopicState("t", "least"), TopicState("u", "more", TopicConfig(), (*both(PartitionState),)))
    servers, keys = tuple(both(ServerState)), tuple(both(TicketKey))
    return [
        encode_image(ClusterImage()),
        encode_image(ClusterImage(7, "c", servers, topics, example(Access, full=True), 4, keys)),
        encode_image(ClusterImage(7, "c", servers, (example(TopicState, full=True),))),
    ]


def deltas() -> list[bytes]:
    topics = (TopicState("u", "more", TopicConfig(), (*both(PartitionState),)),)
    partitions = [(TopicPartition("u", number), state) for number, state in enumerate(both(PartitionState))]
    access = example(Access, full=True)
    return [
        encode_delta((), (), ()),
        encode_delta((), (), (), access=Access(), level=1, ticket_keys=()),
        encode_delta(both(ServerState), topics, ["t"], partitions, access, 3, ["r9"], both(TicketKey)),
    ]


def group_records() -> list[groups.Entry]:
    parts = [TopicPartition("t", 3), TopicPartition("t", 1), TopicPartition("a", 300)]
    found: list[groups.Entry] = []
    for principal in ("", "user"):
        record = groups.GroupRecord(7, "range", 1 << 41, principal)
        offsets = {parts[0]: groups.OffsetRecord(9), parts[2]: groups.OffsetRecord(1 << 40, 2, "ä", 3, "m", 4)}
        found += [
            groups.group_entry("g", record),
            groups.member_entry("g", "m", member(principal, parts)),
            groups.pending_entry("g", 77, groups.PendingRecord(3, offsets)),
            *(groups.offset_entry("g", partition, offset) for partition, offset in offsets.items()),
        ]
    return [
        *found,
        groups.group_entry("g", None),
        groups.member_entry("g", "m", None),
        groups.offset_entry("g", parts[0], None),
        groups.pending_entry("g", 77, None),
    ]


def member(principal: str, parts: list[TopicPartition]) -> groups.MemberRecord:
    shares = groups.shares_of(parts), groups.shares_of(parts[:1]), groups.shares_of(())
    return groups.MemberRecord(2, "i", "g1", ("orders", "ä"), 30_000, 60_000, *shares, principal)


def transaction_records() -> list[groups.Entry]:
    parts = groups.shares_of([TopicPartition("t", 3), TopicPartition("t", 1), TopicPartition("a", 300)])
    found: list[groups.Entry] = []
    for principal in ("", "user"):
        slot = transactions.SlotRecord(1 << 40, 2, "open", "own", parts, 60_000, 1 << 41, principal)
        app = transactions.AppRecord((1, 2, 300), 1, {"b": 7, "a": 8}, 1 << 41, principal)
        producer = transactions.ProducerRecord("own", 7, 500, 3, 9000, principal)
        found += [
            transactions.slot_entry("app", "", slot),
            transactions.app_entry("app", app),
            transactions.producer_entry("app", producer),
        ]
    return [
        *found,
        transactions.slot_entry("app", "batch-1", None),
        transactions.app_entry("app", None),
        transactions.producer_entry("app", None),
    ]


def producers() -> list[bytes]:
    """None, some, and more than a byte can count, with and without a transaction."""
    found = [ProducerState().to_bytes()]
    for count in (2, 300):
        state = ProducerState()
        for number in range(1, count + 1):
            for sequence in range(2):
                header = HEADER._replace(producer_id=number, base_sequence=sequence, crc32c=number * sequence)
                state.record(header, 10 * number + sequence)
        found.append(state.to_bytes())
        state.transactions = TransactionIndex([(7, OpenTransaction(1, 20))])
        found.append(state.to_bytes())
    return found


@cache
def written() -> dict[str, Written]:
    """Everything there is, as it is written now."""
    return {
        "commands": commands(),
        "states": {"metadata": [encode_state(state).hex() for state in states()]},
        "digests": digests(),
        "metadata": {"images": [each.hex() for each in images()], "deltas": [each.hex() for each in deltas()]},
        "records": {
            name: [f"{key.hex()} {(value or b'').hex()}" for key, value in entries]
            for name, entries in (("groups", group_records()), ("transactions", transaction_records()))
        },
        "producers": {"snapshots": [each.hex() for each in producers()]},
    }


@pytest.mark.parametrize("group", ["commands", "states", "digests", "metadata", "records", "producers"])
def test_encoded_bytes_equal_the_golden_bytes(group: str) -> None:
    golden = json.loads(GOLDEN.read_text())[group]
    assert written()[group].keys() == golden.keys()
    for name, found in written()[group].items():
        assert found == golden[name], name


def test_commands_are_read_again() -> None:
    for kind in KINDS.values():
        for command in both(kind):
            assert decode_command(encode_command(command)) == command


def test_states_are_read_again() -> None:
    for state in states():
        assert decode_state(encode_state(state)) == state


def test_remembered_answers_are_read_again() -> None:
    table = sessions()
    for number, answer in list(enumerate(answers(), 1))[-100:]:
        assert table.find(RequestId(f"g{number % 2}", number)) == answer


def test_images_and_deltas_are_read_again() -> None:
    image = ClusterImage()
    for index, data in enumerate(images(), 1):
        image = apply_update(image, MetadataUpdate(index, True, data))
        assert encode_image(image) == data
    for index, data in enumerate(deltas(), 4):
        image = apply_update(image, MetadataUpdate(index, False, data))
    assert image.servers[-2:] == tuple(both(ServerState)) and image.level == 3
    assert image.topics[-1].partitions == tuple(both(PartitionState))
    assert image.access == example(Access, full=True) and image.ticket_keys == tuple(both(TicketKey))


def test_records_are_read_again() -> None:
    """The second half of the entries says again what the first half says, and then that all of it is gone."""
    stored, entries = groups.StoredGroups(), group_records()
    for key, value in entries[:-4]:
        stored.add_record(key, value)
    parts = [TopicPartition("t", 3), TopicPartition("t", 1), TopicPartition("a", 300)]
    assert stored.groups == {"g": groups.GroupRecord(7, "range", 1 << 41, "user")}
    assert stored.members == {("g", "m"): member("user", parts)}
    assert stored.pending["g", 77].offsets == {p: o for (_, p), o in stored.offsets.items()}
    for key, value in entries[-4:]:
        stored.add_record(key, value)
    assert not (stored.groups or stored.members or stored.pending) and len(stored.offsets) == 1
    settled = transactions.StoredTransactions()
    for key, value in transaction_records()[:-3]:
        settled.add_record(key, value)
    assert [*settled.slots] == [("app", "")] and settled.apps["app"].done == (1, 2, 300)
    assert settled.producers == {"app": transactions.ProducerRecord("own", 7, 500, 3, 9000, "user")}


def test_producers_are_read_again() -> None:
    for data in producers():
        assert ProducerState.from_bytes(data).to_bytes() == data


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(written(), indent=1) + "\n")
