"""Rules of a rescue, after which the metadata have gone back, broken."""

from __future__ import annotations

from dataclasses import replace

from tidelog_controller.active import leader_replacement as election
from tidelog_controller.controller import Controller
from tidelog_controller.metadata.rules import recovery
from tidelog_controller.metadata.rules.recovery import Choice
from tidelog_replica.assignment.assignment import Assignment
from tidelog_replica.registration.incarnations import Incarnations

from mutants.rules import Patch, breaks

RESCUE = "decision 17"


@breaks(RESCUE, "After a rescue no producer id is given that was given before.")
def give_producer_ids_again(patch: Patch) -> None:
    """The survivor goes on with the next id that it knows of, and no block follows the clock."""
    patch.setattr(recovery, "id_beyond", lambda next_id, wall_ms: next_id)
    patch.setattr(Controller, "_on_report", lambda self, *arguments: [])
    patch.setattr("tidelog_controller.metadata.rules.producer_ids.first_free_id", lambda next_id, wall_ms: next_id)


@breaks(RESCUE, "After a rescue epochs and leader epochs are beyond all that were given before.")
def go_on_in_the_survivor_s_epochs(patch: Patch) -> None:
    """The next epochs are one beyond those that the survivor knows."""
    patch.setattr(recovery, "epoch_beyond", lambda epoch, wall_ms: epoch + 1)


@breaks(RESCUE, "After a rescue the index, and so every broker epoch, is beyond all that were given before.")
def go_on_at_the_survivor_s_index(patch: Patch) -> None:
    """The index is one beyond the one that the survivor knows."""
    patch.setattr("tidelog_controller.rescue.index_beyond", lambda index, wall_ms: index + 1)


@breaks(RESCUE, "After a rescue no replica leads before enough replicas have reported what they know.")
def elect_without_reports(patch: Patch) -> None:
    """The first replica that reports leads, if the survivor's metadata have it in sync."""

    def first(partition, config, seals, drains, **options):
        return next((Choice(node, "first") for node in partition.isr if node in seals), None)

    patch.setattr(election, "choose", first)


@breaks(RESCUE, "Of those that reported the one with the greatest (last epoch, log end) leads.")
def elect_the_first_of_enough_copies(patch: Patch) -> None:
    """The first of enough leads, however far its log reaches."""
    choose = recovery.choose

    def first(partition, config, seals, drains, **options):
        same = {node: replace(part, end=1, last_epoch=0, could_follow=()) for node, part in seals.items()}
        return choose(partition, config, same, drains, **options)

    patch.setattr(election, "choose", first)


@breaks(RESCUE, "A copy that is empty and knows no leader epoch vouches for nothing.")
def count_blank_copies(patch: Patch) -> None:
    """An empty copy counts like any other."""
    patch.setattr(recovery, "is_blank", lambda part: False)


@breaks(RESCUE, "The last leader leads on only where all that could be elected after it have reported.")
def trust_any_last_leader(patch: Patch) -> None:
    """The leader of the highest leader epoch that was reported leads on."""

    def last_leader(good, seals):
        highest = max((part.highest_epoch for part in seals.values()), default=-1)
        return next((n for n, p in good.items() if p.highest_epoch == highest), None)

    patch.setattr(recovery, "_last_leader", last_leader)


@breaks(RESCUE, "A leader epoch is beyond every one that a replica reports.")
def elect_below_a_reported_epoch(patch: Patch) -> None:
    """The leader epoch is beyond that of the partition's metadata only."""
    patch.setattr(election, "_above", lambda state, partition, seals: -1)


@breaks(RESCUE, "No producer id is given that a replica server knows from its logs.")
def ignore_known_producer_ids(patch: Patch) -> None:
    """The producer ids that servers report are ignored."""
    report = Controller._on_report

    def deaf(self, message, now, wall_ms):
        if getattr(message, "producer_id", 0):
            message = replace(message, producer_id=0)
        return report(self, message, now, wall_ms)

    patch.setattr(Controller, "_on_report", deaf)


@breaks(RESCUE, "Nothing is decided by metadata older than what a replica server has seen.")
def rule_by_metadata_that_went_back(patch: Patch) -> None:
    """The index and term of the metadata that servers have seen are ignored."""
    patch.setattr(Controller, "_lacks", lambda self, index, term: False)


@breaks(RESCUE, "A directory names lives that were registered before its last one.")
def forget_older_lives(patch: Patch) -> None:
    """It names the last registered one and those begun since."""
    on_registered = Incarnations.on_registered

    def forget(self, *arguments):
        self.names = self.names[-1:]
        on_registered(self, *arguments)

    patch.setattr(Incarnations, "on_registered", forget)


@breaks(RESCUE, "A copy that the metadata do not name is kept while the partition recovers.")
def delete_copies_while_a_partition_recovers(patch: Patch) -> None:
    """The copy is deleted as soon as the server receives the survivor's metadata."""
    assign = Assignment._assign

    def delete(self, topic, key, state, now):
        named = self._node in state.replicas + state.learners
        assign(self, topic, key, state if named else replace(state, sealing=False), now)

    patch.setattr(Assignment, "_assign", delete)
