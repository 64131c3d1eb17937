"""Which of several replicas that may lead is elected: the evidence, the ranks, and the elections by commands with
ranks."""

from __future__ import annotations

import cbor2
import pytest
from support.applied_commands import Log
from tidelog.types import ServerState, TopicPartition
from tidelog.wire.messages import FollowerLag, ReportLeader, SuspectPart
from tidelog_controller.active.leader_replacement import DAMPING_S, FREE_REPLACEMENTS, LeaderReplacement
from tidelog_controller.active.server_ranks import MOST_DELAY, RECENT_S, REMEMBERED_S, ServerRanks
from tidelog_controller.metadata.commands import (
    FenceServer,
    LeaveParts,
    LostLeader,
    RankedServer,
    ReplaceLeaders,
    encode_command,
)
from tidelog_controller.metadata.rules.leader_election import elect
from tidelog_controller.metadata.state import MetadataState

SESSION_S = 3.0
SERVERS = ("r1", "r2", "r3")
R2_LAST = (RankedServer("r2", 2, "silent for 2.6 s"),)


class Seen:
    """The ranks of three servers that heartbeat every half a second, except for those that are frozen."""

    def __init__(self) -> None:
        self.state = MetadataState("test", servers={n: ServerState(n, f"ws://{n}", 1, fenced=False) for n in SERVERS})
        self.ranking = ServerRanks(SESSION_S)
        self.now = 0.0
        self.ranking.become_active(self.state, self.now)

    def run(self, seconds: float, *frozen: str, lags: dict[str, str] | None = None) -> None:
        """Let time pass while the servers heartbeat, except for the frozen ones. ``lags`` has what each server
        reports of its followers, as "r2 4.0 r3 0": server and seconds."""
        for _ in range(round(seconds * 2)):
            self.now += 0.5
            for node in SERVERS:
                if node not in frozen:
                    words = (lags or {}).get(node, "").split()
                    reported = [
                        FollowerLag(n, 1, round(1000 * float(s)))
                        for n, s in zip(words[::2], words[1::2], strict=True)
                    ]
                    self.ranking.on_heartbeat(node, reported, self.now)

    def ranks(self, *slow: str) -> dict[str, int]:
        return {one.node: one.rank for one in self.ranking.ranks(self.state, slow, self.now)}


def test_servers_that_answer_all_have_rank_0_and_are_not_named() -> None:
    seen = Seen()
    seen.run(10.0, lags={"r1": "r2 0.9 r3 0"})
    assert seen.ranks() == {}


def test_a_server_that_is_frozen_most_of_the_time_ranks_last_while_that_is_recent() -> None:
    seen = Seen()
    seen.run(0.5)
    seen.run(2.5, "r2")
    assert seen.ranks() == {"r2": 2}, "it is frozen"
    for _ in range(4):
        seen.run(0.5)
        assert seen.ranks() == {"r2": 3}, "it has just answered"
        seen.run(2.5, "r2")
    seen.run(0.5)
    (ranked,) = seen.ranking.ranks(seen.state, (), seen.now)
    assert ranked.reason == "silent for 3.0 s"
    seen.run(RECENT_S)
    assert seen.ranks() == {}


def test_a_follower_that_lags_ranks_lower_than_one_that_does_not() -> None:
    seen = Seen()
    seen.run(1.0, lags={"r1": "r2 4.0 r3 0.2"})
    assert seen.ranks() == {"r2": 4}


def test_lags_reported_by_a_silent_leader_do_not_count() -> None:
    seen = Seen()
    seen.run(1.0)
    seen.run(2.5, "r1")
    seen.run(0.5, lags={"r1": "r2 2.9 r3 0"})
    assert seen.ranks() == {"r1": 3}


def test_a_slow_server_ranks_as_the_longest_delay_and_delays_have_a_bound() -> None:
    seen = Seen()
    seen.run(1.0, lags={"r1": "r2 500 r3 0"})
    assert seen.ranks("r3") == {"r2": MOST_DELAY, "r3": MOST_DELAY}


def test_a_leader_that_was_replaced_ranks_lower_for_a_while() -> None:
    log = Log()
    log.register(*SERVERS)
    log.topic(*SERVERS)
    seen = Seen()
    before, report = log.state, log.report()
    changed = [key for key, _ in log.write(report).changes]
    seen.ranking.on_applied(before, report, changed, seen.now)
    seen.run(1.0)
    assert seen.ranks() == {"r1": 1}
    before, fence = log.state, FenceServer(0, "r1", log.epoch_of("r1"))
    seen.ranking.on_applied(before, fence, [TopicPartition("id", 0)], seen.now)
    assert seen.ranks() == {"r1": 1}, "it led nothing when its session ended"
    seen.run(REMEMBERED_S)
    assert seen.ranks() == {}


def test_old_observations_are_forgotten_even_if_no_ranks_are_requested() -> None:
    """Below the feature level nobody does."""
    log = Log()
    log.register(*SERVERS)
    log.topic(*SERVERS)
    seen = Seen()
    before, report = log.state, log.report()
    changed = [key for key, _ in log.write(report).changes]
    for _ in range(100):
        seen.ranking.on_applied(before, report, changed, seen.now)
        seen.run(1.5, "r2", lags={"r1": "r3 60"})
        seen.run(0.5)
    seen.run(REMEMBERED_S, lags={"r1": "r3 60"})
    delays = seen.ranking._delays
    assert len(delays["r3"].lags) <= 2 * RECENT_S and not delays["r2"].silences and not delays["r1"].replaced


def test_another_active_controller_ranks_all_alike_until_it_has_heard_more() -> None:
    seen = Seen()
    seen.run(2.5, "r2")
    seen.ranking.become_active(seen.state, seen.now)
    seen.run(0.5)
    assert seen.ranks() == {}


# --- commands with ranks -----------------------------------------------------------------------------------


def three(**config: object) -> Log:
    log = Log()
    log.register(*SERVERS)
    log.topic(*SERVERS, **config)
    return log


def leave(log: Log, ranks: tuple[RankedServer, ...]) -> None:
    p = log.partition
    parts = (SuspectPart("id", 0, p.epoch, p.leader_epoch),)
    log.write(LeaveParts(0, "r1", log.epoch_of("r1"), "shutdown", parts, lost=False, ranks=ranks))


def report(log: Log, ranks: tuple[RankedServer, ...]) -> None:
    p = log.partition
    log.write(ReplaceLeaders(0, "r1", (LostLeader("id", 0, p.leader_epoch, p.epoch),), ranks))


def fence(log: Log, ranks: tuple[RankedServer, ...]) -> None:
    log.write(FenceServer(0, "r1", log.epoch_of("r1"), ranks=ranks))


REPLACED = {"leave": leave, "report": report, "fence": fence}


@pytest.mark.parametrize("how", tuple(REPLACED))
def test_the_lowest_rank_leads_and_why_names_those_that_were_passed_over(how: str) -> None:
    log = three()
    REPLACED[how](log, R2_LAST)
    assert log.partition.leader == "r3"
    assert log.last.evidence["rank_r2"] == "2 (silent for 2.6 s)" and log.last.evidence["passed_over"] == "r2"


@pytest.mark.parametrize("how", tuple(REPLACED))
def test_equal_ranks_and_no_ranks_go_in_replica_order(how: str) -> None:
    for ranks in ((), (RankedServer("r1", 9, "x"),), (*R2_LAST, RankedServer("r3", 2, "y"))):
        log = three()
        REPLACED[how](log, ranks)
        assert log.partition.leader == "r2" and "passed_over" not in log.last.evidence


@pytest.mark.parametrize("how", tuple(REPLACED))
def test_a_server_outside_isr_and_elr_never_leads_for_its_rank(how: str) -> None:
    log = three(min_insync_replicas=1)
    log.shrink("r1", "r2")
    REPLACED[how](log, R2_LAST)
    assert log.partition.leader == "r2" and log.partition.isr == ("r2",)


def test_the_isr_goes_before_the_elr_whatever_the_ranks() -> None:
    log = three(min_insync_replicas=3)
    log.shrink("r1", "r3")
    assert log.partition.elr == ("r2",)
    fence(log, (RankedServer("r3", 5, "slow"),))
    assert log.partition.leader == "r3"


def test_a_draining_server_leads_only_where_no_other_can_whatever_its_rank() -> None:
    log = three()
    chosen = elect(
        log.partition, log.state.topics["id"].config, ("r2", "r3"), log.state.is_live,
        drains=lambda node: node == "r3", ranks={"r2": 5},
    )  # fmt: skip
    assert chosen.leader == "r2"


def test_a_command_without_ranks_has_the_bytes_of_earlier_releases() -> None:
    assert "ranks" not in cbor2.loads(encode_command(FenceServer(0, "r1", 1)))


# --- damping -----------------------------------------------------------------------------------------------


class Reported:
    """A partition whose leader is reported again and again by both followers; all servers heartbeat unless a call
    says otherwise."""

    def __init__(self) -> None:
        self.log = three()
        self.leader_replacement = LeaderReplacement(SESSION_S, 0.75, 5.0)
        self.leader_replacement.become_active(self.log.state, 0.0)
        self.now = 0.0

    def suspect(self, seconds: float, *, beats: bool) -> bool:
        """Let the followers report the leader for so many seconds, with or without heartbeats of it, and return
        whether it is replaced. The end of its session is not tested here."""
        for _ in range(round(seconds * 2)):
            self.now += 0.5
            p, state = self.log.partition, self.log.state
            for node in SERVERS:
                if node != p.leader or beats:
                    self.leader_replacement.sessions.on_heartbeat(state, node, 1 + SERVERS.index(node), self.now, 0)
            parts = (SuspectPart("id", 0, p.epoch, p.leader_epoch),)
            for node in SERVERS:
                report = ReportLeader(node, self.log.epoch_of(node), p.leader or "", "silent", parts)
                command = self.leader_replacement.on_report(state, report, self.now, 0) if node != p.leader else None
                if command is not None:
                    applied = self.log.write(command)
                    changed = [key for key, _ in applied.changes]
                    self.leader_replacement.on_applied(self.log.state, command, changed, self.now)
                    self.log.shrink(*SERVERS)
                    return True
        return False

    def rest(self, seconds: float) -> None:
        """Let time pass with heartbeats of all servers and without reports."""
        for _ in range(round(seconds * 2)):
            self.now += 0.5
            for node in SERVERS:
                self.leader_replacement.sessions.on_heartbeat(
                    self.log.state, node, 1 + SERVERS.index(node), self.now, 0
                )

    @property
    def why(self) -> dict[str, str]:
        return self.leader_replacement.held_back(self.log.state, TopicPartition("id", 0))


def damped() -> Reported:
    reported = Reported()
    for _ in range(FREE_REPLACEMENTS):
        assert reported.suspect(0.5, beats=False)
        reported.rest(1.0)
    return reported


def test_reports_replace_a_few_leaders_at_once_and_are_then_held_back() -> None:
    reported = damped()
    assert not reported.suspect(2.0, beats=False)
    assert reported.why == {
        "leader": reported.log.partition.leader,
        "elections": "2",
        **{f"report_{node}": "silent" for node in SERVERS if node != reported.log.partition.leader},
    }
    reported.rest(2.0)
    assert reported.why == {}, "nobody reports it any more"


def test_short_silences_do_not_add_up() -> None:
    reported = damped()
    for _ in range(4):
        assert not reported.suspect(2.0, beats=False)
        assert not reported.suspect(0.5, beats=True)


def test_a_leader_that_heartbeats_and_serves_nobody_is_replaced_after_a_session_time_out() -> None:
    reported = damped()
    assert not reported.suspect(SESSION_S, beats=True)
    assert reported.suspect(0.5, beats=True)
    assert reported.log.state.history["id"][0][-2].evidence["held_back_ms"] == "3000"


def test_a_leader_whose_link_is_broken_too_is_replaced_at_once() -> None:
    reported = damped()
    leader = reported.log.partition.leader
    assert leader is not None
    reported.leader_replacement.sessions.on_link_closed(1 + SERVERS.index(leader), reported.now)
    assert reported.suspect(0.5, beats=False)


def test_after_a_while_reports_replace_leaders_at_once_again() -> None:
    reported = damped()
    reported.rest(DAMPING_S)
    assert reported.suspect(0.5, beats=False)
