"""What the command line says about a partition, in words."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner, Result
from support.applied_commands import Log
from tidelog.cli.admin.topics import topics
from tidelog.cli.explain.sentences import (
    change_in_words,
    event_in_words,
    losses_in_words,
    partition_of,
    state_in_words,
)
from tidelog.types import TopicConfig
from tidelog.wire.messages import PartitionInfo, TopicInfo
from tidelog_controller.metadata.commands import RecordLoss, SetLearners, Suspend

SERVERS = ("r1", "r2", "r3")


def cluster(**config: object) -> Log:
    """One partition of ``orders`` on three servers, led by r1."""
    log = Log()
    for node in SERVERS:
        log.register(node, lives=(f"{node}-0",))
    log.topic(*SERVERS, **{"min_insync_replicas": 2, **config})
    return log


def now(log: Log) -> str:
    """What ``describe`` says of its state."""
    p, topic = log.partition, log.state.topics["id"]
    info = PartitionInfo(
        0,
        p.replicas,
        p.isr,
        p.leader or "",
        p.leader_epoch,
        p.epoch,
        elr=p.elr,
        learners=p.learners,
        read_only=p.read_only,
    )
    return "; ".join(state_in_words(TopicInfo("id", topic.name, topic.config.texts(), (info,)), info))


def last(log: Log) -> str:
    """What ``why`` says of the last thing that happened."""
    return event_in_words(log.last)


def test_nothing_is_said_while_all_is_well() -> None:
    log = cluster()
    assert now(log) == last(log) == ""
    log.fence("r1")
    assert now(log) == last(log) == ""


def test_an_isr_below_the_minimum_and_the_eligible_are_named() -> None:
    log = cluster()
    log.fence("r2", "r3")
    assert now(log) == (
        "1 in sync of 2 that writes with acks all need: they are refused; r3 left the in-sync set when it was too "
        "small to commit anything: nothing committed is missing there, it may lead"
    )
    log.unfence("r3")
    log.fence("r1")
    assert last(log) == "r3 was eligible (ELR): nothing committed is missing there"


@pytest.mark.parametrize(
    ("rule", "least", "isr", "needed"), [("quorum", 3, 2, 3), ("quorum", 1, 1, 2), ("isr", 2, 1, 2)]
)
def test_an_isr_below_what_the_commit_rule_needs_is_named(rule: str, least: int, isr: int, needed: int) -> None:
    config = TopicConfig(commit_rule=rule, min_insync_replicas=least).texts()
    for in_sync, said in ((isr, True), (needed, False)):
        info = PartitionInfo(0, SERVERS, SERVERS[:in_sync], "r1", 1, 1)
        text = f"{in_sync} in sync of {needed} that writes with acks all need: they are refused"
        assert state_in_words(TopicInfo("id", "orders", config, (info,)), info) == ([text] if said else [])


def test_an_offline_partition_names_the_awaited_servers_and_the_options_of_an_operator() -> None:
    log = cluster()
    log.fence(*SERVERS)
    assert now(log).startswith("no leader: waiting for r3 or r2: nothing committed is missing there; 'tidelog topics")
    log = cluster(min_insync_replicas=1)
    log.shrink("r1")
    log.power_up("r1", wiped=True)
    assert last(log).startswith("the data directory of r1 was wiped")
    assert now(log) == (
        "no leader: whoever held everything committed has lost data; 'tidelog topics configure orders "
        "unclean_election=true' lets one lead that may lack records"
    )


def test_an_unclean_election_is_advised_only_where_another_replica_could_be_elected() -> None:
    """The rules of the controllers show that the advice does something."""
    log = Log()
    log.register("r1", lives=("r1-0",))
    log.topic("r1", min_insync_replicas=1)
    log.fence("r1")
    assert now(log) == (
        "no leader: waiting for r1: nothing committed is missing there, and no other server has a copy; if the disk"
        " is lost, start the server with an empty one: then 'tidelog topics configure orders unclean_election=true'"
        " has it lead without the records"
    )
    log.configure(unclean_election=True)
    assert log.partition.leader is None, "while it is down the setting changes nothing"
    assert now(log).endswith("with an empty one: then it leads without the records")
    log.power_up("r1", wiped=True)
    assert log.partition.leader == "r1"


def test_a_server_that_came_back_with_an_empty_disk_leads_once_that_is_allowed() -> None:
    log = Log()
    log.register("r1", lives=("r1-0",))
    log.topic("r1", min_insync_replicas=1)
    log.fence("r1")
    log.power_up("r1", wiped=True)
    assert log.partition.leader is None and "unclean_election=true' lets one lead" in now(log)
    log.configure(unclean_election=True)
    assert log.partition.leader == "r1"


def test_a_sealed_quorum_names_the_awaited_replicas() -> None:
    log = cluster(commit_rule="quorum")
    log.fence("r1")
    assert now(log) == "no leader: waiting until a majority of r1, r2, r3 has told how far its log reaches"
    assert "the one that reaches furthest will lead" in last(log)
    log.power_up("r2", wiped=True)
    log.power_up("r3", wiped=True)
    assert now(log).startswith("no leader: a majority of r1, r2, r3 has lost its data; 'tidelog")


def test_unclean_elections_and_losses_are_described() -> None:
    log = cluster(min_insync_replicas=1, unclean_election=True)
    log.shrink("r1")
    log.fence("r1")
    assert last(log) == (
        "unclean election: nobody was live who held everything committed (in sync was r1); r2 leads with what it "
        "has, records may be lost"
    )
    log.unfence("r1")
    log.write(RecordLoss(0, "r1", log.epoch_of("r1"), "id", 0, 1, 10, 13))
    assert last(log).startswith("r1 cut 3 committed records, offsets 10 up to 13: the leader lacked them")
    log.write(RecordLoss(0, "r1", log.epoch_of("r1"), "id", 0, 1, 13, 15, possible=True))
    assert last(log).startswith(
        "r1 cut 2 records that may have been committed, offsets 13 up to 15: the leader lacked"
    )
    assert len(losses_in_words(log.state.history["id"][0])) == 3


def test_with_commit_rule_leader_a_loss_is_no_wonder() -> None:
    log = cluster(commit_rule="leader")
    log.write(RecordLoss(0, "r1", log.epoch_of("r1"), "id", 0, 1, 10, 13))
    assert last(log).endswith("they came from a leader that did not wait for copies (commit_rule leader)")


def test_learners_are_named() -> None:
    log = cluster()
    log.write(SetLearners(0, "id", 0, ("r4", "r5")))
    assert now(log) == "copied, beside the replicas, by r4, r5"


def test_a_damaged_copy_is_described() -> None:
    log = cluster(min_insync_replicas=1)
    log.shrink("r1")
    log.hand_over("r1", lost=True)
    assert last(log) == "r1 says that its copy is damaged"


# --- commands --------------------------------------------------------------------------------------------


def test_a_place_is_a_topic_and_a_partition() -> None:
    assert partition_of("a/b/0") == ("a/b", 0)
    for wrong in ("orders", "orders/", "/0", "orders/x", "orders/²"):
        with pytest.raises(click.BadParameter):
            partition_of(wrong)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(topics, arguments)


def test_wrong_usage_is_said_before_anybody_is_asked() -> None:
    assert invoke("configure", "orders").exit_code == 2
    assert "'x' is not key=value" in invoke("configure", "orders", "x").output
    assert "--none" in invoke("learners", "orders/0").output
    assert invoke("learners", "orders/0", "r4", "--none").exit_code == 2
    assert "orders/0" in invoke("learners", "orders", "r4").output


def test_every_change_of_a_history_is_described() -> None:
    log = cluster()
    for what, wanted in (("read_only", True), ("paused", True), ("paused", False)):
        log.write(Suspend(0, "id", (0,), what, wanted, asker="ann at home"))
    log.fence("r1")
    entries = log.state.history["id"][0]
    assert [change_in_words(e, before) for e, before in zip(entries, (None, *entries), strict=False)] == [
        "created on r1 r2 r3, led by r1, because its topic was created",
        "no records are taken any more, because ann at home wants it",
        "paused: nothing is written, read or copied, because ann at home wants it",
        "resumed, led by r1 in leader epoch 1, because ann at home wants it",
        "r2 leads after r1, in leader epoch 2, in sync r2 r3, because the session of r1 ended",
    ]
    assert now(log) == "read-only: no records are taken; 'tidelog topics set-readonly --off' ends that"
