"""What a controller is apart from its decisions: Raft, the state that it agrees on, and who waits for what.

A request that changes something waits for its entry (``_pending``), a read for its ReadIndex (``_reads``). When this
controller ceases to lead first, or no majority confirmed in time, both are refused; what was proposed may still be
applied, and the refusal says so (``unknown_outcome``).

**Active** is the controller that leads Raft *and* has applied an entry of its own term: before that it may not know
everything that is committed. One that is to stop ceases to be active at once and hands leadership over (``on_stop``).

After a restart the state is that of the last snapshot, and the log after it is applied again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tidelog.errors import ConfigError, TidelogError, refuse
from tidelog.feature_levels import Levels, refuse_levels
from tidelog.runtime.config import setting
from tidelog.sansio.effects import Answer, Call, Event, Post, Send
from tidelog.types import NodeId
from tidelog.wire.messages import Done, Meet, Message, QuorumAnswer

from tidelog_controller.active.leader_balancer import BalanceSettings
from tidelog_controller.active.timeline_writer import TimelineSettings, ToServer
from tidelog_controller.counters import ControllerCounts
from tidelog_controller.metadata.client_sessions import RequestId, fitting
from tidelog_controller.metadata.commands import Command
from tidelog_controller.metadata.rules.feature_level import Features
from tidelog_controller.metadata.rules.owners import OwnerSettings
from tidelog_controller.metadata.rules.placement import Random
from tidelog_controller.metadata.rules.ticket_keys import with_first_key
from tidelog_controller.metadata.rules.topics import GroupsTopicSettings
from tidelog_controller.metadata.state import Applied, MetadataState
from tidelog_controller.metadata.state_machine import Replicated, decode_state, encode_proposal, step
from tidelog_controller.raft.bootstrap import Bootstrap
from tidelog_controller.raft.effects import (
    Apply,
    MembersChanged,
    Persist,
    RaftEffect,
    ReadReady,
    Restore,
    RoleChanged,
    TakeSnapshot,
)
from tidelog_controller.raft.log import Entry, Stored
from tidelog_controller.raft.raft import Raft
from tidelog_controller.raft.settings import RaftSettings
from tidelog_controller.raft.status import describe_quorum


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Times and bounds of a controller; the same on all of them."""

    session_timeout_s: float = setting(3.0, "silence after which a replica server is fenced", 0.05, 600.0)
    broken_link_grace_s: float = setting(0.75, "the same, after the link of its heartbeats broke", 0.01, 600.0)
    leader_report_window_s: float = setting(5.0, "how long a report of a dead leader counts", 0.05, 600.0)
    request_timeout_s: float = setting(5.0, "how long a request waits for a majority of the controllers", 0.05, 600.0)
    max_pending: int = setting(4096, "requests waiting for Raft; more are refused", 1, 1 << 20)
    balance: BalanceSettings = field(default_factory=BalanceSettings)
    owners: OwnerSettings = field(default_factory=OwnerSettings)
    timeline: TimelineSettings = field(default_factory=TimelineSettings)
    groups: GroupsTopicSettings = field(default_factory=GroupsTopicSettings)
    transactions: GroupsTopicSettings = field(default_factory=GroupsTopicSettings)
    raft: RaftSettings = field(default_factory=RaftSettings)


@dataclass(frozen=True, slots=True)
class MakeSnapshot:
    """Encode the state (``machine.encode_state``), which nobody changes, and bring the bytes to ``on_snapshot``. It
    may take a while: other inputs may come before."""

    index: int
    state: Replicated


@dataclass(frozen=True, slots=True)
class AddressesChanged:
    """Where the controllers are that this one talks to."""

    urls: Mapping[NodeId, str]


ControllerEffect = Persist | Send | Answer | Post | Event | MakeSnapshot | AddressesChanged | Call | ToServer


@dataclass(frozen=True, slots=True)
class _Pending:
    """Who waits for an entry to be applied, and until when."""

    source: int
    id: int
    deadline: float
    asked: type[Message] | None
    """What kind of answer, if it is no error; None: any."""


@dataclass(frozen=True, slots=True)
class _Read:
    """Who waits for the answer to a read."""

    source: int
    id: int
    deadline: float
    request: Message
    time_ms: int
    """When it came, by the wall clock."""
    peer: str


class Consensus(ABC):
    """Raft, the agreed state and the requests that wait for it; ``Controller`` makes the decisions."""

    def __init__(
        self,
        node_id: NodeId,
        peers: Mapping[NodeId, str],
        cluster: str,
        settings: ControllerSettings,
        stored: Stored,
        rng: Random,
        now: float,
        join: bool,
        levels: Levels,
    ) -> None:
        self.node_id = node_id
        self.features = Features(node_id, levels)
        self._dice = rng
        self.settings = settings
        self.raft = Raft(node_id, settings.raft, stored, rng, now)
        self.founding = Bootstrap(self.raft, peers, waits=join or stored.lost, now=now)
        self.replicated = Replicated(MetadataState(cluster))
        if stored.snapshot is not None:
            self.replicated = _decoded(stored.snapshot.data)
        self._check_level()
        self.active = False
        self.stopping = False
        self._seeds = dict(peers)
        self._leading_term: int | None = None
        self._pending: dict[int, _Pending] = {}
        self._reads: dict[int, _Read] = {}
        self._watchers: dict[int, None] = {}
        self.counts = ControllerCounts()
        self._proposed: dict[int, float] = {}
        """When this controller proposed what is not applied yet, by index."""

    @property
    def state(self) -> MetadataState:
        """The metadata after the last entry that was applied here."""
        return self.replicated.metadata

    @property
    def urls(self) -> dict[NodeId, str]:
        """Where the controllers are: what the configuration file says goes before what the group has agreed on."""
        members = self.raft.members.all
        return {m.node: self._seeds.get(m.node) or m.url for m in members} if members else dict(self._seeds)

    # --- inputs ------------------------------------------------------------------------------------------

    def on_message(self, sender: NodeId, message: Message, now: float, *, wall_ms: int = 0) -> list[ControllerEffect]:
        """A message of another controller. Raises ``ProtocolError`` for one that no correct one sends."""
        if isinstance(message, Meet):
            return self._absorb(self.founding.on_meet(sender, message, now), now)
        return self._absorb(self.raft.on_message(sender, message, now), now)

    def on_peer_lost(self, peer: NodeId, now: float) -> list[ControllerEffect]:
        """The link to another controller broke."""
        return self._absorb(self.raft.on_peer_lost(peer, now), now)

    def on_snapshot(self, index: int, data: bytes, now: float) -> list[ControllerEffect]:
        """What ``MakeSnapshot`` asked for."""
        self.counts.snapshots += 1
        return self._absorb(self.raft.on_snapshot(index, data, now), now)

    def on_stop(self, now: float) -> list[ControllerEffect]:
        """This controller is to end: it serves nobody any more and hands leadership over. It may end when
        ``may_stop``, or when it has waited long enough."""
        self.stopping = True
        if self.active:
            self.active = False
            self._on_inactive()
        return self._absorb(self.raft.leave(now), now)

    @property
    def waiting(self) -> int:
        """Requests that wait for a majority."""
        return len(self._pending) + len(self._reads)

    @property
    def watcher_count(self) -> int:
        """Links that are told every change of the metadata."""
        return len(self._watchers)

    @property
    def may_stop(self) -> bool:
        """Nobody waits for this controller."""
        return self.raft.role != "leader" or self.raft.members.majority == 1

    # --- hooks -------------------------------------------------------------------------------------------

    @abstractmethod
    def _on_active(self, now: float) -> None:
        """This controller is the active one from now on."""

    @abstractmethod
    def _on_inactive(self) -> None:
        """This controller stopped being the active one."""

    @abstractmethod
    def _on_applied(self, before: MetadataState, applied: Applied, command: Command, now: float) -> list[Event]:
        """The active controller has applied a command. What to say of it."""

    @abstractmethod
    def _on_news(self, before: MetadataState, applied: Applied | None) -> list[ControllerEffect]:
        """Watchers must hear of what was applied to ``before``; None: of everything."""

    @abstractmethod
    def _read_now(self, request: Message) -> Message | TidelogError:
        """Answer a read from the present state."""

    @abstractmethod
    def on_refused(
        self, request: Message | Command, error: TidelogError, now: float, *, wall_ms: int, peer: str = ""
    ) -> None:
        """Something was refused, here or on the way here."""

    @abstractmethod
    def _with_settings(self, answer: Message | TidelogError) -> Message | TidelogError:
        """An answer with what the metadata cannot know."""

    # --- Raft --------------------------------------------------------------------------------------------

    def _propose(
        self,
        command: Command,
        now: float,
        source: int = 0,
        id: int | None = None,
        request: RequestId | None = None,
        asked: type[Message] | None = None,
    ) -> list[ControllerEffect]:
        """``asked``: what kind of answer whoever waits takes, besides an error."""
        if not self.state.level:
            command = replace(command, level=self.features.own.newest)
        command = with_first_key(self.state, command, self._dice)
        index, effects = self.raft.propose(encode_proposal(command, request), now)
        assert index is not None, "the active controller leads Raft"
        self.counts.proposals += 1
        self._proposed[index] = now
        self._wait_for(index, source, id, now, asked)
        return self._absorb(effects, now)

    def _wait_for(
        self, index: int, source: int, id: int | None, now: float, asked: type[Message] | None = None
    ) -> None:
        if id is not None:
            self._pending[index] = _Pending(source, id, now + self.settings.request_timeout_s, asked)

    def _begin_read(
        self, source: int, id: int, request: Message, now: float, wall_ms: int, peer: str
    ) -> list[ControllerEffect]:
        token, effects = self.raft.read(now)
        assert token is not None, "the active controller has committed an entry of its term"
        self._reads[token] = _Read(source, id, now + self.settings.request_timeout_s, request, wall_ms, peer)
        return self._absorb(effects, now)

    def _change_group(
        self, index: int, effects: list[RaftEffect], source: int, id: int | None, now: float
    ) -> list[ControllerEffect]:
        """Raft has begun a change of the configuration."""
        if index <= self.raft.commit_index and not effects:
            return answer_to(source, id, Done())
        self._wait_for(index, source, id, now)
        return self._absorb(effects, now)

    def _absorb(self, effects: Iterable[RaftEffect], now: float) -> list[ControllerEffect]:
        """Raft's effects, with what happens here in their places."""
        out: list[ControllerEffect] = []
        for effect in effects:
            match effect:
                case Apply():
                    for entry in effect.entries:
                        out += self._apply(entry, now)
                case Restore(snapshot):
                    self.counts.snapshots_installed += 1
                    self.replicated = _decoded(snapshot.data)
                    self._check_level()
                    out += self._on_news(self.state, None)
                case RoleChanged():
                    self.counts.raft_elections += effect.role == "candidate"
                    out += self._on_role(effect)
                case MembersChanged():
                    out.append(AddressesChanged({n: url for n, url in self.urls.items() if n != self.node_id}))
                case TakeSnapshot(index):
                    assert self.state.index == index, (self.state.index, index)
                    out.append(MakeSnapshot(index, self.replicated))
                case ReadReady(token):
                    read = self._reads.pop(token, None)
                    if read is not None:
                        out.append(Answer(read.source, read.id, self._read(read, now)))
                case _:
                    out.append(effect)
        return out

    def _read(self, read: _Read, now: float) -> Message | TidelogError:
        answer = self._read_now(read.request)
        if isinstance(answer, TidelogError):
            self.on_refused(read.request, answer, now, wall_ms=read.time_ms, peer=read.peer)
        return answer

    def _on_role(self, change: RoleChanged) -> list[ControllerEffect]:
        fields = {"role": change.role, "term": change.term, "leader": change.leader_id}
        effects: list[ControllerEffect] = [Event("raft_role_changed", fields)]
        self._leading_term = change.term if change.role == "leader" else None
        waiting = [*self._pending.values()]
        reads = [*self._reads.values()]
        if self.active:
            self.active = False
            self._on_inactive()
            failed = len(waiting) + len(reads)
            effects.append(Event("controller_stepped_down", {"term": change.term, "requests_failed": failed}))
        self._pending, self._reads = {}, {}
        self._proposed.clear()
        unknown, known = self.not_active(unknown_outcome=True), self.not_active(unknown_outcome=False)
        effects += [Answer(pending.source, pending.id, unknown) for pending in waiting]
        effects += [Answer(read.source, read.id, known) for read in reads]
        return effects

    def _apply(self, entry: Entry, now: float) -> list[ControllerEffect]:
        before = self.state
        try:
            outcome = step(self.replicated, entry)
        except ValueError as error:
            raise ConfigError(f"entry {entry.index} of the metadata log: {error}") from error
        self.replicated = outcome.state
        self._check_level()
        effects: list[ControllerEffect] = []
        if outcome.applied is not None and outcome.command is not None:
            if self.active:
                effects += self._on_applied(before, outcome.applied, outcome.command, now)
            effects += self._on_news(before, outcome.applied)
        elif not entry.data and entry.term == self._leading_term and not self.active and not self.stopping:
            self.active = True
            self.counts.activations += 1
            self._on_active(now)
            effects.append(Event("controller_active", {"term": self._leading_term, "index": self.state.index}))
        proposed = self._proposed.pop(entry.index, None)
        if proposed is not None:
            self.counts.commits.observe(now - proposed)
        pending = self._pending.pop(entry.index, None)
        if pending is not None:
            answer = self._with_settings(fitting(outcome.answer or Done(), pending.asked))
            effects.append(Answer(pending.source, pending.id, answer))
        return effects

    def _check_level(self) -> None:
        """Raise ``ConfigError`` if this release does not support the cluster's feature level."""
        unfit = refuse_levels(self.node_id, self.features.own, self.state.level or self.features.own.newest)
        if unfit is not None:
            raise ConfigError(unfit.message)

    def _give_up(self, now: float) -> list[ControllerEffect]:
        """Requests that no majority has confirmed in time."""
        text = f"no majority of the controllers confirmed within {self.settings.request_timeout_s} s"
        late = [index for index, pending in self._pending.items() if pending.deadline <= now]
        gone = [self._pending.pop(index) for index in late]
        unread = [token for token, read in self._reads.items() if read.deadline <= now]
        reads = [self._reads.pop(token) for token in unread]
        return [
            *(Answer(one.source, one.id, refuse("NO_QUORUM", text, unknown_outcome=True)) for one in gone),
            *(Answer(one.source, one.id, refuse("NO_QUORUM", text)) for one in reads),
        ]

    def _waiting_until(self) -> float | None:
        """When the first of those who wait has waited long enough: all wait equally long, the oldest come first."""
        deadlines = [next(iter(self._pending.values())).deadline] if self._pending else []
        if self._reads:
            deadlines.append(next(iter(self._reads.values())).deadline)
        return min(deadlines, default=None)

    # --- the group ---------------------------------------------------------------------------------------

    def quorum(self, now: float) -> QuorumAnswer:
        """The group as seen from here; a leader that may not serve yet names nobody active."""
        return describe_quorum(self.raft, self.node_id, self.urls, self.active)

    def not_active(self, *, unknown_outcome: bool) -> TidelogError:
        """The refusal of who does not decide, with who does."""
        leader = self.raft.leader_id if self.raft.leader_id != self.node_id else None
        url = self.urls.get(leader, "") if leader else ""
        where = f"{leader} is, at {url}" if leader else "none is known yet: try again"
        return refuse(
            "NOT_ACTIVE_CONTROLLER",
            f"{self.node_id} is not the active controller; {where}",
            unknown_outcome=unknown_outcome,
            leader=leader or "",
            url=url,
        )


def answer_to(source: int, id: int | None, message: Message | TidelogError) -> list[ControllerEffect]:
    """The answer, if somebody waits for it."""
    return [] if id is None else [Answer(source, id, message)]


def _decoded(data: bytes) -> Replicated:
    try:
        return decode_state(data)
    except ValueError as error:
        raise ConfigError(f"the snapshot of the metadata cannot be read: {error}") from error
