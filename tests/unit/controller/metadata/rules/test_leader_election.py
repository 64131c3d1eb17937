"""Servers that are being drained lead only if no other server that is as good can."""

from __future__ import annotations

import pytest
from support.applied_commands import Log, live, who
from tidelog.types import PartitionState, TopicConfig
from tidelog_controller.metadata.commands import AddTopic, SetDraining
from tidelog_controller.metadata.rules.leader_election import elect


@pytest.fixture
def log() -> Log:
    """Return three servers and one partition, led by r1."""
    log = Log()
    log.register("r1", "r2", "r3")
    log.topic("r1", "r2", "r3")
    return log


def test_a_draining_server_leads_only_where_no_equal_candidate_exists(log: Log) -> None:
    log.write(SetDraining(0, "r2", True))
    log.fence("r1")
    assert who(log.partition) == ("r3", "r2 r3", "")
    log.fence("r3")
    assert who(log.partition) == ("r2", "r2", ""), "nobody else is in sync"


def test_a_draining_member_of_the_isr_is_elected_before_an_eligible_replica() -> None:
    partition = PartitionState(("r1", "r2", "r3"), ("r1", "r2"), "r1", 4, 9, elr=("r3",))
    config = TopicConfig(min_insync_replicas=3)
    elected = elect(partition, config, ("r2",), live("r2", "r3"), drains=live("r2"))
    assert (elected.leader, elected.isr, elected.elr) == ("r2", ("r2",), ("r1", "r3"))
    leaving = elect(partition, config, ("r2",), live("r2", "r3"), drains=live("r3"), renew=True, leaving="r2")
    assert leaving.leader == "r3", "who goes is worse than who is drained"


def test_a_drained_leader_goes_on_until_leadership_is_transferred(log: Log) -> None:
    before = log.partition
    log.write(SetDraining(0, "r1", True))
    assert log.partition == before


def test_a_new_partition_is_led_by_a_server_that_is_not_drained(log: Log) -> None:
    log.write(SetDraining(0, "r1", True))
    log.write(AddTopic(0, "id2", "bills", TopicConfig(), (("r1", "r2"), ("r1",))))
    assert [p.leader for p in log.state.topics["id2"].partitions] == ["r2", "r1"]
