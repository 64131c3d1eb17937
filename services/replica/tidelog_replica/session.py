"""This server's life at the controller: registration, broker epoch, heartbeats.

    new          nothing is answered yet: serves nobody, ignores all metadata
    registered   has a broker epoch; heartbeats keep the session

Every process start is a new life with a new broker epoch. A heartbeat answered ``FENCED_BROKER_EPOCH`` means that the
life is over (a later one registered): the server gives up every role and begins another.

``live`` says whether the session may last in the eyes of the controller, counted from when the last answered
heartbeat was *sent*: a leader that is cut off from the controller stops serving clients after the session time-out.
Its successor may be elected sooner, by reports: until then it may answer with an old HW, and take records that it
can never commit. The price: without any controller nobody is served for longer than that.

``data_dir/meta`` names the cluster and the node that the data belongs to, from the first registration on; a data
directory of another node or cluster is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Protocol

from tidelog.disk import Disk
from tidelog.effects import CONTROLLER
from tidelog.errors import ConfigError, TidelogError
from tidelog.types import NodeId
from tidelog.wire.messages import Heartbeat, Message, Register, Registered, Watch

from tidelog_replica.outbox import Outbox
from tidelog_replica.settings import ReplicaSettings


class Random(Protocol):
    """What is used of ``random.Random``."""

    def random(self) -> float:
        """From 0 up to 1."""


class Session:
    """``on_begin(now)`` is called when a life is registered, ``on_end(reason)`` when one is over."""

    def __init__(
        self,
        node: NodeId,
        url: str,
        disk: Disk,
        directory: str,
        cluster: str,
        settings: ReplicaSettings,
        rng: Random,
        outbox: Outbox,
        on_begin: Callable[[float], None],
        on_end: Callable[[str], None],
    ) -> None:
        self.registered = False
        self.broker_epoch = -1
        self.index = -1
        """Metadata older than this Raft index is from before this life."""
        self._node = node
        self._url = url
        self._disk = disk
        self._path = f"{directory}/meta"
        self._directory = directory
        self._cluster = cluster
        self._settings = settings
        self._rng = rng
        self._outbox = outbox
        self._on_begin = on_begin
        self._on_end = on_end
        self._timeout_s = 0.0
        self._ends_at = 0.0
        self._due: float | None = None
        self._registering = False
        self._beating = False
        self._watching = False
        self._stored = False

    def start(self, now: float) -> None:
        """Begin a life. Raises ``ConfigError`` when the data directory is not this node's."""
        self._disk.mkdir(self._directory)
        try:
            stored = self._disk.read(self._path)
        except FileNotFoundError:
            stored = None  # a new data directory
        if stored is not None:
            self._check_stored(stored)
        self._register(now)

    def _check_stored(self, data: bytes) -> None:
        try:
            stored = json.loads(data)
            cluster, node = str(stored["cluster"]), str(stored["node"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{self._path} is damaged; it must name this cluster and node: {error!r}") from error
        if node != self._node:
            raise ConfigError(f"{self._directory} belongs to node {node}, not {self._node}")
        if self._cluster not in ("", cluster):
            raise ConfigError(f"{self._directory} belongs to cluster {cluster}, not {self._cluster}")
        self._cluster = cluster
        self._stored = True

    def live(self, now: float) -> bool:
        """Registered, and the controller cannot have ended the session yet."""
        return self.registered and now < self._ends_at

    def on_controller_up(self, now: float) -> None:
        """A link to the active controller is there: say at once what it waits for."""
        if not self.registered:
            self._register(now)
        else:
            self._heartbeat(now)
            self._watch()

    def on_controller_down(self) -> None:
        """The link is gone, and the watch with it."""
        self._watching = False

    def on_tick(self, now: float) -> None:
        """Heartbeats, and registrations that are tried again."""
        if self._due is None or now < self._due:
            return
        self._due = None
        if self.registered:
            self._heartbeat(now)
            if not self._watching:
                self._watch()
            self._due = now + self._settings.heartbeat_s
        else:
            self._register(now)

    def deadline(self) -> float | None:
        """When ``on_tick`` has something to do."""
        return self._due

    # --- calls -------------------------------------------------------------------------------------------

    def _register(self, now: float) -> None:
        if self._registering:
            return
        self._registering = True
        self._due = None
        message = Register(self._node, self._url, self._cluster)
        self._outbox.call(CONTROLLER, message, self._settings.controller_timeout_s, partial(self._on_registered, now))

    def _on_registered(self, sent: float, answer: Message | TidelogError, now: float) -> None:
        self._registering = False
        if not isinstance(answer, Registered):
            if isinstance(answer, TidelogError) and answer.code == "WRONG_CLUSTER":
                raise ConfigError(f"{self._directory}: {answer.message}")
            self._due = now + self._settings.controller_retry_s * (0.5 + self._rng.random())
            return
        if self._cluster not in ("", answer.cluster):
            raise ConfigError(f"the controller is of cluster {answer.cluster}, {self._directory} of {self._cluster}")
        self._cluster = answer.cluster
        if not self._stored:
            meta = {"cluster": self._cluster, "node": self._node}
            self._disk.write_atomic(self._path, json.dumps(meta).encode())
            self._stored = True
        self.registered = True
        self.broker_epoch = answer.broker_epoch
        self.index = answer.index
        self._timeout_s = answer.session_timeout_ms / 1000
        self._ends_at = sent + self._timeout_s
        self._due = now + self._settings.heartbeat_s
        self._outbox.event("registered", broker_epoch=self.broker_epoch, index=self.index, cluster=self._cluster)
        self._watch()
        self._on_begin(now)

    def _watch(self) -> None:
        self._watching = True
        self._outbox.call(CONTROLLER, Watch(), self._settings.controller_timeout_s, self._on_watched)

    def _on_watched(self, answer: Message | TidelogError, now: float) -> None:
        if isinstance(answer, TidelogError):
            self._watching = False  # tried again with the next heartbeat

    def _heartbeat(self, now: float) -> None:
        if self._beating:
            return
        self._beating = True
        message = Heartbeat(self._node, self.broker_epoch)
        done = partial(self._on_heartbeat, now, self.broker_epoch)
        self._outbox.call(CONTROLLER, message, self._settings.controller_timeout_s, done)

    def _on_heartbeat(self, sent: float, broker_epoch: int, answer: Message | TidelogError, now: float) -> None:
        self._beating = False
        if broker_epoch != self.broker_epoch or not self.registered:
            return
        if not isinstance(answer, TidelogError):
            self._ends_at = max(self._ends_at, sent + self._timeout_s)
        elif answer.code == "FENCED_BROKER_EPOCH":
            self.registered = False
            self._outbox.event("life_ended", broker_epoch=self.broker_epoch)
            self._on_end("a later life of this server has registered")
            self._register(now)
