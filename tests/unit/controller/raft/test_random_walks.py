"""Random walks over three and five Raft cores: whatever the network and the processes do, Raft figure 3 holds.
Tests ``raft/raft.py``.

A walk takes one random step after the other: deliver any message that was ever sent (so reordered, late or once
more), lose one, let a node's deadline pass, propose, crash a node between two effects and start it again on its
disk, cut the network in two. The invariants are checked at every effect. Then everything heals, and a proposal
must commit everywhere. The seed is in the name of the test; ``tests/mutants`` shows that a walk can
fail.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable

import pytest
from support.raft_network import Crash, Net, Node
from tidelog.sansio.effects import Send
from tidelog.types import NodeId
from tidelog.wire.messages import AppendResult, Vote
from tidelog_controller.raft.effects import Apply, Persist, RaftEffect, RoleChanged
from tidelog_controller.raft.log import Entry
from tidelog_controller.raft.settings import RaftSettings

MAX_FLYING = 150


class Walk:
    """One random walk over a network of Raft cores, and the checks that hold at each of its steps."""

    thresholds = (8192,)
    """Numbers of entries after which snapshots are taken, to draw from; this kind of walk keeps the whole log."""

    def __init__(self, size: int, seed: int) -> None:
        self.rng = random.Random(seed)
        settings = RaftSettings(
            append_max_bytes=self.rng.choice([1, 12]),
            append_window=self.rng.choice([1, 3]),
            snapshot_threshold=self.rng.choice(self.thresholds),
            snapshot_chunk_bytes=self.rng.choice([20, 1000]),
        )
        self.net = self.make_net(size, settings, seed)
        self.net.before_effect = self.before_effect
        self.crash_in: int | None = None
        self.seen: Counter[str] = Counter()
        self.leaders: dict[int, NodeId] = {}
        self.votes: dict[tuple[NodeId, int], NodeId] = {}
        self.history: dict[tuple[int, int], tuple[bytes, int]] = {}
        """(index, term) -> (data, term of the entry before), of every entry that was ever durable anywhere."""
        self.committed: list[Entry] = []
        swarm = [self.rng.choice([0.1, 0.5, 1.0, 2.0]) for _ in range(5)]
        self.violence = self.rng.choice([0.0, 0.1, 0.4])
        self.weights = [100.0, 6 * swarm[0], 12 * swarm[1], 10 * swarm[2], 2 * swarm[3], 1 * swarm[4]]

    def make_net(self, size: int, settings: RaftSettings, seed: int) -> Net:
        return Net(size, settings=settings, seed=seed)

    def kinds(self) -> dict[Callable[[], None], float]:
        """Return the kinds of steps, and how often each is taken."""
        steps = [self.deliver, self.lose, self.tick, self.propose, self.crash, self.cut]
        return dict(zip(steps, self.weights, strict=True))

    def run(self, steps: int) -> None:
        """Take random steps, then heal the network and demand progress."""
        kinds = self.kinds()
        for step in self.rng.choices(list(kinds), list(kinds.values()), k=steps):
            step()
        self.heal()

    # --- steps -------------------------------------------------------------------------------------------

    def deliver(self) -> None:
        """Deliver a message in flight, mostly an early one; sometimes it stays in flight, to be delivered once
        more."""
        flying = self.net.flying
        if not flying:
            self.tick()
            return
        position = min(int(self.rng.expovariate(0.4)), len(flying) - 1)
        again = self.rng.random() < 0.1
        sender, to, message = flying[position] if again else flying.pop(position)
        if not self.net.blocked(sender, to):
            node = self.net[to]
            self.perform(node, node.raft.on_message(sender, message, self.net.now))
            self.seen["again"] += again
        while len(flying) > MAX_FLYING:
            flying.pop(self.rng.randrange(len(flying)))

    def lose(self) -> None:
        if self.net.flying:
            self.net.flying.pop(self.rng.randrange(len(self.net.flying)))

    def tick(self) -> None:
        """Let the first deadline pass, or that of a random node; the others may be late with theirs."""
        node = self.any_node()
        if self.rng.random() < 0.8:
            node = min(self.net.nodes.values(), key=lambda other: other.raft.deadline() or math.inf)
        deadline = node.raft.deadline()
        if deadline is not None:
            self.net.now = max(self.net.now, deadline)
            self.perform(node, node.raft.on_tick(self.net.now))

    def propose(self) -> None:
        node = self.any_node()
        index, effects = node.raft.propose(b"%d" % self.rng.randrange(10**6), self.net.now)
        assert index is None or node.raft.role == "leader"
        self.perform(node, effects)

    def crash(self) -> None:
        """Crash a node: a random one now, or soon the one that performs some effect then."""
        if self.rng.random() < 0.5:
            self.crash_in = self.rng.randrange(1, 30)
        else:
            self.restart(self.any_node())

    def cut(self) -> None:
        """Cut the network into two random sides, or heal it."""
        self.net.isolate(*[node for node in self.net.nodes if self.rng.random() < 0.4])

    def strike(self, node: Node) -> None:
        """Cut off the node that has just decided something, alone or with others: faults hit hardest then."""
        if self.rng.random() < self.violence:
            company = [other for other in self.net.nodes if self.rng.random() < 0.3]
            self.net.isolate(node.node_id, *company)

    def any_node(self) -> Node:
        return self.net[self.rng.choice(list(self.net.nodes))]

    def perform(self, node: Node, effects: list[RaftEffect]) -> None:
        try:
            node.perform(effects)
        except Crash:
            self.restart(node)

    def restart(self, node: Node) -> None:
        self.crash_in = None
        self.seen["crash"] += 1
        node.restart(self.net.now)

    def heal(self) -> None:
        """End all faults, and check that within ten seconds one leader has a proposal committed and applied
        everywhere."""
        self.crash_in = None
        self.violence = 0.0
        self.net.isolate()
        self.net.run(10.0)
        index = self.net.propose(b"after healing")
        self.net.run(1.0)
        assert index is not None, "progress: nobody leads"
        assert [entry.data for entry in self.committed[-1:]] == [b"after healing"], "progress: nothing commits"
        for node in self.net.nodes.values():
            assert node.applied == node.disk.entries == self.committed, f"progress: {node.node_id} is left behind"

    # --- invariants --------------------------------------------------------------------------------------

    def before_effect(self, node: Node, effect: RaftEffect) -> None:
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in <= 0:
                raise Crash
        match effect:
            case Persist():
                self.check_persist(node, effect)
            case RoleChanged(role="leader"):
                other = self.leaders.setdefault(effect.term, node.node_id)
                assert other == node.node_id, f"election safety: {other} and {node.node_id} lead term {effect.term}"
                self.check_completeness(node)
                self.seen["leader"] += 1
                self.strike(node)
            case Apply():
                self.check_apply(node, effect)
                self.strike(node)
            case Send(to=to, message=Vote(term=term, granted=True, pre=False)):
                assert (node.disk.term, node.disk.voted_for) == (term, to), "a vote is durable before it is told"
            case Send(message=AppendResult(term=term, ok=True, match=match)):
                durable = node.disk.base.index + len(node.disk.entries)
                assert node.disk.term == term and durable >= match, "acknowledged before durable"

    def check_persist(self, node: Node, persist: Persist) -> None:
        disk = node.disk
        assert persist.term >= disk.term, "the term goes back"
        if persist.voted_for is not None:
            first = self.votes.setdefault((node.node_id + disk.store, persist.term), persist.voted_for)
            assert first == persist.voted_for, f"{node.node_id} votes twice in term {persist.term}"
        entries, base = disk.entries, disk.base
        if persist.truncate_from is not None:
            entries = entries[: persist.truncate_from - base.index - 1]
            self.seen["truncated"] += persist.base is None
        base = persist.base or base
        entries = [entry for entry in entries if entry.index > base.index]
        prev_term = entries[-1].term if entries else base.term
        for index, entry in enumerate(persist.entries, start=base.index + len(entries) + 1):
            assert entry.index == index, "a hole in the log"
            known = self.history.setdefault((index, entry.term), (entry.data, prev_term))
            assert known == (entry.data, prev_term), f"log matching at {index}"
            prev_term = entry.term
        if persist.base is not None and persist.base.index:
            self.seen["compacted"] += 1
            assert self.committed[base.index - 1].term == base.term, "compacted what is not committed"

    def check_apply(self, node: Node, apply: Apply) -> None:
        """Check state machine safety: entries are applied once and in order, are durable on this node, and are in the
        log of every later leader."""
        for index, entry in enumerate(apply.entries, start=node.applied_from + len(node.applied) + 1):
            assert entry.index == index, "applied out of order"
            place = index - node.disk.base.index - 1
            assert node.disk.entries[place : place + 1] == [entry], "applied before durable"
            if index <= len(self.committed):
                assert self.committed[index - 1] == entry, f"state machine safety at {index}"
            else:
                self.committed.append(entry)
        for other in self.net.nodes.values():
            if other.raft.role == "leader" and other.raft.term > node.raft.term:
                self.check_completeness(other)

    def check_completeness(self, leader: Node) -> None:
        log = leader.raft.log
        assert log.last_index >= len(self.committed), "leader completeness: entries are missing"
        for entry in self.committed[-20:]:  # with log matching, the last one would do
            compacted = entry.index < log.base.index
            assert compacted or log.term_at(entry.index) == entry.term, f"leader completeness at {entry.index}"


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("first_seed", range(0, 100, 10))
def test_raft_is_safe_in_every_walk_and_live_after_it(size: int, first_seed: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + 10):
        walk = Walk(size, seed)
        try:
            walk.run(2500)
        except AssertionError as error:
            raise AssertionError(f"Walk(size={size}, seed={seed}): {error}") from error
        seen += walk.seen
        seen["committed"] += len(walk.committed)
    assert all(seen[kind] > 5 for kind in ("leader", "crash", "again", "truncated", "committed")), seen


def test_the_same_seed_gives_the_same_walk() -> None:
    walks = [Walk(5, 7), Walk(5, 7)]
    for walk in walks:
        walk.run(1000)
    assert walks[0].history == walks[1].history and walks[0].net.now == walks[1].net.now
