"""A network between named processes: links that break, delay and stall, and datagrams that get lost.

Two kinds of traffic, as in the product:

- a **link** is a connection: each direction delivers in order, or the link dies. A message that meets a partition
  (checked when it is sent *and* when it would arrive) kills the link silently: each side hears of it only after a
  while of its own, and everything in flight is gone. A *late copy* of a request may be delivered once more, as from
  an older connection's buffer; one-way news (``lossy``) may be lost, doubled and overtaken.
- a **datagram** is one-way between controllers: lost, doubled, delayed, reordered at will. When a process ends, those
  that it is not cut off from notice soon, unless its machine has vanished.

Partitions are sets of ordered pairs of names with the time at which they heal; they may overlap.

A *mute* direction is worse than a partition: nobody is told. A link that stands when it begins carries nothing more
that way, not even its own end, as when a firewall has forgotten it. Each side gives such a link up when it has heard
nothing over it for too long, since then the pings that are not simulated come to nothing either.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple, Protocol

from tidelog.wire.messages import Message

from simulation.world.loop import Loop

SILENCE_S = 5.0
"""A link over which a side has heard nothing for so long is given up by it (15 s in the product)."""
PEER_SILENCE_S = 0.7
"""The same of the side that has opened it, between servers: a follower must leave a silent leader (0.6 s in the
product, and up to 1.5 s where answers were slow)."""

Kind = Literal["request", "answer", "post"]


class Frame(NamedTuple):
    """One message on a link. ``id`` belongs to a request and to its answer."""

    kind: Kind
    id: int | None
    body: Message | Exception


class Process(Protocol):
    """What the network asks of a process that takes part."""

    name: str

    def on_accept(self, link: SimLink) -> None:
        """Another process connected to this one."""

    def on_frame(self, link: SimLink, frame: Frame) -> None:
        """A message arrived."""

    def on_gone(self, name: str) -> None:
        """The connections for datagrams with the process of that name broke: it has ended, or is silent."""

    def on_close(self, link: SimLink) -> None:
        """The link is gone, or could not be opened."""

    def on_datagram(self, sender: str, message: Message) -> None:
        """A one-way message arrived outside any link."""


@dataclass(slots=True)
class Weather:
    """How bad the network is at present; ``Faults`` changes it. Times in seconds, the rest probabilities."""

    latency: float = 0.0008
    tail: float = 0.0
    """Probability of a delay out of the tail, up to ``tail_max``."""
    tail_max: float = 0.4
    loss: float = 0.0
    duplicate: float = 0.0
    late_copy: float = 0.0
    break_link: float = 0.0
    """Probability, per message, that the link breaks when it is sent."""


class SimLink:
    """One connection from ``client`` to ``server``. ``number`` is never used again."""

    def __init__(self, network: Network, number: int, client: Process, server: str) -> None:
        self._network = network
        self.number = number
        self.client = client
        self.server_name = server
        self.server: Process | None = None
        self.open = False
        self.dead = False
        self.told: set[str] = set()
        """Names of the sides that know of the end (membership only)."""
        self.deaf: set[str] = set()
        """Names of the sides that nothing gets to any more, though nobody has told them (membership only)."""
        self.heard: dict[str, float] = {}
        """When each side has heard something last, since the link is mute in a direction."""
        self._waiting: list[Frame] = []
        self._last_arrival = {client.name: 0.0, server: 0.0}

    def other(self, name: str) -> str:
        """Name of the process at the other end."""
        return self.server_name if name == self.client.name else self.client.name

    def send(self, sender: Process, frame: Frame, lossy: bool = False) -> None:
        """Put a message on its way; silently dropped where the link is dead."""
        if self.dead or sender.name in self.told:
            return
        if not self.open:
            self._waiting.append(frame)
            return
        self._network.carry(self, sender, frame, lossy)

    def opened(self) -> None:
        """The server accepted: what waited goes out."""
        self.open = True
        waiting, self._waiting = self._waiting, []
        for frame in waiting:
            self.send(self.client, frame)

    def close(self, by: Process) -> None:
        """``by`` closes its side; the other hears of it soon."""
        self.told.add(by.name)
        self._network.kill(self, slow=False)

    def end_of(self, name: str) -> Process | None:
        """The process of that name at this link."""
        return self.client if name == self.client.name else self.server

    def silence_s(self, name: str) -> float:
        """How long that side waits for a sign of life."""
        between_servers = self.server_name.startswith("r") and self.client.name.startswith(("r", "c"))
        return PEER_SILENCE_S if between_servers and name == self.client.name else SILENCE_S

    def arrival(self, receiver: str, time: float) -> float:
        """When a message that would take until ``time`` arrives, in order behind its elders."""
        last = self._last_arrival[receiver]
        if time < last:
            return last
        self._last_arrival[receiver] = time
        return time


class Network:
    """All links and datagrams. ``recode`` passes a message through the real codec, where a run asks for it."""

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
        """Ends of broken links whose processes have not noticed yet."""
        self._senders: dict[str, dict[str, None]] = {}
        """Who has sent datagrams to whom."""
        self._number = 0

    def attach(self, process: Process) -> None:
        """The process runs: it can be reached under its name."""
        self._up[process.name] = process

    def detach(self, process: Process, slow: bool) -> None:
        """The process is gone at once: it hears nothing more; its peers notice soon, or late when ``slow`` (a
        machine that vanished sends no reset)."""
        del self._up[process.name]
        for link in [link for link in self._links.values() if process in (link.client, link.server)]:
            link.told.add(process.name)
            self.kill(link, slow)
        if not slow:
            for name in self._senders.pop(process.name, ()):
                if name in self._up and self.hears(process.name, name):
                    self.loop.after(
                        self._rng.uniform(0.0, 0.02), partial(self._tell_gone, self._up[name], process.name)
                    )

    def _tell_gone(self, process: Process, name: str) -> None:
        if self._up.get(process.name) is process and name not in self._up:
            process.on_gone(name)

    def block(self, source: str, target: str, until: float) -> None:
        """Nothing passes from ``source`` to ``target`` before ``until``."""
        self._blocked[source, target] = max(until, self._blocked.get((source, target), 0.0))

    def mute(self, source: str, target: str, until: float) -> None:
        """From now on nothing gets from ``source`` to ``target`` over a link that stands, and before ``until`` over
        none. Controllers lose their datagrams that way until their link would be given up."""
        self._mute[source, target] = max(until, self._mute.get((source, target), 0.0))
        for link in self._links.values():
            if link.open and {source, target} == {link.client.name, link.server_name}:
                link.deaf.add(target)
                for name in (source, target):
                    self._listen(link, name)
        if source in self._senders.get(target, ()):
            self._mute[source, target] = max(self._mute[source, target], self.loop.now + PEER_SILENCE_S)
            for name, other in ((source, target), (target, source)):  # pings need both ways
                self.loop.after(PEER_SILENCE_S, partial(self._tell_silent, name, other))

    def _tell_silent(self, name: str, other: str) -> None:
        if name in self._up:
            self._up[name].on_gone(other)

    def _listen(self, link: SimLink, name: str) -> None:
        """From now on that side looks how long it has heard nothing."""
        if name not in link.heard and name not in link.told:
            link.heard[name] = self.loop.now
            self.unnoticed += 1
            self.loop.after(link.silence_s(name), partial(self._look, link, name))

    def _look(self, link: SimLink, name: str) -> None:
        process = link.end_of(name)
        quiet_at = link.heard[name] + link.silence_s(name)
        if name not in link.told and process is not None and self._up.get(name) is process:
            if self.loop.now < quiet_at:
                self.loop.at(quiet_at, partial(self._look, link, name))
                return
            link.told.add(name)
            process.on_close(link)
            self.kill(link, slow=False)
        self.unnoticed -= 1

    def heal(self) -> None:
        """End all partitions and bad weather. What is mute is given up in its time."""
        self._blocked.clear()
        self._mute.clear()
        self.weather = Weather()

    def passes(self, source: str, target: str) -> bool:
        """Whether no partition stands between the two, in this direction, now."""
        return not self._blocked or self._blocked.get((source, target), 0.0) <= self.loop.now

    def hears(self, source: str, target: str) -> bool:
        """Whether what is new, a link or a datagram, gets from the one to the other now."""
        return self.passes(source, target) and self._mute.get((source, target), 0.0) <= self.loop.now

    def delay(self) -> float:
        """Time that one message takes now."""
        weather = self.weather
        if weather.tail and self._rng.random() < weather.tail:
            return self._rng.uniform(0.0, weather.tail_max)
        return weather.latency * (0.5 + self._rng.random())

    # --- links -------------------------------------------------------------------------------------------

    def connect(self, client: Process, server: str) -> SimLink:
        """Open a link; messages may be sent at once. The client's ``on_close`` tells if it fails."""
        self._number += 1
        link = SimLink(self, self._number, client, server)
        self._links[link.number] = link
        self.loop.after(self.delay(), lambda: self._establish(link))
        return link

    def _establish(self, link: SimLink) -> None:
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
        """Bring a message over an open link, as far as weather and partitions let it."""
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
            if link.dead or receiver in link.told or receiver in link.deaf:
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
        """Outside the order of the link; lost where a partition stands."""

        def arrive() -> None:
            process = link.end_of(receiver)
            known = not link.dead and receiver not in link.told and receiver not in link.deaf and process is not None
            if known and self.passes(link.other(receiver), receiver):
                assert process is not None
                if link.heard:
                    link.heard[receiver] = self.loop.now
                process.on_frame(link, frame)

        self.loop.after(delay, arrive)

    def reset(self, name: str, others: Sequence[str], slow: bool) -> None:
        """Every link between the process and these breaks, with all that is under way."""
        for link in [link for link in self._links.values() if name in (link.client.name, link.server_name)]:
            if link.other(name) in others:
                self.kill(link, slow)

    def kill(self, link: SimLink, slow: bool) -> None:
        """The link carries nothing more; each side that does not know yet hears of it in its own time, and one that
        nothing gets to when it has heard nothing for too long."""
        if link.dead:
            return
        link.dead = True
        del self._links[link.number]
        for name in (link.client.name, link.server_name):
            if name in link.deaf:
                continue
            longest = self._rng.choice((0.05, 0.5, 3.0)) if slow else 0.02
            self.unnoticed += 1
            self.loop.after(self._rng.uniform(0.0, longest), lambda name=name: self._tell(link, name))

    def _tell(self, link: SimLink, name: str) -> None:
        self.unnoticed -= 1
        process = link.end_of(name)
        if name not in link.told and process is not None and self._up.get(name) is process:
            link.told.add(name)
            process.on_close(link)

    # --- datagrams ---------------------------------------------------------------------------------------

    def datagram(self, sender: str, target: str, message: Message) -> None:
        """A one-way message outside any link."""
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
    """Return the message with its payload as one ``bytes``: what the sender does to its buffers later changes nothing
    on the way."""
    payload = getattr(frame.body, "payload", b"")
    if type(payload) is bytes:
        return frame
    whole = b"".join(payload) if isinstance(payload, list) else bytes(payload)
    return frame._replace(body=replace(frame.body, payload=whole))  # type: ignore[type-var]
