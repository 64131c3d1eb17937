"""Simulated processes: each drives one real core as its trio shell would, effect by effect.

A process takes one input at a time. It may be paused (inputs wait), stall in a blocking call in the middle of its
effects, or die between any two effects: a crash first cuts it from the network, then forgets everything that its
disk does not hold.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tidelog.effects import CONTROLLER, Answer, Call, Event, Post, Send
from tidelog.errors import TidelogError, TimedOut, Unreachable, from_info
from tidelog.wire.messages import DescribeQuorum, Message, MetadataUpdate, Notify, QuorumAnswer
from tidelog_controller.core.controller import Controller
from tidelog_controller.core.raft_log import Persist, Stored
from tidelog_replica.node import ReplicaNode, StartFlush

from simulation.sim_disk import PowerLost, SimDisk
from simulation.sim_network import Frame, SimLink

if TYPE_CHECKING:
    from simulation.cluster import Cluster

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""Differs from run to run: never in a trace."""
DATA = "/data"
"""Directory of a replica server on its own disk."""


class Core(Protocol):
    """What every core has: one timer."""

    def deadline(self) -> float | None:
        """When ``on_tick`` is due."""

    def on_tick(self, now: float) -> list[Any]:
        """The timer."""


class SimProcess:
    """One process: inbox, timer, links, life and death. Subclasses start the core and perform its effects."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.loop = cluster.loop
        self.network = cluster.network
        self.name = name
        self.life = 0
        """Number of the present life, or of the last one when down."""
        self.running = False
        self.frozen_until = 0.0
        self.core: Any = None
        self._inbox: deque[tuple[str, Callable[[], Sequence[Any]]]] = deque()
        self._effects: deque[Any] = deque()
        self._timer: float | None = None
        self._accepted: dict[int, SimLink] = {}

    # --- life --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a new life with what the disk holds."""
        assert not self.running
        self.life += 1
        self.running = True
        self.frozen_until = 0.0
        self.note("start", f"life {self.life}")
        self.network.attach(self)
        self.begin()

    def begin(self) -> None:
        """Make the core and give it its first input."""
        raise NotImplementedError

    def stop(self, power: bool, in_mid_step: bool = False) -> None:
        """Die at once. ``power``: the machine goes down too, and takes what was not flushed."""
        assert self.running
        self.cluster.invariants.on_stop(self, in_mid_step)
        self.note("crash", "power loss" if power else "killed")
        self.network.detach(self, slow=power and self.cluster.fault_rng.random() < 0.5)
        self.running = False
        self.core = None
        self._inbox.clear()
        self._effects.clear()
        self._accepted.clear()
        self._timer = None

    def freeze(self, seconds: float) -> None:
        """Nothing is done for a while: inputs wait, deadlines pass."""
        until = self.loop.now + seconds
        if until > self.frozen_until:
            self.frozen_until = until
            self.later(seconds, self._drain)

    def later(self, delay: float, action: Callable[[], None]) -> None:
        """Run ``action`` after ``delay`` if this life still lasts then."""
        life = self.life

        def run() -> None:
            if self.running and self.life == life:
                action()

        self.loop.after(delay, run)

    # --- inputs ------------------------------------------------------------------------------------------

    def submit(self, label: str, action: Callable[[], Sequence[Any]]) -> None:
        """Give the core an input, now or when it is free again."""
        if not self.running:
            return
        self._inbox.append((label, action))
        self._drain()

    def _drain(self) -> None:
        while self.running and self.frozen_until <= self.loop.now:
            if self._effects:
                self._perform_next()
            elif self._inbox:
                label, action = self._inbox.popleft()
                self.note("in", label)
                try:
                    effects = action()
                except PowerLost:
                    self.cluster.faults.power_lost(self)
                    return
                except OSError as error:
                    self.cluster.faults.process_ended(self, error)
                    return
                self.cluster.invariants.after_step(self, effects)
                if not self.running:
                    return  # what it did was the trigger of its death
                self._effects.extend(effects)
                self._rearm()
            else:
                return

    def _perform_next(self) -> None:
        effect = self._effects.popleft()
        if self.cluster.faults.dies_before(self, effect):
            return
        if self.loop.tracing:
            self.note("out", describe(effect))
        self.perform(effect)

    def perform(self, effect: Any) -> None:
        """Do what the shell does for this effect."""
        if isinstance(effect, Answer):
            self._reply(effect.source, Frame("answer", effect.id, as_travelled(effect.message)))
        elif isinstance(effect, Post):
            lossy = isinstance(effect.message, Notify)
            self._reply(effect.source, Frame("post", None, effect.message), lossy)
        elif isinstance(effect, Event):
            self.cluster.on_event(self, effect)
        else:
            raise AssertionError(f"{self.name}: nobody performs {effect!r}")

    def _reply(self, source: int, frame: Frame, lossy: bool = False) -> None:
        link = self._accepted.get(source)
        if link is not None:
            link.send(self, frame, lossy)

    def _rearm(self) -> None:
        due = self.core.deadline()
        if due is None or (self._timer is not None and self._timer <= due):
            return
        self._timer = due
        self.later(max(0.0, due - self.loop.now), lambda: self._on_timer(due))

    def _on_timer(self, due: float) -> None:
        if self._timer != due:
            return
        self._timer = None

        def tick() -> Sequence[Any]:
            now = self.loop.now
            deadline = self.core.deadline()
            effects: Sequence[Any] = self.tick() if deadline is not None and deadline <= now else []
            deadline = self.core.deadline()
            assert deadline is None or deadline > now, f"{self.name} spins: deadline {deadline} at {now}"
            return effects

        self.submit("tick", tick)

    def tick(self) -> Sequence[Any]:
        """The timer of the core."""
        return self.core.on_tick(self.loop.now)

    # --- network -----------------------------------------------------------------------------------------

    def on_accept(self, link: SimLink) -> None:
        self._accepted[link.number] = link

    def on_frame(self, link: SimLink, frame: Frame) -> None:
        if frame.kind == "request" or frame.kind == "post":
            self.on_message(link, frame.id, frame.body)
        else:
            raise AssertionError(f"{self.name} asked nothing of {link.other(self.name)}: {frame}")

    def on_message(self, link: SimLink, id: int | None, message: Any) -> None:
        """A request or one-way message for the core."""
        self.submit(
            self._label(message, link.other(self.name)),
            lambda: self.core.on_request(link.number, id, message, self.loop.now),
        )

    def on_close(self, link: SimLink) -> None:
        if self._accepted.pop(link.number, None) is not None:
            self.submit(
                f"closed by {link.other(self.name)}",
                lambda: self.core.on_link_closed(link.number, self.loop.now),
            )

    def on_datagram(self, sender: str, message: Message) -> None:
        raise AssertionError(f"{self.name} takes no datagrams")

    def _label(self, thing: Any, peer: str = "") -> str:
        """``describe`` where somebody will read it."""
        return describe(thing, peer) if self.loop.tracing else ""

    def note(self, kind: str, text: str) -> None:
        """A line of the trace."""
        if self.loop.tracing:
            self.loop.note(self.name, f"{kind:5} {text}")


class RaftStore:
    """A controller's storage: what ``perform`` took is durable."""

    def __init__(self) -> None:
        self._stored = Stored()

    def load(self) -> Stored:
        """What a new life finds."""
        return Stored(self._stored.term, self._stored.voted_for, list(self._stored.entries))

    def perform(self, persist: Persist) -> None:
        """Make it durable."""
        stored = self._stored
        stored.term, stored.voted_for = persist.term, persist.voted_for
        if persist.truncate_from is not None:
            del stored.entries[persist.truncate_from - 1 :]
        for entry in persist.entries:
            assert entry.index == len(stored.entries) + 1, (entry.index, len(stored.entries))
            stored.entries.append(entry)


class ControllerProcess(SimProcess):
    """A controller."""

    core: Controller

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name)
        self.store = RaftStore()
        self.clock_skew_ms = cluster.fault_rng.randrange(-60_000, 60_000)

    def wall_ms(self) -> int:
        """This machine's idea of the time."""
        return 1_700_000_000_000 + round(self.loop.now * 1000) + self.clock_skew_ms

    def begin(self) -> None:
        cluster = self.cluster
        peers = {name: f"sim://{name}" for name in cluster.controllers}
        self.core = Controller(
            self.name,
            peers,
            cluster.name,
            cluster.controller_settings,
            self.store.load(),
            cluster.core_rng(self.name, self.life),
            self.loop.now,
        )
        self._rearm()

    def tick(self) -> Sequence[Any]:
        return self.core.on_tick(self.loop.now, wall_ms=self.wall_ms())

    def on_message(self, link: SimLink, id: int | None, message: Any) -> None:
        self.submit(
            self._label(message, link.other(self.name)),
            lambda: self.core.on_request(link.number, id, message, self.loop.now, wall_ms=self.wall_ms()),
        )

    def on_datagram(self, sender: str, message: Message) -> None:
        self.submit(
            self._label(message, sender),
            lambda: self.core.on_message(sender, message, self.loop.now, wall_ms=self.wall_ms()),
        )

    def perform(self, effect: Any) -> None:
        if isinstance(effect, Persist):
            self.store.perform(effect)
            stall = self.cluster.faults.disk_stall(self)
            if stall:
                self.freeze(stall)
        elif isinstance(effect, Send):
            self.cluster.invariants.on_send(self, effect)
            self.network.datagram(self.name, effect.to, effect.message)
        else:
            super().perform(effect)


class ReplicaProcess(SimProcess):
    """A replica server, with its links to peers and to the active controller."""

    core: ReplicaNode

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name)
        self.disk = SimDisk()
        self.flush_failed = False
        """A flush failed and the server has not heard of it. Were it killed now, its next life would find clean pages
        that never reached the disk; so the machine goes down with it (a gap that the server cannot close)."""
        self._peers: dict[str, SimLink] = {}
        self._calls: dict[int, tuple[SimLink, int]] = {}
        self._call_id = 0
        self._controller: SimLink | None = None
        self._seeking: SimLink | None = None
        self._next_controller = 0

    def begin(self) -> None:
        cluster = self.cluster
        self.core = ReplicaNode(
            self.name,
            f"sim://{self.name}",
            self.disk,
            DATA,
            cluster.replica_settings,
            cluster.core_rng(self.name, self.life),
            cluster.name,
        )
        self._seek()
        self.submit("start", lambda: self.core.start(self.loop.now))

    def stop(self, power: bool, in_mid_step: bool = False) -> None:
        super().stop(power, in_mid_step)
        self._peers.clear()
        self._calls.clear()
        self._controller = self._seeking = None
        if power or self.flush_failed:
            self.disk.crash(self.cluster.disk_rng)
        self.flush_failed = False

    def supervise(self) -> None:
        """A partition went offline: whoever watches over the process starts it again."""
        self.stop(power=False)
        self.start()

    # --- the active controller ---------------------------------------------------------------------------

    def _seek(self, hint: str = "") -> None:
        """Ask a controller whether it is the active one; the hint first, then all in turn."""
        if self._controller is not None or self._seeking is not None:
            return
        names = self.cluster.controllers
        if not hint:
            hint = names[self._next_controller % len(names)]
            self._next_controller += 1
        link = self._seeking = self.network.connect(self, hint)
        link.send(self, Frame("request", 0, DescribeQuorum()))
        self.later(1.0, lambda: self._give_up(link))

    def _give_up(self, link: SimLink, hint: str = "") -> None:
        if link is self._seeking:
            link.close(self)
            self._seeking = None
            self.later(self.cluster.client_rng.uniform(0.02, 0.2), lambda: self._seek(hint))

    def _on_quorum(self, link: SimLink, answer: Any) -> None:
        if link is not self._seeking:
            return
        if isinstance(answer, QuorumAnswer) and answer.active == link.server_name:
            self._seeking, self._controller = None, link
            self.submit("controller up", lambda: self.core.on_controller_up(self.loop.now))
        else:
            self._give_up(link, answer.active if isinstance(answer, QuorumAnswer) else "")

    def _drop_controller(self, hint: str = "") -> None:
        link = self._controller
        if link is None:
            return
        self._controller = None
        link.close(self)
        self._fail_calls(link)
        self.submit("controller down", lambda: self.core.on_controller_down(self.loop.now))
        self.later(self.cluster.client_rng.uniform(0.0, 0.1), lambda: self._seek(hint))

    # --- effects -----------------------------------------------------------------------------------------

    def perform(self, effect: Any) -> None:
        if isinstance(effect, Call):
            self._call(effect)
        elif isinstance(effect, StartFlush):
            self._start_flush(effect)
        elif isinstance(effect, Send):
            link = self._peer(effect.to)
            link.send(self, Frame("post", None, effect.message), lossy=True)
        else:
            super().perform(effect)

    def _peer(self, name: str) -> SimLink:
        link = self._peers.get(name)
        if link is None:
            link = self._peers[name] = self.network.connect(self, name)
        return link

    def _call(self, effect: Call) -> None:
        link = self._controller if effect.to == CONTROLLER else self._peer(effect.to)
        if link is None:
            self.later(0.001, lambda: self._answer(effect.token, Unreachable("no active controller is known")))
            return
        self._call_id += 1
        number = self._call_id
        self._calls[number] = (link, effect.token)
        link.send(self, Frame("request", number, effect.message))
        self.later(effect.timeout_s, lambda: self._expire(number))

    def _expire(self, number: int) -> None:
        call = self._calls.pop(number, None)
        if call is not None:
            link, token = call
            self._answer(token, TimedOut("no answer in time"))
            if link is self._controller:
                self._drop_controller()

    def _answer(self, token: int, answer: Any) -> None:
        self.submit(
            f"answer {token} {self._label(answer)}", lambda: self.core.on_answer(token, answer, self.loop.now)
        )

    def _start_flush(self, effect: StartFlush) -> None:
        """A thread syncs the files: what is written in the meantime may or may not be covered."""
        took = self.cluster.faults.flush_time(self)
        early = self.cluster.fault_rng.random() < 0.5
        failed: list[OSError | None] = [None]

        def sync() -> None:
            try:
                effect.flush.run()
            except OSError as error:
                failed[0] = error
                self.flush_failed = True
            except PowerLost:
                self.cluster.faults.power_lost(self)

        def finish() -> None:
            if not early:
                sync()
            self.submit(f"flushed {effect.key.partition} to {effect.flush.end} {failed[0] or ''}", tell)
            self.cluster.faults.on_protocol_event("flush", self)

        def tell() -> Sequence[Any]:
            self.flush_failed = False
            return self.core.on_flushed(effect.key, effect.flush, failed[0], self.loop.now)

        if early:
            sync()
        self.later(took, finish)

    # --- network -----------------------------------------------------------------------------------------

    def on_frame(self, link: SimLink, frame: Frame) -> None:
        if frame.kind != "answer":
            if isinstance(frame.body, MetadataUpdate):
                update = frame.body
                self.submit(f"metadata {update.index}", lambda: self.core.on_metadata(update, self.loop.now))
            else:
                super().on_frame(link, frame)
            return
        if frame.id == 0:
            self._on_quorum(link, frame.body)
            return
        assert frame.id is not None
        call = self._calls.pop(frame.id, None)
        if call is None:
            return
        self._answer(call[1], frame.body)
        if link is self._controller and getattr(frame.body, "code", "") == "NOT_ACTIVE_CONTROLLER":
            assert isinstance(frame.body, TidelogError)
            self._drop_controller(str(frame.body.detail.get("leader", "")))

    def on_close(self, link: SimLink) -> None:
        if link is self._seeking:
            self._seeking = None
            self.later(self.cluster.client_rng.uniform(0.02, 0.2), self._seek)
        elif link is self._controller:
            self._drop_controller()
        elif self._peers.get(link.server_name) is link:
            del self._peers[link.server_name]
            self._fail_calls(link)
            name = link.server_name
            self.submit(f"peer {name} down", lambda: self.core.on_peer_down(name, self.loop.now))
        else:
            super().on_close(link)

    def _fail_calls(self, link: SimLink) -> None:
        for number, (used, token) in list(self._calls.items()):
            if used is link:
                del self._calls[number]
                self._answer(token, Unreachable(f"the link to {link.server_name} broke"))


def as_travelled(message: Message | Exception) -> Message | Exception:
    """An error as it arrives: only what the wire carries of it."""
    return from_info(message.to_info()) if isinstance(message, TidelogError) else message


def describe(thing: Any, peer: str = "") -> str:
    """One line for the trace; payloads by their length."""
    text = ADDRESS.sub("", repr(thing))
    for field in ("payload=", "data="):
        at = text.find(field)
        if at >= 0 and len(text) > 400:
            text = f"{text[:at]}{field}({len(text)} chars)"
    return f"{peer} {text}" if peer else text
