"""Which settings a topic gets for those that it has in Kafka."""

from __future__ import annotations

import pytest
from tidelog.backup.kafka.topic_settings import COUNTERPARTS, KafkaSetting, as_tidelog
from tidelog_controller.metadata.rules.topics import parse_topic_config

DEFAULTS = {
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "max.message.bytes": "1048588",
    "min.insync.replicas": "1",
    "segment.bytes": "1073741824",
    "compression.type": "producer",
    "max.compaction.lag.ms": "9223372036854775807",
}


def mapped(replicas: int = 3, **set_by_someone: str) -> tuple[dict[str, str], dict[str, str]]:
    """The settings and those without a counterpart, for Kafka's defaults and what somebody has set."""
    settings = {name: KafkaSetting(value, True) for name, value in DEFAULTS.items()}
    settings |= {name.replace("_", "."): KafkaSetting(value, False) for name, value in set_by_someone.items()}
    found = as_tidelog(settings, replicas)
    return found.config, found.without_counterpart


def test_what_decides_on_records_is_taken_over_and_other_defaults_are_ours() -> None:
    config, without = mapped()
    assert config == {
        "cleanup": "delete",
        "retention_ms": "604800000",
        "retention_bytes": "-1",
        "max_batch_bytes": str((1 << 20) + 12 + (64 << 10)),
    }
    assert without == {}


def test_what_somebody_has_set_is_taken_over_or_named() -> None:
    config, without = mapped(
        cleanup_policy="delete,compact",
        retention_ms="-1",
        min_insync_replicas="2",
        segment_ms="60000",
        delete_retention_ms="1",
        compression_type="zstd",
        message_timestamp_type="LogAppendTime",
    )
    assert config | {"max_batch_bytes": ""} == {
        "cleanup": "compact,delete",
        "retention_ms": "-1",
        "retention_bytes": "-1",
        "max_batch_bytes": "",
        "min_insync_replicas": "2",
        "segment_max_age_ms": "60000",
        "tombstone_retention_ms": "1",
    }
    assert without == {"compression.type": "zstd", "message.timestamp.type": "LogAppendTime"}


@pytest.mark.parametrize("number", [0, 1, 14, 1 << 31, 9223372036854775807])
def test_any_number_of_kafka_gives_settings_that_a_topic_takes(number: int) -> None:
    numbers = [name for name in COUNTERPARTS if name not in ("cleanup.policy", "unclean.leader.election.enable")]
    config, _ = mapped(1, **{name.replace(".", "_"): str(max(1, number)) for name in numbers})
    assert parse_topic_config(config, 1)[1] == []
    assert config["min_insync_replicas"] == "1"


def test_never_stays_never() -> None:
    config, _ = mapped(retention_ms=str(2**63 - 1), max_compaction_lag_ms=str(2**63 - 1), retention_bytes="-1")
    assert (config["retention_ms"], config["max_compaction_lag_ms"], config["retention_bytes"]) == ("-1", "0", "-1")
