"""The group of controllers as one of them sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tidelog.types import NodeId
from tidelog.wire.messages import ControllerInfo, QuorumAnswer

from tidelog_controller.raft.membership import Standing
from tidelog_controller.raft.raft import Raft


def describe_quorum(raft: Raft, node_id: NodeId, urls: Mapping[NodeId, str], active: bool) -> QuorumAnswer:
    """Return the role of each controller and how far its log reaches. ``active``: this controller serves; a leader
    that may not serve yet names no active one."""
    leader = raft.leader_id
    named = leader if leader != node_id or active else None
    own = "follower" if raft.role == "follower" else "candidate"
    others = "unknown" if leader is None else "follower"
    standings = raft.standings()
    controllers = []
    for node, url in urls.items():
        member = raft.members.find(node)
        role = "leader" if node == leader else own if node == node_id else others
        votes = member is not None and member.voter
        of = standings.get(node, Standing())
        controllers.append(ControllerInfo(node, url, role, votes, of.match, of.lost, of.rolled_back, of.refill_to))
    answer = QuorumAnswer(named or "", raft.term, raft.commit_index, tuple(controllers))
    return replace(answer, disks_needed=raft.disks_needed)
