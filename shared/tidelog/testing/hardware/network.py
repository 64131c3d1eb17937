"""A network between named processes: links that break, delay and stall, and datagrams that get lost.

Two kinds of traffic, as in the product:

- a **link** is a connection. Each direction delivers in order, or the link dies. A message that meets a partition,
  when it is sent *or* when it would arrive, kills the link silently: all messages in flight are lost, and each side
  notices only after a delay of its own. A *late copy* of a request may be delivered once more, as from an older
  connection's buffer. One-way messages (``lossy``) may be lost, doubled and overtaken.
- a **datagram** is a one-way message between controllers: lost, doubled, delayed, reordered at will. When a process
  ends, the processes that still reach it notice soon, unless its machine has vanished.

Partitions are sets of ordered pairs of names with the time at which they heal; they may overlap.

A *mute* direction is worse than a partition: nobody notices it. A link that is open when it begins carries nothing
more in that direction, not even its own end, as when a firewall has forgotten the connection. Each side closes such a
link after it has received nothing for too long; in the product unanswered pings show the same, and pings are not
simulated.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple, Protocol

from tidelog.testing.hardware.loop import Loop
from tidelog.wire.messages import Message

SILENCE_S = 5.0
"""A side that has received nothing over a link for so many seconds closes it (15 s in the product)."""
PEER_SILENCE_S = 0.7
"""The same time for the opening side of a link between servers: a follower must leave a silent leader (0.6 s in the
product, and up to 1.5 s where answers were slow)."""

Kind = Literal["request", "answer", "post"]


class Frame(NamedTuple):
    """One message on a link. ``id`` is the number of a request, which its answer repeats; None for one-way
    messages."""

    kind: Kind
    id: int | None
    body: Message | Exception


class Process(Protocol):
    """The methods through which the network delivers to a process."""

    name: str

    def on_accept(self, link: SimLink) -> None:
        """Take a link that another process has opened to this one."""

    def on_frame(self, link: SimLink, frame: Frame) -> None:
        """Take a message that arrived over a link."""

    def on_gone(self, name: str) -> None:
        """Take the notice that the process of that name ended or fell silent, so that the connections for datagrams
        with it broke."""

    def on_close(self, link: SimLink) -> None:
        """Take the notice that a link ended or could not be opened."""

    def on_datagram(self, sender: str, message: Message) -> None:
        """Take a one-way message that arrived outside of any link."""


@dataclass(slots=True)
class Weather:
    """The present quality of the network, which ``Faults`` changes. Times are in seconds, the rest are
    probabilities."""

    latency: float = 0.0008
    tail: float = 0.0
    """The probability that a message is delayed by up to ``tail_max`` seconds."""
    tail_max: float = 0.4
    loss: float = 0.0
    duplicate: float = 0.0
    late_copy: float = 0.0
    break_link: float = 0.0
    """The probability, per message, that the link breaks when the message is sent."""


class SimLink:
    """One connection from process ``client`` to the process named ``server_name``. ``number`` is never used again."""

    def __init__(self, network: Network, number: int, client: Process, server: str) -> None:
        self._network = network
        self.number = number
        self.client = client
        self.server_name = server
        self.server: Process | None = None
        self.open = False
        self.dead = False
        self.informed: set[str] = set()
        """The names of the sides that know that the link ended."""
        self.deaf: set[str] = set()
        """The names of the sides that receive nothing more, though they do not know that the link ended."""
        self.heard: dict[str, float] = {}
        """The time at which each side last received something; kept only since a direction became mute."""
        self._waiting: list[Frame] = []
        self._last_arrival = {client.name: 0.0, server: 0.0}

    def other(self, name: str) -> str:
        """Return the name of the process at the other end."""
        return self.server_name if name == self.client.name else self.client.name

    def send(self, sender: Process, frame: Frame, lossy: bool = False) -> None:
        """Send a message from a side; messages wait until the link is open. Does nothing if the link is dead or the
        sender knows that it ended. ``lossy``: the message may be lost, doubled and overtaken."""
        if self.dead or sender.name in self.informed:
            return
        if not self.open:
            self._waiting.append(frame)
            return
        self._network.carry(self, sender, frame, lossy)

    def opened(self) -> None:
        """Mark the link as accepted by the server, and send the waiting messages of the client."""
        self.open = True
        waiting, self._waiting = self._waiting, []
        for frame in waiting:
            self.send(self.client, frame)

    def close(self, by: Process) -> None:
        """End the link from the side of a process; the other side notices soon."""
        self.informed.add(by.name)
        self._network.kill(self, slow=False)

    def end_of(self, name: str) -> Process | None:
        """Return the process of a name at this link; None for a server that has not accepted it."""
        return self.client if name == self.client.name else self.server

    def silence_s(self, name: str) -> float:
        """Return after how many seconds of silence that side closes the link."""
        between_servers = self.server_name.startswith("r") and self.client.name.startswith(("r", "c"))
        return PEER_SILENCE_S if between_servers and name == self.client.name else SILENCE_S

    def arrival(self, receiver: str, time: float) -> float:
        """Return when a message that needs until ``time`` arrives: not before the messages sent earlier in that
        direction."""
        last = self._last_arrival[receiver]
        if time < last:
            return last
        self._last_arrival[receiver] = time
        return time


class Network:
    """All links and datagrams of a run, and the partitions and weather they meet. ``recode``, if given, passes every
    message through the real codec."""

    def __init__(self, loop: Loop, rng: random.Random, recode: Callable[[Frame], Frame] | None = None) -> None:
        self.loop = loop
        self.weather = Weather()
        self._rng = rng
        self._recode = recode
        self._up: dict[str, Process] = {}
        self._blocked: dict[tuple[str, str], float] = {}
        self._mute: dict[tuple[str, str], float] = {}
        self._links: dict[int, SimLink] = {}
        self.unnoticed = 0
        """The number of ends of dead or mute links whose processes have not noticed yet."""
        self._senders: dict[str, dict[str, None]] = {}
        """By receiver, the processes that have sent datagrams to it."""
        self._number = 0

    def attach(self, process: Process) -> None:
        """Make a running process reachable under its name."""
        self._up[process.name] = process

    def detach(self, process: Process, slow: bool) -> None:
        """Remove a process that stopped: it receives nothing more, its links end, and its peers notice soon, or late
        if ``slow`` (a machine that vanished sends no reset)."""
        del self._up[process.name]
        for link in [link for link in self._links.values() if process in (link.client, link.server)]:
            link.informed.add(process.name)
            self.kill(link, slow)
        if not slow:
            for name in self._senders.pop(process.name, ()):
                if name in self._up and self.hears(process.name, name):
                    self.loop.after(
                        self._rng.uniform(0.0, 0.02), partial(self._report_gone, self._up[name], process.name)
                    )

    def _report_gone(self, process: Process, name: str) -> None:
        """Report to a process that another one stopped, unless either has started again."""
        if self._up.get(process.name) is process and name not in self._up:
            process.on_gone(name)

    def block(self, source: str, target: str, until: float) -> None:
        """Let nothing pass from ``source`` to ``target`` before the time ``until``."""
        self._blocked[source, target] = max(until, self._blocked.get((source, target), 0.0))

    def mute(self, source: str, target: str, until: float) -> None:
        """Make the direction from ``source`` to ``target`` mute: open links carry nothing there any more, and new
        ones open only after the time ``until``. Controllers lose their datagrams there at least until the link would
        be closed for silence."""
        self._mute[source, target] = max(until, self._mute.get((source, target), 0.0))
        for link in self._links.values():
            if link.open and {source, target} == {link.client.name, link.server_name}:
                link.deaf.add(target)
                for name in (source, target):
                    self._listen(link, name)
        if source in self._senders.get(target, ()):
            self._mute[source, target] = max(self._mute[source, target], self.loop.now + PEER_SILENCE_S)
            for name, other in ((source, target), (target, source)):  # pings need both ways
                self.loop.after(PEER_SILENCE_S, partial(self._report_silent, name, other))

    def _report_silent(self, name: str, other: str) -> None:
        """Report to a running process that another one fell silent."""
        if name in self._up:
            self._up[name].on_gone(other)

    def _listen(self, link: SimLink, name: str) -> None:
        """Begin to measure for how long that side of a link has received nothing."""
        if name not in link.heard and name not in link.informed:
            link.heard[name] = self.loop.now
            self.unnoticed += 1
            self.loop.after(link.silence_s(name), partial(self._look, link, name))

    def _look(self, link: SimLink, name: str) -> None:
        """Close a link for the side that has received nothing for too long; look again later if it has."""
        process = link.end_of(name)
        quiet_at = link.heard[name] + link.silence_s(name)
        if name not in link.informed and process is not None and self._up.get(name) is process:
            if self.loop.now < quiet_at:
                self.loop.at(quiet_at, partial(self._look, link, name))
                return
            link.informed.add(name)
            process.on_close(link)
            self.kill(link, slow=False)
        self.unnoticed -= 1

    def heal(self) -> None:
        """End all partitions, mute directions and bad weather. Links that became mute stay so until they are closed
        for silence."""
        self._blocked.clear()
        self._mute.clear()
        self.weather = Weather()

    def passes(self, source: str, target: str) -> bool:
        """Return whether no partition blocks the direction from ``source`` to ``target`` now."""
        return not self._blocked or self._blocked.get((source, target), 0.0) <= self.loop.now

    def hears(self, source: str, target: str) -> bool:
        """Return whether a new link or a datagram gets from ``source`` to ``target`` now: the direction is neither
        blocked nor mute."""
        return self.passes(source, target) and self._mute.get((source, target), 0.0) <= self.loop.now

    def delay(self) -> float:
        """Draw the time in seconds that one message takes at present."""
        weather = self.weather
        if weather.tail and self._rng.random() < weather.tail:
            return self._rng.uniform(0.0, weather.tail_max)
        return weather.latency * (0.5 + self._rng.random())

    # --- links -------------------------------------------------------------------------------------------

    def connect(self, client: Process, server: str) -> SimLink:
        """Open a link and return it; messages may be sent at once. If it cannot be opened, the client's ``on_close``
        is called."""
        self._number += 1
        link = SimLink(self, self._number, client, server)
        self._links[link.number] = link
        self.loop.after(self.delay(), lambda: self._establish(link))
        return link

    def _establish(self, link: SimLink) -> None:
        """Let the server accept the link, or end the link if the server is down or cannot be reached."""
        if link.dead:
            return
        client, server = link.client.name, self._up.get(link.server_name)
        if not self.hears(client, link.server_name) or not self.hears(link.server_name, client):
            self.kill(link, slow=True)
        elif server is None:
            self.kill(link, slow=False)
        else:
            link.server = server
            server.on_accept(link)
            link.opened()

    def carry(self, link: SimLink, sender: Process, frame: Frame, lossy: bool) -> None:
        """Deliver a message over an open link, as far as weather and partitions allow: in order after a delay, or
        lost with the link. ``lossy`` messages are lost, doubled and overtaken on their own."""
        receiver = link.other(sender.name)
        if self._recode is not None:
            frame = self._recode(frame)
        frame = frozen(frame)
        if receiver in link.deaf:
            return
        if self._blocked and not self.passes(sender.name, receiver):
            self.kill(link, slow=True)
            return
        weather = self.weather
        if weather.break_link and self._rng.random() < weather.break_link:
            self.kill(link, slow=False)
            return
        if lossy:
            if not (weather.loss and self._rng.random() < weather.loss):
                self._deliver_loose(link, receiver, frame, self.delay())
            if weather.duplicate and self._rng.random() < weather.duplicate:
                self._deliver_loose(link, receiver, frame, 3 * self.delay())
            return
        source = sender.name

        def deliver() -> None:
            if link.dead or receiver in link.informed or receiver in link.deaf:
                return
            if self._blocked and not self.passes(source, receiver):
                self.kill(link, slow=True)
                return
            process = link.client if receiver == link.client.name else link.server
            assert process is not None
            if link.heard:
                link.heard[receiver] = self.loop.now
            process.on_frame(link, frame)

        self.loop.at(link.arrival(receiver, self.loop.now + self.delay()), deliver)
        if frame.kind == "request" and weather.late_copy and self._rng.random() < weather.late_copy:
            self._deliver_loose(link, receiver, frame, self._rng.uniform(0.0, 1.0))

    def _deliver_loose(self, link: SimLink, receiver: str, frame: Frame, delay: float) -> None:
        """Deliver a message after ``delay`` seconds outside of the link's order; it is lost if the link has ended or
        a partition blocks it then."""

        def arrive() -> None:
            process = link.end_of(receiver)
            known = (
                not link.dead and receiver not in link.informed and receiver not in link.deaf and process is not None
            )
            if known and self.passes(link.other(receiver), receiver):
                assert process is not None
                if link.heard:
                    link.heard[receiver] = self.loop.now
                process.on_frame(link, frame)

        self.loop.after(delay, arrive)

    def reset(self, name: str, others: Sequence[str], slow: bool) -> None:
        """End every link between a process and the given others, with all messages in flight."""
        for link in [link for link in self._links.values() if name in (link.client.name, link.server_name)]:
            if link.other(name) in others:
                self.kill(link, slow)

    def kill(self, link: SimLink, slow: bool) -> None:
        """End a link: it carries nothing more, and each side that does not know it notices after a random delay,
        longer if ``slow``. A deaf side notices only by silence."""
        if link.dead:
            return
        link.dead = True
        del self._links[link.number]
        for name in (link.client.name, link.server_name):
            if name in link.deaf:
                continue
            longest = self._rng.choice((0.05, 0.5, 3.0)) if slow else 0.02
            self.unnoticed += 1
            self.loop.after(self._rng.uniform(0.0, longest), partial(self._report_end, link, name))

    def _report_end(self, link: SimLink, name: str) -> None:
        """Report the end of a link to a side that does not know it and still runs."""
        self.unnoticed -= 1
        process = link.end_of(name)
        if name not in link.informed and process is not None and self._up.get(name) is process:
            link.informed.add(name)
            process.on_close(link)

    # --- datagrams ---------------------------------------------------------------------------------------

    def datagram(self, sender: str, target: str, message: Message) -> None:
        """Send a one-way message outside of any link; it may be lost or arrive twice."""
        self._senders.setdefault(target, {})[sender] = None
        message = self._recode(Frame("post", None, message)).body if self._recode else message  # type: ignore[assignment]
        weather = self.weather
        copies = 0 if weather.loss and self._rng.random() < weather.loss else 1
        if weather.duplicate and self._rng.random() < weather.duplicate:
            copies += 1
        if not self.hears(sender, target):
            copies = 0
        for copy in range(copies):
            self.loop.after((1 + 2 * copy) * self.delay(), lambda: self._arrive(sender, target, message))

    def _arrive(self, sender: str, target: str, message: Message) -> None:
        process = self._up.get(target)
        if process is not None and self.hears(sender, target):
            process.on_datagram(sender, message)


def frozen(frame: Frame) -> Frame:
    """Return the message with its payload copied into one ``bytes``, so that later changes of the sender's buffers do
    not change it in flight."""
    payload = getattr(frame.body, "payload", b"")
    if type(payload) is bytes:
        return frame
    whole = b"".join(payload) if isinstance(payload, list) else bytes(payload)
    return frame._replace(body=replace(frame.body, payload=whole))  # type: ignore[type-var]
