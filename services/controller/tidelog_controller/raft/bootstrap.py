"""How a cluster begins, and how a controller with an empty store learns that it does not.

A controller with an empty store may be new, with all the others; or its disk was lost, and it has voted and promised
what it does not know any more. It must not vote then (``raft/membership.py``), and in particular not found the
cluster again with others that are late. So a cluster is founded only when *every* controller of the list has an empty
store. Each controller sends the names of all stores that it knows, its own included, to all others (``Meet``). It
founds the cluster when the last ``Meet`` of every other controller names exactly the stores that it knows itself. All
reach the same configuration, since it is made of the same names, sorted. The controller that founds the cluster sends
the configuration to all others before it asks for a vote: a controller that does not have it yet gives none
(``raft/raft.py``).

Why the *same* stores: a controller that has met all others may miss that they have founded the cluster. If one of
them then loses its disk and meets it again, it has heard of an empty store of each, but these were not all empty at
one time. If it founded, a majority without memory would go on beside what is committed. By this rule every other one
has said that it is not founded yet *after* it heard of the new store. So no configuration with the lost store was in
force. A controller that is not founded gives no vote. So each majority of such a configuration that can still vote
has a member in each majority of the new one.

    meeting --all know the same stores--> founded
       |----a founded one names this very store, and a configuration----> founded
       |----a founded one knows another store under this name----> lost: waits to be added again
       |----a founded one does not know this name----> waits to be added

The configuration that a founded controller names is the one at the beginning of its log: the first one, or, once it
has compacted its log, a later one that is committed. Either is safe to begin with: no controller with less than what
was committed under it is elected.

A controller that waits gets the log from the leader when it is added. With ``join``, or with a store that was made
anew in place of a damaged one, it waits from the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidelog.sansio.effects import Event, Send
from tidelog.types import NodeId
from tidelog.wire.messages import Meet

from tidelog_controller.raft.effects import RaftEffect
from tidelog_controller.raft.membership import Configuration, Member
from tidelog_controller.raft.raft import Raft

MEET_EVERY_S = 0.5
"""Seconds between two ``Meet`` messages to each other controller."""


class Bootstrap:
    """The part that one controller has in founding the cluster: it exchanges ``Meet`` messages with the others until
    it has a configuration. Afterwards it only answers the ``Meet`` of controllers that have none."""

    def __init__(self, raft: Raft, urls: Mapping[NodeId, str], *, waits: bool, now: float) -> None:
        """Take part in the founding of a cluster, beginning at ``now``. ``urls`` are the controllers that found the
        cluster together, this one included, with their URLs. With ``waits`` this controller founds no cluster: it
        waits until a cluster that exists adds it."""
        self.raft = raft
        self.lost = False
        """Whether the other controllers know another store under this controller's name: its own was lost."""
        self._urls = dict(urls)
        self._peers = [node for node in urls if node != raft.node_id]
        self._waits = waits
        self._stores = {raft.node_id: raft.store}
        """The stores that this controller knows, its own included, by controller."""
        self._known_to: dict[NodeId, dict[NodeId, str]] = {}
        """By controller: the stores that its last ``Meet`` named."""
        self._meet_at = now

    @property
    def founded(self) -> bool:
        """Return whether this controller has a configuration, so that it belongs to a cluster."""
        return bool(self.raft.members.all)

    def deadline(self) -> float | None:
        """Return the time in seconds at which ``on_tick`` sends the next messages; None once the controller is
        founded, or if its store was lost and it waits to be added again."""
        return None if self.founded or (self._waits and self.lost) else self._meet_at

    def on_tick(self, now: float) -> Sequence[RaftEffect]:
        """Send every other controller a ``Meet`` with the stores that this one knows, and found the cluster if all
        controllers know the same stores. Return the effects; an empty list if ``deadline()`` has not come or is
        None."""
        deadline = self.deadline()
        if deadline is None or now < deadline:
            return []
        self._meet_at = now + MEET_EVERY_S
        effects: list[RaftEffect] = [self._meet(peer) for peer in self._peers]
        return effects + list(self._found_if_all_know_the_same(now))

    def on_meet(self, sender: NodeId, meet: Meet, now: float) -> Sequence[RaftEffect]:
        """Handle the ``Meet`` of the controller ``sender`` and return the effects. A founded controller answers a
        sender that is not founded with its configuration. A controller that is not founded records the stores that
        the sender knows, sends its own list if either of the two lacked the other's store, and founds the cluster if
        all controllers know the same stores. If the sender is founded and its configuration names the store of this
        controller, take that configuration; if it names another store, log ``raft_store_lost`` and wait to be added
        again. The ``Meet`` of a stranger that is not founded is ignored."""
        if self.founded:
            return [] if meet.founded else [self._answer_founded(sender)]
        if meet.founded:
            return self._on_founded(sender, meet, now)
        if sender not in self._urls:
            return []
        receivers = []
        if self._stores.get(sender) != meet.store:
            self._stores[sender] = meet.store
            receivers = self._peers
        elif meet.stores.get(self.raft.node_id) != self.raft.store:
            receivers = [sender]
        self._known_to[sender] = dict(meet.stores)
        return [*map(self._meet, receivers), *self._found_if_all_know_the_same(now)]

    def _on_founded(self, sender: NodeId, meet: Meet, now: float) -> Sequence[RaftEffect]:
        """Handle the ``Meet`` of a founded controller, and found no cluster from now on. If the sender's
        configuration names the store of this controller, take it; if it names another store, log ``raft_store_lost``
        once. Otherwise wait to be added."""
        self._waits = True
        if meet.yours == self.raft.store and meet.members:
            return self.raft.found(Configuration(meet.members), now)
        if meet.yours not in ("", self.raft.store) and not self.lost:
            self.lost = True
            fields = {"store": self.raft.store, "known_as": meet.yours, "told_by": sender}
            return [Event("raft_store_lost", fields)]
        return []

    def _all_know_the_same(self) -> bool:
        """Return whether the last ``Meet`` of every other controller named exactly the stores that this one knows,
        one for each controller of the list."""
        complete = self._stores.keys() == self._urls.keys()
        return complete and all(self._known_to.get(peer) == self._stores for peer in self._peers)

    def _found_if_all_know_the_same(self, now: float) -> Sequence[RaftEffect]:
        """Found the cluster with all controllers of the list as voters, and return the effects: the announcements to
        the others come first. Return an empty list if this controller waits to be added, or if not all know the same
        stores."""
        if self._waits or not self._all_know_the_same():
            return []
        stores = self._stores
        members = Configuration(
            tuple(Member(node, self._urls[node], True, stores[node]) for node in sorted(self._urls))
        )
        effects = self.raft.found(members, now)
        announcements = [self._answer_founded(peer) for peer in self._peers]
        return [Event("cluster_founded", {"controllers": sorted(self._urls)}), *announcements, *effects]

    def _meet(self, peer: NodeId) -> Send:
        return Send(peer, Meet(self.raft.store, self._stores.get(peer, ""), stores=dict(self._stores)))

    def _answer_founded(self, sender: NodeId) -> Send:
        """Return the ``Meet`` of a founded controller to ``sender``, with the store under which the configuration
        knows the receiver ("" if it does not) and with the configuration at the beginning of this log."""
        raft = self.raft
        member = raft.members.find(sender)
        known_as = member.store if member is not None else ""
        return Send(sender, Meet(raft.store, known_as, True, raft.log.base.members.all))
