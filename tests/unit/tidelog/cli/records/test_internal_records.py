"""The records of the cluster's own topics, as their writers encode them, are readable; other records stay."""

from __future__ import annotations

import json
from typing import Any

import cbor2
import pytest
from support.timeline_cluster import cluster
from tidelog.batch.format import Record
from tidelog.cli.records.formats import style_of
from tidelog.cli.records.internal_records import readable
from tidelog.timeline.records import encode
from tidelog.types import AUDIT, GROUPS, TIMELINE, TRANSACTIONS, TopicPartition
from tidelog_controller.active.timeline_records import event_record
from tidelog_replica.coordinators.groups.records import (
    GroupRecord,
    OffsetRecord,
    PendingRecord,
    group_entry,
    offset_entry,
    pending_entry,
)
from tidelog_replica.coordinators.transactions.records import SlotRecord, slot_entry

EVENT = event_record(cluster().state.timeline.pending[0])
SLOT = SlotRecord(7, 1, "open", "", {"id": (0, 2)}, 1000, 5)
WHERE = TopicPartition("id", 2)


def record(topic: str, key: bytes | None, value: bytes | None) -> Record:
    return Record(topic, 0, 0, 0, 0, key, value, ())


@pytest.mark.parametrize(
    ("topic", "entry", "key", "value"),
    [
        (TIMELINE, (b"server r1", encode(EVENT)), "server r1", EVENT),
        (AUDIT, (None, b'{"event": "denied"}'), None, {"event": "denied"}),
        (GROUPS, group_entry("g", GroupRecord(3)), ["group", "g"], {"generation": 3}),
        (GROUPS, group_entry("g", None), ["group", "g"], None),
        (GROUPS, offset_entry("g", WHERE, OffsetRecord(9)), ["offset", "g", "id", 2], {"offset": 9}),
        (
            GROUPS,
            pending_entry("g", 5, PendingRecord(1, {WHERE: OffsetRecord(9)})),
            ["pending", "g", 5],
            {"offsets": [["id", 2, 9, -1, "", 0, "", -1]]},
        ),
        (TRANSACTIONS, slot_entry("app", "", SLOT), ["slot", "app", ""], {"state": "open", "parts": {"id": [0, 2]}}),
    ],
)
def test_records_of_the_clusters_own_topics_are_json(
    topic: str, entry: tuple[bytes | None, bytes | None], key: Any, value: dict[str, Any] | None
) -> None:
    stored = readable(record(topic, *entry))
    document = json.loads(style_of("json", b"", False)(stored))
    assert document["key"] == key
    assert (document["value"] or {}).items() >= (value or {}).items()
    printed = style_of("value", b"", False)(stored)
    assert printed == b"\n" if value is None else json.loads(printed) == document["value"]


@pytest.mark.parametrize(
    ("topic", "key", "value"),
    [
        ("orders", cbor2.dumps(["group", "g"]), cbor2.dumps({"format": 1})),
        (TIMELINE, b"server r1", encode({"format": 99, "event": 1})),
        (TIMELINE, b"server r1", None),
        (GROUPS, cbor2.dumps(["group", "g"]), cbor2.dumps({"format": 99})),
        (GROUPS, cbor2.dumps(["group", "g"]), cbor2.dumps({"format": 1, "x": b"\xff"})),
        (GROUPS, cbor2.dumps(["group", "g"]), cbor2.dumps({"generation": 1})),
        (GROUPS, None, b"\xff"),
        (TRANSACTIONS, b"", cbor2.dumps([1])),
        (AUDIT, None, b"no JSON"),
    ],
)
def test_what_cannot_be_decoded_is_shown_as_it_is_stored(topic: str, key: bytes | None, value: bytes | None) -> None:
    stored = record(topic, key, value)
    assert readable(stored) == stored
    assert json.loads(style_of("json", b"", False)(stored))["partition"] == 0
