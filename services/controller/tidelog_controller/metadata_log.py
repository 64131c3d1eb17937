"""The metadata log: commands go into Raft, and come out committed and applied to the state.

``MetadataLog`` owns Raft, the replicated state, and the requests that wait. ``Controller`` owns one ``MetadataLog``
and makes the decisions. Each input yields, in the order in which they must happen, effects to perform and *events*
for the controller, which takes all of them before it gives the next input:

    CommandApplied    a command was committed and applied to the state
    StateRestored     the state was replaced by a snapshot of the leader
    BecameActive      this controller is the active one from now on
    BecameInactive    it is no more
    ReadConfirmed     the state is recent enough to answer a read

A request that changes something waits for its entry (``propose``), a read for its ReadIndex (``read``). If this
controller stops leading first, or no majority confirms in time, both are refused. What was proposed may still be
applied, and the refusal says so (``unknown_outcome``).

The **active** controller leads Raft *and* has applied an entry of its own term: before that it may not know
everything that is committed. A controller that is to stop becomes inactive at once and hands leadership over
(``on_stop``).

After a restart the state is that of the last snapshot, and the log after it is applied again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tidelog.errors import ConfigError, TidelogError, refuse
from tidelog.feature_levels import Levels, refuse_levels
from tidelog.sansio.effects import Answer, Event, Send
from tidelog.types import NodeId
from tidelog.wire.messages import ControllerInfo, Done, Meet, Message, QuorumAnswer

from tidelog_controller.config import ControllerSettings
from tidelog_controller.counters import ControllerCounts
from tidelog_controller.metadata.client_sessions import RequestId, fitting
from tidelog_controller.metadata.commands import Command
from tidelog_controller.metadata.rules.placement import Random
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
from tidelog_controller.raft.log import Entry, PersistentState
from tidelog_controller.raft.membership import Configuration, Standing
from tidelog_controller.raft.raft import Raft


@dataclass(frozen=True, slots=True)
class Request:
    """A message of a client, gateway or replica server that asks something of this controller, with the link over
    which the answer goes. It lives until it is answered."""

    source: int
    """The number of the link over which the message came."""
    id: int | None
    """The number that the answer carries; None if no answer is wanted."""
    message: Message
    wall_ms: int
    """The wall clock in milliseconds when the message came."""
    peer: str
    """The name of the process at the other end of the link."""

    def answer(self, message: Message | TidelogError) -> list[Answer]:
        """Return a list with one effect, which sends ``message`` as the answer or refusal of this request; an empty
        list if no answer is wanted."""
        return [] if self.id is None else [Answer(self.source, self.id, message)]


@dataclass(frozen=True, slots=True)
class MakeSnapshot:
    """An effect for the shell: encode ``state``, the state after entry ``index``, with
    ``state_machine.encode_state``, and pass the bytes to ``on_snapshot`` with this index. The state is immutable, so
    the encoding may take long and other inputs may come before it ends."""

    index: int
    state: Replicated


@dataclass(frozen=True, slots=True)
class AddressesChanged:
    """An effect for the shell: from now on the other controllers have these URLs, by name. Links to other URLs are
    closed, and missing links are opened."""

    urls: Mapping[NodeId, str]


@dataclass(frozen=True, slots=True)
class CommandApplied:
    """An event of the metadata log for its ``Controller``: a committed command was applied to the state ``before``,
    with the outcome ``applied``. ``active`` says whether this controller was the active one at that moment."""

    before: MetadataState
    applied: Applied
    command: Command
    active: bool


@dataclass(frozen=True, slots=True)
class StateRestored:
    """An event of the metadata log for its ``Controller``: the metadata were replaced by ``state``, from a snapshot
    that the Raft leader sent."""

    state: MetadataState


@dataclass(frozen=True, slots=True)
class BecameActive:
    """An event of the metadata log for its ``Controller``: this controller is the active one from now on. ``state``
    is the metadata at that moment."""

    state: MetadataState


@dataclass(frozen=True, slots=True)
class BecameInactive:
    """An event of the metadata log for its ``Controller``: this controller is no longer the active one."""


@dataclass(frozen=True, slots=True)
class ReadConfirmed:
    """An event of the metadata log for its ``Controller``: it is proved that this controller still led Raft after the
    read ``request`` came, so the read may be answered now, from ``state``. ``active`` is False if this controller has
    begun to stop meanwhile. A read for which no proof came in time is refused without this event."""

    request: Request
    state: MetadataState
    active: bool


LogEvent = CommandApplied | StateRestored | BecameActive | BecameInactive | ReadConfirmed
LogEffect = Persist | Send | Answer | Event | MakeSnapshot | AddressesChanged
LogOutput = LogEvent | LogEffect


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request that waits for a majority of the controllers, and the time in seconds after which it is refused."""

    request: Request
    deadline: float

    def answer(self, message: Message | TidelogError) -> list[Answer]:
        """Return the effects that answer the request with ``message``; an empty list if no answer is wanted."""
        return self.request.answer(message)


class MetadataLog:
    """Raft, the metadata that the applied entries make, and the requests that wait for an entry or for the proof that
    this controller leads. Each controller has one as long as it runs. Its methods return effects and events in the
    order in which they must happen."""

    def __init__(
        self,
        node_id: NodeId,
        peers: Mapping[NodeId, str],
        cluster: str,
        settings: ControllerSettings,
        stored: PersistentState,
        rng: Random,
        now: float,
        *,
        join: bool,
        levels: Levels,
        counts: ControllerCounts,
    ) -> None:
        """Restore Raft and the metadata of the last snapshot from ``stored``, the content of the disk. If the store
        belongs to no cluster yet, ``peers`` are the controllers (URL by name) that found one together, or with
        ``join`` those of a cluster that this controller waits to be added to. The other arguments are those of
        ``Controller``. Raises ``ConfigError`` if this release cannot read the snapshot or does not support the
        cluster's feature level."""
        self.node_id = node_id
        self.raft = Raft(node_id, settings.raft, stored, rng, now)
        self.bootstrap = Bootstrap(self.raft, peers, waits=join or stored.lost, now=now)
        self._levels = levels
        self.replicated = Replicated(MetadataState(cluster))
        if stored.snapshot is not None:
            self.replicated = _decoded(stored.snapshot.data)
        self._check_level()
        self.active = False
        self.stopping = False
        self._request_timeout_s = settings.request_timeout_s
        self._seeds = dict(peers)
        self._leading_term: int | None = None
        self._pending: dict[int, _Waiting] = {}
        """Requests that wait until their entry is applied, by the index of the entry."""
        self._reads: dict[int, _Waiting] = {}
        """Reads that wait until leadership is confirmed, by the token that Raft gave them."""
        self._proposed: dict[int, float] = {}
        """The time at which this controller proposed each entry that is not applied yet, by index."""
        self._counts = counts

    # --- what others read --------------------------------------------------------------------------------

    @property
    def state(self) -> MetadataState:
        """Return the metadata after the last entry that this controller has applied. They may be out of date unless
        it is active."""
        return self.replicated.metadata

    @property
    def term(self) -> int:
        """Return the latest Raft term that this controller has seen."""
        return self.raft.term

    @property
    def members(self) -> Configuration:
        """Return the configuration of the group of controllers that is in force, committed or not; an empty one
        before the cluster is founded."""
        return self.raft.members

    @property
    def urls(self) -> dict[NodeId, str]:
        """Return the URL of each controller of the group by name. A URL in the configuration file takes precedence
        over the one in the group's list. Before the cluster is founded, return the URLs of the file."""
        members = self.raft.members.all
        return {m.node: self._seeds.get(m.node) or m.url for m in members} if members else dict(self._seeds)

    @property
    def waiting(self) -> int:
        """Return the number of requests and reads that wait for a majority of the controllers."""
        return len(self._pending) + len(self._reads)

    @property
    def may_stop(self) -> bool:
        """Return whether this process may end without leaving the group without a leader: it does not lead Raft, or
        it is the only voter, so that no other controller could take over anyway."""
        return self.raft.role != "leader" or self.raft.members.majority == 1

    def term_at(self, index: int) -> int | None:
        """Return the term of the entry at this index; None if it is compacted away or not in the log."""
        return self.raft.log.term_at(index)

    def quorum(self, now: float) -> QuorumAnswer:
        """Return a description of the group of controllers as this one sees it: the active controller, the term, the
        commit index, and for each controller its URL, its role, whether it votes and how far its log reaches. Only
        the leader knows how far the other logs reach, and which controllers are silent. The name of the active
        controller is "" if none is known or the leader may not serve yet."""
        raft, node_id, leader = self.raft, self.node_id, self.raft.leader_id
        named = leader if leader != node_id or self.active else None
        own = "follower" if raft.role == "follower" else "candidate"
        others = "unknown" if leader is None else "follower"
        standings = raft.standings()
        controllers = []
        for node, url in self.urls.items():
            member = raft.members.find(node)
            role = "leader" if node == leader else own if node == node_id else others
            role = "unknown" if raft.is_silent(node, now) else role
            votes = member is not None and member.voter
            of = standings.get(node, Standing())
            controllers.append(
                ControllerInfo(node, url, role, votes, of.match, of.lost, of.rolled_back, of.refill_to)
            )
        answer = QuorumAnswer(named or "", raft.term, raft.commit_index, tuple(controllers))
        return replace(answer, disks_needed=raft.disks_needed)

    def refuse_inactive(self, *, unknown_outcome: bool) -> TidelogError:
        """Return the error ``NOT_ACTIVE_CONTROLLER`` for a request to a controller that is not active, with name and
        URL of the active controller if they are known. ``unknown_outcome`` says that the request may have been
        carried out, or may still be."""
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

    # --- proposals and reads -----------------------------------------------------------------------------

    def propose(
        self, command: Command, now: float, request: Request | None = None, request_id: RequestId | None = None
    ) -> Iterator[LogOutput]:
        """Append a command to the Raft log, and return the effects and events. Only the active controller may call
        it; otherwise an assertion fails. ``request``, if any, is answered with the outcome when the command is
        applied, or refused if that does not happen in time. A command whose ``request_id`` was applied before changes
        nothing and has the first outcome."""
        index, effects = self.raft.propose(encode_proposal(command, request_id), now)
        assert index is not None, "the active controller leads Raft"
        self._counts.proposals += 1
        self._proposed[index] = now
        if request is not None:
            self._wait_for(index, request, now)
        return self._absorb(effects, now)

    def read(self, request: Request, now: float) -> Iterator[LogOutput]:
        """Begin to prove that this controller still leads, so that the read ``request`` may be answered, and return
        the effects and events. ``ReadConfirmed`` follows with the proof; otherwise the read is refused when
        leadership is lost or the time is up. Only the active controller may call it; otherwise an assertion fails."""
        token, effects = self.raft.read(now)
        assert token is not None, "the active controller has committed an entry of its term"
        self._reads[token] = _Waiting(request, now + self._request_timeout_s)
        return self._absorb(effects, now)

    def add_controller(
        self, node: NodeId, url: str, request: Request, now: float
    ) -> Iterable[LogOutput] | TidelogError:
        """Begin to add the controller ``node`` at ``url`` to the group as a learner, which becomes a voter by itself
        once it keeps up. ``request`` is answered when the change is committed, or at once if nothing changes. Return
        the effects and events; or an error if another change is not committed yet, or the change would risk the
        majority."""
        return self._begin_change(*self.raft.add_member(node, url, now), request, now)

    def remove_controller(self, node: NodeId, request: Request, now: float) -> Iterable[LogOutput] | TidelogError:
        """Begin to remove the controller ``node`` from the group. ``request`` is answered when the change is
        committed. Return the effects and events; or an error if the controller is unknown, another change is not
        committed yet, or the change would risk the majority."""
        return self._begin_change(*self.raft.remove_member(node, now), request, now)

    def _begin_change(
        self, index: int | TidelogError, effects: list[RaftEffect], request: Request, now: float
    ) -> Iterable[LogOutput] | TidelogError:
        """Let a request wait for the change of the group at entry ``index``, or answer it at once if that entry is
        committed already. Return the effects and events. If Raft returned an error in place of the index, return that
        error."""
        if isinstance(index, TidelogError):
            return index
        if index <= self.raft.commit_index and not effects:
            return request.answer(Done())
        self._wait_for(index, request, now)
        return self._absorb(effects, now)

    def _wait_for(self, index: int, request: Request, now: float) -> None:
        """Let a request wait for the entry at this index until the request timeout. Does nothing if no answer is
        wanted."""
        if request.id is not None:
            self._pending[index] = _Waiting(request, now + self._request_timeout_s)

    # --- inputs ------------------------------------------------------------------------------------------

    def on_message(self, sender: NodeId, message: Message, now: float) -> Iterator[LogOutput]:
        """Pass a message of another controller to Raft, or a ``Meet`` to the founding of the cluster, and return the
        effects and events. Raises ``ProtocolError``, with the state of Raft unchanged, for a message that no correct
        controller sends."""
        if isinstance(message, Meet):
            return self._absorb(self.bootstrap.on_meet(sender, message, now), now)
        return self._absorb(self.raft.on_message(sender, message, now), now)

    def on_peer_lost(self, peer: NodeId, now: float) -> Iterator[LogOutput]:
        """Handle a broken link to the controller ``peer``, and return the effects and events. If ``peer`` leads Raft,
        this controller stands for election soon; otherwise nothing happens."""
        return self._absorb(self.raft.on_peer_lost(peer, now), now)

    def on_snapshot(self, index: int, data: bytes, now: float) -> Iterator[LogOutput]:
        """Store ``data``, the encoded state after entry ``index`` that a ``MakeSnapshot`` effect asked for, as Raft's
        snapshot, and compact the log. Return the effects; none if Raft has that snapshot or a later one."""
        self._counts.snapshots += 1
        return self._absorb(self.raft.on_snapshot(index, data, now), now)

    def on_link_closed(self, source: int) -> None:
        """Forget the requests that came over the link ``source``, which has closed: they are never answered. The
        commands that were proposed for them may still be applied."""
        self._pending = {index: one for index, one in self._pending.items() if one.request.source != source}
        self._reads = {token: one for token, one in self._reads.items() if one.request.source != source}

    def on_stop(self, now: float) -> Iterator[LogOutput]:
        """Become inactive at once, hand the leadership of Raft over, and return the effects and events. The process
        may end when ``may_stop`` is true, or when it has waited long enough."""
        self.stopping = True
        yield from self._become_inactive()
        yield from self._absorb(self.raft.leave(now), now)

    def on_tick(self, now: float) -> Iterator[LogOutput]:
        """Run the timers of founding and of Raft, refuse with ``NO_QUORUM`` the requests that no majority has
        confirmed in time, and return the effects and events. Afterwards ``deadline()`` is None or later than
        ``now``."""
        yield from self._absorb(self.bootstrap.on_tick(now), now)
        yield from self._absorb(self.raft.on_tick(now), now)
        yield from self._give_up(now)

    def deadline(self) -> float | None:
        """Return the time in seconds at which ``on_tick`` has something to do; None if nothing is planned and no
        request waits."""
        deadlines = [self.bootstrap.deadline(), self.raft.deadline()]
        # all requests wait equally long, so the first is due first
        deadlines += [next(iter(waiting.values())).deadline for waiting in (self._pending, self._reads) if waiting]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def _give_up(self, now: float) -> list[Answer]:
        """Forget the requests whose time is up, and return their refusals (``NO_QUORUM``). The outcome of a change is
        unknown then; a read was not done."""
        text = f"no majority of the controllers confirmed within {self._request_timeout_s} s"
        late = [index for index, waiting in self._pending.items() if waiting.deadline <= now]
        answers = []
        for index in late:
            answers += self._pending.pop(index).answer(refuse("NO_QUORUM", text, unknown_outcome=True))
        unread = [token for token, waiting in self._reads.items() if waiting.deadline <= now]
        for token in unread:
            answers += self._reads.pop(token).answer(refuse("NO_QUORUM", text))
        return answers

    # --- what Raft decided -------------------------------------------------------------------------------

    def _absorb(self, effects: Iterable[RaftEffect], now: float) -> Iterator[LogOutput]:
        """Carry out Raft's effects that concern the metadata, and return the others with what follows from them, in
        order: committed entries are applied, a snapshot of the leader replaces the state, a change of role makes this
        controller inactive, and a confirmed read becomes an event. An entry is applied when its outputs are asked
        for: of a long log no more than two states are in memory at a time."""
        for effect in effects:
            match effect:
                case Apply():
                    for entry in effect.entries:
                        yield from self._apply(entry, now)
                case Restore(snapshot):
                    self._counts.snapshots_installed += 1
                    self.replicated = _decoded(snapshot.data)
                    self._check_level()
                    yield StateRestored(self.state)
                case RoleChanged():
                    self._counts.raft_elections += effect.role == "candidate"
                    yield from self._on_role(effect)
                case MembersChanged():
                    yield AddressesChanged({n: url for n, url in self.urls.items() if n != self.node_id})
                case TakeSnapshot(index):
                    assert self.state.index == index, (self.state.index, index)
                    yield MakeSnapshot(index, self.replicated)
                case ReadReady(token):
                    read = self._reads.pop(token, None)
                    if read is not None:
                        yield ReadConfirmed(read.request, self.state, self.active)
                case _:
                    yield effect

    def _on_role(self, change: RoleChanged) -> list[LogOutput]:
        """Handle a change of Raft's role, term or leader: become inactive, and refuse all requests that wait. Return
        the event, the refusals and the log lines. The outcome of a change is unknown then; a read was not done."""
        fields = {"role": change.role, "term": change.term, "leader": change.leader_id}
        outputs: list[LogOutput] = [Event("raft_role_changed", fields)]
        self._leading_term = change.term if change.role == "leader" else None
        if self.active:
            outputs += self._become_inactive()
            outputs.append(Event("controller_stepped_down", {"term": change.term, "requests_failed": self.waiting}))
        pending, self._pending = self._pending, {}
        reads, self._reads = self._reads, {}
        self._proposed.clear()
        unknown, known = self.refuse_inactive(unknown_outcome=True), self.refuse_inactive(unknown_outcome=False)
        for waiting in pending.values():
            outputs += waiting.answer(unknown)
        for waiting in reads.values():
            outputs += waiting.answer(known)
        return outputs

    def _become_inactive(self) -> list[LogOutput]:
        """Stop being the active controller, and return the event that reports it; an empty list if this controller
        was not active."""
        was_active, self.active = self.active, False
        return [BecameInactive()] if was_active else []

    def _apply(self, entry: Entry, now: float) -> list[LogOutput]:
        """Apply a committed entry to the state, and return the event and the answer to the request that waits for the
        entry. The no-op at the beginning of this controller's term as leader makes it the active controller, unless
        it is stopping. Raises ``ConfigError`` for a command that this release does not know."""
        before = self.state
        try:
            outcome = step(self.replicated, entry)
        except ValueError as error:
            raise ConfigError(f"entry {entry.index} of the metadata log: {error}") from error
        self.replicated = outcome.state
        self._check_level()
        outputs: list[LogOutput] = []
        if outcome.applied is not None and outcome.command is not None:
            outputs.append(CommandApplied(before, outcome.applied, outcome.command, self.active))
        elif not entry.data and entry.term == self._leading_term and not self.active and not self.stopping:
            self.active = True
            self._counts.activations += 1
            outputs.append(BecameActive(self.state))
            outputs.append(Event("controller_active", {"term": self._leading_term, "index": self.state.index}))
        proposed = self._proposed.pop(entry.index, None)
        if proposed is not None:
            self._counts.commits.observe(now - proposed)
        waiting = self._pending.pop(entry.index, None)
        if waiting is not None:
            outputs += waiting.answer(fitting(outcome.answer or Done(), waiting.request.message.ANSWER))
        return outputs

    def _check_level(self) -> None:
        """Raise ``ConfigError`` if this release does not support the cluster's feature level."""
        unfit = refuse_levels(self.node_id, self._levels, self.state.level or self._levels.newest)
        if unfit is not None:
            raise ConfigError(unfit.message)


def _decoded(data: bytes) -> Replicated:
    """Return the state that the bytes of a snapshot encode. Raises ``ConfigError`` if they cannot be decoded."""
    try:
        return decode_state(data)
    except ValueError as error:
        raise ConfigError(f"the snapshot of the metadata cannot be read: {error}") from error
