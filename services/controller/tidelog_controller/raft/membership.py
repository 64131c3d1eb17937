"""The members of the Raft group: the configuration, and the rules of its changes (Raft §6, dissertation §4).

A configuration lists members, each a voter or a learner (dissertation §4.2.1: it gets the log and counts for
nothing). **A voter is a store, not a name**: the random name of the storage in which term, vote and log are kept.
The answers of another store under the same name count for no majority: the memory of that controller was lost, and
with it votes and entries that others rely on. To the algorithm the lost store is a server that crashed for ever; the
new one has a vote when a configuration names it. ``store`` is "" only in a learner, until it has answered.

Configurations are entries of the log and in force from when they are appended, committed or not. Each differs from
the one before in one voter at most, so that any majority of one and any of the other overlap (dissertation §4.1).

The group changes by one controller at a time. A new configuration is appended only when the last one is committed,
and when an entry of the leader's own term is. Without the second condition two leaders could each change another
majority's half (Ongaro on raft-dev, 2015). A controller that is added is a learner, without a vote. The leader makes
it a voter when it keeps up (§4.2.1). A change is refused when fewer than a majority of the voters after it were heard
lately.

    unknown --add--> learner --keeps up--> voter --remove--> unknown
                        ^---add again, its store was lost---'

A leader that is removed leads until the change is committed, without counting itself. Then it hands over and follows
(§4.2.2). A controller that is removed still receives the log until the change is committed. Afterwards it asks for no
votes, since it is no voter of its own configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import cbor2
from tidelog.errors import TidelogError, refuse
from tidelog.types import NodeId
from tidelog.wire.messages import ControllerMember

Member = ControllerMember


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration of the Raft group: its members, each a voter or a learner. It is immutable. The empty
    configuration stands for a server that knows none yet."""

    all: tuple[Member, ...] = ()

    @property
    def voters(self) -> tuple[Member, ...]:
        """Return the members that have a vote."""
        return tuple(member for member in self.all if member.voter)

    @property
    def majority(self) -> int:
        """Return the number of voters that make a majority: more than half of them."""
        return len(self.voters) // 2 + 1

    def find(self, node: NodeId) -> Member | None:
        """Return the member with the node name ``node``; None if it is not in this configuration."""
        return next((member for member in self.all if member.node == node), None)

    def has_vote(self, node: NodeId, store: str) -> bool:
        """Return whether the controller ``node`` is a voter and the configuration names ``store`` as its store."""
        member = self.find(node)
        return member is not None and member.voter and member.store == store

    def wins(self, store_of: Mapping[NodeId, str]) -> bool:
        """Return whether the granted votes are a majority of the voters. ``store_of`` maps each controller that
        granted its vote to the name of its store. A vote counts only if the configuration names that store for the
        controller."""
        yes = sum(store_of.get(voter.node) == voter.store for voter in self.voters)
        return yes >= self.majority

    def with_learner(self, node: NodeId, url: str) -> Configuration:
        """Return a new configuration in which the controller ``node`` with this URL is a learner without a known
        store. If it was a member before, also as a voter, the new entry takes the place of the old one."""
        others = self.without(node).all
        return Configuration((*others, Member(node, url, voter=False)))

    def with_voter(self, node: NodeId, store: str) -> Configuration:
        """Return a new configuration in which the member ``node`` is a voter with this store. It equals the old one
        if ``node`` is no member."""
        return Configuration(tuple(replace(m, voter=True, store=store) if m.node == node else m for m in self.all))

    def without(self, node: NodeId) -> Configuration:
        """Return a new configuration without the controller ``node``. It equals the old one if ``node`` is no
        member."""
        return Configuration(tuple(member for member in self.all if member.node != node))

    def keeps_quorum(self, live: Collection[NodeId]) -> bool:
        """Return whether a majority of the voters is among the controllers in ``live``."""
        return sum(voter.node in live for voter in self.voters) >= self.majority


NOBODY = Configuration()
"""The empty configuration, that of a server that neither founded a cluster nor heard of one."""


def members_of(*nodes: NodeId) -> Configuration:
    """Return a configuration in which all these controllers are voters, without URLs and with "" as the names of
    their stores. For tests of groups that never lose a store."""
    return Configuration(tuple(Member(node) for node in nodes))


def encode_members(members: Configuration) -> bytes:
    """Return the data of a log entry that holds this configuration: CBOR [[node, url, voter, store], …]."""
    return cbor2.dumps([[m.node, m.url, m.voter, m.store] for m in members.all])


def decode_members(data: bytes) -> Configuration:
    """Return the configuration that the data of a log entry hold. Raises ``ValueError`` if the data are no
    configuration, name a controller twice, or are encoded differently than ``encode_members`` does."""
    try:
        rows = cbor2.loads(data)
        found = [Member(node, url, voter, store) for node, url, voter, store in rows]
    except (cbor2.CBORDecodeError, TypeError, RecursionError) as error:
        raise ValueError(f"no configuration: {error}") from error
    members = Configuration(tuple(found))
    for member in found:
        kinds = tuple(map(type, (member.node, member.url, member.voter, member.store)))
        if kinds != (str, str, bool, str):
            raise ValueError("no configuration: a member is name, url, voter, store")
    if len({member.node for member in found}) != len(found) or encode_members(members) != data:
        raise ValueError("no configuration: a controller twice, or another encoding")
    return members


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of one controller of the group as another controller knows it, with the same fields as the message
    ``ControllerInfo``. ``match`` is the index up to which its log agrees with the leader's (-1: unknown). ``lost``
    means that it answers with another store than the one that has the vote. ``rolled_back`` means that its store is
    an old copy, which the leader refills up to index ``refill_to``."""

    match: int = -1
    lost: bool = False
    rolled_back: bool = False
    refill_to: int = 0


def with_controller(members: Configuration, node: NodeId, url: str, *, store_lost: bool) -> Configuration:
    """Return ``members`` with the controller ``node`` added under this URL. A controller that is new or whose store
    was lost becomes a learner. A member stays what it was, and gets the URL."""
    member = members.find(node)
    if member is None or store_lost or (not member.voter and member.url != url):
        return members.with_learner(node, url)
    return Configuration(tuple(replace(m, url=url) if m.node == node else m for m in members.all))


def refuse_change(
    members: Configuration, wanted: Configuration, live: Collection[NodeId], *, pending: bool
) -> TidelogError | None:
    """Return why the leader must not append ``wanted`` as the successor of ``members``, the configuration in force;
    None if it may. ``CHANGE_IN_PROGRESS`` if ``pending``: ``members`` is not committed yet, or no entry of the
    leader's term is. ``QUORUM_AT_RISK`` if the voters change and no majority of the new voters is in ``live``."""
    if pending:
        return refuse("CHANGE_IN_PROGRESS", "the last change of the controllers is not committed yet")
    if wanted.voters == members.voters or wanted.keeps_quorum(live):
        return None
    left = [voter.node for voter in wanted.voters if voter.node in live]
    text = f"of {len(wanted.voters)} voters {', '.join(left) or 'nobody'} would be live, no majority"
    return refuse("QUORUM_AT_RISK", text)


def refuse_removal(members: Configuration, node: NodeId) -> TidelogError | None:
    """Return ``UNKNOWN_CONTROLLER`` if the controller ``node`` is not among the members; otherwise None."""
    return None if members.find(node) else refuse("UNKNOWN_CONTROLLER", f"no controller {node} is in the group")
