"""Rules of the controller, broken."""

from __future__ import annotations

from dataclasses import replace

from tidelog.wire.messages import Registered
from tidelog_controller.active.leader_replacement import LeaderReplacement
from tidelog_controller.metadata.changeset import ChangeSet
from tidelog_controller.metadata.commands import ChangeIsr, RegisterServer
from tidelog_controller.metadata.registry import RULES
from tidelog_controller.metadata.rules import leader_election, partitions, servers, topics
from tidelog_controller.metadata.state import MetadataState

from mutants.rules import Patch, breaks


def elects(patch: Patch, change) -> None:
    """Every election goes through ``change(elect, …)``."""
    elect = leader_election.elect

    def other(*arguments, **options):
        return change(elect, *arguments, **options)

    for module in (leader_election, partitions, servers, topics):
        patch.setattr(module, "elect", other)


def renew_no_leader_epoch(patch: Patch) -> None:
    """Half of a mutant: a leader that registers anew as the last of its ISR keeps its leader epoch."""

    def again(elect, partition, config, isr, is_live, *, renew=False, **options):
        same = partition.leader in isr and partition.leader is not None and is_live(partition.leader)
        return elect(partition, config, isr, is_live, renew=renew and not same, **options)

    elects(patch, again)


@breaks("rule 1", "Every process start is a new broker epoch.")
def keep_the_broker_epoch(patch: Patch) -> None:
    """A server that registers again gets the broker epoch that it had."""
    put = ChangeSet.put_server

    def keep(self, server, *rest):
        known = self.state.servers.get(server.node)
        put(self, server if known is None else replace(server, broker_epoch=known.broker_epoch), *rest)

    patch.setattr(ChangeSet, "put_server", keep)
    register = RULES[RegisterServer]

    def answer(changes, command):
        known = changes.state.servers.get(command.node)
        given = register(changes, command)
        if known is None or not isinstance(given, Registered):
            return given
        return replace(given, broker_epoch=known.broker_epoch)

    patch.setitem(RULES, RegisterServer, answer)


@breaks("rule 3", "A server that registers anew leaves the ISR where others remain.")
def stay_in_the_isr(patch: Patch) -> None:
    """A server whose session ended, or that registers again, stays in the ISR beside others."""
    for module in (partitions, servers):
        patch.setattr(module, "without", lambda isr, node: isr)


@breaks("KIP-903", "A member is added to the ISR only in the life in which the leader saw it.")
def believe_any_life(patch: Patch) -> None:
    """The broker epochs of proposed members are not compared."""
    patch.setattr(MetadataState, "is_incarnation", lambda self, node, broker_epoch: node in self.servers)


@breaks("KIP-497", "A proposal holds only for the epoch in which it was made.")
def take_stale_proposals(patch: Patch) -> None:
    """The epoch of a proposal is not compared with the partition's."""
    change_isr = RULES[ChangeIsr]

    def take(changes, command):
        partition = changes.state.partition(command.topic_id, command.partition)
        return change_isr(changes, command if partition is None else replace(command, epoch=partition.epoch))

    patch.setitem(RULES, ChangeIsr, take)


@breaks("KIP-966", "The ELR ends when the ISR is large enough again.")
def keep_the_elr(patch: Patch) -> None:
    """An eligible replica stays eligible, although the HW advances without it."""

    def eligible(partition, config, isr, lost):
        known = (*partition.elr, *partition.isr)
        return tuple(node for node in partition.replicas if node in known and node not in isr and node != lost)

    patch.setattr(leader_election, "_eligible", eligible)


@breaks("KIP-966", "Only who left an ISR below its minimum is eligible.")
def forget_the_elr(patch: Patch) -> None:
    """No replica is eligible: when the last member of the ISR is gone, the partition has no leader, though another
    replica holds everything."""
    patch.setattr(leader_election, "_eligible", lambda *arguments: ())


@breaks("KIP-966", "A replica that may have lost records is neither in the ISR nor eligible.")
def keep_unclean_members_eligible(patch: Patch) -> None:
    """A server that restarted uncleanly keeps its place, whatever its flush policy promised."""

    def trust(elect, partition, config, isr, is_live, *, lost=None, wiped=False, **options):
        return elect(partition, config, isr, is_live, **options)

    elects(patch, trust)


def registers(patch: Patch, change) -> None:
    """What a server reports at its registration goes through ``change(state, command)``."""
    register = RULES[RegisterServer]
    patch.setitem(RULES, RegisterServer, lambda changes, command: register(changes, change(changes.state, command)))


@breaks("KIP-966", "After an unclean restart nothing that was only written counts.")
def trust_unclean_restarts(patch: Patch) -> None:
    """Every restart passes for clean."""
    registers(patch, lambda state, command: replace(command, clean=True))


@breaks("lives", "A directory that does not know its server's last life was wiped, or restored from an old copy.")
def trust_any_disk(patch: Patch) -> None:
    """Every directory counts as the one that the server had before."""

    def know(state, command):
        known = state.servers.get(command.node)
        return command if known is None else replace(command, lives=(known.life, *command.lives))

    registers(patch, know)


@breaks("KIP-966", "Without leave to lose records nobody leads of whom it is not known that it holds everything.")
def elect_anybody(patch: Patch) -> None:
    """Every topic allows unclean elections."""

    def allow(elect, partition, config, *rest, **options):
        return elect(partition, replace(config, unclean_election=True), *rest, **options)

    elects(patch, allow)


@breaks("KIP-841", "A server without a live session is not elected.")
def elect_the_dead(patch: Patch) -> None:
    """The first in replica order is elected, with or without a live session."""

    def first(nodes, others, is_live, drains, avoided):
        return next((node for node in (*nodes, *others) if node != avoided), None)

    patch.setattr(leader_election, "_first_live", first)


@breaks("Liftbridge", "Only a replica in sync with a leader can report it.")
def believe_any_report(patch: Patch) -> None:
    """Any sender of such a report counts."""
    counts = LeaderReplacement._counts

    def count(self, state, partition, report, part, now):
        return counts(self, state, replace(partition, isr=partition.replicas), report, part, now)

    def majority(self, state, partition, suspicion, now):
        judges = [
            node for node in partition.isr if node != partition.leader and self.sessions.is_live(state, node, now)
        ]
        return {"reports": str(len(suspicion.reports))} if 2 * len(suspicion.reports) > len(judges) else None

    patch.setattr(LeaderReplacement, "_counts", count)
    patch.setattr(LeaderReplacement, "_majority", majority)


@breaks("Liftbridge", "A report counts for a while.")
def believe_old_reports(patch: Patch) -> None:
    """For ever, as long as the partition does not change."""
    majority = LeaderReplacement._majority

    def of_ever(self, state, partition, suspicion, now):
        suspicion = replace(suspicion, reports={node: (now, why) for node, (_, why) in suspicion.reports.items()})
        return majority(self, state, partition, suspicion, now)

    patch.setattr(LeaderReplacement, "_majority", of_ever)


@breaks("Liftbridge", "A leader is replaced when a majority of its followers in sync have reported it.")
def elect_at_the_first_report(patch: Patch) -> None:
    """The report of one follower is enough."""
    patch.setattr(LeaderReplacement, "_majority", lambda self, state, partition, suspicion, now: {"reports": "1"})


@breaks(
    "decision 30",
    "A rank orders the replicas that may lead, and never lets another lead.",
    tests=("unit.controller.active.test_server_ranks", "unit.controller.metadata.test_application_random"),
)
def elect_by_rank_alone(patch: Patch) -> None:
    """Where a command carries ranks, all replicas count as in sync."""

    def change(elect, partition, config, isr, is_live, *, ranks=leader_election.ALL_ALIKE, **options):
        all_of_them = tuple(node for node in partition.replicas if node != options.get("leaving"))
        return elect(partition, config, all_of_them if ranks else isr, is_live, ranks=ranks, **options)

    elects(patch, change)


@breaks(
    "decision 30",
    "The ISR leads before the ELR, whatever the ranks.",
    tests=("unit.controller.active.test_server_ranks",),
)
def rank_the_elr_beside_the_isr(patch: Patch) -> None:
    """The lowest rank of ISR and ELR leads."""
    first_live = leader_election._first_live

    def mixed(first, then, *options):
        return first_live((*first, *then), (), *options)

    patch.setattr(leader_election, "_first_live", mixed)


@breaks(
    "decision 30",
    "Repeated elections of one partition by reports are held back.",
    tests=("unit.controller.active.test_server_ranks",),
)
def replace_a_reported_leader_every_time(patch: Patch) -> None:
    """Nothing is held back."""
    held_back = LeaderReplacement._is_held_back

    def never(self, key, leader, suspicion, now):
        held_back(self, key, leader, suspicion, now)
        return False

    patch.setattr(LeaderReplacement, "_is_held_back", never)


@breaks(
    "decision 30",
    "The rank of a server counts when a leader is replaced.",
    tests=("unit.controller.active.test_server_ranks",),
)
def ignore_the_ranks(patch: Patch) -> None:
    """Leaders are elected in replica order."""

    def in_order(elect, *arguments, **options):
        return elect(*arguments, **{**options, "ranks": leader_election.ALL_ALIKE})

    elects(patch, in_order)
