"""Rules of leader and follower, broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tidelog.types import NodeId
from tidelog_replica.assignment.assignment import Assignment
from tidelog_replica.assignment.leadership import Leadership
from tidelog_replica.partition import leader_replica as leading_module
from tidelog_replica.partition import pending_reads as reading_module
from tidelog_replica.partition.follower_replica import FollowerReplica
from tidelog_replica.partition.leader_replica import LeaderReplica
from tidelog_replica.partition.partition import Partition
from tidelog_replica.partition.pending_reads import PendingReads
from tidelog_replica.registration.session import BrokerSession
from tidelog_replica.replication import leader_state as leader_module
from tidelog_replica.replication.follower_state import FollowerState
from tidelog_replica.replication.isr import propose
from tidelog_replica.replication.leader_state import LeaderState
from tidelog_replica.replication.leadership_confirmation import LeadershipConfirmation
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.replication.progress import FollowerProgress
from tidelog_replica.storage.log import Log

from mutants.rules import Patch, breaks


@breaks("rule 2", "No leader epoch is ever resumed after a restart, not even by the same server.")
def resume_a_leader_epoch(patch: Patch) -> None:
    """A leader that finds its own last epoch in its log goes on in it; the controller gives no new one."""
    from mutants.controller import renew_no_leader_epoch

    renew_no_leader_epoch(patch)
    lead = Partition._lead

    def resume(self, state, broker_epoch, now):
        latest = self.log.epochs.latest
        if state.leader_epoch != latest():
            lead(self, state, broker_epoch, now)
            return
        assign = self.log.assign_epoch
        self.log.assign_epoch = lambda epoch: None
        self.log.epochs.latest = lambda: state.leader_epoch - 1
        try:
            lead(self, state, broker_epoch, now)
        finally:
            self.log.epochs.latest, self.log.assign_epoch = latest, assign

    patch.setattr(Partition, "_lead", resume)


@breaks("rule 4", "What is not flushed is not durable, neither on the leader nor on a follower.")
def acknowledge_before_the_flush(patch: Patch) -> None:
    """Written counts as durable."""
    patch.setattr(Log, "durable", property(lambda self: self.end))


@breaks("rule 4", "A follower's acknowledged offset is its flushed end.")
def acknowledge_what_a_follower_has_written(patch: Patch) -> None:
    """A follower reports its log end as its durable offset; the leader counts its own flushes as it should."""
    ask = FollowerReplica.fetch_request
    patch.setattr(FollowerReplica, "fetch_request", lambda self: replace(ask(self), durable=self._log.end))


@breaks("KIP-497, rule 5", "A member counts from the moment its addition is proposed.")
def commit_without_proposed_members(patch: Patch) -> None:
    """The HW counts the ISR that the leader knows, not the members that it has proposed."""

    def count(self):
        self._counted = self.isr
        self._advance()

    patch.setattr(LeaderState, "_update_maximal_isr", count)


@breaks("KIP-497, rule 5", "A removal takes effect only when the controller's new state arrives.")
def shrink_before_the_controller_has(patch: Patch) -> None:
    """The leader commits without a member as soon as it has proposed to remove it."""

    def count(self):
        members = self.isr if self.proposal is None else tuple(member.node for member in self.proposal.isr)
        self._counted = tuple(node for node in self.replicas if node in members)
        self._advance()

    patch.setattr(LeaderState, "_update_maximal_isr", count)


@breaks("rule 5", "No lost or refusing answer settles a proposal, only a newer epoch does.")
def forget_an_unanswered_proposal(patch: Patch) -> None:
    """A proposal whose answer is lost is dropped: its members count no longer."""

    def forget(self, proposal, now):
        if proposal is self.proposal:
            self.proposal = self._retry_at = None
            self._update_maximal_isr()

    patch.setattr(LeaderState, "on_proposal_unanswered", forget)


@breaks("rule 6", "A replica that joins the ISR has reached the HW and the start of the leader epoch.")
def join_at_the_high_watermark(patch: Patch) -> None:
    """A follower may join at the HW, which is stale on a new leader."""
    patch.setattr(LeaderState, "_is_fit", lambda self, node: self.followers[node].is_of(self._servers.get(node)))


@breaks("KIP-903", "A follower joins only in the life in which it fetched.")
def join_in_any_life(patch: Patch) -> None:
    """What it fetched in an earlier life counts for the present one."""

    def is_of(self, server):
        return server is not None and not server.fenced and self.broker_epoch >= 0

    patch.setattr(FollowerProgress, "is_of", is_of)


@breaks("KIP-903", "A replica that has left the ISR counts for nothing until it fetches again.")
def remember_who_left_the_isr(patch: Patch) -> None:
    """Its position stands, though it may have left because what it had is lost."""
    patch.setattr(FollowerProgress, "forget", lambda self, stamp: None)


@breaks("KIP-903", "A fetch that was sent before its follower left the ISR does not bring it back.")
def believe_what_was_under_way(patch: Patch) -> None:
    """Whatever arrives after it has left counts."""
    forget = FollowerProgress.forget
    patch.setattr(FollowerProgress, "forget", lambda self, stamp: forget(self, -1))


@breaks("R11", "An idle follower has shown that it knows the present HW.")
def take_an_answer_for_read(patch: Patch) -> None:
    """A follower that was answered at the log end is owed nothing, whatever has moved since or got lost."""
    patch.setattr(LeaderState, "aware_after", property(lambda self: -1, lambda self, stamp: None), raising=False)


@breaks("R4", "Committed is what every ISR member has flushed.")
def commit_alone(patch: Patch) -> None:
    """Committed is what the leader has flushed."""

    def advance(self):
        if self.has_quorum:
            self.high_watermark = max(self.high_watermark, self._durable)

    patch.setattr(LeaderState, "_advance", advance)


@breaks("C17", "With rule quorum a replica goes only while a majority of the present ones has all that is committed.")
def let_replicas_go_in_a_row(patch: Patch) -> None:
    """One at a time is thought to be enough."""
    patch.setattr(leader_module, "propose", lambda *known: propose(*known[:-2], lambda: True, known[-1]))


@breaks("KIP-966", "The HW stands still while the ISR is smaller than min_insync_replicas.")
def commit_below_the_minimum(patch: Patch) -> None:
    """A leader alone commits, whatever the topic demands."""
    patch.setattr(LeaderState, "has_quorum", True)


@breaks("KIP-101, rule 7", "A follower never truncates to its HW.")
def truncate_to_the_high_watermark(patch: Patch) -> None:
    """A new follower cuts its log at its HW, and asks nobody."""
    begin = FollowerReplica.__init__

    def cut(self, *arguments, **options):
        begin(self, *arguments, **options)
        self._log.truncate(self.core.high_watermark)
        self._producers.rebuild(self._log.segments.headers())
        self.core.asking = None

    patch.setattr(FollowerReplica, "__init__", cut)


@breaks("KIP-101, rule 7", "The leader-epoch dialogue comes before the first fetch of every leader epoch.")
def never_truncate(patch: Patch) -> None:
    """A new follower fetches from its log end, whatever the leader has there."""
    patch.setattr(FollowerState, "enter_leader_epoch", lambda self, epochs: setattr(self, "asking", None))
    patch.setattr(leading_module, "divergence", lambda *arguments: None)


@breaks("KIP-279, rule 7", "The answer in the dialogue names an epoch; where it is unknown the follower asks again.")
def believe_the_end_offset(patch: Patch) -> None:
    """Only the end offset of the answer counts."""

    def believe(self, asked, epoch, end, epochs, log_start, log_end):
        self.asking = None
        return max(log_start, min(end, log_end))

    patch.setattr(FollowerState, "on_epoch_end", believe)
    patch.setattr(leading_module, "divergence", lambda *arguments: None)


@breaks("KAFKA-13141", "The position of a follower whose log diverges is not recorded.")
def count_diverged_followers(patch: Patch) -> None:
    """The position is recorded as if it were a position in the leader's log."""
    record_position = LeaderReplica._record_position

    def record(self, node, broker_epoch, part, now):
        if self.core.refuse_follower(node, broker_epoch, part.leader_epoch) is None:
            self.core.on_fetch(node, broker_epoch, min(part.durable, part.offset), now)
        return record_position(self, node, broker_epoch, part, now)

    patch.setattr(LeaderReplica, "_record_position", record)
    patch.setattr(FollowerState, "enter_leader_epoch", lambda self, epochs: setattr(self, "asking", None))


@breaks("rule 8", "A leader refuses every request that names another leader epoch.")
def serve_any_leader_epoch(patch: Patch) -> None:
    """Fetches and dialogues of older and newer leader epochs are served."""
    patch.setattr(LeaderState, "refuse_epoch", lambda self, leader_epoch: None)


@breaks("rule 8", "A follower takes an answer only from the leader of its epoch, for its log end.")
def take_late_answers(patch: Patch) -> None:
    """The leader epoch of question and answer is not compared, nor the offset asked for."""
    on_fetched = FollowerReplica.on_fetched

    def take(self, asked, part, data, *rest, **options):
        epoch, end = self.core.leader_epoch, self._log.end
        if part.error is None and self.core.asking is None:
            asked, part = replace(asked, leader_epoch=epoch, offset=end), replace(part, leader_epoch=epoch)
        return on_fetched(self, asked, part, data, *rest, **options)

    patch.setattr(FollowerReplica, "on_fetched", take)
    patch.setattr("tidelog_replica.partition.follower_replica.fault_of", lambda headers, *rest: None)


@breaks("KIP-207, rule 9", "A new leader reports no end of the log before its HW has reached the start of its epoch.")
def tell_the_end_too_early(patch: Patch) -> None:
    """A stale HW passes for the end."""
    patch.setattr(LeaderState, "knows_end", True)


@breaks(
    "KIP-98",
    "A gap is certain only when no replica that may lead next holds what this leader lacks.",
    tests=("unit.replica.test_node_failover",),
    units_only=True,
)
def call_a_gap_certain_too_early(patch: Patch) -> None:
    """A new leader that knows what is committed takes its own log for all there is."""
    patch.setattr(LeaderState, "settles_older_epochs", LeaderState.knows_end)


@breaks("rule 9", "Only a leader whose leadership was confirmed after the request came reports the latest offset.")
def confirm_leadership_at_once(patch: Patch) -> None:
    """The leader confirms itself."""
    patch.setattr(LeadershipConfirmation, "since", lambda self, others, enough: self.asked_at)


@breaks("KIP-320", "A reader whose position lies in a history that was truncated gets an error.")
def ignore_the_epochs_of_readers(patch: Patch) -> None:
    """The epoch in a reader's position is not checked."""
    patch.setattr(reading_module, "divergence", lambda *arguments: None)


LEASE = "decision 26"
LEASE_TESTS = ("unit.replica.assignment.test_leadership", "unit.replica.replication.test_leadership_confirmation")


@breaks(LEASE, "A leader without a session serves clients only while its voters confirm it.", tests=LEASE_TESTS)
def serve_after_the_session(patch: Patch) -> None:
    """The leader serves until it hears of its successor."""
    patch.setattr(Leadership, "refuse", lambda self, partition, now: None)


@breaks(LEASE, "A confirmation is good for the session time-out, and no longer.", tests=LEASE_TESTS)
def believe_old_confirmations(patch: Patch) -> None:
    """A confirmation is good for ever."""
    unconfirmed = LeaderState.unconfirmed
    patch.setattr(LeaderState, "unconfirmed", lambda self, since: unconfirmed(self, -1e9))


@breaks(LEASE, "Every voter has to confirm a leadership.", tests=LEASE_TESTS)
def believe_the_first_voter(patch: Patch) -> None:
    """One voter is enough."""
    needed = LeaderState._needed
    patch.setattr(LeaderState, "_needed", lambda self, voters: min(1, needed(self, voters)))


@breaks(LEASE, "A leader is confirmed by others, where others could be elected.", tests=LEASE_TESTS)
def confirm_oneself(patch: Patch) -> None:
    """The leader confirms itself."""
    patch.setattr(LeaderState, "_needed", lambda self, voters: 0)


@breaks(
    LEASE, "A leader that has other replicas does not prove by itself that no other one leads.", tests=LEASE_TESTS
)
def prove_alone(patch: Patch) -> None:
    """It does where it is the last in sync."""
    patch.setattr(LeaderState, "confirm_alone", lambda self, now: self._confirmation.confirm(now))


def take_for_voters(patch: Patch, voters: Callable[[LeaderState, tuple[NodeId, ...]], tuple[NodeId, ...]]) -> None:
    """Let a leader have other voters than those that it should have."""
    update = LeaderState._update_voters

    def broken(self):
        update(self)
        self._voters = voters(self, self._voters)
        self._witnesses = self._voters or tuple(node for node in self.replicas if node != self.node)

    patch.setattr(LeaderState, "_update_voters", broken)


@breaks(LEASE, "Eligible replicas outside the ISR are voters.", tests=LEASE_TESTS)
def ask_the_isr_only(patch: Patch) -> None:
    """The ISR decides alone."""

    def isr(self, voters):
        others = self._by_majority or self._any_may_lead
        return tuple(node for node in voters if others or node in self.maximal_isr)

    take_for_voters(patch, isr)


@breaks(LEASE, "Where unclean election is on, every replica is a voter.", tests=LEASE_TESTS)
def ask_nobody_who_may_be_elected_uncleanly(patch: Patch) -> None:
    """Only replicas that have everything are voters."""

    def clean(self, voters):
        known = (*self.maximal_isr, *self.eligible)
        return tuple(node for node in voters if self._by_majority or node in known)

    take_for_voters(patch, clean)


@breaks(LEASE, "With commit rule quorum a learner that is about to be a replica is no voter.", tests=LEASE_TESTS)
def let_a_learner_vote(patch: Patch) -> None:
    """A learner is a voter as soon as it is proposed."""

    def learners(self, voters):
        joining = (node for node in self._joiners if node in self._counted and node not in voters)
        return (*voters, *joining)

    take_for_voters(patch, learners)


@breaks(LEASE, "A role that the newest metadata have ended is not confirmed.", tests=LEASE_TESTS)
def confirm_what_has_moved_on(patch: Patch) -> None:
    """A role is confirmed until the change is acted on."""
    patch.setattr(Assignment, "has_moved_on", lambda self, key, leader_epoch: False)


@breaks("Kafka", "A new leadership begins without followers: they count when they have fetched in it.")
def remember_the_followers_of_an_earlier_leadership(patch: Patch) -> None:
    """A leader that leads in the next leader epoch too goes on with what it knew."""
    on_state = Partition.on_state

    def go_on(self, state, broker_epoch, now):
        before = self.leading
        on_state(self, state, broker_epoch, now)
        if before is not None and self.leading not in (None, before):
            self.leading.core.followers = before.core.followers

    patch.setattr(Partition, "on_state", go_on)


@breaks("R7", "Consumers read below the HW.")
def read_beyond_the_high_watermark(patch: Patch) -> None:
    """Consumers read records that are not committed."""
    answer = PendingReads._answer

    def give_all(self, source, id, read):
        core = self._core
        self._core = _Open(core, self._log.end)
        try:
            answer(self, source, id, read)
        finally:
            self._core = core

    patch.setattr(PendingReads, "_answer", give_all)


class _Open:
    """What a role's core knows, with all of the log committed."""

    def __init__(self, core, end):
        self._core = core
        self.high_watermark = end

    def __getattr__(self, name):
        return getattr(self._core, name)


@breaks("R5", "A follower's HW is at most its own log end.")
def believe_the_leaders_high_watermark(patch: Patch) -> None:
    """The follower stores the leader's HW unchanged."""

    def take(self, leader_high_watermark, log_end):
        moved = leader_high_watermark > self.high_watermark
        self.high_watermark = max(self.high_watermark, leader_high_watermark)
        return moved

    patch.setattr(FollowerState, "on_high_watermark", take)


@breaks("liftbridge#354", "A replica that is not in the ISR refuses to lead.")
def lead_from_outside_the_isr(patch: Patch) -> None:
    """The metadata's word is enough."""
    lead = Partition._lead

    def obey(self, state, broker_epoch, now):
        isr = state.isr if self._node in state.isr else (*state.isr, self._node)
        lead(self, replace(state, isr=isr), broker_epoch, now)

    patch.setattr(Partition, "_lead", obey)


@breaks("KIP-98", "A batch that is in the log already is not appended again.")
def forget_sequences(patch: Patch) -> None:
    """Every batch of an idempotent producer is new."""
    patch.setattr(ProducerState, "check", lambda self, header: None)


@breaks("KAFKA-9752", "A follower that has fallen silent leaves the ISR by the leader's own timer.")
def judge_followers_only_when_they_fetch(patch: Patch) -> None:
    """The leader has no timer."""
    patch.setattr(LeaderState, "on_tick", lambda self, now: None)
    patch.setattr(LeaderState, "deadline", lambda self: self._retry_at if self.proposal is not None else None)


@breaks("R4", "A leader that cannot know whether a batch is committed does not ack it.")
def ack_when_the_isr_gets_too_small(patch: Patch) -> None:
    """Batches that wait when the ISR falls below its minimum are acked as if they were committed."""

    def fail(self, waiters, code, message):
        for pending in waiters:
            self._effects.ack(pending.source, pending.ack)

    patch.setattr(LeaderReplica, "_fail", fail)


@breaks(
    "rule 9",
    "A follower is as fresh as a proof shows when it has reached that proof's HW.",
    tests=("unit.replica.replication.test_follower_state",),
)
def believe_a_proof_at_once(patch: Patch) -> None:
    """The follower counts as that fresh as soon as the proof arrives."""

    def believe(self, high_watermark, until):
        self.confirmed_at = max(self.confirmed_at, until)

    patch.setattr(FollowerState, "on_proof", believe)


@breaks(
    "leases", "A session lasts from when the heartbeat was sent that was answered.", tests=("unit.replica.test_node",)
)
def count_the_session_from_the_answer(patch: Patch) -> None:
    """The session counts from the arrival of the answer."""
    on_heartbeat = BrokerSession._on_heartbeat

    def count(self, sent, broker_epoch, answer, now):
        on_heartbeat(self, now, broker_epoch, answer, now)

    patch.setattr(BrokerSession, "_on_heartbeat", count)


@breaks(
    "leases",
    "A session lasts from when the registration was sent that was answered.",
    tests=("unit.replica.test_node",),
)
def count_the_first_session_from_the_answer(patch: Patch) -> None:
    """The session counts from the arrival of the answer."""
    on_registered = BrokerSession._on_registered
    patch.setattr(
        BrokerSession, "_on_registered", lambda self, sent, answer, now: on_registered(self, now, answer, now)
    )
