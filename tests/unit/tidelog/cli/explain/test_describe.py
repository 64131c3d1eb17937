"""Moments and topics of the past as the command line has them, and what clients may not do to the cluster's own."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from support.timeline_cluster import cluster
from tidelog.cli.explain.describe import entries_of, parse_moment, topic_info
from tidelog.timeline.replay import past_after
from tidelog.types import TIMELINE
from tidelog.wire.messages import AlterTopic, CreateTopic, DeleteTopic, GrowTopic, Message
from tidelog_controller.active.timeline_records import event_record
from tidelog_controller.metadata.rules.topics import refuse_internal

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("-5m", NOW - timedelta(minutes=5)),
        ("-1.5h", NOW - timedelta(minutes=90)),
        ("-30s", NOW - timedelta(seconds=30)),
        ("-2d", NOW - timedelta(days=2)),
        ("-1w", NOW - timedelta(days=7)),
        ("-500ms", NOW - timedelta(milliseconds=500)),
        ("-1.2.3h", None),
        ("-99999999999w", None),
        ("-5MiB", None),
        ("1769860800", NOW),
        ("1769860800000", NOW),
        ("2026-01-31T12:00:00+00:00", NOW),
        ("2026-01-31T13:00:00+01:00", NOW),
        ("yesterday", None),
        ("-5", None),
        ("9" * 40, None),
    ],
)
def test_a_moment_is_written_in_several_ways(text: str, moment: datetime | None) -> None:
    assert parse_moment(text, NOW) == moment


def test_without_a_zone_it_is_the_local_time() -> None:
    assert parse_moment("2026-01-31T12:00:00", NOW) == datetime(2026, 1, 31, 12).astimezone()


def test_a_topic_of_the_past_is_described_like_one_of_the_present() -> None:
    log = cluster()
    log.fence("r1")
    records = [event_record(event) for event in log.state.timeline.pending]
    topic = past_after(records).topic_named(TIMELINE)
    assert topic is not None
    (info,) = topic_info(topic, None).partitions
    present = log.state.topics["T"].partitions[0]
    assert (info.leader, info.leader_epoch, info.epoch, info.isr, info.replicas) == (
        present.leader, present.leader_epoch, present.epoch, present.isr, present.replicas,
    )  # fmt: skip
    remembered = [replace(entry, time_ms=5) for entry in log.state.history["T"][0]]  # its clock may go back
    assert entries_of([record for record in records if "partition" in record]) == remembered


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        (CreateTopic("__mine", 1, 1, {}), "INVALID_TOPIC"),
        (DeleteTopic(TIMELINE), "FORBIDDEN"),
        (GrowTopic(TIMELINE, 2), "FORBIDDEN"),
        (AlterTopic(TIMELINE, {"cleanup": "compact"}), "INVALID_CONFIG"),
        (AlterTopic(TIMELINE, {"retention_ms": "1"}), ""),
        (CreateTopic("_mine", 1, 1, {}), ""),
        (DeleteTopic("orders"), ""),
    ],
)
def test_the_clusters_own_topics_are_not_for_clients_to_change(wish: Message, code: str) -> None:
    refusal = refuse_internal(wish)
    assert ("" if refusal is None else refusal.code) == code
