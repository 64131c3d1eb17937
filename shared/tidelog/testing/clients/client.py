"""What simulated clients share: each follows the metadata over a watch of its own and sends to the leaders directly.

A client process never dies; its links do. It watches any controller, while a gateway watches the active one, so its
metadata may lag behind. Like a gateway it asks this controller again and again which one is active. A controller that
knows none is cut off or in no group and would never send an update; the client then watches another.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidelog.errors import TimedOut, Unreachable
from tidelog.testing.hardware.network import Frame, SimLink
from tidelog.types import ClusterImage, PartitionState, TopicPartition
from tidelog.wire.messages import (
    DescribeQuorum,
    Message,
    MetadataUpdate,
    ProduceAck,
    Produced,
    QuorumAnswer,
    Watch,
)
from tidelog.wire.metadata_image import apply_update

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster

CHECK_S = 1.0
"""The seconds between two questions of a client for the active controller."""
QUORUM_TIMEOUT_S = 1.5


class Client:
    """A simulated client: metadata, links and open requests. Subclasses send the requests."""

    def __init__(self, cluster: Cluster, name: str, rng: random.Random) -> None:
        self.cluster = cluster
        self.loop = cluster.loop
        self.network = cluster.network
        self.name = name
        self.rng = rng
        self.image = ClusterImage()
        self.stopped = False
        self._links: dict[str, SimLink] = {}
        self._watch: SimLink | None = None
        self._calls: dict[int, tuple[SimLink, Callable[[Any], None]]] = {}
        self._call_id = 0
        cluster.network.attach(self)
        self._follow_metadata()

    # --- metadata ----------------------------------------------------------------------------------------

    def _follow_metadata(self) -> None:
        """Open a watch at a random controller."""
        names = self.cluster.controllers
        link = self._watch = self.network.connect(self, names[self.rng.randrange(len(names))])
        link.send(self, Frame("request", 0, Watch()))
        self._check_watch(link)

    def _check_watch(self, link: SimLink) -> None:
        """Ask the watched controller which one is active, now and every ``CHECK_S``."""
        if link is self._watch and not self.stopped:
            self._call_over(link, DescribeQuorum(), QUORUM_TIMEOUT_S, lambda answer: self._on_quorum(link, answer))

    def _on_quorum(self, link: SimLink, answer: Any) -> None:
        """Watch another controller if this one knows no active one."""
        if link is not self._watch:
            return
        if isinstance(answer, QuorumAnswer) and answer.active:
            self.loop.after(CHECK_S, lambda: self._check_watch(link))
        else:
            link.close(self)
            self._watch_another()

    def _watch_another(self) -> None:
        self._watch = None
        self.loop.after(self.rng.uniform(0.01, 0.1), self._follow_metadata)

    def partition(self, key: TopicPartition) -> PartitionState | None:
        """Return the state of a partition in this client's metadata; None if it is unknown."""
        for topic in self.image.topics:
            if topic.topic_id == key.topic_id and key.partition < len(topic.partitions):
                return topic.partitions[key.partition]
        return None

    # --- links -------------------------------------------------------------------------------------------

    def link_to(self, node: str) -> SimLink:
        """Return the link to a replica server; opens one if there is none."""
        link = self._links.get(node)
        if link is None:
            link = self._links[node] = self.network.connect(self, node)
        return link

    def call(self, node: str, message: Message, timeout_s: float, done: Callable[[Any], None]) -> None:
        """Send a request to a server. ``done`` is called once, with the answer, an error or ``TimedOut``."""
        self._call_over(self.link_to(node), message, timeout_s, done)

    def _call_over(self, link: SimLink, message: Message, timeout_s: float, done: Callable[[Any], None]) -> None:
        self._call_id += 1
        number = self._call_id
        self._calls[number] = (link, done)
        link.send(self, Frame("request", number, message))
        self.loop.after(timeout_s, lambda: self._finish(number, TimedOut("no answer in time")))

    def _finish(self, number: int, answer: Any) -> None:
        call = self._calls.pop(number, None)
        if call is not None:
            call[1](answer)

    def on_accept(self, link: SimLink) -> None:
        raise AssertionError("nobody connects to a client")

    def on_datagram(self, sender: str, message: Message) -> None:
        raise AssertionError("a client takes no datagrams")

    def on_frame(self, link: SimLink, frame: Frame) -> None:
        if isinstance(frame.body, MetadataUpdate):
            if link is self._watch and (frame.body.whole or frame.body.index > self.image.index):
                image = apply_update(self.image, frame.body)
                if image.index >= self.image.index:
                    self.image = image
        elif isinstance(frame.body, Produced):
            for ack in frame.body.acks:
                self.on_ack(link, ack)
        elif frame.kind == "answer":
            assert frame.id is not None
            self._finish(frame.id, frame.body)

    def on_gone(self, name: str) -> None:
        """Do nothing: a client has no connections for datagrams."""

    def on_close(self, link: SimLink) -> None:
        if link is self._watch:
            self._watch_another()
        elif self._links.get(link.server_name) is link:
            del self._links[link.server_name]
            for number, (used, _) in list(self._calls.items()):
                if used is link:
                    self._finish(number, Unreachable("the link broke"))
            self.on_lost(link)

    def on_ack(self, link: SimLink, ack: ProduceAck) -> None:
        """Handle the ack of a batch."""

    def on_lost(self, link: SimLink) -> None:
        """Handle the end of a link to a replica server."""
