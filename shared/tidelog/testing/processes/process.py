"""Simulated processes: each drives one real core as its trio shell would, effect by effect.

A process handles one input at a time. It may be paused (inputs wait), stall in a blocking call in the middle of its
effects, or die between any two effects: a crash first cuts it from the network, then drops everything that its disk
does not hold.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tidelog.errors import TidelogError, from_info
from tidelog.feature_levels import ALL
from tidelog.sansio.effects import Answer, Event, Post
from tidelog.testing.hardware.disk import PowerLost
from tidelog.testing.hardware.loop import stream
from tidelog.testing.hardware.network import Frame, SimLink
from tidelog.wire.messages import Message, Notify

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""Matches the memory address in a ``repr``. It differs from run to run, so it must not appear in a trace."""


class SimProcess:
    """One simulated process through all its runs: inbox of inputs, queue of effects, timer and links of the present
    run. Subclasses create the core in ``start`` and add the effects that they perform."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.loop = cluster.loop
        self.network = cluster.network
        self.name = name
        self.rng = stream(cluster.options.seed, f"{name}/machine")
        """Random numbers for what differs between machines and moments: times of the disk, what a crash leaves."""
        self.clock_skew_ms = stream(cluster.options.seed, f"{name}/clock").randrange(-60_000, 60_000)
        self.life = 0
        """The number of the present run of the process, or of the last one while it is down."""
        self.running = False
        self.ending = False
        """Whether the process has detached from the network and does nothing more, but has not ended yet."""
        self.frozen_until = 0.0
        self.levels = ALL
        """The feature levels that the next run of the process supports."""
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
        """The method that performs an effect, by type of effect, as the shell does."""

    def wall_ms(self) -> int:
        """Return the time of this machine's clock in ms since 1970, which is skewed by up to a minute."""
        return 1_767_225_600_000 + round(self.loop.now * 1000) + self.clock_skew_ms

    # --- life --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process: attach it to the network. Subclasses then create the core from the content of the disk
        and give it its first input."""
        assert not self.running
        self.life += 1
        self.running = True
        self.frozen_until = 0.0
        self.note("start", f"life {self.life}")
        self.network.attach(self)

    def stop(self, power: bool, in_mid_step: bool = False) -> None:
        """Kill the process at once: detach it from the network and drop core, inputs and effects. ``power``: the
        machine loses power too, with what was not flushed. ``in_mid_step``: it dies in the middle of an input."""
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
        """Pause the process for some seconds: inputs wait and deadlines pass. A longer pause stays as it is."""
        until = self.loop.now + seconds
        if until > self.frozen_until:
            self.frozen_until = until
            self.later(seconds, self._drain)

    def end_flushes(self) -> None:
        """Complete the flushes that are in progress. Only replica servers have any."""

    def thaw(self) -> None:
        """End a pause early; does nothing if the process is down or not paused."""
        if self.running and self.frozen_until > self.loop.now:
            self.frozen_until = self.loop.now
            self.later(0.0, self._drain)

    def later(self, delay: float, action: Callable[[], None]) -> None:
        """Schedule a call of ``action`` in ``delay`` seconds; it is dropped if this run of the process has ended by
        then."""
        life = self.life

        def run() -> None:
            if self.running and not self.ending and self.life == life:
                action()

        self.loop.after(delay, run)

    # --- inputs ------------------------------------------------------------------------------------------

    def submit(self, label: str, action: Callable[[], Sequence[Any]]) -> None:
        """Queue an input for the core and handle it as soon as the core is free; dropped if the process is down or
        ending. ``action`` calls the core and returns its effects. ``label`` is its text in the trace, "" if it has
        none."""
        if not self.running or self.ending:
            return
        self._inbox.append((label, action))
        self._drain()

    def _drain(self) -> None:
        """Perform the queued effects and then handle the queued inputs, until both are empty or the process is paused
        or ends. Checks the invariants after each input."""
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
        """Perform the next effect, unless a planned fault kills the process before it."""
        effect = self._effects.popleft()
        if self.cluster.faults.dies_before(self, effect):
            return
        if self.loop.tracing:
            self.note("out", describe(effect))
        self.perform(effect)

    def perform(self, effect: Any) -> None:
        """Perform one effect as the shell does."""
        self._performers[type(effect)](effect)

    def _perform_answer(self, effect: Answer) -> None:
        self._reply(effect.source, Frame("answer", effect.id, as_travelled(effect.message)))

    def _perform_post(self, effect: Post) -> None:
        self._reply(effect.source, Frame("post", None, effect.message), type(effect.message) is Notify)

    def _perform_event(self, effect: Event) -> None:
        self.cluster.on_event(self, effect)

    def _reply(self, source: int, frame: Frame, lossy: bool = False) -> None:
        """Send a message over an accepted link, by the number of the link; dropped if the link has ended."""
        link = self._accepted.get(source)
        if link is not None:
            link.send(self, frame, lossy)

    def _rearm(self) -> None:
        """Schedule a timer for the core's deadline, unless one is due before it."""
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
        """Call the timer of the core and return its effects."""
        effects: Sequence[Any] = self.core.on_tick(self.loop.now)
        return effects

    # --- network -----------------------------------------------------------------------------------------

    def on_accept(self, link: SimLink) -> None:
        self._accepted[link.number] = link

    def on_frame(self, link: SimLink, frame: Frame) -> None:
        if frame.kind == "request" or frame.kind == "post":
            self.on_message(link, frame.id, frame.body)
        else:
            raise AssertionError(f"{self.name} asked nothing of {link.other(self.name)}: {frame}")

    def on_message(self, link: SimLink, id: int | None, message: Any) -> None:
        """Queue a request or one-way message for the core."""
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
        """Write a line to the trace."""
        if self.loop.tracing:
            self.loop.note(self.name, f"{kind:5} {text}")


def as_travelled(message: Message | Exception) -> Message | Exception:
    """Return an error as the receiver decodes it, with only the fields that the wire carries; other messages
    unchanged."""
    return from_info(message.to_info()) if isinstance(message, TidelogError) else message


def describe(thing: Any, peer: str = "") -> str:
    """Return a message or effect as one line for the trace; a long payload is replaced by its length."""
    text = ADDRESS.sub("", repr(thing))
    for field in ("payload=", "data="):
        at = text.find(field)
        if at >= 0 and len(text) > 400:
            text = f"{text[:at]}{field}({len(text)} chars)"
    return f"{peer} {text}" if peer else text
