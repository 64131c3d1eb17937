"""Placement of new topics: balanced, on distinct servers, repeatable; and what a request for a topic may contain."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from tidelog.errors import TidelogError
from tidelog.feature_levels import MAX_COMPACTION_LAG, RETENTION_WAITS, VALIDATION
from tidelog.types import PartitionState, ServerState, TopicConfig, TopicState
from tidelog.wire.messages import AlterLearners, AlterTopic, CreateTopic
from tidelog_controller.metadata.application import MetadataState
from tidelog_controller.metadata.commands import AddTopic, ChangeTopic, SetLearners
from tidelog_controller.metadata.rules.placement import Placement
from tidelog_controller.metadata.rules.topics import FIXED, parse_topic_config, plan_change, plan_learners, plan_topic

SERVERS = ("r1", "r2", "r3", "r4", "r5")


@pytest.mark.parametrize("seed", range(5))
def test_replicas_are_distinct_and_balanced_to_one(seed: int) -> None:
    placed = Placement((), random.Random(seed)).place(SERVERS, 50, 3)
    assert all(len(set(replicas)) == 3 for replicas in placed)
    replicas = Counter(node for replicas in placed for node in replicas)
    leaders = Counter(replicas[0] for replicas in placed)
    assert set(replicas.values()) == {30}
    assert max(leaders.values()) - min(leaders.values()) <= 2
    assert len(set(placed)) > 10, "not always the same neighbours"


def test_new_servers_are_filled_first() -> None:
    old = PartitionState(("r1", "r2"), ("r1", "r2"), "r1", 0, 0)
    topic = TopicState("id", "orders", partitions=(old,) * 4)
    placed = Placement([topic], random.Random(1)).place(("r1", "r2", "r3", "r4"), 4, 2)
    assert Counter(node for replicas in placed for node in replicas) == {"r3": 4, "r4": 4}


def test_placement_is_chance_but_the_same_dice_throw_the_same() -> None:
    def place(seed: int) -> tuple[tuple[str, ...], ...]:
        return Placement((), random.Random(seed)).place(SERVERS, 4, 3)

    assert place(1) == place(1)
    assert len({place(seed) for seed in range(10)}) > 5


def test_defaults_tolerate_one_failure_from_three_replicas_on() -> None:
    assert parse_topic_config({}, 3) == (TopicConfig(min_insync_replicas=2), [])
    assert parse_topic_config({}, 2) == (TopicConfig(min_insync_replicas=1), [])
    assert parse_topic_config({"commit_rule": "leader"}, 3) == (TopicConfig(commit_rule="leader"), [])
    assert parse_topic_config({"commit_rule": "leader", "min_insync_replicas": "2"}, 3)[0].min_insync_replicas == 2
    assert parse_topic_config({"min_insync_replicas": "1", "flush": "os", "max_batch_bytes": "2048"}, 3) == (
        TopicConfig(min_insync_replicas=1, flush="os", max_batch_bytes=2048),
        [],
    )


def test_times_and_sizes_may_have_units_and_the_command_has_the_number() -> None:
    texts = {"retention_ms": "7d", "segment_max_bytes": "64MiB", "retention_records": "10k", "retention_bytes": "-1"}
    plan = plan_topic(state("r1"), CreateTopic("t", 1, 1, texts), random.Random(1), 0)
    assert isinstance(plan, AddTopic)
    assert (plan.config.retention_ms, plan.config.segment_max_bytes) == (604_800_000, 64 << 20)
    assert (plan.config.retention_records, plan.config.retention_bytes) == (10_000, -1)
    assert plan.config.texts()["retention_ms"] == "604800000"
    change = plan_change(with_topic(), AlterTopic("orders", {"retention_ms": "1.5h"}), 0)
    assert isinstance(change, ChangeTopic) and change.values == {"retention_ms": 5_400_000}


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("retention_ms", "7 days", "must be a whole number of milliseconds, or a time such as 500ms, 12h or 7d"),
        ("retention_ms", "0.5ms", "must be a whole number of milliseconds"),
        ("retention_ms", "-7d", "must be from -1 to 3153600000000 milliseconds"),
        ("retention_ms", "9999w", "must be from -1 to 3153600000000 milliseconds"),
        ("segment_max_bytes", "7d", "must be a whole number of bytes, or a size such as 64KiB"),
        ("segment_max_bytes", "1TiB", "must be from 1024 to 1073741824 bytes"),
        ("min_insync_replicas", "two", "must be a whole number, such as 500"),
    ],
)
def test_a_wrong_quantity_is_refused_with_what_is_accepted(name: str, text: str, fault: str) -> None:
    _, faults = parse_topic_config({name: text}, 3)
    assert len(faults) == 1 and faults[0].startswith(f"{name} is {text!r}; it {fault}")


def state(*live: str, fenced: str = "") -> MetadataState:
    servers = {n: ServerState(n, f"ws://{n}", 1, fenced=n == fenced) for n in (*live, fenced) if n}
    return MetadataState("test", servers=servers, names={"taken": "id"})


def code(wish: CreateTopic, state: MetadataState) -> str:
    plan = plan_topic(state, wish, random.Random(1), 0)
    return plan.code if isinstance(plan, TidelogError) else "planned"


def test_wish_becomes_a_command_on_live_servers_only() -> None:
    plan = plan_topic(state("r1", "r2", "r3", fenced="r4"), CreateTopic("orders", 20, 3), random.Random(1), 5)
    assert isinstance(plan, AddTopic)
    assert (plan.time_ms, plan.name, len(plan.topic_id)) == (5, "orders", 32)
    assert {node for replicas in plan.replicas for node in replicas} == {"r1", "r2", "r3"}


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "ä", "x" * 250, "a\n"])
def test_bad_names(name: str) -> None:
    assert code(CreateTopic(name), state("r1")) == "INVALID_TOPIC"


def test_refusals() -> None:
    assert code(CreateTopic("taken"), state("r1")) == "TOPIC_EXISTS"
    assert code(CreateTopic("t", 0), state("r1")) == "INVALID_CONFIG"
    assert code(CreateTopic("t", 10_001), state("r1")) == "INVALID_CONFIG"
    assert code(CreateTopic("t", 10_000), state("r1")) == "planned"
    assert code(CreateTopic("t", 1, 0), state("r1")) == "INVALID_REPLICATION_FACTOR"
    assert code(CreateTopic("t", 1, 1), state(fenced="r1")) == "INVALID_REPLICATION_FACTOR"


def test_too_few_servers_says_how_many_there_are() -> None:
    plan = plan_topic(state("r1", "r2", fenced="r3"), CreateTopic("t", 1, 3), random.Random(1), 0)
    assert isinstance(plan, TidelogError)
    assert plan.code == "INVALID_REPLICATION_FACTOR"
    assert plan.detail == {"live": 2}
    assert "2 replica servers are live: r1, r2" in plan.message


def test_all_faults_of_a_topic_are_reported_at_once() -> None:
    config = {
        "min_insync_replicas": "4",
        "flush": "never",
        "retention": "1",
        "max_batch_bytes": "-1",
        "segment_max_bytes": "²",
    }
    plan = plan_topic(state("r1", "r2", "r3"), CreateTopic("t", 0, 3, config), random.Random(1), 0)
    assert isinstance(plan, TidelogError)
    assert plan.code == "INVALID_CONFIG"
    for fault in ("partitions is 0", "more than replication_factor 3", "'never'", "'retention'", "'-1'", "'²'"):
        assert fault in plan.message


# --- topics that are there already -----------------------------------------------------------------------


def with_topic() -> MetadataState:
    """Return a state in which ``orders`` has three replicas and a learner that is fenced, and another server is
    live."""
    p = PartitionState(("r1", "r2", "r3"), ("r1", "r2", "r3"), "r1", 0, 0, learners=("r5",))
    servers = {n: ServerState(n, f"ws://{n}", 1, fenced=n == "r5") for n in SERVERS}
    config = TopicConfig(min_insync_replicas=2, flush="os")
    topic = TopicState("id", "orders", config, (p,))
    return MetadataState("test", servers=servers, topics={"id": topic}, names={"orders": "id"})


def faults(**texts: str) -> str:
    plan = plan_change(with_topic(), AlterTopic("orders", texts), 0)
    assert isinstance(plan, TidelogError) and plan.code == "INVALID_CONFIG"
    return plan.message


def test_only_what_is_named_is_changed() -> None:
    wish = AlterTopic("orders", {"retention_ms": "5", "unclean_election": "true", "cleanup": "compact"})
    values = {"retention_ms": 5, "unclean_election": True, "cleanup": "compact"}
    assert plan_change(with_topic(), wish, 9) == ChangeTopic(9, "id", values)


def test_settings_that_acked_records_rely_on_cannot_change() -> None:
    assert FIXED == ("commit_rule", "flush")
    assert "commit_rule is isr for as long as the topic exists" in faults(commit_rule="leader")
    assert "flush is os for as long as the topic exists" in faults(flush="fsync")
    same = AlterTopic("orders", {"flush": "os", "commit_rule": "isr", "retention_ms": "5"})
    assert isinstance(plan_change(with_topic(), same, 0), ChangeTopic), "to say what is so already is no change"


def test_validation_can_be_turned_off_once_the_cluster_knows_the_setting() -> None:
    trusted = {"validate_batches": "false"}
    for level in (VALIDATION - 1, VALIDATION):
        at = replace(with_topic(), level=level)
        plans = (
            plan_topic(at, CreateTopic("t", 1, 1, trusted), random.Random(1), 0),
            plan_change(at, AlterTopic("orders", trusted), 0),
        )
        for plan in plans:
            if level < VALIDATION:
                assert isinstance(plan, TidelogError) and "from feature level 4 on" in plan.message
            else:
                assert not isinstance(plan, TidelogError)
        assert not isinstance(plan_change(at, AlterTopic("orders", {"validate_batches": "true"}), 0), TidelogError)


def test_a_maximal_compaction_lag_can_be_set_once_the_cluster_knows_the_setting() -> None:
    bounded = {"max_compaction_lag_ms": "60000"}
    for level in (MAX_COMPACTION_LAG - 1, MAX_COMPACTION_LAG):
        at = replace(with_topic(), level=level)
        for plan in (
            plan_topic(at, CreateTopic("t", 1, 1, bounded), random.Random(1), 0),
            plan_change(at, AlterTopic("orders", bounded), 0),
        ):
            assert isinstance(plan, TidelogError) is (level < MAX_COMPACTION_LAG)
            assert level >= MAX_COMPACTION_LAG or "from feature level 4 on" in plan.message  # type: ignore[union-attr]
    lags = {"compaction_min_lag_ms": "60001", "max_compaction_lag_ms": "60000"}
    assert "less than compaction_min_lag_ms 60001" in faults(**lags)


def test_retention_can_wait_for_groups_once_the_cluster_knows_the_settings() -> None:
    for wanted in (
        {"retention_waits_for": "archive"},
        {"retention_waits_max_ms": "1d"},
        {"retention_waits_max_bytes": "1GiB"},
    ):
        for level in (RETENTION_WAITS - 1, RETENTION_WAITS):
            at = replace(with_topic(), level=level)
            for plan in (
                plan_topic(at, CreateTopic("t", 1, 1, wanted), random.Random(1), 0),
                plan_change(at, AlterTopic("orders", wanted), 0),
            ):
                assert isinstance(plan, TidelogError) is (level < RETENTION_WAITS)
                assert level >= RETENTION_WAITS or "from feature level 7 on" in plan.message  # type: ignore[union-attr]


@pytest.mark.parametrize(("text", "groups"), [("", ()), (" ", ()), ("a", ("a",)), (" b.1 , a-2 ", ("b.1", "a-2"))])
def test_the_groups_that_retention_waits_for_are_a_list(text: str, groups: tuple[str, ...]) -> None:
    config, wrong = parse_topic_config({"retention_waits_for": text}, 3)
    assert not wrong and config.awaited_groups == groups and " " not in config.retention_waits_for


@pytest.mark.parametrize("text", ["a,", ",", "a,,b", "a,a", "a b", "ä", "x" * 250, ",".join("abcdefghi")])
def test_other_texts_are_no_list_of_groups(text: str) -> None:
    assert len(parse_topic_config({"retention_waits_for": text}, 3)[1]) == 1


def test_new_settings_are_checked_like_those_of_a_new_topic() -> None:
    assert "more than replication_factor 3" in faults(min_insync_replicas="4")
    assert "'retention'" in faults(retention="4", min_insync_replicas="4")
    plan = plan_change(with_topic(), AlterTopic("none", {}), 0)
    assert isinstance(plan, TidelogError) and plan.code == "UNKNOWN_TOPIC"


def test_learners_are_live_servers_that_are_no_replicas() -> None:
    state = with_topic()
    assert plan_learners(state, AlterLearners("orders", 0, ("r4", "r4")), 9) == SetLearners(9, "id", 0, ("r4",))
    kept = plan_learners(state, AlterLearners("orders", 0, ("r5", "r4")), 9)
    assert kept == SetLearners(9, "id", 0, ("r5", "r4")), "who learns already may be away"
    plan = plan_learners(state, AlterLearners("orders", 0, ("r1", "r9")), 9)
    assert isinstance(plan, TidelogError) and plan.code == "INVALID_CONFIG"
    assert plan.message == "r1 is a replica already; r9 is no live replica server"
    plan = plan_learners(state, AlterLearners("orders", 1, ()), 9)
    assert isinstance(plan, TidelogError) and plan.code == "UNKNOWN_TOPIC"
