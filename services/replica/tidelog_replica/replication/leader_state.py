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
    """The state and the decisions of the leader of one partition in one leader epoch: the high watermark, how far
    each follower is, and the ISR proposal in flight. It is made when this server begins to lead, and dropped when the
    leader epoch ends. It does no I/O: its caller reports offsets, fetches and times, and sends the proposals,
    notifies and questions that fall due. ``servers`` is a live view of the metadata's servers, which the caller
    keeps."""

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
        self._take(state)
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
        self._consider(now)  # a reassignment may have waited for another leader

    def _take(self, state: PartitionState) -> None:
        """Copy the controller's state of the partition into the fields of this object: epoch, replicas, ISR, ELR and
        joining learners."""
        self.state, self.epoch = state, state.epoch
        self.replicas, self.isr, self.eligible = state.replicas, state.isr, state.elr
        self._joiners = joiners(state)

    def _update_followers(self, state: PartitionState, now: float) -> None:
        """Keep the progress of the followers that are still in ``state``, forget the others, and begin one for each
        new follower."""
        kept, others = self.followers, (n for n in state.replicas + state.learners if n != self.node)
        self.followers = {n: kept.get(n) or FollowerProgress(now, self._log_end, now) for n in others}

    def configure(
        self, *, min_insync_replicas: int, max_lag_s: float, max_lag_records: int, unclean_election: bool, now: float
    ) -> None:
        """Take over changed settings of the topic. Redetermines the voters, advances the HW and proposes another ISR
        if the new settings call for that. ``max_lag_s`` is in seconds."""
        self._min_insync_replicas = min_insync_replicas
        self._max_lag_s, self._max_lag_records = max_lag_s, max_lag_records
        self._any_may_lead = unclean_election
        self._update_voters()
        self._advance()
        self._consider(now)

    # --- what others may know --------------------------------------------------------------------------

    @property
    def maximal_isr(self) -> tuple[NodeId, ...]:
        """Return the maximal ISR: the committed ISR and every replica that the proposal in flight would add. The
        controller's ISR is always within it."""
        return self._counted

    @property
    def knows_end(self) -> bool:
        """Return whether the HW has reached the start of this leader epoch. Until then the HW may be below what was
        committed in older epochs, and readers must not see the end of the log."""
        return self.high_watermark >= self.epoch_start

    @property
    def settles_older_epochs(self) -> bool:
        """Return whether no replica that may lead next has a record of an older leader epoch that this log lacks.
        That is so when a record of this epoch is committed. It is also so when every replica that may lead next has
        fetched in this epoch from the epoch's start on, since such a replica first cut what this log lacks."""
        if self.high_watermark > self.epoch_start:
            return True
        others = any(node not in self._counted for node in self.eligible)
        return self._rule == "isr" and self.knows_end and not self.awaited and not others

    @property
    def awaited(self) -> tuple[NodeId, ...]:
        """Return the members of the maximal ISR, this leader included, that are not durable up to the start of this
        leader epoch. Until there are none, the HW cannot reach ``epoch_start``."""
        return tuple(node for node in self._counted if self._durable_of(node) < self.epoch_start)

    @property
    def has_quorum(self) -> bool:
        """Return whether the committed ISR is large enough for produce requests with acks ``all``, and for the HW to
        move."""
        return len(self.isr) >= self.min_insync

    @property
    def min_insync(self) -> int:
        """Return how many members the ISR needs so that records are committed: ``min_insync_replicas``, and under
        commit rule ``quorum`` also a majority of the replicas."""
        return max(self._min_insync_replicas, self._majority if self._rule == "quorum" else 0)

    @property
    def _majority(self) -> int:
        """Return the size of the smallest majority of the replicas."""
        return len(self.replicas) // 2 + 1

    @property
    def can_be_spared(self) -> bool:
        """Return whether the other members of the ISR that have fetched in this leader epoch are a majority of the
        replicas. Under commit rule ``quorum`` they then commit records without this leader. A server whose disk is
        full does not fetch."""
        return sum(p.broker_epoch >= 0 for n, p in self.followers.items() if n in self.isr) >= self._majority

    def refuse_epoch(self, leader_epoch: int) -> TidelogError | None:
        """Return the error for a request that names another leader epoch than this leader's; None if it names this
        one, or -1 for no epoch."""
        return refuse_leader_epoch(leader_epoch, self.leader_epoch, self.node)

    def refuse_follower(self, node: NodeId, broker_epoch: int, leader_epoch: int) -> TidelogError | None:
        """Return the error for a fetch or an epoch request that a follower may not send; None if the request may be
        served. It is refused if ``node`` is no follower, if a newer incarnation of the server has fetched, or if the
        leader epoch is another one."""
        progress = self.followers.get(node)
        if progress is None:
            return refuse("NOT_REPLICA", f"{node} is no follower of this partition")
        if broker_epoch < progress.broker_epoch:
            return refuse("FENCED_BROKER_EPOCH", f"{node} has fetched in broker epoch {progress.broker_epoch}")
        return self.refuse_epoch(leader_epoch)

    # --- the log moves -----------------------------------------------------------------------------------

    def on_append(self, log_end: int, now: float) -> None:
        """Record that the leader's log ends at offset ``log_end`` now, and queue a notify for each idle follower
        (``take_notices``)."""
        self._log_end = log_end
        for node, progress in self.followers.items():
            progress.on_append(log_end, now)
            self._notify(node)

    def on_durable(self, durable: int) -> None:
        """Record that the leader's log is flushed up to offset ``durable`` (exclusive), and advance the HW as far as
        that allows. Does nothing if that offset was reached before."""
        if durable > self._durable:
            self._durable = durable
            self._advance()

    def on_fetch(self, node: NodeId, broker_epoch: int, durable: int, now: float, stamp: int = 0) -> None:
        """Record what a fetch shows of a follower whose log does not diverge: it is flushed up to offset ``durable``
        and has received this leader's messages up to the one numbered ``stamp``. Advances the HW. Proposes another
        ISR if the follower may join now. A fetch sent before the follower was last found outside the ISR counts for
        nothing."""
        self._confirmation.on_fetch(node, stamp)
        progress = self.followers[node]
        counted = durable if stamp > progress.forgotten_at else -1
        progress.on_fetch(broker_epoch, counted, self._log_end, self._max_lag_records, now, stamp)
        if node in self._counted:
            self._advance()
        elif node in self.replicas or node in self._joiners:
            if self._is_fit(node):
                self._joining.on_fetch(node, progress.caught_up_at, self._max_lag_s, now)
            self._consider(now)
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
        """Record that the HW or the log start has moved: no message sent until now states their present values. Idle
        followers become unaware by that (``idle_followers.py``)."""
        self.aware_after = self._confirmation.last_stamp

    def _notify(self, node: NodeId) -> None:
        """Queue a notify for a follower if it idles; it idles no more then."""
        progress = self.followers[node]
        if progress.waiting is not None:
            self._notices.append(IdleFollower(node, progress.waiting, progress.waits_at))
            progress.waiting = None

    def take_notices(self) -> list[IdleFollower]:
        """Return the followers that must be notified now, each with its link and offset, and empty the queue. An
        empty list if there is none."""
        notices, self._notices = self._notices, []
        return notices

    def on_source_closed(self, source: int) -> None:
        """Forget that followers idle behind link ``source``, which is closed. They ask again over another link."""
        for progress in self.followers.values():
            if progress.waiting == source:
                progress.waiting = None

    def _advance(self) -> None:
        """Move the HW up to the largest offset that is committed by now, but not past a follower that the catch-up
        barrier waits for. Queues a notify for each idle follower that asked for moves of the HW. Does nothing if the
        HW would not rise."""
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
        """Return the offset up to which the commit rule holds, or 0 under rule ``quorum`` while it is not past the
        start of this leader epoch. The ISR must not be below its minimum."""
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
        count."""
        return self._durable if node == self.node else self.followers[node].durable

    # --- does it still lead? -----------------------------------------------------------------------------

    @property
    def confirmed_at(self) -> float:
        """Return the latest time, in seconds, such that everything committed anywhere until then lies below the HW;
        ``-inf`` if no such time is known. Linearizable reads go by it."""
        return self._confirmed_since() if self.knows_end else -math.inf

    @property
    def fresh_at(self) -> float:
        """Return the time that bounded reads and coordinators go by, in seconds: ``confirmed_at``, or the time at
        which a leader without voters confirmed itself, if that is later. The second is wrong if unclean elections
        were allowed on the other side of a broken network."""
        return max(self._confirmed_since(), self._alone_at) if self.knows_end else -math.inf

    def _confirmed_since(self) -> float:
        """Return the latest time at which provably no newer leader epoch had begun, in seconds; ``-inf`` if none is
        known."""
        witnesses = self._witnesses
        return self._confirmation.since(witnesses, self._needed(len(witnesses)))

    def _update_voters(self) -> None:
        """Determine the voters and witnesses anew from the partition's state, the maximal ISR and the topic's
        settings."""
        quorum = self._rule == "quorum"
        self._by_majority = quorum and not self._any_may_lead and self.state.successor is None
        may = self.replicas if self._any_may_lead or quorum else self.eligible
        electors = tuple(n for n in self.replicas + self._joiners if n in self._counted or n in may)
        voters = self.replicas if self._by_majority else electors
        self._voters = tuple(node for node in voters if node != self.node)
        self._witnesses = self._voters or tuple(node for node in self.replicas if node != self.node)

    def _needed(self, others: int) -> int:
        """Return how many of ``others`` replicas have to confirm this leadership: all of them, or as many as make a
        majority together with this leader."""
        return len(self.replicas) // 2 if self._by_majority else others

    def unconfirmed(self, since: float) -> tuple[NodeId, ...]:
        """Return the voters that have not confirmed this leadership since time ``since`` (seconds). Returns () if
        enough voters have, or if the controllers could elect no other replica."""
        if not self.needs_voters or self._confirmed_since() >= since:
            return ()
        return tuple(node for node in self._voters if self._confirmation.confirmed_at(node) < since)

    @property
    def needs_voters(self) -> bool:
        """Return whether other replicas must confirm this leadership: the controllers could elect one of them, or
        need their votes for an election."""
        return self._needed(len(self._voters)) > 0

    def confirm_alone(self, now: float) -> None:
        """Record that at ``now`` no controller answers and this leader needs no voters, so that it may serve clients.
        If the partition has no other replica, no other can lead, and linearizable reads are confirmed as well."""
        assert not self.needs_voters
        self._alone_at = now
        if not self._witnesses:
            self._confirmation.confirm(now)

    def ask_voters(self, now: float) -> None:
        """Queue a notify for each idle voter, so that its next fetch confirms this leadership. Unlike
        ``ask_confirmation`` this never makes the leader ask the controllers."""
        self._confirmation.asked_at = now
        for node in self._voters:
            self._notify(node)

    def ask_confirmation(self, now: float) -> None:
        """Begin to have ``confirmed_at`` brought up to ``now``, because a request waits for that. Queues notifies for
        idle witnesses, and sets the time at which the controllers are asked if these do not answer (at once if there
        are no voters)."""
        self._confirmation.ask(now, alone=not self.needs_voters)
        for node in self._witnesses:
            self._notify(node)

    def stamp(self, node: NodeId, now: float) -> int:
        """Return a new stamp, a number one above the last, for a message that is sent to follower ``node`` at
        ``now``. A later fetch that names the stamp was sent after that time."""
        return self._confirmation.stamp(node, now)

    def due_confirmation(self, now: float) -> bool:
        """Return whether the caller must now ask the controllers whether this server still leads. If so, the question
        counts as sent, and no other is due before ``on_confirmation`` is called."""
        return self._confirmation.call_at is not None and self._confirmation.due(self._confirmed_since(), now)

    def on_confirmation(self, sent: float, confirmed: bool, now: float) -> None:
        """Record the controllers' answer to the question that was sent at time ``sent``. With ``confirmed`` this
        leader still led then. False, also for no answer, makes the question due again after a pause."""
        self._confirmation.on_controller(sent, confirmed, now)

    # --- the in-sync replicas ----------------------------------------------------------------------------

    def on_state(self, state: PartitionState, now: float) -> None:
        """Take over a newer state of the partition in the same leader epoch, as the controller has committed it. It
        settles the proposal in flight. A follower outside the ISR counts for nothing until it has fetched again,
        since its log may have lost records; it is notified to do so. Proposes the next change of the ISR if one is
        due."""
        assert state.leader_epoch == self.leader_epoch and state.epoch > self.epoch
        self._take(state)
        self._update_followers(state, now)
        for node, progress in self.followers.items():
            if node not in self.isr:
                progress.forget(self._confirmation.last_stamp)
                self._notify(node)
        self._joining.clear()
        self.proposal = self._retry_at = None
        self._count()
        self._consider(now)

    def on_elr(self, eligible: tuple[NodeId, ...]) -> None:
        """Take over the replicas outside the ISR that may lead next (the ELR), in a state whose epoch is known
        already, and determine the voters anew. The answer to an ISR proposal does not name these replicas."""
        self.eligible = eligible
        self._update_voters()

    def on_tick(self, now: float) -> None:
        """Propose another ISR if one is due now, for example without the overdue members. Before that, stop holding
        the HW back for followers that no longer keep up. Nothing is proposed while a proposal is in flight."""
        if self._joining.expire(now):
            self._advance()
        self._consider(now)

    def deadline(self) -> float:
        """Return the time at which ``on_tick``, ``due_proposal`` or ``due_confirmation`` next has something to do, in
        seconds; ``inf`` if none has."""
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
        """Return the ISR proposal if it must be sent to the controller now, for the first time or again; None
        otherwise. A returned proposal counts as sent: it falls due again only after ``on_proposal_unanswered``."""
        if self.state.target:
            self._consider(now)  # a replica may be able to leave now
        if self.proposal is None or self._retry_at is None or now < self._retry_at:
            return None
        self._retry_at = None
        return self.proposal

    def on_proposal_unanswered(self, proposal: Proposal, now: float) -> None:
        """Have the same proposal sent again after ``retry_s``, because the call failed or was refused. Does nothing
        if a newer epoch has settled that proposal."""
        if proposal is self.proposal:
            self._retry_at = now + self._retry_s

    def _overdue_at(self, node: NodeId) -> float:
        """Return the time at which a follower in the ISR becomes overdue if it does not come nearer, in seconds;
        ``inf`` for never. That is so while the leader's disk stalls, and under commit rule ``quorum``."""
        if self.stalled or self._rule == "quorum":
            return math.inf
        return self.followers[node].overdue_at(self._max_lag_s, self._max_lag_records)

    def _is_fit(self, node: NodeId) -> bool:
        """Return whether a follower may join the ISR as soon as it has reached the HW: it has fetched in its present
        incarnation, is not fenced, and is durable up to the start of this leader epoch."""
        progress, server = self.followers[node], self._servers.get(node)
        return progress.is_of(server) and progress.durable >= self.epoch_start

    def _may_join(self, node: NodeId) -> bool:
        """Return whether a follower may join the ISR now: it is fit and has reached the HW. Under commit rule
        ``leader`` it is enough that it keeps up."""
        lags = self._rule == "leader" and node in self._joining
        return self._is_fit(node) and (lags or self.followers[node].durable >= self.high_watermark)

    def _consider(self, now: float) -> None:
        """Make a proposal for another ISR if one is due and none is in flight; ``due_proposal`` returns it then. From
        this moment on the members that it adds count for the HW."""
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
        self._count()

    def _broker_epoch_of(self, node: NodeId) -> int:
        """Return the broker epoch of a server: for this server its own, for others that of the metadata, or 0 if they
        do not know the server."""
        server = self._servers.get(node)
        known = server.broker_epoch if server is not None else 0
        return self._broker_epoch if node == self.node else known

    def _count(self) -> None:
        """Determine the maximal ISR anew from the committed ISR and the proposal in flight; update the voters and the
        HW accordingly."""
        proposed = () if self.proposal is None else tuple(member.node for member in self.proposal.isr)
        known = self.replicas + self._joiners
        self._counted = tuple(node for node in known if node in self.isr or node in proposed)
        self._update_voters()
        self._joining.forget(self._counted)
        self._advance()
