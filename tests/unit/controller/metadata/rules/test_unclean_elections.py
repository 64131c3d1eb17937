"""Elections that may lose records: when one is held, and which replica it chooses. Tests
``metadata/rules/leader_election.py``."""

from __future__ import annotations

import pytest
from support.applied_commands import alone, cluster, who


def test_no_unclean_election_unless_the_topic_allows_it() -> None:
    log = alone()
    log.fence("r1")
    assert who(log.partition) == ("-", "r1", "")
    log.configure(unclean_election=True)
    assert who(log.partition) == ("r2", "r2", ""), "at once"
    assert log.partition.unclean_epoch == log.partition.leader_epoch == 2
    assert (log.last.event, log.last.cause) == ("leader_elected", "unclean_election")
    assert log.last.evidence["loss"] == "possible"
    assert (log.last.evidence["trigger"], log.last.evidence["in_sync_before"]) == ("alter_topic", "r1")


def test_the_unclean_epoch_stays_known() -> None:
    log = alone(unclean_election=True)
    log.fence("r1")
    log.shrink("r2", "r3")
    log.fence("r2")
    assert (log.partition.leader, log.partition.leader_epoch, log.partition.unclean_epoch) == ("r3", 2, 1)


def test_a_replica_that_returns_leads_uncleanly_where_nobody_else_can() -> None:
    log = alone(unclean_election=True)
    log.fence("r2", "r3", "r1")
    assert who(log.partition) == ("-", "r1", "")
    log.power_up("r3")
    assert who(log.partition) == ("r3", "r3", "")
    assert log.last.evidence["trigger"] == "registered"


def test_an_unclean_election_is_never_held_while_one_lives_that_holds_everything() -> None:
    log = cluster(unclean_election=True)
    log.fence("r2", "r3")
    log.unfence("r3")
    log.fence("r1")
    assert who(log.partition) == ("r3", "r3", "r1") and log.partition.unclean_epoch == -1


def test_the_last_leader_is_the_first_choice() -> None:
    log = alone(flush="os")
    log.write(log.proposal("r1", "r3"))
    log.fence("r1")
    assert who(log.partition) == ("r3", "r3", "")
    log.power_up("r1")
    log.power_up("r3")
    assert (who(log.partition), log.partition.last_leader) == (("-", "", ""), "r3")
    log.configure(unclean_election=True)
    assert who(log.partition) == ("r3", "r3", "")
    assert log.partition.last_leader is None, "known while nobody leads"


@pytest.mark.parametrize("fenced", [False, True])
def test_the_last_leader_is_the_first_choice_also_by_its_own_registration(fenced: bool) -> None:
    log = alone(flush="os", unclean_election=True)
    if fenced:
        log.fence("r2", "r3", "r1")
        log.power_up("r1")
        assert (who(log.partition), log.partition.unclean_epoch) == (("r1", "r1", ""), 2), "nobody else was there"
    else:
        log.power_up("r1")
        assert (who(log.partition), log.partition.unclean_epoch) == (("r1", "r1", ""), 1), "the others lag behind it"


def test_a_replica_with_possible_losses_that_did_not_lead_last_is_not_elected_beside_others() -> None:
    log = alone(flush="os", unclean_election=True)
    log.fence("r1")
    assert who(log.partition) == ("r2", "r2", "")
    log.fence("r3", "r2")
    assert (who(log.partition), log.partition.last_leader) == (("-", "r2", ""), "r2")
    log.power_up("r1")
    assert who(log.partition) == ("r1", "r1", ""), "nobody else is live"
    log.fence("r1")
    log.power_up("r3")
    assert who(log.partition) == ("r3", "r3", "")


def test_an_empty_directory_is_the_last_choice() -> None:
    log = alone(unclean_election=True)
    log.power_up("r1", wiped=True)
    assert who(log.partition) == ("r2", "r2", "")
    log = alone()
    log.power_up("r1", wiped=True)
    log.fence("r2", "r3")
    log.configure(unclean_election=True)
    assert who(log.partition) == ("r1", "r1", ""), "but better than nobody"


def test_a_replica_that_gave_up_its_damaged_copy_is_not_elected_beside_others() -> None:
    log = alone(unclean_election=True)
    log.fence("r2")
    log.hand_over("r1", lost=True)
    assert who(log.partition) == ("r3", "r3", "")
    log = alone()
    log.hand_over("r1", lost=True)
    assert (who(log.partition), log.partition.last_leader) == (("-", "", ""), None)
    log.configure(unclean_election=True)
    assert log.partition.leader == "r1", "the first live one in replica order"
