"""Random walks in which controllers come back with old copies of their disks. Tests ``raft/raft.py`` and
``raft/old_copies.py``.

What nobody remembers cannot be recognised (docs/decisions/0019-an-old-copy-of-a-disk.md). So a walk puts an old copy
back where the leader of the newest term knows what is missing, and lets that leader speak first; what the earlier
life had sent is lost with its links. Everything else is left to chance, before and after."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

import pytest
from support.raft_network import Net, Node
from tidelog.sansio.effects import Event
from tidelog.types import NodeId
from tidelog.wire.messages import AppendEntries
from tidelog_controller.raft.effects import RaftEffect
from tidelog_controller.raft.log import PersistentState, RaftLog
from tidelog_controller.raft.settings import RaftSettings

from unit.controller.raft.test_random_walks import Walk

COPIES = 20


class OldDiskWalk(Walk):
    """A random walk in which disks are replaced by earlier copies."""

    def __init__(self, size: int, seed: int) -> None:
        super().__init__(size, seed)
        self.copies: defaultdict[NodeId, list[PersistentState]] = defaultdict(list)

    def make_net(self, size: int, settings: RaftSettings, seed: int) -> Net:
        return Net(size, settings=settings, seed=seed, named=True)

    def kinds(self) -> dict[Callable[[], None], float]:
        return {**super().kinds(), self.copy_disk: 2.0, self.put_back: 2.0}

    def copy_disk(self) -> None:
        node = self.any_node()
        copies = self.copies[node.node_id]
        copies.append(node.copy_disk())
        del copies[:-COPIES]

    def put_back(self) -> None:
        """Restart a follower with a copy of its disk, and let it hear from the leader. Done only if the leader knows
        what the copy lacks, and if a majority of sound disks is left."""
        nodes = self.net.nodes.values()
        leader = max(nodes, key=lambda node: (node.raft.term, node.raft.role == "leader"))
        old = self.any_node()
        copies = self.copies[old.node_id]
        sound = [node for node in nodes if node is not old and not node.disk.rolled_back]
        if old is leader or leader.raft.role != "leader" or not copies or len(sound) * 2 <= len(nodes):
            return
        copy = self.rng.choice(copies)
        log = RaftLog(copy.entries, copy.base)
        leader.raft._record_acked()
        known = leader.raft._acked_for(leader.raft._progress[old.node_id])
        if copy.rolled_back or all(log.has(row.index, row.term) for row in known if row.store == copy.store):
            return
        self.crash_in = None
        self.seen["put back"] += 1
        self.net.flying[:] = [flight for flight in self.net.flying if flight[0] != old.node_id]
        self.votes = {key: to for key, to in self.votes.items() if key[0] != old.node_id + copy.store}
        old.restore_disk(copy, self.net.now)
        leader.raft._send_heartbeats()
        leader.perform(leader.raft._take_effects())
        to_old = [message for _, to, message in self.net.flying if to == old.node_id]
        beat = next(message for message in reversed(to_old) if isinstance(message, AppendEntries) and message.acked)
        self.net.deliver(leader.node_id, old.node_id, beat)
        assert old.disk.rolled_back, "not recognised"

    def before_effect(self, node: Node, effect: RaftEffect) -> None:
        super().before_effect(node, effect)
        if isinstance(effect, Event):
            self.seen[effect.name] += 1

    def check_completeness(self, leader: Node) -> None:
        assert not leader.disk.rolled_back, f"{leader.node_id} leads with an old copy of its disk"
        super().check_completeness(leader)

    def heal(self) -> None:
        super().heal()
        assert not any(node.disk.rolled_back for node in self.net.nodes.values()), "progress: not refilled"


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("first_seed", range(0, 60, 20))
def test_raft_is_safe_though_old_disks_come_back_and_live_after_it(size: int, first_seed: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + 20):
        walk = OldDiskWalk(size, seed)
        try:
            walk.run(2500)
        except AssertionError as error:
            raise AssertionError(f"OldDiskWalk(size={size}, seed={seed}): {error}") from error
        seen += walk.seen
    wanted = ("put back", "raft_store_rolled_back", "raft_store_refilled", "controller_refilled", "leader")
    assert all(seen[kind] > 5 for kind in wanted), seen
