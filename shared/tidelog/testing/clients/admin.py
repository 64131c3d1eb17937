"""The operator: creates, deletes and changes topics and controllers. It sends each request to every controller again
and again until the metadata show that it is fulfilled."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.testing.hardware.network import Frame, SimLink
from tidelog.types import TopicState
from tidelog.wire.messages import AddController, AlterTopic, CreateTopic, DeleteTopic, Message, RemoveController

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster
    from tidelog.testing.options import TopicOptions

RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class _Wish:
    """A request of the operator, whether it can be made now, and whether the metadata show that it is fulfilled."""

    message: Message
    fulfilled: Callable[[], bool]
    possible: Callable[[], bool]


class Admin:
    """The operator of a run. It works on one request after the other; ``done`` when none is left."""

    def __init__(self, cluster: Cluster, topics: Sequence[TopicOptions]) -> None:
        self.cluster = cluster
        self.name = "admin"
        self._wishes: deque[_Wish] = deque()
        self._busy = True
        cluster.network.attach(self)
        for topic in topics:
            self.create(topic)
        cluster.loop.after(RETRY_S, self._next)

    @property
    def done(self) -> bool:
        """Whether all requests are fulfilled."""
        return not self._wishes

    def topic(self, name: str) -> TopicState | None:
        """Return a topic of the newest metadata by name; None if it does not exist."""
        topics = self.cluster.invariants.metadata.topics.values()
        return next((topic for topic in topics if topic.name == name), None)

    def create(self, topic: TopicOptions) -> None:
        """Queue the creation of a topic, once enough replica servers are registered."""
        message = CreateTopic(topic.name, topic.partitions, topic.replication_factor, dict(topic.config))

        def enough() -> bool:
            servers = self.cluster.invariants.metadata.servers.values()
            return sum(not server.fenced for server in servers) >= topic.replication_factor

        self._wish(_Wish(message, lambda: self.topic(topic.name) is not None, enough))

    def recreate(self, topic: TopicOptions) -> None:
        """Queue the deletion of a topic and the creation of another of the same name."""
        old: list[str] = []

        def possible() -> bool:
            there = self.topic(topic.name)
            if there is not None and not old:
                old.append(there.topic_id)
            return there is not None

        def gone() -> bool:
            there = self.topic(topic.name)
            return there is None or (bool(old) and there.topic_id not in old)

        self._wish(_Wish(DeleteTopic(topic.name), gone, possible))
        self.create(topic)

    def alter(self, name: str, config: dict[str, str]) -> None:
        """Queue a change of settings of a topic."""

        def fulfilled() -> bool:
            there = self.topic(name)
            texts = {} if there is None else there.config.texts()
            return there is None or all(texts[key] == value for key, value in config.items())

        self._wish(_Wish(AlterTopic(name, config), fulfilled, lambda: True))

    # --- controllers -------------------------------------------------------------------------------------

    @property
    def group_is_at_rest(self) -> bool:
        """Whether no change of the controllers is queued."""
        return not any(isinstance(wish.message, AddController | RemoveController) for wish in self._wishes)

    def add_controller(self, name: str) -> None:
        """Queue the addition of a controller, until it votes with the store that it has."""
        cluster = self.cluster

        def votes() -> bool:
            return cluster.invariants.members.has_vote(name, cluster.controller(name).store.stored.store)

        self._wish(_Wish(AddController(name, f"sim://{name}"), votes, lambda: True))

    def remove_controller(self, name: str) -> None:
        """Queue the removal of a controller from the Raft group."""
        gone = lambda: self.cluster.invariants.members.find(name) is None  # noqa: E731
        self._wish(_Wish(RemoveController(name), gone, lambda: True))

    def _wish(self, wish: _Wish) -> None:
        self._wishes.append(wish)
        if not self._busy:
            self._busy = True
            self.cluster.loop.after(0.0, self._next)

    def _next(self) -> None:
        """Drop the fulfilled requests and send the next one to every controller; try again after ``RETRY_S``."""
        cluster, wishes = self.cluster, self._wishes
        while wishes and wishes[0].fulfilled():
            wishes.popleft()
        self._busy = bool(wishes)
        if not wishes:
            return
        if wishes[0].possible():
            for name in cluster.controllers:
                link = cluster.network.connect(self, name)
                link.send(self, Frame("request", 1, wishes[0].message))
        cluster.loop.after(RETRY_S, self._next)

    def on_accept(self, link: SimLink) -> None:
        """Accept a connection; see ``Process``."""
        raise AssertionError("nobody connects to an operator")

    def on_datagram(self, sender: str, message: Message) -> None:
        """Take a one-way message; see ``Process``."""
        raise AssertionError("an operator takes no datagrams")

    def on_frame(self, link: SimLink, frame: Frame) -> None:
        """Take a message of a connection; see ``Process``."""
        if self.cluster.loop.tracing:
            self.cluster.loop.note(self.name, f"{frame.body}")

    def on_gone(self, name: str) -> None:
        """Do nothing: a client has no connections for datagrams."""

    def on_close(self, link: SimLink) -> None:
        """Forget a closed connection; see ``Process``."""
