"""The metadata image: whole, by deltas, and refused when it is not what it must be."""

from __future__ import annotations

from dataclasses import fields

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog.errors import ProtocolError
from tidelog.types import (
    ClusterImage,
    PartitionState,
    ServerState,
    TopicConfig,
    TopicPartition,
    TopicState,
    changed_partitions,
)
from tidelog.wire import codec
from tidelog.wire.messages import MetadataUpdate
from tidelog.wire.metadata_image import apply_update, encode_delta, encode_image

R1 = ServerState("r1", "ws://r1:1", 4, False)
R2 = ServerState("r2", "ws://r2:1", 5, True)


def topic(number: int, *, partitions: int = 1, leader: str | None = "r1") -> TopicState:
    states = tuple(PartitionState(("r1", "r2"), ("r1",), leader, 3, 7) for _ in range(partitions))
    return TopicState(f"{number:032x}", f"topic-{number}", TopicConfig(min_insync_replicas=2), states)


PARTS = cbor2.dumps({"servers": [], "topics": [], "partitions": [["t", 0]], "deleted": []})
IMAGE = ClusterImage(9, "c", (R1, R2), (topic(1), topic(2, partitions=3, leader=None)))


def whole(image: ClusterImage) -> MetadataUpdate:
    return MetadataUpdate(image.index, whole=True, payload=encode_image(image))


def test_a_whole_image_replaces_the_former_one() -> None:
    assert apply_update(ClusterImage(99, "other", (), (topic(7),)), whole(IMAGE)) == IMAGE


def test_a_delta_replaces_adds_and_deletes() -> None:
    awake = ServerState("r2", "ws://r2:2", 6, False)
    r3 = ServerState("r3", "ws://r3:1", 8, False)
    delta = encode_delta([awake, r3], [topic(2), topic(3)], [topic(1).topic_id])
    image = apply_update(IMAGE, MetadataUpdate(10, payload=delta))
    assert image == ClusterImage(10, "c", (R1, awake, r3), (topic(2), topic(3)))


def test_a_delta_of_one_partition_changes_only_it() -> None:
    state = PartitionState(("r1", "r2"), ("r2",), "r2", 4, 8)
    large, key = topic(2, partitions=5000), TopicPartition(topic(2).topic_id, 4321)
    delta = encode_delta([], [], [], [(key, state)])
    assert len(delta) < 400
    before = ClusterImage(9, "c", (R1,), (topic(1), large))
    after = apply_update(before, MetadataUpdate(10, payload=delta))
    assert after.topics[0] is before.topics[0]
    assert after.topics[1].partitions[4321] == state
    assert after.topics[1].partitions[:4321] + after.topics[1].partitions[4322:] == large.partitions[:-1]


@pytest.mark.parametrize("key", [("f" * 32, 0), (topic(2).topic_id, 3), (topic(2).topic_id, -1)])
def test_a_change_of_an_unknown_partition_is_refused(key: tuple[str, int]) -> None:
    state = PartitionState(("r1",), ("r1",), "r1", 0, 0)
    delta = encode_delta([], [], [], [(TopicPartition(*key), state)])
    with pytest.raises(ProtocolError, match=r"no update has created|not an integer"):
        apply_update(IMAGE, MetadataUpdate(10, payload=delta))


def test_a_delta_that_is_not_newer_changes_nothing() -> None:
    delta = encode_delta([], [], [topic(1).topic_id])
    assert apply_update(IMAGE, MetadataUpdate(9, payload=delta)) is IMAGE
    assert apply_update(IMAGE, MetadataUpdate(8, payload=delta)) is IMAGE


def test_a_topic_deleted_and_made_again_in_one_delta_has_another_id() -> None:
    again = TopicState("f" * 32, "topic-1")
    delta = encode_delta([], [again], [topic(1).topic_id])
    assert [t.topic_id for t in apply_update(IMAGE, MetadataUpdate(10, payload=delta)).topics][-1] == "f" * 32


def test_all_settings_travel_even_defaults() -> None:
    content = cbor2.loads(encode_image(ClusterImage(1, "c", (), (TopicState("t", "n"),))))
    assert content["topics"][0]["config"]["flush"] == "fsync" and len(content["topics"][0]["config"]) == len(
        fields(TopicConfig)
    )


def test_ten_thousand_partitions_over_the_wire() -> None:
    image = ClusterImage(1, "c", (R1, R2), tuple(topic(n, partitions=100) for n in range(100)))
    head, payload = codec.encode(whole(image))
    message = codec.decode(head + codec.payload_view(payload), answers=lambda _: None).message
    assert isinstance(message, MetadataUpdate) and apply_update(ClusterImage(), message) == image


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        {"cluster": 1, "servers": [], "topics": []},
        {"cluster": "c", "servers": {}, "topics": []},
        {"cluster": "c", "servers": [1], "topics": []},
        {"cluster": "c", "servers": [{"node": "r1", "url": "u", "broker_epoch": 1, "fenced": 0}], "topics": []},
        {"cluster": "c", "servers": [], "topics": [{"topic_id": "t"}]},
        {"cluster": "c", "servers": [], "topics": [{"topic_id": "t", "name": "n", "config": 1, "partitions": []}]},
        {"cluster": "c", "servers": [], "topics": [{"topic_id": "t", "name": "n", "config": {}, "partitions": [1]}]},
        {"cluster": "c", "servers": [], "topics": [{"topic_id": "t", "name": "n", "config": {"flush": 1}}]},
    ],
)
def test_a_wrong_image_is_refused(content: object) -> None:
    with pytest.raises(ProtocolError):
        apply_update(IMAGE, MetadataUpdate(10, whole=True, payload=cbor2.dumps(content)))


@pytest.mark.parametrize(
    "payload", [b"", b"\xa0\x00", b"\xc1\x01", cbor2.dumps({"servers": [], "topics": []}), PARTS]
)
def test_a_wrong_delta_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        apply_update(IMAGE, MetadataUpdate(10, payload=payload))


def test_deleted_ids_are_texts() -> None:
    payload = cbor2.dumps({"servers": [], "topics": [], "partitions": [], "deleted": [1]})
    with pytest.raises(ProtocolError, match="deleted is not an array"):
        apply_update(IMAGE, MetadataUpdate(10, payload=payload))


@given(st.lists(st.integers(0, 3), max_size=9), st.lists(st.integers(0, 3), max_size=9))
def test_changed_partitions_are_the_new_ones_and_those_that_differ(before: list[int], after: list[int]) -> None:
    def made(epochs: list[int]) -> TopicState:
        partitions = tuple(PartitionState(("r1",), ("r1",), "r1", 0, epoch) for epoch in epochs)
        return TopicState("id", "t", TopicConfig(), partitions)

    differ = [n for n, epoch in enumerate(after) if n >= len(before) or before[n] != epoch]
    assert list(changed_partitions(made(before), made(after))) == differ
    assert list(changed_partitions(None, made(after))) == list(range(len(after)))
