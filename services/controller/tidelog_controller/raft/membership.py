"""Changes of the configuration (dissertation §4): one controller at a time.

A new configuration is appended only when the last one is committed, and when an entry of the leader's own term is.
Without the second condition two leaders could each change another majority's half (Ongaro on raft-dev, 2015). A
controller that is added is a learner, without a vote. The leader makes it a voter when it keeps up (§4.2.1). A change
is refused when fewer than a majority of the voters after it were heard lately.

    unknown --add--> learner --keeps up--> voter --remove--> unknown
                        ^---add again, its store was lost---'

A leader that is removed leads until the change is committed, without counting itself. Then it hands over and follows
(§4.2.2). A controller that is removed still receives the log until the change is committed. Afterwards it asks for no
votes, since it is no voter of its own configuration."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from tidelog.errors import TidelogError, refuse
from tidelog.types import NodeId

from tidelog_controller.raft.configuration import Configuration


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of one controller in the group, with the fields of ``ControllerInfo``."""

    match: int = -1
    lost: bool = False
    rolled_back: bool = False
    refill_to: int = 0


def with_controller(members: Configuration, node: NodeId, url: str, *, store_lost: bool) -> Configuration:
    """Return the configuration in which that controller takes part: as a learner if it is new, or if its store was
    lost; otherwise as what it was, with this URL."""
    member = members.find(node)
    if member is None or store_lost or (not member.voter and member.url != url):
        return members.with_learner(node, url)
    return Configuration(tuple(replace(m, url=url) if m.node == node else m for m in members.all))


def refuse_without_quorum(
    members: Configuration, wanted: Configuration, live: Collection[NodeId]
) -> TidelogError | None:
    """Return the error of a change of the voters after which those that are live would be no majority, else None."""
    if wanted.voters == members.voters or wanted.keeps_quorum(live):
        return None
    left = [voter.node for voter in wanted.voters if voter.node in live]
    text = f"of {len(wanted.voters)} voters {', '.join(left) or 'nobody'} would be live, no majority"
    return refuse("QUORUM_AT_RISK", text)
