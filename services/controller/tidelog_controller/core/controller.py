"""One controller: Raft, the metadata it agrees on, and the decisions of the active one, as one sync state machine.

    request -> refused, or a command -> Raft -> applied -> answer to whoever asked, deltas to all watchers

- **Active** is the controller that leads Raft *and* has applied an entry of its own term: before that it may not
  know everything that is committed. Only it serves requests; ``Watch`` and ``DescribeQuorum`` are served by all.
- A request that changes something is answered when its command is applied, by what the command came to then.
  When this controller ceases to be active first, or nothing was committed for ``request_timeout_s``, the answer
  says ``unknown_outcome``: the command may still be applied.
- Watchers get the whole image once, then every change in commit order. A change is posted before the request
  that made it is answered: who asked and watches over one link never sees its own change missing.
- Sessions, leader reports and seals are volatile (``election.py``); a new active controller grants everybody a full
  session.
- Raft's log holds everything: after a restart it is applied again from its begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tidelog.config import setting
from tidelog.effects import Answer, Event, Post, Send
from tidelog.errors import TidelogError, refuse
from tidelog.types import NodeId
from tidelog.wire.image import encode_image
from tidelog.wire.messages import (
    AllocateProducerIds,
    AlterIsr,
    AlterLearners,
    AlterTopic,
    ConfirmLeader,
    ControllerInfo,
    CreateTopic,
    DeleteTopic,
    DescribeQuorum,
    Done,
    HandOver,
    Heartbeat,
    History,
    HistoryAnswer,
    Message,
    MetadataUpdate,
    QuorumAnswer,
    Register,
    Registered,
    ReportLeader,
    ReportLoss,
    Seal,
    Watch,
)

from tidelog_controller.core.balance import Balance, BalanceSettings
from tidelog_controller.core.commands import (
    ChangeIsr,
    Command,
    ConfirmLeadership,
    LeaveParts,
    RecordLoss,
    RegisterServer,
    RemoveTopic,
    TakeProducerIds,
    decode_command,
    encode_command,
)
from tidelog_controller.core.election import Elections
from tidelog_controller.core.events import delta_of, events_of
from tidelog_controller.core.metadata import apply, skip
from tidelog_controller.core.moves import Move, plan_move
from tidelog_controller.core.placement import Dice
from tidelog_controller.core.raft import Apply, Entry, Persist, Raft, RaftEffect, RaftSettings, RoleChanged, Stored
from tidelog_controller.core.state import MetadataState
from tidelog_controller.core.topics import plan_change, plan_learners, plan_topic

__all__ = ["Controller", "ControllerEffect", "ControllerSettings", "Entry", "Persist", "Stored"]

MAX_PRODUCER_IDS = 1_000_000
"""Most producer ids that one request may take."""

ControllerEffect = Persist | Send | Answer | Post | Event


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Times and bounds of a controller; the same on all of them."""

    session_timeout_s: float = setting(3.0, "silence after which a replica server is fenced", 0.05, 600.0)
    broken_link_grace_s: float = setting(0.75, "the same, after the link of its heartbeats broke", 0.01, 600.0)
    leader_report_window_s: float = setting(5.0, "how long a report of a dead leader counts", 0.05, 600.0)
    request_timeout_s: float = setting(5.0, "how long a request waits for a majority of the controllers", 0.05, 600.0)
    max_pending: int = setting(4096, "requests waiting for Raft; more are refused", 1, 1 << 20)
    balance: BalanceSettings = field(default_factory=BalanceSettings)
    raft: RaftSettings = field(default_factory=RaftSettings)


@dataclass(frozen=True, slots=True)
class _Pending:
    """Who waits for an entry to be applied, and until when."""

    source: int
    id: int
    deadline: float


class Controller:
    """See above. ``wall_ms`` is the wall clock in milliseconds; it only goes into the histories."""

    def __init__(
        self,
        node_id: NodeId,
        peers: Mapping[NodeId, str],
        cluster: str,
        settings: ControllerSettings,
        stored: Stored,
        rng: Dice,
        now: float,
    ) -> None:
        """``peers``: the URLs of all controllers, this one included. ``stored``: what the last life persisted."""
        self.node_id = node_id
        self.peers = dict(peers)
        self.settings = settings
        self.raft = Raft(node_id, tuple(peers), settings.raft, stored, rng, now)
        self.state = MetadataState(cluster)
        self.elections = Elections(
            settings.session_timeout_s, settings.broken_link_grace_s, settings.leader_report_window_s
        )
        self.balance = Balance(settings.balance)
        self.active = False
        self._dice = rng
        self._leading_term: int | None = None
        self._pending: dict[int, _Pending] = {}
        self._watchers: dict[int, None] = {}

    # --- inputs ------------------------------------------------------------------------------------------

    def on_message(self, sender: NodeId, message: Message, now: float, *, wall_ms: int = 0) -> list[ControllerEffect]:
        """A Raft message of another controller. Raises ``ProtocolError`` for one that no correct one sends."""
        return self._absorb(self.raft.on_message(sender, message, now), now)

    def on_request(
        self, source: int, id: int | None, message: Message, now: float, *, wall_ms: int = 0
    ) -> list[ControllerEffect]:
        """A request that came over link ``source``. ``id`` None: nobody waits for the answer."""
        match message:
            case Watch():
                self._watchers[source] = None
                image = MetadataUpdate(self.state.index, whole=True, payload=encode_image(self.state.image()))
                return [*_answer(source, id, Done()), Post(source, image)]
            case DescribeQuorum():
                return _answer(source, id, self._quorum())
        if not self.active:
            return _answer(source, id, self._not_active(unknown_outcome=False))
        if isinstance(message, Heartbeat | ReportLeader | Seal):
            return self._on_sign_of_life(source, id, message, now, wall_ms)
        if isinstance(message, History):
            return _answer(source, id, self._history(message))
        command = self._command(message, wall_ms)
        if not isinstance(command, Command):
            return _answer(source, id, command)
        if len(self._pending) >= self.settings.max_pending:
            return _answer(source, id, refuse("OVERLOADED", f"{len(self._pending)} requests wait for a majority"))
        return self._propose(command, now, source, id)

    def on_link_closed(self, source: int, now: float) -> list[ControllerEffect]:
        """Nobody watches or waits on that link any more. What was proposed may still be applied. A server that
        heartbeats over it must soon do so over another."""
        self.elections.on_link_closed(source, now)
        self._watchers.pop(source, None)
        self._pending = {index: p for index, p in self._pending.items() if p.source != source}
        return []

    def on_tick(self, now: float, *, wall_ms: int = 0) -> list[ControllerEffect]:
        """Time has passed. Afterwards ``deadline()`` is None or later than ``now``."""
        effects = self._absorb(self.raft.on_tick(now), now)
        effects += self._give_up(now)
        if self.active:
            for fence in self.elections.expired(self.state, now, wall_ms):
                effects += self._propose(fence, now)
            for transfer in self.balance.due(self.state, now, wall_ms):
                effects += self._propose(transfer, now)
        deadline = self.deadline()
        assert deadline is None or deadline > now, (deadline, now)
        return effects

    def deadline(self) -> float | None:
        """When ``on_tick`` has something to do."""
        deadlines = [self.raft.deadline()]
        if self._pending:
            deadlines.append(next(iter(self._pending.values())).deadline)  # all wait equally long: oldest first
        if self.active:
            deadlines += [self.elections.deadline(self.state), self.balance.deadline()]
        return min((d for d in deadlines if d is not None), default=None)

    # --- requests ----------------------------------------------------------------------------------------

    def _command(self, message: Message, wall_ms: int) -> Command | Message | TidelogError:
        """The command that a request asks for, as far as the present state lets it; the log has the last word. Or the
        answer, where nothing is to be changed."""
        if isinstance(message, Move):
            return plan_move(self.state, message, self._dice, wall_ms)
        match message:
            case Register():
                return self._register(message, wall_ms)
            case AlterIsr():
                return ChangeIsr(wall_ms, **_fields(message))
            case HandOver():
                return LeaveParts(wall_ms, **_fields(message))
            case ConfirmLeader():
                return ConfirmLeadership(wall_ms, **_fields(message))
            case ReportLoss():
                if message.end <= message.start:
                    return refuse("MALFORMED", f"no records from {message.start} to {message.end}")
                return RecordLoss(wall_ms, **_fields(message))
            case CreateTopic():
                return plan_topic(self.state, message, self._dice, wall_ms)
            case AlterTopic():
                return plan_change(self.state, message, wall_ms)
            case AlterLearners():
                return plan_learners(self.state, message, wall_ms)
            case DeleteTopic():
                topic_id = self.state.names.get(message.name)
                if topic_id is None:
                    return refuse("UNKNOWN_TOPIC", f"there is no topic named {message.name!r}")
                return RemoveTopic(wall_ms, topic_id)
            case AllocateProducerIds():
                if not 1 <= message.count <= MAX_PRODUCER_IDS:
                    return refuse("INVALID_CONFIG", f"count is {message.count}; it must be 1 to {MAX_PRODUCER_IDS}")
                return TakeProducerIds(wall_ms, message.count)
            case _:
                return refuse("UNSUPPORTED", f"a controller does not know {message.OP or type(message).__name__}")

    def _register(self, message: Register, wall_ms: int) -> RegisterServer | TidelogError:
        if message.cluster not in ("", self.state.cluster):
            return refuse(
                "WRONG_CLUSTER",
                f"the data of {message.node} belongs to cluster {message.cluster}, this is {self.state.cluster}",
            )
        if not message.node or not message.url:
            return refuse("MALFORMED", "a replica server registers with its node id and its url")
        return RegisterServer(wall_ms, message.node, message.url, message.lives, message.clean, message.rack)

    def _on_sign_of_life(
        self, source: int, id: int | None, message: Heartbeat | ReportLeader | Seal, now: float, wall_ms: int
    ) -> list[ControllerEffect]:
        """Heartbeats, leader reports and seals are answered at once: they change nothing but what is volatile here.
        What is decided from them goes through Raft on its own account."""
        if not self.state.in_life(message.node, message.broker_epoch):
            text = f"broker epoch {message.broker_epoch} of {message.node} is over, or unknown here: register"
            return _answer(source, id, refuse("FENCED_BROKER_EPOCH", text))
        decision: Command | None
        if isinstance(message, Heartbeat):
            decision = self.elections.on_heartbeat(self.state, message.node, source, now, wall_ms)
        elif isinstance(message, Seal):
            decision = self.elections.on_seal(self.state, message, now, wall_ms)
        else:
            decision = self.elections.on_report(self.state, message, now, wall_ms)
        effects = _answer(source, id, Done())
        return effects if decision is None else effects + self._propose(decision, now)

    def _history(self, message: History) -> HistoryAnswer | TidelogError:
        if self.state.partition(message.topic_id, message.partition) is None:
            return refuse("UNKNOWN_TOPIC", f"no partition {message.partition} of topic id {message.topic_id}")
        return HistoryAnswer(self.state.history[message.topic_id][message.partition])

    def _quorum(self) -> QuorumAnswer:
        """The group as seen from here; a leader that may not serve yet names nobody active."""
        leader = self.raft.leader_id
        active = leader if leader != self.node_id or self.active else None
        own = "follower" if self.raft.role == "follower" else "candidate"
        others = "unknown" if leader is None else "follower"
        controllers = tuple(
            ControllerInfo(node, url, "leader" if node == leader else own if node == self.node_id else others)
            for node, url in self.peers.items()
        )
        return QuorumAnswer(active or "", self.raft.term, self.raft.commit_index, controllers)

    def _not_active(self, *, unknown_outcome: bool) -> TidelogError:
        leader = self.raft.leader_id if self.raft.leader_id != self.node_id else None
        where = f"{leader} is, at {self.peers[leader]}" if leader else "none is known yet: try again"
        return refuse(
            "NOT_ACTIVE_CONTROLLER",
            f"{self.node_id} is not the active controller; {where}",
            unknown_outcome=unknown_outcome,
            leader=leader or "",
            url=self.peers[leader] if leader else "",
        )

    # --- Raft --------------------------------------------------------------------------------------------

    def _propose(
        self, command: Command, now: float, source: int = 0, id: int | None = None
    ) -> list[ControllerEffect]:
        index, effects = self.raft.propose(encode_command(command), now)
        assert index is not None, "the active controller leads Raft"
        if id is not None:
            self._pending[index] = _Pending(source, id, now + self.settings.request_timeout_s)
        return self._absorb(effects, now)

    def _absorb(self, effects: Iterable[RaftEffect], now: float) -> list[ControllerEffect]:
        """Raft's effects, with what happens here in their places."""
        out: list[ControllerEffect] = []
        for effect in effects:
            match effect:
                case Apply():
                    for entry in effect.entries:
                        out += self._apply(entry, now)
                case RoleChanged():
                    out += self._on_role(effect)
                case _:
                    out.append(effect)
        return out

    def _on_role(self, change: RoleChanged) -> list[ControllerEffect]:
        fields = {"role": change.role, "term": change.term, "leader": change.leader_id}
        effects: list[ControllerEffect] = [Event("raft_role_changed", fields)]
        self._leading_term = change.term if change.role == "leader" else None
        if self.active:
            self.active = False
            self.elections.clear()
            self.balance.clear()
            waiting, self._pending = self._pending, {}
            error = self._not_active(unknown_outcome=True)
            effects.append(Event("controller_stepped_down", {"term": change.term, "requests_failed": len(waiting)}))
            effects += [Answer(pending.source, pending.id, error) for pending in waiting.values()]
        return effects

    def _apply(self, entry: Entry, now: float) -> list[ControllerEffect]:
        if not entry.data:
            self.state = skip(self.state, entry.index)
            return self._become_active(now) if entry.term == self._leading_term and not self.active else []
        command = decode_command(entry.data)
        applied = apply(self.state, command, entry.index)
        before, self.state = self.state, applied.state
        effects: list[ControllerEffect] = []
        if self.active:
            changed = [key for key, _ in applied.changes if before.partition(*key) != self.state.partition(*key)]
            self.elections.on_applied(self.state, command, changed, now)
            self.balance.on_applied(before, self.state, command, changed, now)
            effects += events_of(before, applied)
        if applied.visible and self._watchers:
            update = MetadataUpdate(entry.index, payload=delta_of(before, applied))
            effects += [Post(source, update) for source in self._watchers]
        pending = self._pending.pop(entry.index, None)
        if pending is not None:
            effects.append(Answer(pending.source, pending.id, self._with_settings(applied.answer)))
        return effects

    def _with_settings(self, answer: Message | TidelogError) -> Message | TidelogError:
        """The metadata does not know this controller's settings; the answer to a registration tells one."""
        if isinstance(answer, Registered):
            return replace(answer, session_timeout_ms=round(self.settings.session_timeout_s * 1000))
        return answer

    def _become_active(self, now: float) -> list[ControllerEffect]:
        self.active = True
        self.elections.become_active(self.state, now)
        self.balance.become_active(self.state, now)
        return [Event("controller_active", {"term": self._leading_term, "index": self.state.index})]

    def _give_up(self, now: float) -> list[ControllerEffect]:
        """Requests whose command no majority has taken in time."""
        late = [index for index, pending in self._pending.items() if pending.deadline <= now]
        error = refuse(
            "NO_QUORUM",
            f"no majority of the controllers confirmed within {self.settings.request_timeout_s} s",
            unknown_outcome=True,
        )
        gone = [self._pending.pop(index) for index in late]
        return [Answer(pending.source, pending.id, error) for pending in gone]


def _fields(message: Message) -> dict[str, Any]:
    """A message's values by name: the command that it asks for has the same names."""
    return {known.name: getattr(message, known.name) for known in fields(message)}


def _answer(source: int, id: int | None, message: Message | TidelogError) -> list[ControllerEffect]:
    return [] if id is None else [Answer(source, id, message)]
