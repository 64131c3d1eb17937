"""How an old copy of a controller's disk is recognised: what each store is known to have acknowledged.

Raft takes it for granted that a server remembers its term, its vote and its log (Ongaro & Ousterhout §5). A disk that
is put back from an earlier copy, a snapshot of a virtual machine say, forgets the end of all three under the right
store name (``raft/membership.py``), and no mark on that disk can show it. The other controllers can. Each
controller remembers, in memory, for each store of the group one entry (index, term) that this store has acknowledged
*and* that is committed. The leader knows it from the acknowledgements, and its heartbeats carry it to the followers,
each of which may be the next candidate. Requests for votes and votes carry it too, so that a new leader knows what
any of its voters remembers. All these messages contain what is known of the receiver's own store. A store never loses
a committed entry that it has acknowledged, whatever leaders come and however late a message is. So a store that lacks
it is *rolled back*, and a healthy store is never taken for one.

    sound --lacks what it had acknowledged--> rolled back --its log agrees up to the leader's target--> sound

A store that is rolled back makes this durable before it sends anything else. It gives no vote and does not stand. It
answers with a *refill id*, a random number that a new process draws anew. The leader does not count its answers for
commits, reads, changes of the group and transfers. The target is the end of the leader's log when it heard of that
refill id, so nothing that this store can ever have acknowledged to this leader lies behind it; and the leader names
the target only after a majority without this store has confirmed that it still led, so nothing that was committed at
that moment lies behind it either. When the log agrees up to the target the mark goes away in the same transaction as
the last entries come, and the store counts again.

The leader recognises answers of the store's earlier incarnation by their ``round``: it begins a new round when it
hears a refill id and another one when the refill ends, and ignores answers to older rounds. The store recognises
messages of an earlier refill by their refill id.

A copy that lacks nothing that is known to be acknowledged is harmless: its term is brought up to date by the first
message of the leader, and its vote of that term goes to that leader. What no running controller remembers cannot be
recognised (``docs/decisions/0019-an-old-copy-of-a-disk.md``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tidelog.types import NodeId
from tidelog.wire.messages import Acked

from tidelog_controller.raft.membership import Configuration


class AckedEntries:
    """The furthest committed entry (index, term) that each store of the group is known to have acknowledged. Each
    controller has one in memory, as long as its process runs."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[int, int]] = {}

    def record(self, store: str, index: int, term: int) -> None:
        """Record that ``store`` has acknowledged the committed entry (``index``, ``term``). Does nothing if a later
        entry is known already, or if the store has no name and so cannot be recognised."""
        if store and index > self._of.get(store, (0, 0))[0]:
            self._of[store] = (index, term)

    def learn(self, rows: Iterable[Acked]) -> None:
        """Record the acknowledged entries that a message of another controller lists. A row that is not further than
        the known entry of its store changes nothing."""
        for row in rows:
            self.record(row.store, row.index, row.term)

    def keep_only(self, stores: Iterable[str]) -> None:
        """Forget all stores that are not in ``stores``, the stores of the present group."""
        self._of = {store: self._of[store] for store in stores if store in self._of}

    def rows(self) -> tuple[Acked, ...]:
        """Return one ``Acked`` row (store, index, term) for each known store, sorted by store, for a message to
        another controller."""
        return tuple(Acked(store, index, term) for store, (index, term) in sorted(self._of.items()))

    def rows_for(self, store: str, index: int, term: int | None) -> tuple[Acked, ...]:
        """Return the rows for a heartbeat to ``store``: ``rows()``, and one for the last entry (``index``, ``term``)
        that the store has acknowledged to this leader. That row is left out if the store has no name, ``term`` is 0
        (nothing acknowledged) or None (the entry is compacted away)."""
        return (*self.rows(), Acked(store, index, term)) if store and term else self.rows()

    def is_behind(self, store: str, last_index: int, last_term: int) -> bool:
        """Return whether a log that ends with the entry (``last_index``, ``last_term``) lacks an entry that ``store``
        has acknowledged; False if nothing is known of the store. Of two logs that end in one term the longer has all
        entries of the other, and a log that ends in a later term has all that was committed before (Raft §5.4)."""
        index, term = self._of.get(store, (0, 0))
        return (last_term, last_index) < (term, index)


def find_disks_needed(
    members: Configuration, granted: Collection[NodeId], refused: Mapping[NodeId, bool]
) -> tuple[tuple[NodeId, ...], tuple[NodeId, ...]]:
    """Return, after a failed election, the voters whose stores are old copies, and the voters that did not answer and
    without which no election can succeed; both sorted. Both are empty if no store is an old copy, or if the voters
    that answered and are no old copies are a majority. ``granted`` are the servers that granted their vote;
    ``refused`` are those that refused it, each with whether its store is an old copy."""
    old = tuple(node for node, is_old in refused.items() if is_old)
    voters = [voter.node for voter in members.voters]
    silent = tuple(node for node in voters if node not in granted and node not in refused)
    if not old or len(voters) - len(old) - len(silent) >= members.majority:
        return (), ()
    return tuple(sorted(old)), tuple(sorted(silent))
