"""Simulated processes: each drives one real core as its trio shell would, effect by effect.

A process takes one input at a time. It may be paused (inputs wait), stall in a blocking call in the middle of its
effects, or die between any two effects: a crash first cuts it from the network, then forgets everything that its
disk does not hold.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tidelog.errors import TidelogError, from_info
from tidelog.feature_levels import ALL
from tidelog.sansio.effects import Answer, Event, Post
from tidelog.wire.messages import Message, Notify

from simulation.world.disk import PowerLost
from simulation.world.loop import stream
from simulation.world.network import Frame, SimLink

if TYPE_CHECKING:
    from simulation.cluster import Cluster

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""Differs from run to run: never in a trace."""


class SimProcess:
    """One process: inbox, timer, links, life and death. Subclasses start the core and perform its effects."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.loop = cluster.loop
        self.network = cluster.network
        self.name = name
        self.rng = stream(cluster.options.seed, f"{name}/machine")
        """What differs between machines and moments: times of the disk, what a crash leaves."""
        self.clock_skew_ms = stream(cluster.options.seed, f"{name}/clock").randrange(-60_000, 60_000)
        self.life = 0
        """Number of the present life, or of the last one when down."""
        self.running = False
        self.ending = False
        """Its links are gone and it does nothing more, but it is not over yet."""
        self.frozen_until = 0.0
        self.levels = ALL
        """The feature levels that its next life understands."""
        self.core: Any = None
        self._inbox: deque[tuple[str, Callable[[], Sequence[Any]]]] = deque()
        self._effects: deque[Any] = deque()
        self._timer: float | None = None
        self._accepted: dict[int, SimLink] = {}
        self._performers: dict[type, Callable[[Any], None]] = {
            Answer: self._perform_answer,
            Post: self._perform_post,
            Event: self._perform_event,
        }
        """What the shell does, by kind of effect."""

    def wall_ms(self) -> int:
        """This machine's idea of the time."""
        return 1_767_225_600_000 + round(self.loop.now * 1000) + self.clock_skew_ms

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
        self.cluster.invariants.on_stop(self, in_mid_step, power)
        self.note("crash", "power loss" if power else "killed")
        slow = power and self.rng.random() < 0.5
        if not self.ending:
            self.network.detach(self, slow)
        self.running = self.ending = False
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

    def end_flushes(self) -> None:
        """Whatever its disk is busy with is over."""

    def thaw(self) -> None:
        """A pause ends early."""
        if self.running and self.frozen_until > self.loop.now:
            self.frozen_until = self.loop.now
            self.later(0.0, self._drain)

    def later(self, delay: float, action: Callable[[], None]) -> None:
        """Run ``action`` after ``delay`` if this life still lasts then."""
        life = self.life

        def run() -> None:
            if self.running and not self.ending and self.life == life:
                action()

        self.loop.after(delay, run)

    # --- inputs ------------------------------------------------------------------------------------------

    def submit(self, label: str, action: Callable[[], Sequence[Any]]) -> None:
        """Give the core an input, now or when it is free again; ``label`` tells the trace of it, "" without one."""
        if not self.running or self.ending:
            return
        self._inbox.append((label, action))
        self._drain()

    def _drain(self) -> None:
        while self.running and not self.ending and self.frozen_until <= self.loop.now:
            if self._effects:
                self._perform_next()
            elif self._inbox:
                label, action = self._inbox.popleft()
                if self.loop.tracing:
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
        self._performers[type(effect)](effect)

    def _perform_answer(self, effect: Answer) -> None:
        self._reply(effect.source, Frame("answer", effect.id, as_travelled(effect.message)))

    def _perform_post(self, effect: Post) -> None:
        self._reply(effect.source, Frame("post", None, effect.message), type(effect.message) is Notify)

    def _perform_event(self, effect: Event) -> None:
        self.cluster.on_event(self, effect)

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
            describe(message, link.other(self.name)) if self.loop.tracing else "",
            lambda: self.core.on_request(link.number, id, message, self.loop.now),
        )

    def on_close(self, link: SimLink) -> None:
        if self._accepted.pop(link.number, None) is not None:
            self.submit(
                f"closed by {link.other(self.name)}",
                lambda: self.core.on_link_closed(link.number, self.loop.now),
            )

    def on_gone(self, name: str) -> None:
        raise AssertionError(f"{self.name} sends no datagrams")

    def on_datagram(self, sender: str, message: Message) -> None:
        raise AssertionError(f"{self.name} takes no datagrams")

    def note(self, kind: str, text: str) -> None:
        """A line of the trace."""
        if self.loop.tracing:
            self.loop.note(self.name, f"{kind:5} {text}")


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
