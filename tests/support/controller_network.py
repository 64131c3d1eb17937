"""Controllers in memory: a clock, a network that delivers in order unless it is cut, disks that survive crashes."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping

from tidelog.errors import TidelogError
from tidelog.feature_levels import ALL, Levels
from tidelog.sansio.effects import Answer, Event, Post, Send
from tidelog.types import ClusterImage, NodeId
from tidelog.wire.messages import Message, MetadataUpdate
from tidelog.wire.metadata_image import apply_update
from tidelog_controller.config import ControllerSettings, TimelineSettings
from tidelog_controller.controller import Controller, ControllerEffect
from tidelog_controller.metadata.rules.feature_level import Linked
from tidelog_controller.metadata.state_machine import encode_state
from tidelog_controller.metadata_log import MakeSnapshot
from tidelog_controller.raft.effects import Persist, apply_persist
from tidelog_controller.raft.log import PersistentState

NO_TIMELINE = TimelineSettings(replication_factor=0)
"""Settings without a timeline, since no replica servers exist to hold it."""


class ControllerNet:
    """``count`` controllers that start at time 0. ``link`` numbers the links of clients; each belongs to one
    controller."""

    def __init__(
        self,
        count: int = 3,
        settings: ControllerSettings | None = None,
        seed: int = 1,
        levels: Mapping[NodeId, Levels] | None = None,
    ) -> None:
        self.now = 0.0
        self.levels = dict(levels or {})
        """The feature levels of controllers that do not support all."""
        self.settings = settings or ControllerSettings(timeline=NO_TIMELINE)
        self.urls = {f"c{i + 1}": f"ws://c{i + 1}" for i in range(count)}
        self.disks = {node: PersistentState(store=f"store of {node}") for node in self.urls}
        self.nodes: dict[NodeId, Controller] = {}
        self.cut: set[NodeId] = set()
        self.events: list[tuple[NodeId, Event]] = []
        self.answers: dict[tuple[int, int], Message | Exception] = {}
        self.order: dict[int, list[object]] = {}
        self.images: dict[int, ClusterImage] = {}
        self._rng = random.Random(seed)
        self._links = 0
        self._ids = 0
        self.where: dict[int, NodeId] = {}
        self._wire: deque[tuple[NodeId, NodeId, Message]] = deque()
        for node in self.urls:
            self.start(node)

    def start(self, node: NodeId) -> None:
        """Start a controller from the content of its disk."""
        rng = random.Random(self._rng.random())
        disk, levels = self.disks[node], self.levels.get(node, ALL)
        self.nodes[node] = Controller(node, self.urls, "test", self.settings, disk, rng, self.now, levels=levels)

    def kill(self, node: NodeId) -> None:
        """Kill a controller; only its disk stays."""
        del self.nodes[node]

    def link(self, node: NodeId) -> int:
        """Open a link to a controller and return its number."""
        self._links += 1
        self.where[self._links] = node
        return self._links

    def greet(self, to: NodeId, role: str, node: NodeId, levels: Levels = ALL) -> int:
        """Open a link of a service that has said hello, and return its number."""
        source = self.link(to)
        self.nodes[to].features.on_link(source, Linked(role, node, levels))
        return source

    def ask(self, link: int, request: Message) -> int:
        """Send a request, deliver all messages that follow without letting time pass, and return its id."""
        self._ids += 1
        node = self.where[link]
        effects = self.nodes[node].on_request(link, self._ids, request, self.now, wall_ms=int(self.now * 1000))
        self._perform(node, effects)
        self.deliver()
        return self._ids

    def answer(self, link: int, request: Message) -> Message:
        """Send a request and return its answer, which must come without time passing. Raises its error."""
        answer = self.answers[link, self.ask(link, request)]
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Message)
        return answer

    def refusal(self, link: int, request: Message) -> TidelogError:
        """Send a request and return its error, which must come without time passing."""
        answer = self.answers[link, self.ask(link, request)]
        assert isinstance(answer, TidelogError), answer
        return answer

    def close(self, link: int) -> None:
        """Close a link."""
        node = self.where[link]
        self._perform(node, self.nodes[node].on_link_closed(link, self.now))

    def deliver(self) -> None:
        """Deliver all messages between controllers, and those that follow, until none is left."""
        while self._wire:
            sender, to, message = self._wire.popleft()
            if to in self.nodes and not {sender, to} & self.cut:
                self._perform(to, self.nodes[to].on_message(sender, message, self.now))

    def run(self, duration_s: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let time pass from deadline to deadline for so many seconds, or until ``until`` returns True."""
        end = self.now + duration_s
        while not until():
            due = [(deadline, node) for node, c in self.nodes.items() if (deadline := c.deadline()) is not None]
            if not due or min(due)[0] > end:
                self.now = end
                return
            deadline, node = min(due)
            self.now = max(self.now, deadline)
            self._perform(node, self.nodes[node].on_tick(self.now, wall_ms=int(self.now * 1000)))
            self.deliver()

    def elect(self) -> NodeId:
        """Let time pass until a controller is active, and return its name. Raises AssertionError after 20 s."""
        self.run(20.0, until=lambda: self.active() is not None)
        active = self.active()
        assert active is not None, "no active controller"
        return active

    def active(self) -> NodeId | None:
        """Return the active controller among those that are not cut off; None if there is none."""
        return next((n for n, c in self.nodes.items() if c.active and n not in self.cut), None)

    def _perform(self, node: NodeId, effects: list[ControllerEffect]) -> None:
        made = []
        for effect in effects:
            match effect:
                case Persist():
                    self.disks[node] = apply_persist(self.disks[node], effect)
                case Send():
                    self._wire.append((node, effect.to, effect.message))
                case Answer():
                    assert (effect.source, effect.id) not in self.answers, "answered twice"
                    self.answers[effect.source, effect.id] = effect.message
                    self.order.setdefault(effect.source, []).append(effect.message)
                case Post():
                    assert isinstance(effect.message, MetadataUpdate)
                    known = self.images.get(effect.source, ClusterImage())
                    self.images[effect.source] = apply_update(known, effect.message)
                    self.order.setdefault(effect.source, []).append(effect.message)
                case Event():
                    self.events.append((node, effect))
                case MakeSnapshot():
                    made.append(effect)
        for effect in made:
            if node in self.nodes:
                self._perform(node, self.nodes[node].on_snapshot(effect.index, encode_state(effect.state), self.now))
