"""A leader's side of replication, per partition and leader epoch: what is committed, and which replicas are in sync.

Everything below the high watermark (HW) is committed. The HW never goes back, and stands still while the committed
ISR is smaller than ``min_insync_replicas``. By the topic's commit rule it is the largest offset that is durable on

    isr      every member of the maximal ISR, the leader included
    leader   the leader
    quorum   a majority of the replicas, counting members of the committed ISR only (their promises hold), once that
             is past the start of this leader epoch (Raft 5.4.2; a control batch stands there, so it gets there).
             A slow replica delays no commit, so the ISR never shrinks here

The *maximal ISR* is the ISR that the controller committed plus every member of the proposal in flight (KIP-497): the
controller may have committed an addition that the leader has not heard of, and may elect the added one. So an
addition counts from the moment it is proposed, a removal only when the controller's new state arrives. At most
one proposal is in flight; it is sent again *identical* until a state of a newer epoch arrives. No lost, late or
refusing answer clears it: a delayed copy could still be committed.

A follower counts for nothing until it has fetched in this leader epoch, and again when it has left the ISR, perhaps
because what it had is lost; what counts is its *flushed* end.

    in sync    not overdue (``progress.py``); judged by the leader's own timer, also when no follower fetches
    may join   fetched in this epoch and since it left the ISR, durable at or past the HW *and* the start of this
               epoch, in the broker epoch that the metadata knows, not fenced (with the HW alone, three leader changes
               lose data); the HW waits for one that keeps up (``replication/isr.py``)

While the leader's own disk stalls (``stalled``) no member is removed: leadership is handed over first (KIP-501).
A *learner* is a follower like the others, but in no ISR and no rule.

A new leader's HW may be below the true one until it reaches the start of its epoch (``knows_end``): until then
nothing above it is shown to readers, so that they never see the end of the log go back (KIP-207).

Linearizable reads: ``confirmed_at`` is the latest time such that everything committed anywhere until then lies below
the HW; ``ask_confirmation(now)`` has it brought up to ``now`` (the proof is in ``leadership_confirmation.py``).
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
    """Decides with offsets. ``servers`` is a live view of the metadata's servers, kept by the caller."""

    agrees = True

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
        """Where this leader epoch begins in the log."""
        self.began_at = now
        """When this server began to lead in this leader epoch."""
        self.high_watermark = high_watermark
        self.proposal: Proposal | None = None
        """In flight: not settled by a newer epoch yet."""
        self.stalled = False
        """The leader's own disk does not answer."""
        self._broker_epoch = broker_epoch
        self._servers = servers
        self._rule = commit_rule
        self._confirmation = LeadershipConfirmation(patience_s, retry_s)
        self._alone_at = -math.inf
        """When this leader, without controllers, last found that it knows of no other replica that could be
        elected."""
        self._joining = CatchUpBarrier()
        self._notices: list[IdleFollower] = []
        self.aware_after = self._confirmation.last_stamp
        """Every message with a greater stamp names HW and log start as they are. A follower that has shown such a
        stamp and idles at the log end is aware of both."""
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
        """A new leader needs the seals of a majority. A successor needs none: it must have confirmed itself."""
        self._voters: tuple[NodeId, ...] = ()
        """The other replicas that the controllers could elect, or whose votes the next election needs. Where a
        majority decides, a learner that is about to become a replica has no vote: a majority of the replicas before
        it joins and one of those after it joins have a member in common without it."""
        self._witnesses: tuple[NodeId, ...] = ()
        """The others whose fetches prove that no other replica leads: the voters. A leader without voters takes every
        other replica, since unclean elections may be allowed by now."""
        self._update_voters()
        self.followers: dict[NodeId, FollowerProgress] = {}
        """Of the other replicas and the learners."""
        self._update_followers(state, now)
        self._advance()
        self._consider(now)  # a reassignment may have waited for another leader

    def _take(self, state: PartitionState) -> None:
        """What the controller has committed."""
        self.state, self.epoch = state, state.epoch
        self.replicas, self.isr, self.eligible = state.replicas, state.isr, state.elr
        self._joiners = joiners(state)

    def _update_followers(self, state: PartitionState, now: float) -> None:
        kept, others = self.followers, (n for n in state.replicas + state.learners if n != self.node)
        self.followers = {n: kept.get(n) or FollowerProgress(now, self._log_end, now) for n in others}

    def configure(
        self, *, min_insync_replicas: int, max_lag_s: float, max_lag_records: int, unclean_election: bool, now: float
    ) -> None:
        """The topic's settings changed."""
        self._min_insync_replicas = min_insync_replicas
        self._max_lag_s, self._max_lag_records = max_lag_s, max_lag_records
        self._any_may_lead = unclean_election
        self._update_voters()
        self._advance()
        self._consider(now)

    # --- what others may know --------------------------------------------------------------------------

    @property
    def maximal_isr(self) -> tuple[NodeId, ...]:
        """Every replica that may be in the controller's ISR."""
        return self._counted

    @property
    def knows_end(self) -> bool:
        """The HW has reached the start of this epoch: nothing committed before is unknown."""
        return self.high_watermark >= self.epoch_start

    @property
    def settles_older_epochs(self) -> bool:
        """No replica that may lead next has a record of an older leader epoch that this log lacks. That is so when
        something of this epoch is committed. It is also so when every replica that may lead next has fetched in this
        epoch from where it began, since what this log lacks was cut there first."""
        if self.high_watermark > self.epoch_start:
            return True
        others = any(node not in self._counted for node in self.eligible)
        return self._rule == "isr" and self.knows_end and not self.awaited and not others

    @property
    def awaited(self) -> tuple[NodeId, ...]:
        """Members, perhaps this leader too, that have not shown yet that they hold everything that was in the log
        when this leader epoch began. Before they have, the HW cannot reach ``epoch_start``."""
        return tuple(node for node in self._counted if self._durable_of(node) < self.epoch_start)

    @property
    def has_quorum(self) -> bool:
        """The ISR is large enough for ``all`` produces, and for the HW to move."""
        return len(self.isr) >= self.min_insync

    @property
    def min_insync(self) -> int:
        """How many members the ISR needs at least."""
        return max(self._min_insync_replicas, self._majority if self._rule == "quorum" else 0)

    @property
    def _majority(self) -> int:
        return len(self.replicas) // 2 + 1

    @property
    def can_be_spared(self) -> bool:
        """Commit rule ``quorum``: the others are a majority, and fetch. A server whose disk is full does not
        fetch."""
        return sum(p.broker_epoch >= 0 for n, p in self.followers.items() if n in self.isr) >= self._majority

    def refuse_epoch(self, leader_epoch: int) -> TidelogError | None:
        """Return why a request that names this leader epoch is not served; -1 names none."""
        return refuse_leader_epoch(leader_epoch, self.leader_epoch, self.node)

    def refuse_follower(self, node: NodeId, broker_epoch: int, leader_epoch: int) -> TidelogError | None:
        """Return why a fetch or epoch request of that incarnation of ``node`` is not served; None if it is."""
        progress = self.followers.get(node)
        if progress is None:
            return refuse("NOT_REPLICA", f"{node} is no follower of this partition")
        if broker_epoch < progress.broker_epoch:
            return refuse("FENCED_BROKER_EPOCH", f"{node} has fetched in broker epoch {progress.broker_epoch}")
        return self.refuse_epoch(leader_epoch)

    # --- the log moves -----------------------------------------------------------------------------------

    def on_append(self, log_end: int, now: float) -> None:
        """The log ends at ``log_end`` now. Followers that idle are notified."""
        self._log_end = log_end
        for node, progress in self.followers.items():
            progress.on_append(log_end, now)
            self._notify(node)

    def on_durable(self, durable: int) -> None:
        """The leader's own log is flushed up to here."""
        if durable > self._durable:
            self._durable = durable
            self._advance()

    def on_fetch(self, node: NodeId, broker_epoch: int, durable: int, now: float, stamp: int = 0) -> None:
        """A follower that does not diverge has flushed up to ``durable``; ``stamp`` is the greatest that it had seen
        in this leader epoch."""
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
        """The follower has all there is: notify it over ``source`` when something comes, with ``readers`` also when
        the HW moves; or at once, where its fetch was sent too early to count, or to confirm what a request waits
        for."""
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
        """HW or log start have moved: no message before names them as they are."""
        self.aware_after = self._confirmation.last_stamp

    def _notify(self, node: NodeId) -> None:
        progress = self.followers[node]
        if progress.waiting is not None:
            self._notices.append(IdleFollower(node, progress.waiting, progress.waits_at))
            progress.waiting = None

    def take_notices(self) -> list[IdleFollower]:
        """Return the followers to be notified now, each one time."""
        notices, self._notices = self._notices, []
        return notices

    def on_source_closed(self, source: int) -> None:
        """The link is gone; the follower will ask again over another."""
        for progress in self.followers.values():
            if progress.waiting == source:
                progress.waiting = None

    def _advance(self) -> None:
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
        """The commit rule; the ISR is not below its minimum."""
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
        return self._durable if node == self.node else self.followers[node].durable

    # --- does it still lead? -----------------------------------------------------------------------------

    @property
    def confirmed_at(self) -> float:
        """Everything committed until then, anywhere, lies below the HW; ``-inf``: not known of any time."""
        return self._confirmed_since() if self.knows_end else -math.inf

    @property
    def fresh_at(self) -> float:
        """As ``confirmed_at``, but a leader without voters takes its own word. That is not right where unclean
        elections were allowed on the other side of a broken network."""
        return max(self._confirmed_since(), self._alone_at) if self.knows_end else -math.inf

    def _confirmed_since(self) -> float:
        witnesses = self._witnesses
        return self._confirmation.since(witnesses, self._needed(len(witnesses)))

    def _update_voters(self) -> None:
        """Determine the voters anew: the state, the members that count, or the topic's settings have changed."""
        quorum = self._rule == "quorum"
        self._by_majority = quorum and not self._any_may_lead and self.state.successor is None
        may = self.replicas if self._any_may_lead or quorum else self.eligible
        electors = tuple(n for n in self.replicas + self._joiners if n in self._counted or n in may)
        voters = self.replicas if self._by_majority else electors
        self._voters = tuple(node for node in voters if node != self.node)
        self._witnesses = self._voters or tuple(node for node in self.replicas if node != self.node)

    def _needed(self, others: int) -> int:
        """How many of so many ``others`` have to confirm this leadership: all, or so many that they are a majority
        together with this leader."""
        return len(self.replicas) // 2 if self._by_majority else others

    def unconfirmed(self, since: float) -> tuple[NodeId, ...]:
        """The voters that have not confirmed this leadership since that time; () where enough of them have, or where
        the controllers could elect no other replica."""
        if not self.needs_voters or self._confirmed_since() >= since:
            return ()
        return tuple(node for node in self._voters if self._confirmation.confirmed_at(node) < since)

    @property
    def needs_voters(self) -> bool:
        """Whether the controllers could elect another replica, or need the votes of others."""
        return self._needed(len(self._voters)) > 0

    def confirm_alone(self, now: float) -> None:
        """Take note that no controller answers and that this leader needs no voters, so it may serve clients. Where
        there are no other replicas, none can lead now."""
        assert not self.needs_voters
        self._alone_at = now
        if not self._witnesses:
            self._confirmation.confirm(now)

    def ask_voters(self, now: float) -> None:
        """Have the voters confirm this leadership. Unlike ``ask_confirmation`` this never asks the controllers."""
        self._confirmation.asked_at = now
        for node in self._voters:
            self._notify(node)

    def ask_confirmation(self, now: float) -> None:
        """A request waits for ``confirmed_at`` to reach ``now``. (Followers are asked at least one time.)"""
        self._confirmation.ask(now, alone=not self.needs_voters)
        for node in self._witnesses:
            self._notify(node)

    def stamp(self, node: NodeId, now: float) -> int:
        """For a message that leaves for a follower now."""
        return self._confirmation.stamp(node, now)

    def due_confirmation(self, now: float) -> bool:
        """The controller must be asked now whether this is still the leader; see ``on_confirmation``."""
        return self._confirmation.call_at is not None and self._confirmation.due(self._confirmed_since(), now)

    def on_confirmation(self, sent: float, confirmed: bool, now: float) -> None:
        """What the controller answered to the question of the time ``sent``; False also where it did not answer."""
        self._confirmation.on_controller(sent, confirmed, now)

    # --- the in-sync replicas ----------------------------------------------------------------------------

    def on_state(self, state: PartitionState, now: float) -> None:
        """The controller's newer state of the same leader epoch. It settles the proposal in flight. A follower
        outside the ISR may be on its way out, or have lost what it had: it joins when it has fetched again, and is
        notified to do so."""
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
        """Learn which replicas outside the ISR may lead next, in a state whose epoch is known already. The answer to
        an ISR proposal does not name them."""
        self.eligible = eligible
        self._update_voters()

    def on_tick(self, now: float) -> None:
        """Propose to remove the members of the ISR that are overdue."""
        if self._joining.expire(now):
            self._advance()
        self._consider(now)

    def deadline(self) -> float:
        """When ``on_tick`` or ``due_proposal`` has something to do; ``inf`` where no follower is behind."""
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
        """The proposal, if it must be sent now (again); it is then on its way until ``on_proposal_unanswered``."""
        if self.state.target:
            self._consider(now)  # what a replica waited for to go may have come
        if self.proposal is None or self._retry_at is None or now < self._retry_at:
            return None
        self._retry_at = None
        return self.proposal

    def on_proposal_unanswered(self, proposal: Proposal, now: float) -> None:
        """The call failed or was refused: the same again after a pause, unless a newer epoch has settled it."""
        if proposal is self.proposal:
            self._retry_at = now + self._retry_s

    def _overdue_at(self, node: NodeId) -> float:
        """When a member of the ISR has to leave it, as things are; ``inf``: never."""
        if self.stalled or self._rule == "quorum":
            return math.inf
        return self.followers[node].overdue_at(self._max_lag_s, self._max_lag_records)

    def _is_fit(self, node: NodeId) -> bool:
        """It may join when it has reached the HW."""
        progress, server = self.followers[node], self._servers.get(node)
        return progress.is_of(server) and progress.durable >= self.epoch_start

    def _may_join(self, node: NodeId) -> bool:
        lags = self._rule == "leader" and node in self._joining
        return self._is_fit(node) and (lags or self.followers[node].durable >= self.high_watermark)

    def _consider(self, now: float) -> None:
        """Propose another ISR where one is due and none is in flight."""
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
        server = self._servers.get(node)
        known = server.broker_epoch if server is not None else 0
        return self._broker_epoch if node == self.node else known

    def _count(self) -> None:
        proposed = () if self.proposal is None else tuple(member.node for member in self.proposal.isr)
        known = self.replicas + self._joiners
        self._counted = tuple(node for node in known if node in self.isr or node in proposed)
        self._update_voters()
        self._joining.forget(self._counted)
        self._advance()
