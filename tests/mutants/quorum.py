"""Rules of commit rule ``quorum``, broken: what is committed, how an epoch is sealed, which replica is elected."""

from __future__ import annotations

from dataclasses import replace

from tidelog.types import TopicPartition
from tidelog.wire.messages import Done
from tidelog_controller.active.leader_replacement import LeaderReplacement
from tidelog_controller.metadata.commands import ElectSealed
from tidelog_controller.metadata.registry import RULES
from tidelog_controller.metadata.rules.leader_election import lead_next
from tidelog_controller.metadata.state import MetadataState
from tidelog_replica.partition.leader_replica import LeaderReplica
from tidelog_replica.partition.partition import Partition
from tidelog_replica.replication.leader_state import LeaderState

from mutants.controller import elects
from mutants.rules import Patch, breaks


def sealed(patch: Patch, change) -> None:
    """The next leader is found with the partition and the seals that ``change(partition, sealing)`` gives."""
    find = LeaderReplacement._sealed

    def other(self, state, key, partition, sealing, now):
        return find(self, state, key, *change(partition, sealing), now)

    patch.setattr(LeaderReplacement, "_sealed", other)


def told(sealing, **values):
    """The seals with other values in each."""
    return replace(
        sealing, seals={node: (life, replace(part, **values)) for node, (life, part) in sealing.seals.items()}
    )


@breaks("quorum", "A new leader is elected when a majority of the replicas has sealed the old epochs.")
def elect_with_one_seal(patch: Patch) -> None:
    """One seal is enough."""
    sealed(patch, lambda partition, sealing: (replace(partition, replicas=partition.replicas[:1]), sealing))


@breaks("quorum", "Whose data was lost seals for nobody until it has caught up.")
def count_seals_from_outside_the_isr(patch: Patch) -> None:
    """The seal of any replica counts, and any may be elected."""
    sealed(patch, lambda partition, sealing: (replace(partition, isr=partition.replicas), sealing))

    def elect(changes, command):
        for part in command.parts:
            partition = changes.state.partition(part.topic_id, part.partition)
            if partition.sealing and partition.leader_epoch == part.leader_epoch:
                isr = tuple(node for node in partition.replicas if node in (*partition.isr, part.leader))
                new = lead_next(replace(partition, isr=isr, last_leader=None, sealing=False), part.leader)
                changes.change(TopicPartition(part.topic_id, part.partition), new, "sealed", part.evidence)
        return Done()

    patch.setitem(RULES, ElectSealed, elect)


@breaks("quorum, Raft 5.4.1", "Of those that sealed, the one with the greatest (last epoch, log end) leads.")
def elect_the_first_that_sealed(patch: Patch) -> None:
    """Logs are not compared."""
    sealed(patch, lambda partition, sealing: (partition, told(sealing, last_epoch=0, end=0)))


@breaks("quorum, Raft 5.4.1", "A later last epoch goes before a longer log.")
def elect_the_longest_log(patch: Patch) -> None:
    """Only ends are compared."""
    sealed(patch, lambda partition, sealing: (partition, told(sealing, last_epoch=0)))


@breaks("quorum", "A seal counts in the leader epoch for which it was reported.")
def believe_seals_of_other_epochs(patch: Patch) -> None:
    """A late seal of an earlier election counts for how far the log reaches now."""
    on_seal = LeaderReplacement.on_seal

    def take(self, state: MetadataState, seal, now, wall_ms):
        parts = []
        for part in seal.parts:
            partition = state.partition(part.topic_id, part.partition)
            epoch = part.leader_epoch if partition is None else partition.leader_epoch
            parts.append(replace(part, leader_epoch=epoch))
        return on_seal(self, state, replace(seal, parts=tuple(parts)), now, wall_ms)

    patch.setattr(LeaderReplacement, "on_seal", take)


@breaks("quorum", "Nobody leads before the old epochs are sealed.")
def elect_without_a_seal(patch: Patch) -> None:
    """The first live member of the ISR leads at once, as with commit rule isr."""

    def at_once(elect, partition, config, *rest, **options):
        rule = "isr" if config.commit_rule == "quorum" else config.commit_rule
        return elect(partition, replace(config, commit_rule=rule, min_insync_replicas=1), *rest, **options)

    elects(patch, at_once)


@breaks("quorum", "Who has sealed takes nothing more of older epochs.")
def fetch_on_after_sealing(patch: Patch) -> None:
    """A follower reports where its log ends, and goes on fetching from the old leader."""
    on_state = Partition.on_state

    def go_on(self, state, broker_epoch, now):
        newer = self.state is not None and state.epoch > self.state.epoch
        if newer and state.sealing and self.following is not None:
            self.state, self.report_at = state, now
        else:
            on_state(self, state, broker_epoch, now)

    patch.setattr(Partition, "on_state", go_on)


@breaks("quorum", "Committed is what a majority of all replicas has flushed.")
def commit_on_less_than_a_majority(patch: Patch) -> None:
    """One replica less than a majority is enough."""
    patch.setattr(LeaderState, "_majority", property(lambda self: max(1, len(self.replicas) // 2)))


@breaks("quorum, Raft 5.4.2", "What earlier epochs left is committed only with something of the leader's own epoch.")
def commit_earlier_epochs_by_counting(patch: Patch) -> None:
    """Whatever a majority has flushed is committed, as in figure 8 of the paper."""
    committed_end = LeaderState._committed_end

    def count(self):
        start, self.epoch_start = self.epoch_start, -1
        try:
            return committed_end(self)
        finally:
            self.epoch_start = start

    patch.setattr(LeaderState, "_committed_end", count)


@breaks("quorum, Raft 8", "A leader begins its epoch with a batch of its own.")
def wait_for_the_first_record(patch: Patch) -> None:
    """What earlier epochs left is not committed before somebody produces."""
    patch.setattr(LeaderReplica, "begin_epoch", lambda self: None)
