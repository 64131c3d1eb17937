"""Rules of what is said between leader, followers and controller, broken; more of them stand in ``replica.py``."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from tidelog_replica.partition import leader_replica as leading_module
from tidelog_replica.partition.follower_replica import FollowerReplica
from tidelog_replica.partition.partition import Partition
from tidelog_replica.replication.follower_state import FollowerState
from tidelog_replica.replication.leader_state import LeaderState

from mutants.rules import Patch, breaks


@breaks("rule 5", "A proposal that is not answered is sent again as it was.")
def propose_anew_what_was_not_answered(patch: Patch) -> None:
    """A new proposal is made from the present state and sent; the first may be applied as well."""

    def propose(self, proposal, now):
        if proposal is self.proposal:
            self.proposal = self._retry_at = None
            self._propose_isr(now)
            self._retry_at = None if self.proposal is None else now + self._retry_s
            self._update_maximal_isr()

    patch.setattr(LeaderState, "on_proposal_unanswered", propose)


@breaks("rule 4", "A leader's own offset is its flushed end.")
def count_what_the_leader_has_written(patch: Patch) -> None:
    """The leader counts itself by its log end, and the followers by their flushed ends."""
    durable_of = LeaderState._durable_of
    patch.setattr(
        LeaderState, "_durable_of", lambda self, node: self._log_end if node == self.node else durable_of(self, node)
    )
    on_append = LeaderState.on_append

    def append(self, log_end, now):
        on_append(self, log_end, now)
        self._advance()

    patch.setattr(LeaderState, "on_append", append)


@breaks("rule 6", "A replica that joins the ISR has reached the HW.")
def join_behind_the_high_watermark(patch: Patch) -> None:
    """The start of the leader epoch is enough."""
    patch.setattr(LeaderState, "_may_join", LeaderState._is_fit)


@breaks("rule 7", "An epoch that the leader does not know is never a reason to use the HW.")
def cut_at_the_hw_where_an_epoch_is_unknown(patch: Patch) -> None:
    """A follower asks once. If the leader answers with another epoch than the one asked for, the follower cuts its
    log at the HW."""
    on_epoch_end = FollowerState.on_epoch_end

    def cut(self, asked, epoch, end, epochs, log_start, log_end):
        if asked == self.asking and epoch < asked:
            self.asking = None
            return max(log_start, min(self.high_watermark, log_end))
        return on_epoch_end(self, asked, epoch, end, epochs, log_start, log_end)

    patch.setattr(FollowerState, "on_epoch_end", cut)


@breaks("rule 7", "The dialogue goes on until both know the epoch.")
def ask_but_once(patch: Patch) -> None:
    """Where the leader names an epoch that the follower does not know, all of the follower's older epochs stand."""
    on_epoch_end = FollowerState.on_epoch_end

    def once(self, asked, epoch, end, epochs, log_start, log_end):
        agreed = on_epoch_end(self, asked, epoch, end, epochs, log_start, log_end)
        if agreed is None and asked != self.asking is not None:
            self.asking = None
            return epochs.end_of(epoch, log_end)[1]
        return agreed

    patch.setattr(FollowerState, "on_epoch_end", once)
    patch.setattr(leading_module, "divergence", lambda *arguments: None)


@breaks("rule 8", "A follower takes an answer in the dialogue only in the leader epoch in which it asked.")
def take_late_answers_in_the_dialogue(patch: Patch) -> None:
    """Whatever the leader of an earlier epoch answered ends the dialogue."""
    on_epoch_end = FollowerReplica.on_epoch_end

    def take(self, asked, part):
        return on_epoch_end(self, replace(asked, leader_epoch=self.core.leader_epoch), part)

    patch.setattr(FollowerReplica, "on_epoch_end", take)


@breaks("rule 8", "A follower ignores a notify of another leader epoch.")
def take_notices_of_any_epoch(patch: Patch) -> None:
    """Batches and HW of a notice are accepted from any leader epoch."""
    on_notified = FollowerReplica.on_notified

    def take(self, part, data):
        return on_notified(self, replace(part, leader_epoch=self.core.leader_epoch), data)

    patch.setattr(FollowerReplica, "on_notified", take)


@breaks("rule 8", "Only what the controller says raises a leader epoch.")
def believe_others_about_the_epoch(patch: Patch) -> None:
    """A leader that is asked in a newer leader epoch leads in that one; a follower that is notified in one follows in
    it."""
    refusal, on_notified = LeaderState.refuse_epoch, FollowerReplica.on_notified

    def raise_own(self, leader_epoch):
        self.leader_epoch = max(self.leader_epoch, leader_epoch)
        return refusal(self, leader_epoch)

    def raise_and_take(self, part, data):
        self.core.leader_epoch = max(self.core.leader_epoch, part.leader_epoch)
        return on_notified(self, part, data)

    patch.setattr(LeaderState, "refuse_epoch", raise_own)
    patch.setattr(FollowerReplica, "on_notified", raise_and_take)


@breaks("KIP-501", "A leader whose disk does not answer hands over before it takes followers for laggards.")
def lead_on_with_a_disk_that_stands_still(patch: Patch) -> None:
    """The leader waits for its disk for ever."""
    patch.setattr(Partition, "_stalls_at", inf)
