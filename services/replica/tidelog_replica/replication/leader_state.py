"""A leader's side of replication, per partition and leader epoch: what is committed, and which replicas are in sync.

Everything below the high watermark (HW) is committed. The HW never goes back, and stands still while the committed
ISR is smaller than ``min_insync_replicas``. By the topic's commit rule it is the largest offset that is durable on

    isr      every member of the maximal ISR, the leader included
    leader   the leader
    quorum   a majority of the replicas, counting members of the committed ISR only (their promises hold), once that
             is past the start of this leader epoch (Raft 5.4.2; a control batch stands there, so it gets there).
             A slow replica delays no commit, so the ISR never shrinks here

The *maximal ISR* is the ISR that the controller committed plus every member of the proposal in flight (KIP-497): the
controller may have committed an addition that the leader does not know of yet, and may elect the added replica. So an
addition counts from the moment it is proposed, a removal only when the controller's new state arrives. At most
one proposal is in flight; it is sent again *identical* until a state of a newer epoch arrives. No lost, late or
refusing answer clears it: a delayed copy of the proposal could still be committed.

A follower counts for nothing until it has fetched in this leader epoch. If it leaves the ISR, its log may have lost
records: it counts for nothing until it has fetched again. What counts is the offset up to which it has *flushed*.

    in sync    not overdue (``progress.py``); the leader's own timer decides, also when no follower fetches
    may join   fetched in this epoch and since it left the ISR, durable at or past the HW *and* the start of this
               epoch, in the broker epoch that the metadata knows, not fenced (with the HW alone, three leader changes
               lose data); the HW waits for one that keeps up (``replication/isr.py``)

While the leader's own disk stalls (``stalled``) no member is removed: leadership is handed over first (KIP-501).
A *learner* is a follower like the others, but in no ISR and no rule.

A new leader's HW may be below the true one until it reaches the start of its epoch (``knows_end``): until then
nothing above it is shown to readers, so that they never see the end of the log go back (KIP-207).

Linearizable reads: ``confirmed_at`` is the latest time such that everything committed anywhere until then lies below
the HW; ``ask_confirmation(now)`` brings it up to ``now`` (the proof is in ``leadership_confirmation.py``).
Every answer to a follower carries ``stamp(node, now)``. Bounded reads and coordinators go by ``fresh_at``
(``assignment/leadership.py``).

Invariants: R1, R4, R5, R8 of ``docs/invariants.md``; HW <= own log end; at most one proposal in flight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tidelog.errors import TidelogError, refuse
from tidelog.types import NodeId, PartitionState, ServerState
from tidelog.wire.messages import IsrMember

from tidelog_replica.replication.isr import CatchUpBarrier, Proposal, joiners, propose
from tidelog_replica.replication.leader_epochs import refuse_leader_epoch
from tidelog_replica.replication.leadership_confirmation import LeadershipConfirmation
from tidelog_replica.replication.progress import FollowerProgress, IdleFollower


class LeaderState:
    """The state and the decisions of the leader of one partition in one leader epoch: the HW, the progress of each
    follower, and the ISR proposal in flight. It is created when this server begins to lead, and dropped when the
    leader epoch ends. It does no I/O: its caller reports offsets, fetches and times, and sends the proposals,
    notifies and questions that fall due. ``servers`` is a live view of the metadata's servers."""

    agrees = True
    """A leader serves readers from its own log; a follower does so only when its log is known to match
    (``FollowerState.agrees``)."""

    def __init__(
        self,
        node: NodeId,
        broker_epoch: int,
        state: PartitionState,
        servers: Mapping[NodeId, ServerState],
        *,
        min_insync_replicas: int,
        max_lag_s: float,
        retry_s: float,
        high_watermark: int,
        log_end: int,
        durable: int,
        now: float,
        commit_rule: str = "isr",
        max_lag_records: int = 0,
        unclean_election: bool = False,
        patience_s: float = 0.2,
    ) -> None:
        assert state.leader == node and node in state.isr and high_watermark <= log_end
        self.node = node
        self.leader_epoch = state.leader_epoch
        self._take_state(state)
        self.epoch_start = log_end
        """The first offset of this leader epoch: the end of the log when this server began to lead."""
        self.began_at = now
        """When this server began to lead in this leader epoch, in seconds."""
        self.high_watermark = high_watermark
        self.proposal: Proposal | None = None
        """The ISR proposal in flight: no state of a newer epoch has settled it yet. None if there is none."""
        self.stalled = False
        """Whether the leader's own disk does not answer. No member of the ISR is removed meanwhile."""
        self._broker_epoch = broker_epoch
        self._servers = servers
        self._rule = commit_rule
        self._confirmation = LeadershipConfirmation(patience_s, retry_s)
        self._alone_at = -math.inf
        """When this leader, without controllers, last found that no other replica could be elected as far as it
        knows."""
        self._joining = CatchUpBarrier()
        self._notices: list[IdleFollower] = []
        self.aware_after = self._confirmation.last_stamp
        """Every message with a greater stamp (number) states the present HW and log start. A follower that has shown
        such a stamp, and idles at the log end, is aware of both."""
        self._min_insync_replicas = min_insync_replicas
        self._max_lag_s = max_lag_s
        self._max_lag_records = max_lag_records
        self._any_may_lead = unclean_election
        self._retry_s = retry_s
        self._retry_at: float | None = None
        self._log_end = log_end
        self._durable = durable
        self._counted = self.isr
        self._by_majority = False
        """Whether a new leader needs the seals of a majority. If the controller has named a successor, the successor
        needs no seals: it must have confirmed itself."""
        self._voters: tuple[NodeId, ...] = ()
        """The other replicas that the controllers could elect, or whose votes the next election needs. Where a
        majority decides, a learner that is about to become a replica has no vote: a majority of the replicas before
        it joins and one of those after it joins have a member in common without it."""
        self._witnesses: tuple[NodeId, ...] = ()
        """The other replicas whose fetches prove that no other replica leads: the voters. A leader without voters
        takes every other replica, since unclean elections may be allowed by now."""
        self._update_voters()
        self.followers: dict[NodeId, FollowerProgress] = {}
        """The progress of each other replica and of each learner."""
        self._update_followers(state, now)
        self._advance()
        self._propose_isr(now)  # a reassignment may have waited for another leader

    def _take_state(self, state: PartitionState) -> None:
        """Copy the controller's state of the partition into the fields of this object: epoch, replicas, ISR, ELR, and
        the learners that are to become replicas."""
        self.state, self.epoch = state, state.epoch
        self.replicas, self.isr, self.eligible = state.replicas, state.isr, state.elr
        self._joiners = joiners(state)

    def _update_followers(self, state: PartitionState, now: float) -> None:
        """Keep the progress of the followers that are in ``state``, drop that of the others, and create one for each
        new follower."""
        kept, others = self.followers, (n for n in state.replicas + state.learners if n != self.node)
        self.followers = {n: kept.get(n) or FollowerProgress(now, self._log_end, now) for n in others}

    def configure(
        self, *, min_insync_replicas: int, max_lag_s: float, max_lag_records: int, unclean_election: bool, now: float
    ) -> None:
        """Apply changed settings of the topic: update the voters, advance the HW, and propose another ISR if the new
        settings call for one. ``max_lag_s`` is in seconds."""
        self._min_insync_replicas = min_insync_replicas
        self._max_lag_s, self._max_lag_records = max_lag_s, max_lag_records
        self._any_may_lead = unclean_election
        self._update_voters()
        self._advance()
        self._propose_isr(now)

    # --- what others may know --------------------------------------------------------------------------

    @property
    def maximal_isr(self) -> tuple[NodeId, ...]:
        """Return the maximal ISR: the committed ISR and every replica that the proposal in flight would add. It
        always contains the controller's ISR."""
        return self._counted

    @property
    def knows_end(self) -> bool:
        """Return whether the HW has reached the start of this leader epoch. Until then the HW may be below what older
        epochs have committed, and must not be shown to readers as the end of the committed records."""
        return self.high_watermark >= self.epoch_start

    @property
    def settles_older_epochs(self) -> bool:
        """Return whether no replica that may lead next has a record of an older leader epoch that this log lacks.
        That is so once a record of this epoch is committed. Under commit rule ``isr`` it is also so when every such
        replica is durable up to the start of this epoch, since it first cut what this log lacks."""
        if self.high_watermark > self.epoch_start:
            return True
        others = any(node not in self._counted for node in self.eligible)
        return self._rule == "isr" and self.knows_end and not self.awaited and not others

    @property
    def awaited(self) -> tuple[NodeId, ...]:
        """Return the members of the maximal ISR, this leader included, that are not durable up to the start of this
        leader epoch; an empty tuple if there are none. Under commit rule ``isr`` the HW cannot reach ``epoch_start``
        while there is one."""
        return tuple(node for node in self._counted if self._durable_of(node) < self.epoch_start)

    @property
    def has_quorum(self) -> bool:
        """Return whether the committed ISR is large enough to commit records: then produce requests with acks ``all``
        are taken, and the HW may move."""
        return len(self.isr) >= self.min_insync

    @property
    def min_insync(self) -> int:
        """Return how many members the ISR needs so that records are committed: the topic's ``min_insync_replicas``
        or, if that is more under commit rule ``quorum``, a majority of the replicas."""
        return max(self._min_insync_replicas, self._majority if self._rule == "quorum" else 0)

    @property
    def _majority(self) -> int:
        """Return the smallest number of replicas that is a majority."""
        return len(self.replicas) // 2 + 1

    @property
    def can_be_spared(self) -> bool:
        """Return whether a majority of the replicas is in the ISR and has fetched in this leader epoch, without
        counting this leader. Under commit rule ``quorum`` they can then commit records without it. A server whose
        disk is full does not fetch."""
        return sum(p.broker_epoch >= 0 for n, p in self.followers.items() if n in self.isr) >= self._majority

    def refuse_epoch(self, leader_epoch: int) -> TidelogError | None:
        """Return the error for a request that names another leader epoch than this leader's. Return None if it names
        that epoch, or -1 for none."""
        return refuse_leader_epoch(leader_epoch, self.leader_epoch, self.node)

    def refuse_follower(self, node: NodeId, broker_epoch: int, leader_epoch: int) -> TidelogError | None:
        """Return the error for a follower's request if ``node`` is no follower of this partition, if a newer
        incarnation of its server has fetched, or if ``leader_epoch`` is not this leader's. Return None if the request
        may be served."""
        progress = self.followers.get(node)
        if progress is None:
            return refuse("NOT_REPLICA", f"{node} is no follower of this partition")
        if broker_epoch < progress.broker_epoch:
            return refuse("FENCED_BROKER_EPOCH", f"{node} has fetched in broker epoch {progress.broker_epoch}")
        return self.refuse_epoch(leader_epoch)

    # --- the log moves -----------------------------------------------------------------------------------

    def on_append(self, log_end: int, now: float) -> None:
        """Record that the leader's log ends at ``log_end`` now, and queue a notify for each idle follower
        (``take_notices``)."""
        self._log_end = log_end
        for node, progress in self.followers.items():
            progress.on_append(log_end, now)
            self._notify(node)

    def on_durable(self, durable: int) -> None:
        """Record that the leader's log is flushed up to offset ``durable`` (exclusive), and advance the HW as far as
        the commit rule allows. Does nothing if that offset was reached before."""
        if durable > self._durable:
            self._durable = durable
            self._advance()

    def on_fetch(self, node: NodeId, broker_epoch: int, durable: int, now: float, stamp: int = 0) -> None:
        """Record a fetch of a follower whose log does not diverge: its log is flushed up to offset ``durable``, and
        it has received this leader's messages up to the one with number ``stamp``. This may advance the HW, or lead
        to a proposal that the follower joins the ISR. If the fetch was sent before the follower was last found
        outside the ISR, ``durable`` does not count."""
        self._confirmation.on_fetch(node, stamp)
        progress = self.followers[node]
        counted = durable if stamp > progress.forgotten_at else -1
        progress.on_fetch(broker_epoch, counted, self._log_end, self._max_lag_records, now, stamp)
        if node in self._counted:
            self._advance()
        elif node in self.replicas or node in self._joiners:
            if self._is_fit(node):
                self._joining.on_fetch(node, progress.caught_up_at, self._max_lag_s, now)
            self._propose_isr(now)
            self._advance()

    def wait(self, node: NodeId, source: int, readers: bool = False) -> None:
        """Record that a follower has fetched everything and idles. It will be notified over link ``source`` when
        records are appended, and with ``readers`` also when the HW moves. It is notified at once if its fetch was
        sent too early to count, or if its next fetch is needed to confirm this leadership."""
        progress, confirmation = self.followers[node], self._confirmation
        progress.wait(source, self._log_end, self.high_watermark if readers else math.inf)
        asked = (
            not confirmation.has_confirmed(node)
            and node in self._witnesses
            and self._confirmed_since() < confirmation.asked_at
        )
        if asked or progress.durable < 0 <= progress.forgotten_at:
            self._notify(node)

    def on_unannounced(self) -> None:
        """Record that the HW or the log start has moved, so that no message sent until now has their present values.
        Every idle follower thereby becomes unaware (``idle_followers.py``)."""
        self.aware_after = self._confirmation.last_stamp

    def _notify(self, node: NodeId) -> None:
        """Queue a notify for a follower that idles; it no longer idles then. Does nothing for any other follower."""
        progress = self.followers[node]
        if progress.waiting is not None:
            self._notices.append(IdleFollower(node, progress.waiting, progress.waits_at))
            progress.waiting = None

    def take_notices(self) -> list[IdleFollower]:
        """Remove and return the followers in the queue of notifies, each with its link and the offset at which it
        idled. An empty list if there are none."""
        notices, self._notices = self._notices, []
        return notices

    def on_source_closed(self, source: int) -> None:
        """Record that no follower idles behind link ``source`` any more, since it is closed. Such followers fetch
        again over another link."""
        for progress in self.followers.values():
            if progress.waiting == source:
                progress.waiting = None

    def _advance(self) -> None:
        """Raise the HW to the largest offset that is committed by the commit rule, but not past a follower for which
        the catch-up barrier waits. Queue a notify for each idle follower that asked for moves of the HW. Does nothing
        if the HW would not rise, or if too few replicas are in sync."""
        end = self._committed_end() if self.has_quorum else 0
        if self._rule == "isr" and (joining := self._joining.nodes):
            end = min((end, *map(self._durable_of, joining)))
        if end > self.high_watermark:
            self.high_watermark = end
            self.on_unannounced()
            for node, progress in self.followers.items():
                if progress.notify_above < end:
                    self._notify(node)

    def _committed_end(self) -> int:
        """Return the offset up to which records are committed by the commit rule. Under rule ``quorum`` return 0
        while that is not past the start of this leader epoch. May be called only while enough replicas are in
        sync."""
        if self._rule == "leader":
            return self._durable
        if self._rule == "isr":
            end = self._durable
            for node in self._counted:
                if node != self.node:
                    end = min(end, self.followers[node].durable)
            return end
        end = sorted(map(self._durable_of, self.isr))[-self._majority]
        return end if end > self.epoch_start else 0

    def _durable_of(self, node: NodeId) -> int:
        """Return the offset up to which a replica is known to have flushed its log; -1 for a follower that does not
        count now."""
        return self._durable if node == self.node else self.followers[node].durable

    # --- does it still lead? -----------------------------------------------------------------------------

    @property
    def confirmed_at(self) -> float:
        """Return the latest time, in seconds, for which this is proved: everything that was committed until then, by
        any leader, lies below the HW. ``-inf`` if no such time is known. Linearizable reads wait for it."""
        return self._confirmed_since() if self.knows_end else -math.inf

    @property
    def fresh_at(self) -> float:
        """Return the time, in seconds, that bounded reads and coordinators go by: ``confirmed_at`` or, if later, the
        time at which a leader without voters confirmed itself. That second time proves nothing if unclean elections
        were allowed on the other side of a broken network. ``-inf`` if neither is known."""
        return max(self._confirmed_since(), self._alone_at) if self.knows_end else -math.inf

    def _confirmed_since(self) -> float:
        """Return the latest time, in seconds, before which provably no newer leader epoch had begun; ``-inf`` if none
        is known."""
        witnesses = self._witnesses
        return self._confirmation.since(witnesses, self._needed(len(witnesses)))

    def _update_voters(self) -> None:
        """Update the voters and witnesses from the partition's state, the maximal ISR and the topic's settings."""
        quorum = self._rule == "quorum"
        self._by_majority = quorum and not self._any_may_lead and self.state.successor is None
        may = self.replicas if self._any_may_lead or quorum else self.eligible
        electors = tuple(n for n in self.replicas + self._joiners if n in self._counted or n in may)
        voters = self.replicas if self._by_majority else electors
        self._voters = tuple(node for node in voters if node != self.node)
        self._witnesses = self._voters or tuple(node for node in self.replicas if node != self.node)

    def _needed(self, others: int) -> int:
        """Return how many of ``others`` replicas have to confirm this leadership: all of them or, where a majority of
        seals decides elections, as many as make a majority together with this leader."""
        return len(self.replicas) // 2 if self._by_majority else others

    def unconfirmed(self, since: float) -> tuple[NodeId, ...]:
        """Return the voters that have not confirmed this leadership since time ``since`` (seconds). Return an empty
        tuple if enough voters have confirmed it, or if no confirmation by others is needed."""
        if not self.needs_voters or self._confirmed_since() >= since:
            return ()
        return tuple(node for node in self._voters if self._confirmation.confirmed_at(node) < since)

    @property
    def needs_voters(self) -> bool:
        """Return whether other replicas must confirm this leadership: the controllers could elect one of them, or
        need their seals for an election."""
        return self._needed(len(self._voters)) > 0

    def confirm_alone(self, now: float) -> None:
        """Confirm this leadership as of ``now`` without other replicas, since no controller answers and there are no
        voters: clients may be served. Linearizable reads may go on only if the partition has no other replica. May be
        called only while ``needs_voters`` is False."""
        assert not self.needs_voters
        self._alone_at = now
        if not self._witnesses:
            self._confirmation.confirm(now)

    def ask_voters(self, now: float) -> None:
        """Queue a notify for each idle voter, so that its next fetch confirms this leadership as of ``now``. Unlike
        ``ask_confirmation`` this never leads to a question to the controllers."""
        self._confirmation.asked_at = now
        for node in self._voters:
            self._notify(node)

    def ask_confirmation(self, now: float) -> None:
        """Begin to bring ``confirmed_at`` up to ``now``, because a request waits for that. Queue a notify for each
        idle witness, and set the time at which the controllers are asked if the witnesses do not confirm (at once if
        there are no voters)."""
        self._confirmation.ask(now, alone=not self.needs_voters)
        for node in self._witnesses:
            self._notify(node)

    def stamp(self, node: NodeId, now: float) -> int:
        """Return a new stamp, one above the last, for a message that is sent to follower ``node`` at ``now``. A fetch
        that sends the stamp back was sent after that time."""
        return self._confirmation.stamp(node, now)

    def due_confirmation(self, now: float) -> bool:
        """Return whether the caller must now ask the controllers whether this server still leads. If so, the question
        counts as sent, and no other is due before ``on_confirmation``."""
        return self._confirmation.call_at is not None and self._confirmation.due(self._confirmed_since(), now)

    def on_confirmation(self, sent: float, confirmed: bool, now: float) -> None:
        """Record the controllers' answer to the question that was sent at time ``sent``. With ``confirmed`` this
        leader still led then. Otherwise, also if there was no answer, the question may be asked again after a
        pause."""
        self._confirmation.on_controller(sent, confirmed, now)

    # --- the in-sync replicas ----------------------------------------------------------------------------

    def on_state(self, state: PartitionState, now: float) -> None:
        """Take over a newer state of the partition in the same leader epoch, as the controller has committed it. This
        ends the proposal in flight and may lead to the next one. A follower outside the ISR counts for nothing until
        it has fetched again, since its log may have lost records; it is notified to do so."""
        assert state.leader_epoch == self.leader_epoch and state.epoch > self.epoch
        self._take_state(state)
        self._update_followers(state, now)
        for node, progress in self.followers.items():
            if node not in self.isr:
                progress.forget(self._confirmation.last_stamp)
                self._notify(node)
        self._joining.clear()
        self.proposal = self._retry_at = None
        self._update_maximal_isr()
        self._propose_isr(now)

    def on_elr(self, eligible: tuple[NodeId, ...]) -> None:
        """Take over the ELR (the replicas outside the ISR that may lead next) of a state whose epoch is known
        already, and update the voters. The answer to an ISR proposal does not name the ELR, so it arrives later."""
        self.eligible = eligible
        self._update_voters()

    def on_tick(self, now: float) -> None:
        """Propose another ISR if one is due now, for example without the overdue members, unless a proposal is in
        flight. Before that, stop holding back the HW for followers that no longer keep up."""
        if self._joining.expire(now):
            self._advance()
        self._propose_isr(now)

    def deadline(self) -> float:
        """Return the time, in seconds, at which ``on_tick``, ``due_proposal`` or ``due_confirmation`` next has
        something to do; ``inf`` if none has."""
        due = self._joining.deadline()
        if self.proposal is not None:
            due = due if self._retry_at is None else min(due, self._retry_at)
        elif not self.stalled and self._rule != "quorum":
            for node in self.isr:
                if node != self.node:
                    due = min(due, self.followers[node].overdue_at(self._max_lag_s, self._max_lag_records))
        if (
            self._confirmation.call_at is not None
            and (ask_at := self._confirmation.deadline(self._confirmed_since())) is not None
        ):
            due = min(due, ask_at)
        return due

    def due_proposal(self, now: float) -> Proposal | None:
        """Return the ISR proposal if it must be sent to the controller now, for the first time or again; otherwise
        None. A returned proposal counts as sent: it falls due again only after ``on_proposal_unanswered``."""
        if self.state.target:
            self._propose_isr(now)  # a replica may be able to leave now
        if self.proposal is None or self._retry_at is None or now < self._retry_at:
            return None
        self._retry_at = None
        return self.proposal

    def on_proposal_unanswered(self, proposal: Proposal, now: float) -> None:
        """Make the proposal due again in ``retry_s`` seconds, unchanged, because its call failed or was refused. Does
        nothing if a state of a newer epoch has ended that proposal."""
        if proposal is self.proposal:
            self._retry_at = now + self._retry_s

    def _overdue_at(self, node: NodeId) -> float:
        """Return the time, in seconds, at which a follower in the ISR becomes overdue unless it makes progress.
        ``inf`` if it cannot become overdue: it has everything, the leader's disk stalls, or the commit rule is
        ``quorum``."""
        if self.stalled or self._rule == "quorum":
            return math.inf
        return self.followers[node].overdue_at(self._max_lag_s, self._max_lag_records)

    def _is_fit(self, node: NodeId) -> bool:
        """Return whether a follower meets the conditions for joining the ISR apart from the HW: it has fetched in its
        present incarnation, is not fenced, and is durable up to the start of this leader epoch."""
        progress, server = self.followers[node], self._servers.get(node)
        return progress.is_of(server) and progress.durable >= self.epoch_start

    def _may_join(self, node: NodeId) -> bool:
        """Return whether a follower may join the ISR now: it is fit (``_is_fit``) and durable up to the HW. Under
        commit rule ``leader`` a fit follower that keeps up may join as well."""
        lags = self._rule == "leader" and node in self._joining
        return self._is_fit(node) and (lags or self.followers[node].durable >= self.high_watermark)

    def _propose_isr(self, now: float) -> None:
        """Create an ISR proposal if a change is due and no proposal is in flight; ``due_proposal`` then returns it.
        From this moment the members that it adds count for the HW."""
        if self.proposal is not None:
            return
        wanted = propose(
            self.node,
            self.state,
            self._rule,
            self.followers,
            lambda node: now >= self._overdue_at(node),
            self._may_join,
            lambda: self.has_quorum and self._committed_end() >= max(1, self.high_watermark),
            now,
        )
        if wanted is None:
            return
        members, cause, evidence = wanted
        evidence |= {"log_end": str(self._log_end), "high_watermark": str(self.high_watermark)}
        isr = tuple(IsrMember(node, self._broker_epoch_of(node)) for node in members)
        self.proposal = Proposal(self.epoch, isr, cause, evidence)
        self._retry_at = now
        self._update_maximal_isr()

    def _broker_epoch_of(self, node: NodeId) -> int:
        """Return the broker epoch of a server: this server's own, or for another server that of the metadata. Return
        0 if the metadata does not know the server."""
        server = self._servers.get(node)
        known = server.broker_epoch if server is not None else 0
        return self._broker_epoch if node == self.node else known

    def _update_maximal_isr(self) -> None:
        """Update the maximal ISR from the committed ISR and the proposal in flight, and then the voters and the HW,
        which depend on it."""
        proposed = () if self.proposal is None else tuple(member.node for member in self.proposal.isr)
        known = self.replicas + self._joiners
        self._counted = tuple(node for node in known if node in self.isr or node in proposed)
        self._update_voters()
        self._joining.forget(self._counted)
        self._advance()
