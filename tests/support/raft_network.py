"""A few ``Raft`` cores with their disks and the messages between them, for the tests of Raft; and one core alone.

A ``Node`` performs effects one by one: ``Persist`` changes its disk at once, ``Send`` puts the message into the
network, ``Apply`` adds to the applied entries. A crash between any two effects loses the rest of the list and the
core, never the disk.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from tidelog.errors import TidelogError
from tidelog.sansio.effects import Send
from tidelog.types import NodeId
from tidelog.wire.messages import AppendEntries, Message, Vote
from tidelog_controller.raft.effects import (
    Apply,
    Persist,
    RaftEffect,
    Restore,
    RoleChanged,
    TakeSnapshot,
    apply_persist,
)
from tidelog_controller.raft.log import Base, Entry, PersistentState, encode_entries
from tidelog_controller.raft.membership import Configuration, Member, members_of
from tidelog_controller.raft.raft import Raft
from tidelog_controller.raft.settings import RaftSettings

THREE = ("c1", "c2", "c3")
FIVE = ("c1", "c2", "c3", "c4", "c5")
SETTINGS = RaftSettings()
LATER = 2 * SETTINGS.election_timeout_max_s


def log(*terms: int) -> list[Entry]:
    """Return entries of these terms; entry 3 of term 2 holds b"2.3"."""
    return [Entry(n, term, b"%d.%d" % (term, n)) for n, term in enumerate(terms, start=1)]


def core(
    term: int = 0,
    terms: Sequence[int] = (),
    voted_for: str | None = None,
    voters: Sequence[str] = THREE,
    settings: RaftSettings = SETTINGS,
) -> Raft:
    """Return controller c1 after a restart at time 0 with this content of its disk."""
    return Raft("c1", settings, of(voters, term, voted_for, log(*terms)), random.Random(1), 0.0)


def of(
    voters: Sequence[str], term: int = 0, voted_for: str | None = None, entries: Sequence[Entry] = (), store: str = ""
) -> PersistentState:
    """Return the disk content of a controller of a cluster that was founded with these voters."""
    return PersistentState(term, voted_for, list(entries), Base(0, 0, members_of(*voters)), store=store)


def leader(term: int, terms: Sequence[int] = (), voters: Sequence[str] = THREE, **settings: int) -> Raft:
    """Return c1 as the leader of ``term`` since time ``LATER``; its log has ``terms`` and the no-op."""
    raft = core(term - 1, terms, voters=voters, settings=RaftSettings(**settings))
    raft.on_tick(LATER)
    for vote in (Vote(term, True, pre=True), Vote(term, True)):
        for voter in voters[1:]:
            raft.on_message(voter, vote, LATER)
    assert raft.role == "leader" and raft.term == term
    return raft


def append(term: int, prev: tuple[int, int], entries: Sequence[Entry] = (), commit: int = 0) -> AppendEntries:
    """Return an AppendEntries; ``prev`` is (index, term)."""
    return AppendEntries(term, prev[0], prev[1], commit, encode_entries(entries))


def sent(effects: Sequence[RaftEffect], to: str | None = None) -> list[Message]:
    """Return the messages of the effects, without the numbers of heartbeats; ``to``: only those for this node."""
    messages = [e.message for e in effects if isinstance(e, Send) and to in (None, e.to)]
    return [replace(m, round=0) if hasattr(m, "round") else m for m in messages]


def applied(effects: Sequence[RaftEffect]) -> list[int]:
    """Return the indexes of the entries that the effects apply."""
    return [entry.index for e in effects if isinstance(e, Apply) for entry in e.entries]


def terms_of(raft: Raft) -> list[int]:
    """Return the terms of all entries of a log."""
    return [entry.term for entry in raft.log.slice(1, raft.log.last_index)]


def state_bytes(index: int) -> bytes:
    """Return bytes that stand for the state machine after an entry."""
    return b"state after %d;" % index * 9


Flight = tuple[NodeId, NodeId, Message]
"""Sender, receiver, message."""


class Crash(Exception):
    """Raised to kill a process before the next effect."""


class Node:
    """One controller: core, disk, applied entries."""

    def __init__(self, net: Net, node_id: NodeId, stored: PersistentState, now: float) -> None:
        self.net = net
        self.node_id = node_id
        self.disk = stored
        self.applied: list[Entry] = []
        self.applied_from = 0
        """The index before the first entry of ``applied``: that of a snapshot."""
        self.roles: list[RoleChanged] = []
        self.raft = self._start(now)

    def _start(self, now: float) -> Raft:
        disk = replace(self.disk, entries=list(self.disk.entries))
        self.applied_from = disk.snapshot.index if disk.snapshot is not None else 0
        return Raft(self.node_id, self.net.settings, disk, self.net.rng, now)

    def restart(self, now: float) -> None:
        """Start a new process on the same disk."""
        self.applied = []
        self.raft = self._start(now)

    def lose_store(self, now: float) -> None:
        """Start a new process with an empty disk under the same name."""
        name, _, number = self.disk.store.rpartition(".")
        self.disk = PersistentState(store=f"{name}.{int(number) + 1}")
        self.restart(now)

    def copy_disk(self) -> PersistentState:
        """Return a copy of the disk as it is now, for ``restore_disk``."""
        return replace(self.disk, entries=list(self.disk.entries))

    def restore_disk(self, copy: PersistentState, now: float) -> None:
        """Put an old copy in the place of the disk and start a new process."""
        self.disk = copy
        self.restart(now)

    def perform(self, effects: Sequence[RaftEffect]) -> None:
        """Perform effects in order, unless the net's ``before_effect`` raises ``Crash``."""
        later: list[RaftEffect] = []
        for effect in effects:
            self.net.before_effect(self, effect)
            match effect:
                case Persist():
                    self.disk = apply_persist(self.disk, effect)
                case Send():
                    self.net.flying.append((self.node_id, effect.to, effect.message))
                case Apply():
                    assert effect.entries
                    self.applied.extend(effect.entries)
                case Restore(snapshot):
                    assert snapshot.data == state_bytes(snapshot.index), "a snapshot that nobody took"
                    self.applied_from = snapshot.index
                    self.applied = []
                case TakeSnapshot(index):
                    later += self.raft.on_snapshot(index, state_bytes(index), self.net.now)
                case RoleChanged():
                    self.roles.append(effect)
        if later:
            self.perform(later)


class Net:
    """The nodes and every message in flight. Time moves only in ``tick`` and ``run``."""

    def __init__(
        self,
        voters: int | Sequence[NodeId],
        *,
        settings: RaftSettings | None = None,
        stored: dict[NodeId, PersistentState] | None = None,
        seed: int = 1,
        spares: Sequence[NodeId] = (),
        named: bool = False,
    ) -> None:
        """``spares`` run too, and are in no configuration. Stores have names where there are spares, or if
        ``named``."""
        self.voters = tuple(f"c{n + 1}" for n in range(voters)) if isinstance(voters, int) else tuple(voters)
        self.settings = settings or RaftSettings()
        self.rng = random.Random(seed)
        self.now = 0.0
        self.flying: list[Flight] = []
        self.blocked: Callable[[NodeId, NodeId], bool] = lambda sender, to: False
        self.before_effect: Callable[[Node, RaftEffect], None] = lambda node, effect: None
        store = (lambda node: f"{node}.1") if spares or named else (lambda node: "")
        members = Configuration(tuple(Member(node, f"ws://{node}", True, store(node)) for node in self.voters))
        founded = Base(0, 0, members)
        disks = {
            v: replace((stored or {}).get(v, PersistentState(store=store(v))), base=founded) for v in self.voters
        }
        disks |= {node: PersistentState(store=store(node)) for node in spares}
        self.nodes = {node: Node(self, node, disk, self.now) for node, disk in disks.items()}

    def __getitem__(self, node_id: NodeId) -> Node:
        return self.nodes[node_id]

    @property
    def leader(self) -> Node:
        """The leader of the highest term; AssertionError if there is none."""
        leaders = [n for n in self.nodes.values() if n.raft.role == "leader"]
        assert leaders, "progress: nobody leads"
        return max(leaders, key=lambda n: n.raft.term)

    def deliver(self, sender: NodeId, to: NodeId, message: Message) -> None:
        """Give a message to its receiver and perform the effects."""
        node = self.nodes[to]
        node.perform(node.raft.on_message(sender, message, self.now))

    def change(self, kind: str, node_id: NodeId) -> int | TidelogError:
        """Let the leader add or remove a controller, deliver all messages, and return the answer."""
        raft = self.leader.raft
        if kind == "add":
            answer, effects = raft.add_member(node_id, f"ws://{node_id}", self.now)
        else:
            answer, effects = raft.remove_member(node_id, self.now)
        self.nodes[raft.node_id].perform(effects)
        self.settle()
        return answer

    def settle(self) -> None:
        """Deliver all messages in order until none is left; blocked ones are lost."""
        while self.flying:
            sender, to, message = self.flying.pop(0)
            if not self.blocked(sender, to):
                self.deliver(sender, to, message)

    def propose(self, data: bytes, node: Node | None = None) -> int | None:
        """Propose data to the leader, deliver all messages, and return the index; None if it is refused."""
        node = node or self.leader
        index, effects = node.raft.propose(data, self.now)
        node.perform(effects)
        self.settle()
        return index

    def elect(self, node_id: NodeId) -> Node:
        """Let the election timeout of a node end first; it must win. Returns the node."""
        node = self.nodes[node_id]
        deadline = node.raft.deadline()
        assert deadline is not None
        self.now = max(self.now + 2 * self.settings.election_timeout_max_s, deadline)
        node.perform(node.raft.on_tick(self.now))
        self.settle()
        assert node.raft.role == "leader"
        return node

    def run(self, seconds: float) -> None:
        """Let time pass: every deadline in order, messages delivered at once."""
        end = self.now + seconds
        self.settle()
        while True:
            timers = [(node.raft.deadline(), node_id) for node_id, node in self.nodes.items()]
            due = min(((at, node_id) for at, node_id in timers if at is not None), default=(end + 1.0, ""))
            if due[0] > end:
                break
            self.now = max(self.now, due[0])
            node = self.nodes[due[1]]
            node.perform(node.raft.on_tick(self.now))
            self.settle()
        self.now = end

    def isolate(self, *node_ids: NodeId) -> None:
        """Lose every message between these nodes and the others; without arguments, end that."""
        self.blocked = lambda sender, to: (sender in node_ids) != (to in node_ids)
