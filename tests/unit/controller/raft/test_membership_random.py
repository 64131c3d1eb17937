"""Random walks as in ``raft/test_random_walks.py`` while logs are compacted, the group changes and disks are lost.
Tests ``raft/raft.py`` and ``raft/membership.py``.

Three or five voters and two controllers that are in no group yet. Beside the steps of the other walks the leader is
asked to add or remove a controller, to hand over, or to read; a controller gets a new, empty disk, as long as of
every configuration that is in force anywhere a majority of the stores is left. Of a lost store nothing is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from support.raft_network import Net, Node
from tidelog.errors import ProtocolError, TidelogError
from tidelog_controller.raft.effects import RaftEffect, ReadReady, Restore
from tidelog_controller.raft.settings import RaftSettings

from unit.controller.raft.test_random_walks import Walk

SPARES = ("c8", "c9")


class GroupWalk(Walk):
    """A random walk in which the group changes, logs are compacted and disks are lost."""

    thresholds = (2, 5, 20)

    def __init__(self, size: int, seed: int) -> None:
        super().__init__(size, seed)
        self.reads: dict[tuple[str, int], int] = {}
        """What was committed when each read was asked for, by node and token."""
        self.restless = self.rng.choice([0.5, 2.0, 5.0])

    def make_net(self, size: int, settings: RaftSettings, seed: int) -> Net:
        return Net(size, settings=settings, seed=seed, spares=SPARES)

    def kinds(self) -> dict[Callable[[], None], float]:
        more = {self.change: 1.5, self.transfer: 0.3, self.read: 3.0, self.lose_store: 0.3}
        return {**super().kinds(), **{step: weight * self.restless for step, weight in more.items()}}

    def change(self) -> None:
        """Ask a leader, which may be a deposed one that does not know it, to add or remove a controller."""
        leaders = [node for node in self.net.nodes.values() if node.raft.role == "leader"]
        if not leaders:
            return
        node, other = self.rng.choice(leaders), self.rng.choice(list(self.net.nodes))
        before = node.raft.members
        if self.rng.random() < 0.6:
            answer, effects = node.raft.add_member(other, f"ws://{other}", self.net.now)
        elif len(before.voters) > 2:
            answer, effects = node.raft.remove_member(other, self.net.now)
        else:
            return
        self.seen["refused" if isinstance(answer, TidelogError) else "changed"] += 1
        self.perform(node, effects)

    def transfer(self) -> None:
        for node in self.net.nodes.values():
            if node.raft.role == "leader":
                began, effects = node.raft.transfer(self.net.now)
                self.seen["transfer"] += began
                self.perform(node, effects)

    def read(self) -> None:
        node = self.any_node()
        token, effects = node.raft.read(self.net.now)
        if token is not None:
            self.reads[node.node_id, token] = len(self.committed)
            self.perform(node, effects)

    def lose_store(self) -> None:
        """Replace the disk of a controller by an empty one, as long as every group that may decide has a majority of
        stores left."""
        node = self.any_node()
        alive = {n.node_id: n.disk.store for n in self.net.nodes.values() if n is not node}
        groups = [n.raft.members for n in self.net.nodes.values()]
        groups += [n.raft.log.members_at(n.raft.log.base.index) for n in self.net.nodes.values()]
        if all(not group.all or group.wins(alive) for group in groups):
            self.seen["store lost"] += 1
            self.crash_in = None
            self.reads = {read: end for read, end in self.reads.items() if read[0] != node.node_id}
            node.lose_store(self.net.now)

    def restart(self, node: Node) -> None:
        self.reads = {read: end for read, end in self.reads.items() if read[0] != node.node_id}
        super().restart(node)

    def heal(self) -> None:
        """End all faults, and check that within ten seconds a proposal of one leader is applied by every member of
        its group. Gives up if a member was removed at the very moment in which another lost its disk, before the
        leader could know."""
        self.crash_in = None
        alive = {node.node_id: node.disk.store for node in self.net.nodes.values()}
        if not all(node.raft.members.wins(alive) or not node.raft.members.all for node in self.net.nodes.values()):
            self.seen["stuck"] += 1
            return
        self.violence = 0.0
        self.net.isolate()
        self.net.run(10.0)
        index = self.net.propose(b"after healing")
        self.net.run(2.0)
        assert index is not None, "progress: nobody leads"
        assert any(entry.data == b"after healing" for entry in self.committed[-3:]), "progress: nothing commits"
        for member in self.net.leader.raft.members.all:
            node = self.net[member.node]
            there = node.applied_from + len(node.applied)
            assert there == len(self.committed), f"progress: {node.node_id} is left behind"
            assert node.applied == self.committed[node.applied_from :]

    # --- invariants --------------------------------------------------------------------------------------

    def before_effect(self, node: Node, effect: RaftEffect) -> None:
        super().before_effect(node, effect)
        match effect:
            case ReadReady(token):
                wanted = self.reads.pop((node.node_id, token), 0)
                self.seen["read"] += 1
                there = node.applied_from + len(node.applied)
                assert there >= wanted, f"stale read: {there} applied, {wanted} were committed before it"
            case Restore(snapshot):
                self.seen["restored"] += 1
                assert snapshot.index <= len(self.committed), "a snapshot of what is not committed"
                assert self.committed[snapshot.index - 1].term == snapshot.term


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("first_seed", range(0, 60, 20))
def test_raft_is_safe_while_the_group_changes_and_live_after_it(size: int, first_seed: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + 20):
        walk = GroupWalk(size, seed)
        try:
            walk.run(2500)
        except (AssertionError, ProtocolError) as error:
            raise AssertionError(f"GroupWalk(size={size}, seed={seed}): {error}") from error
        seen += walk.seen
    wanted = ("changed", "refused", "transfer", "read", "store lost", "compacted", "restored")
    assert all(seen[kind] > 5 for kind in wanted) and seen["stuck"] <= 4, seen
