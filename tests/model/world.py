"""A controller, some servers, and every message between them, for random walks.

The controller is its real state machine (``metadata.apply``) and the real ``LeaderReplacement`` for seals. Raft is
left out, so a command is committed when it is applied. A *step* is a tuple of texts and numbers, so that a walk can
be printed, replayed and shrunk; a step that is impossible in the present state is not applicable and does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidelog.errors import TidelogError
from tidelog.types import NodeId, PartitionState, ServerState, TopicConfig
from tidelog.wire.messages import AlterIsr, HandOver, Message, Register, Registered, ReportLoss, Seal, SuspectPart
from tidelog_controller.active.leader_replacement import LeaderReplacement
from tidelog_controller.metadata.application import MetadataState, apply
from tidelog_controller.metadata.commands import (
    AddTopic,
    ChangeIsr,
    Command,
    FenceServer,
    LeaveParts,
    LostLeader,
    RecordLoss,
    RegisterServer,
    ReplaceLeaders,
    SetLearners,
    UnfenceServer,
)

from model.ghost import Ghost, Violation, must
from model.messages import CONTROLLER, Asked, IsrAnswer, LossNoted, Registering, Sent, Told
from model.server import BATCHES, KEY, Server

Step = tuple[Any, ...]
NET = 40
"""The most messages in flight; the oldest are lost beyond that."""
MESSAGES = 5000
"""A bound far above the messages of one round."""
TICK = 1e-6
ROUNDS = 60
"""The rounds without faults within which everything must have converged."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The fixed parameters of a walk."""

    replicas: int = 3
    spares: int = 0
    """The number of further servers, for learners."""
    config: TopicConfig = field(default_factory=TopicConfig)


class World:
    """The state of a walk. ``do`` takes a step; it raises ``Violation`` if an invariant does not hold after it."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        config = setting.config
        self.ghost = Ghost(config)
        names = [f"r{number + 1}" for number in range(setting.replicas + setting.spares)]
        self.servers = {name: Server(name, self.ghost, config.flush == "os") for name in names}
        self.net: list[Sent] = []
        self.state = MetadataState("c")
        self.views: list[tuple[int, dict[NodeId, ServerState], PartitionState]] = []
        self.leader_replacement = LeaderReplacement(3.0, 1.0, 5.0)
        self.leader_replacement.become_active(self.state, 0.0)
        self.produced = 0
        self._steps: dict[str, Callable[..., bool]] = {
            name[3:]: getattr(self, name) for name in dir(self) if name.startswith("do_")
        }
        for name in names:
            self.servers[name].start()
            self._collect(self.servers[name])
        replicas = tuple(names[: setting.replicas])
        for _ in names:
            self.do(("deliver", 0))
        self.apply(AddTopic(0, KEY.topic_id, "t", config, (replicas,)))
        for name in names:
            self.do(("deliver", 0))
            self.do(("learn", name, 0))

    @property
    def partition(self) -> PartitionState:
        """The state of the partition at the controller."""
        return self.state.topics[KEY.topic_id].partitions[0]

    def do(self, step: Step) -> bool:
        """Take a step and return whether it was applicable."""
        self.ghost.now += TICK
        return self._steps[step[0]](*step[1:])

    # --- the controller ----------------------------------------------------------------------------------

    def apply(self, command: Command) -> Message | TidelogError:
        """Commit and apply a command."""
        applied = apply(self.state, command, self.state.index + 1)
        self.state = applied.state
        if applied.visible and self.state.topics:
            self.views.append((self.state.index, self.state.servers, self.partition))
            self.ghost.on_state(self.partition, self.state.servers, list(self.servers.values()))
        self.leader_replacement.on_applied(self.state, command, [key for key, _ in applied.changes], 0.0)
        return applied.answer

    def _on_controller(self, sent: Sent) -> None:
        body = sent.body
        if isinstance(body, Register):
            safe = self._is_safe(body)
            answer = self.apply(RegisterServer(0, body.node, "", body.lives, body.clean))
            if isinstance(answer, Registered):
                self.net.append(Sent(CONTROLLER, body.node, Registering(answer, sent.life)))
                self._check_unsafe(body.node, safe)
        elif isinstance(body, AlterIsr):
            fields = (body.topic_id, body.partition, body.leader_epoch, body.epoch, body.isr, body.cause)
            answer = self.apply(ChangeIsr(0, body.node, body.broker_epoch, *fields, {}))
            self.net.append(Sent(CONTROLLER, body.node, IsrAnswer(body, answer)))
        elif isinstance(body, Seal):
            if self.state.is_incarnation(body.node, body.broker_epoch):
                decision = self.leader_replacement.on_seal(self.state, body, 0.0, 0)
                if decision is not None:
                    self.apply(decision)
        elif isinstance(body, HandOver):
            answer = self.apply(LeaveParts(0, body.node, body.broker_epoch, body.reason, body.parts, body.lost))
            if not isinstance(answer, TidelogError):
                self.servers[body.node].hurt = False
                self.net.append(Sent(CONTROLLER, body.node, LossNoted(body.broker_epoch, body.parts[0].epoch)))
        elif isinstance(body, ReportLoss):
            part = (body.topic_id, body.partition, body.leader_epoch, body.start, body.end)
            self.apply(RecordLoss(0, body.node, body.broker_epoch, *part, body.possible))
        else:
            raise AssertionError(body)

    def _is_safe(self, body: Register) -> bool:
        known = self.state.servers.get(body.node)
        continuous = known is None or known.life in body.lives
        return continuous and (body.clean or self.setting.config.flush == "fsync")

    def _check_unsafe(self, node: NodeId, safe: bool) -> None:
        if not safe and self.state.topics:
            state = self.partition
            unclean = state.unclean_epoch == state.leader_epoch and state.leader == node
            must(unclean or node not in (*state.isr, *state.elr), f"R9: {node} registered unclean, and is in {state}")

    # --- messages ----------------------------------------------------------------------------------------

    def _collect(self, server: Server) -> None:
        if server.sent:
            self.net += server.sent
            server.sent.clear()
            if len(self.net) > NET:
                del self.net[: len(self.net) - NET]

    def _hand_over(self, sent: Sent) -> None:
        body = sent.body
        if sent.to == CONTROLLER:
            self._on_controller(sent)
            return
        server = self.servers[sent.to]
        if not server.up:
            return
        if isinstance(body, Registering):
            if server.asking == body.asking:
                server.on_registered(body.answer)
        elif isinstance(body, LossNoted):
            if server.broker_epoch == body.broker_epoch:
                server.on_lost(body.epoch)
        elif isinstance(body, IsrAnswer):
            server.on_isr_answer(body.asked, body.answer)
        elif isinstance(body, Asked):
            server.on_asked(body)
        elif isinstance(body, Told) and server.life == sent.life:
            server.on_told(body)
        self._collect(server)

    def do_deliver(self, number: int) -> bool:
        """Deliver a message."""
        if number >= len(self.net):
            return False
        self._hand_over(self.net.pop(number))
        return True

    def do_double(self, number: int) -> bool:
        """Deliver a message and keep it in flight."""
        if number >= len(self.net):
            return False
        self._hand_over(self.net[number])
        return True

    def do_lose(self, number: int) -> bool:
        """Lose a message."""
        if number >= len(self.net):
            return False
        del self.net[number]
        return True

    def do_learn(self, name: NodeId, behind: int) -> bool:
        """Give a server the metadata as they were ``behind`` changes ago."""
        server = self.servers[name]
        if not server.up or behind >= len(self.views):
            return False
        index, servers, state = self.views[-1 - behind]
        if server.broker_epoch < 0 or index < server.index or index <= server.view:
            return False
        server.on_metadata(index, servers, self.setting.config, state)
        self._collect(server)
        return True

    # --- servers ---------------------------------------------------------------------------------------------

    def _ask(self, name: NodeId, what: Callable[[Server], bool]) -> bool:
        server = self.servers[name]
        done = server.up and what(server)
        self._collect(server)
        return done

    def do_produce(self, name: NodeId) -> bool:
        """Send a record to a server that believes that it leads."""
        if self.produced >= len(BATCHES):
            return False
        done = self._ask(name, lambda server: server.produce(self.produced))
        self.produced += done
        return done

    def do_flush(self, name: NodeId) -> bool:
        """Complete a flush."""
        return self._ask(name, Server.flushed)

    def do_ask(self, name: NodeId) -> bool:
        """Let a follower ask its leader."""
        return self._ask(name, Server.ask)

    def do_lag(self, name: NodeId) -> bool:
        """Let a leader check for lagging followers."""
        return self._ask(name, Server.lag)

    def do_resend(self, name: NodeId) -> bool:
        """Let a leader send its proposal again."""
        return self._ask(name, Server.resend)

    def do_checkpoint(self, name: NodeId) -> bool:
        """Let a server store its HW."""
        return self._ask(name, Server.checkpoint)

    def do_power(self, name: NodeId, kept: int) -> bool:
        """Power loss; ``kept`` sixteenths of what was not flushed are left."""
        server = self.servers[name]
        if not server.up:
            return False
        synced, end = server.disk.synced, len(server.disk.row)
        server.power_loss(synced + (end - synced) * kept // 16)
        return True

    def do_die(self, name: NodeId) -> bool:
        """The process ends; the operating system runs on."""
        return self._ask(name, lambda server: server.die() is None)

    def do_stop(self, name: NodeId) -> bool:
        """The process ends in order."""
        return self._ask(name, lambda server: server.stop() is None)

    def do_wipe(self, name: NodeId) -> bool:
        """The disk of a server that is down is swapped for an empty one. No registration of the old one is under way:
        arriving later than one of the new one it would count as a third directory."""
        server = self.servers[name]
        if server.up:
            return False
        server.wipe()
        self.net = [sent for sent in self.net if not (sent.source == name and isinstance(sent.body, Register))]
        return True

    def do_damage(self, name: NodeId) -> bool:
        """A running server finds its log damaged: what it holds is lost, while its life and session go on."""
        return self._ask(name, Server.damage)

    def do_start(self, name: NodeId) -> bool:
        """A process begins, or asks again to be registered."""
        server = self.servers[name]
        if server.broker_epoch >= 0:
            return False
        server.start()
        self._collect(server)
        return True

    # --- decisions of the controller ---------------------------------------------------------------------------

    def do_expire(self, name: NodeId) -> bool:
        """A session ends."""
        known = self.state.servers[name]
        if known.fenced:
            return False
        self.apply(FenceServer(0, name, known.broker_epoch))
        return True

    def do_heartbeat(self, name: NodeId) -> bool:
        """A heartbeat arrives: it ends a fence, or tells the sender that its life is over."""
        server, known = self.servers[name], self.state.servers[name]
        if not server.up or server.broker_epoch < 0:
            return False
        if known.broker_epoch != server.broker_epoch:
            server.on_fenced_life()
            return True
        if known.fenced:
            self.apply(UnfenceServer(0, name, known.broker_epoch))
        return known.fenced

    def do_replace(self) -> bool:
        """Let enough members report the leader."""
        state = self.partition
        if state.leader is None:
            return False
        part = LostLeader(*KEY, state.leader_epoch, state.epoch)
        self.apply(ReplaceLeaders(0, state.leader, (part,)))
        return self.partition is not state

    def do_hand_over(self, name: NodeId) -> bool:
        """Let a server ask to be taken out of leadership and ISR."""
        state, server = self.partition, self.servers[name]
        if not server.up or server.broker_epoch < 0:
            return False
        part = SuspectPart(*KEY, state.epoch, state.leader_epoch)
        self.apply(LeaveParts(0, name, server.broker_epoch, "stall", (part,), False))
        return self.partition is not state

    def do_learner(self, name: NodeId) -> bool:
        """Make a spare server a learner, or end that."""
        state = self.partition
        if name in state.replicas:
            return False
        self.apply(SetLearners(0, *KEY, () if name in state.learners else (name,)))
        return True

    # --- the end -----------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Check R11: without further faults all replicas are soon in sync, hold the same log, and take records
        again."""
        told = False
        for _ in range(ROUNDS):
            for name in self.servers:
                for what in ("start", "heartbeat", "resend", "flush", "ask"):
                    self.do((what, name))
                self.do(("learn", name, 0))
                if not told and self._whole():
                    told = self.do(("produce", name))
            for _ in range(MESSAGES):
                if not self.do(("deliver", 0)):
                    break
            must(not self.net, f"R11: {MESSAGES} messages without new input, and no end")
            if told and self._whole():
                return
        if not self._hopeless():
            raise Violation(f"R11: after {ROUNDS} rounds without faults: {self.partition}")

    def _whole(self) -> bool:
        state = self.partition
        logs = [self.servers[name].disk.batches for name in (*state.replicas, *state.learners)]
        level = all(log == logs[0] for log in logs) and len(self.ghost.committed) == len(logs[0])
        return level and state.leader is not None and state.isr == state.replicas

    def _hopeless(self) -> bool:
        """Return whether all replicas that held everything have lost it and the topic allows no unclean election."""
        state = self.partition
        return state.leader is None and not self.setting.config.unclean_election and self._promises_lost()

    def _promises_lost(self) -> bool:
        state = self.partition
        held = (*state.isr, *state.elr)
        return 2 * len(held) <= len(state.replicas) if self.ghost.quorum else not held
