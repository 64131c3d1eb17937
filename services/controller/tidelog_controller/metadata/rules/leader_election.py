"""Who leads a partition: the one function that chooses leaders and lets epochs grow.

Commit rules ``isr`` and ``leader``:

    led        the leader is a live member of the ISR
    offline    leader None: no member of ISR and ELR is live. The ISR is one fenced server, which alone holds
               everything committed; or it is empty: the servers that held everything have lost it, and may come back
               without

The **ELR** (eligible leader replicas, KIP-966) are those that left the ISR while it was below
``min_insync_replicas``. The HW stands still then, so they still hold everything committed: where no ISR member is
live, one of them leads, and the ISR that it leaves behind becomes eligible in turn. The ELR ends when the ISR is
large enough, since the HW moves on without it, and knows no server that may have lost what it had. With commit rule
``leader`` the HW never waits: there is no ELR.

Commit rule ``quorum``: the ISR are the replicas whose promises hold, which is all except those whose data were lost
and that have not caught up again. No replica leaves it for being slow or away. A leader that ends is not replaced at
once:

    led --> sealing --> led      in every step a new leader epoch

While *sealing* every replica stops taking records of older epochs and reports how far its log reaches. Of a majority
of the replicas, in the ISR all of them, the one with the greatest (last epoch, log end) leads: every majority that
can have committed something has a member among them (Raft 5.4.1, as a vote that comes after the fact).

A member whose copy is *doubtful* (``metadata/rules/doubtful_tails.py``) is as good as away until its doubt is
settled.

Of the replicas that may lead the one with the best rank does, by the active controller's ranking
(``active/server_ranks.py``). Replica order decides between equal ranks, and where the command carries no ranks. A
rank never makes a replica a candidate.

**Unclean election**, where the topic allows it: if no live replica is known to hold everything (with ``quorum``: no
majority of promises), the last leader leads if it is live and has not lost all that it had: also if it has just
registered and may lack what it had not flushed, since every other live replica lags further behind. Else the first
live replica; one that has just lost what it had, or may have, only if no other is live. There is no unclean election
while all members are live and only have to settle their doubt. Records may be lost, and ``unclean_epoch`` shows every
replica that it may have to cut what was committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tidelog.types import NodeId, PartitionState, TopicConfig

from tidelog_controller.metadata.commands import RankedServer

IsLive = Callable[[NodeId], bool]
Ranks = Mapping[NodeId, int]
"""The ranks of servers as leaders (``active/server_ranks.py``): the lower the number, the better. A server that is
not named has rank 0."""
ALL_ALIKE: Ranks = MappingProxyType({})


def _nobody(node: NodeId) -> bool:
    return False


def elect(
    partition: PartitionState,
    config: TopicConfig,
    isr: tuple[NodeId, ...],
    is_live: IsLive,
    *,
    drains: IsLive = _nobody,
    renew: bool = False,
    leaving: NodeId | None = None,
    lost: NodeId | None = None,
    wiped: bool = False,
    doubtful: tuple[NodeId, ...] | None = None,
    ranks: Ranks = ALL_ALIKE,
) -> PartitionState:
    """Return the partition with the ISR ``isr`` and the leader that follows from it, one epoch on; the same object if
    nothing changes. The leader is None if no replica may lead. With commit rule ``quorum`` a partition that needs a
    leader becomes ``sealing`` instead. One that awaits reports after a rescue keeps waiting.

    The leader stays while it is a live member of ``isr``. With ``renew`` a leader is elected anew: even the same
    server then leads in a new epoch. A server that ``drains`` is elected only if no other of its set (ISR or ELR) can
    be, and ``leaving`` only if no other can be. ``lost`` may have lost records: it leaves ISR and ELR, and leads only
    by an unclean election, if it led last or no other replica is live. ``wiped``: it has lost all of them, and having
    led last does not count. ``doubtful`` are the members with doubtful copies from now on (by default as before),
    which count as not live. ``ranks`` order the candidates within the ISR, then within the ELR."""
    assert all(node in partition.replicas for node in isr), "an ISR holds replicas only"
    doubtful = partition.doubtful if doubtful is None else doubtful
    if is_recovering(partition, config):
        return _wait_for_reports(partition, config, is_live, lost, wiped, doubtful)
    isr = tuple(node for node in partition.replicas if node in isr and node != lost)
    elr = _eligible(partition, config, isr, lost)
    last = partition.leader or partition.last_leader
    last = None if wiped and last == lost else last
    unclean = sealing = False
    leader = partition.leader
    judged = partition if doubtful == partition.doubtful else replace(partition, doubtful=doubtful)
    counts = _counting(judged, is_live)
    if renew or leader not in isr or leader is None or not counts(leader):
        renew = True
        quorum = config.commit_rule == "quorum"
        sealing = quorum and can_be_sealed(judged, isr, is_live)
        leader = None if quorum else _first_live(isr, elr, counts, drains, leaving, ranks)
        settles = any(node in doubtful for node in isr + elr) and all(map(is_live, isr + elr))
        if leader is None and not sealing and config.unclean_election and not settles:
            others = _first_live(isr, partition.replicas, is_live, drains, lost, ranks)
            leader = last if last is not None and is_live(last) else others
            unclean = leader is not None
        sealing = quorum and leader is None
    if unclean and leader is not None:
        isr, elr = (leader,), ()
    elif leader is not None and leader not in isr:
        isr = (leader,)
        elr = _eligible(partition, config, isr, lost)
    new_epoch = renew and not (leader is None and partition.leader is None)
    leader_epoch = partition.leader_epoch + (1 if new_epoch else 0)
    successor = partition.successor
    keeps = not new_epoch and successor is not None and successor in isr and is_live(successor)
    new: dict[str, Any] = {
        "isr": isr,
        "elr": elr,
        "leader": leader,
        "leader_epoch": leader_epoch,
        "last_leader": last if leader is None else None,
        "unclean_epoch": leader_epoch if unclean else partition.unclean_epoch,
        "sealing": sealing,
        "successor": successor if keeps else None,
        "departed": () if new_epoch else partition.departed,
        "doubtful": tuple(n for n in partition.replicas if n in doubtful and n in isr + elr and n != leader),
    }
    same = all(getattr(partition, name) == value for name, value in new.items())
    return partition if same else replace(partition, epoch=partition.epoch + 1, **new)


def is_recovering(partition: PartitionState, config: TopicConfig) -> bool:
    """Return whether the partition is sealed because of a rescue, and waits until its replicas have reported what
    they know (``recovery.py``); never with commit rule ``quorum``. Its ISR and ELR then also hold servers that are
    away or have restarted."""
    return partition.sealing and config.commit_rule != "quorum"


def copies_needed(partition: PartitionState, config: TopicConfig) -> int:
    """Return how many replicas must report after a rescue before a leader can be elected. Any that many replicas
    have, together, every record that can have been committed."""
    if config.commit_rule == "quorum":
        return len(partition.replicas) // 2 + 1
    return max(1, len(partition.replicas) - config.min_insync_replicas + 1)


def _wait_for_reports(
    partition: PartitionState,
    config: TopicConfig,
    is_live: IsLive,
    lost: NodeId | None,
    wiped: bool,
    doubtful: tuple[NodeId, ...],
) -> PartitionState:
    """Return a partition that awaits reports after a rescue, with ``lost`` removed from ISR and ELR, and with these
    ``doubtful`` members. It stays without a leader. But if the topic allows an unclean election and too few replicas
    are live for another one, the last leader or else the first live replica leads. Return the same object if nothing
    changes."""
    isr, elr = without(partition.isr, lost or ""), without(partition.elr, lost or "")
    last = None if wiped and partition.last_leader == lost else partition.last_leader
    doubtful = tuple(node for node in partition.replicas if node in doubtful and node in isr + elr)
    new = replace(partition, isr=isr, elr=elr, last_leader=last, doubtful=doubtful)
    enough = sum(map(is_live, isr + elr)) >= copies_needed(partition, config) and any(map(is_live, isr))
    if config.unclean_election and not enough:
        known = last if last is not None and is_live(last) else None
        leader = known or _first_live(isr + elr, partition.replicas, is_live, _nobody, lost)
        if leader is not None:
            new = replace(elect_recovered(new, leader), unclean_epoch=new.leader_epoch + 1)
    return partition if new == partition else replace(new, epoch=partition.epoch + 1)


def elect_recovered(partition: PartitionState, leader: NodeId, above: int = -1) -> PartitionState:
    """Return the partition after its recovery from a rescue: led by ``leader`` alone, in a leader epoch greater than
    ``above``. The caller knows that ``leader`` has every committed record. The other replicas join the ISR when they
    have caught up. A leader that is no replica takes the place of the last replica."""
    replicas, copies = partition.replicas, len(partition.replicas)
    return replace(
        partition,
        replicas=replicas if leader in replicas else (leader, *replicas)[:copies],
        learners=without(partition.learners, leader),
        isr=(leader,),
        elr=(),
        leader=leader,
        leader_epoch=max(partition.leader_epoch, above) + 1,
        epoch=partition.epoch + 1,
        last_leader=None,
        sealing=False,
        departed=(),
        doubtful=(),
    )


def lead_next(partition: PartitionState, leader: NodeId) -> PartitionState:
    """Return the partition one leader epoch on, led by ``leader``. The caller knows that ``leader``, a member of the
    ISR, has everything that the present leader has: it is the successor of a transfer, or the same server."""
    assert leader in partition.isr
    return replace(
        partition,
        leader=leader,
        leader_epoch=partition.leader_epoch + 1,
        epoch=partition.epoch + 1,
        successor=None,
        departed=(),
    )


def elect_sealed(partition: PartitionState, leader: NodeId, above: int = -1) -> PartitionState:
    """Return the sealed partition led by ``leader``, in a leader epoch greater than ``above``. The caller knows that
    the log of ``leader`` reaches furthest of those that sealed the old epochs. Fails an assertion unless the
    partition is sealed and ``leader`` is in the ISR."""
    assert partition.sealing and leader in partition.isr
    return replace(
        partition,
        leader=leader,
        leader_epoch=max(partition.leader_epoch, above) + 1,
        epoch=partition.epoch + 1,
        last_leader=None,
        sealing=False,
        departed=(),
    )


def first_state(
    replicas: tuple[NodeId, ...], config: TopicConfig, is_live: IsLive, drains: IsLive = _nobody
) -> PartitionState | None:
    """Return the state of a new partition on these replicas, with its first leader, at epoch 0; None if no replica is
    live. The ISR are the live replicas; with commit rule ``quorum`` all replicas, since each has the empty log."""
    live = tuple(node for node in replicas if is_live(node))
    if not live:
        return None
    isr = replicas if config.commit_rule == "quorum" else live
    return PartitionState(replicas, isr, min(live, key=drains), leader_epoch=0, epoch=0)


def can_take_over(partition: PartitionState, config: TopicConfig, node: NodeId, is_live: IsLive) -> bool:
    """Return whether other members of ISR and ELR can lead the partition without ``node``. One live member without
    doubt is enough; with commit rule ``quorum`` they must be a majority of the replicas."""
    others = without((*partition.isr, *partition.elr), node)
    if config.commit_rule == "quorum":
        return can_be_sealed(partition, others, is_live)
    return any(map(_counting(partition, is_live), others))


def can_be_sealed(partition: PartitionState, nodes: Iterable[NodeId], is_live: IsLive) -> bool:
    """Return whether the live servers without doubt among ``nodes`` are a majority of the partition's replicas."""
    return 2 * sum(map(_counting(partition, is_live), nodes)) > len(partition.replicas)


def _counting(partition: PartitionState, is_live: IsLive) -> IsLive:
    """Return a predicate that is true for servers that are live and whose copy of this partition is not doubtful."""
    return lambda node: is_live(node) and node not in partition.doubtful


def ranks_by_server(ranks: Iterable[RankedServer]) -> Ranks:
    """Return the ranks in a command as a mapping from server to rank. Servers that are not listed have rank 0."""
    return {one.node: one.rank for one in ranks}


def passed_over(old: PartitionState, new: PartitionState, ranks: Iterable[RankedServer]) -> dict[str, str]:
    """Return evidence for ``tidelog why`` about the election that made ``new`` of ``old``: the rank of every
    candidate whose rank is not 0, and the replicas that stand before the new leader and lost to it by their rank. An
    empty dict if no new leader was elected."""
    if new.leader is None or new.leader_epoch == old.leader_epoch:
        return {}
    candidates = without((*old.isr, *old.elr), old.leader or "")
    ranked = {one.node: one for one in ranks if one.node in candidates}
    evidence = {f"rank_{node}": f"{one.rank} ({one.reason})" for node, one in ranked.items()}
    best = ranked[new.leader].rank if new.leader in ranked else 0
    before = old.replicas[: old.replicas.index(new.leader)] if new.leader in old.replicas else ()
    worse = [node for node in before if node in ranked and ranked[node].rank > best]
    return evidence | ({"passed_over": " ".join(worse)} if worse else {})


def without(nodes: tuple[NodeId, ...], node: NodeId) -> tuple[NodeId, ...]:
    """Return ``nodes`` without ``node``, in the same order; unchanged if ``node`` is not among them."""
    return tuple(member for member in nodes if member != node)


def _eligible(
    partition: PartitionState, config: TopicConfig, isr: tuple[NodeId, ...], lost: NodeId | None
) -> tuple[NodeId, ...]:
    """Return the ELR that belongs to the new ISR ``isr``: the other members of the old ISR and ELR, without ``lost``.
    It is empty unless the commit rule is ``isr`` and the new ISR is smaller than ``min_insync_replicas``."""
    if config.commit_rule != "isr" or len(isr) >= config.min_insync_replicas:
        return ()
    known = (*partition.elr, *partition.isr)
    return tuple(node for node in partition.replicas if node in known and node not in isr and node != lost)


def _first_live(
    first: Iterable[NodeId],
    then: Iterable[NodeId],
    is_live: IsLive,
    drains: IsLive,
    avoided: NodeId | None,
    ranks: Ranks = ALL_ALIKE,
) -> NodeId | None:
    """Return the best live replica of ``first``, or else of ``then``; None if no replica is live. Within each,
    servers that drain come after all others, and a better rank comes first. ``avoided`` is returned only if no other
    is live."""

    def order(node: NodeId) -> tuple[bool, int]:
        return drains(node), ranks.get(node, 0)

    live = [*sorted(filter(is_live, first), key=order), *sorted(filter(is_live, then), key=order)]
    return next((node for node in live if node != avoided), live[0] if live else None)
