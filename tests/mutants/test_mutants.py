"""Rules that guard an invariant, broken on purpose: some seed must notice each, within a bounded number of seeds.

A mutant is a few lines put in the place of the rule. Most fall within three seeds.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from simulation.runner import run_seed
from tidelog_controller.core import metadata
from tidelog_replica import leading as leading_module
from tidelog_replica.core import follower as follower_module
from tidelog_replica.core.leader import Leader
from tidelog_replica.core.producers import ProducerState
from tidelog_replica.following import Following
from tidelog_replica.log.log import Log
from tidelog_replica.partition import Partition

SEEDS = 40
"""A mutant that survives so many is not noticed."""


def resume_leader_epoch(patch: pytest.MonkeyPatch) -> None:
    """A leader that comes back as the last of its ISR goes on in its old leader epoch."""
    elect = metadata.elect

    def again(partition, config, isr, is_live, *, renew=False, **rest):
        same = partition.leader in isr and partition.leader is not None and is_live(partition.leader)
        return elect(partition, config, isr, is_live, renew=renew and not same, **rest)

    patch.setattr(metadata, "elect", again)
    lead = Partition._lead

    def resume(self, state, broker_epoch, now):
        if state.leader_epoch <= self.log.epochs.latest():
            patched = self.log.assign_epoch
            self.log.assign_epoch = lambda epoch: None if epoch <= self.log.epochs.latest() else patched(epoch)
            latest, self.log.epochs.latest = self.log.epochs.latest, lambda: state.leader_epoch - 1
            try:
                lead(self, state, broker_epoch, now)
            finally:
                self.log.epochs.latest = latest
        else:
            lead(self, state, broker_epoch, now)

    patch.setattr(Partition, "_lead", resume)


def commit_without_proposed_members(patch: pytest.MonkeyPatch) -> None:
    """The HW counts the ISR that the leader knows, not the members that it has proposed."""

    def count(self):
        self._counted = self.isr
        self._advance()

    patch.setattr(Leader, "_count", count)


def ignore_followers(patch: pytest.MonkeyPatch) -> None:
    """Committed is what the leader has flushed: an ack before the others have it."""

    def advance(self):
        if self.has_quorum:
            self.high_watermark = max(self.high_watermark, self._durable)

    patch.setattr(Leader, "_advance", advance)


def join_at_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """A follower may join the ISR without having reached the start of the leader epoch."""

    def may_join(self, node):
        progress, server = self.followers[node], self._servers.get(node)
        current = server is not None and not server.fenced and server.broker_epoch == progress.broker_epoch
        return progress.broker_epoch >= 0 and current and progress.durable >= self.high_watermark

    patch.setattr(Leader, "_may_join", may_join)


def truncate_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """A new follower cuts its log at its HW, and asks nobody (before KIP-101)."""
    begin = Following.__init__

    def cut(self, *arguments):
        begin(self, *arguments)
        self._log.truncate(self.core.high_watermark)
        self._producers.rebuild(self._log.headers())
        self.core.asking = None

    patch.setattr(Following, "__init__", cut)


def never_truncate(patch: pytest.MonkeyPatch) -> None:
    """A new follower fetches from its log end, whatever the leader has there."""

    def begin(self, epochs):
        self.asking = None

    patch.setattr(follower_module.Follower, "begin", begin)
    patch.setattr(leading_module, "divergence", lambda *arguments: None)


def count_diverged_followers(patch: pytest.MonkeyPatch) -> None:
    """The position of a follower whose log diverges is recorded as if it were on the leader's."""
    fetch = leading_module.Leading.fetch

    def record(self, node, broker_epoch, source, part, max_bytes, now):
        if self.core.follower_refusal(node, broker_epoch, part.leader_epoch) is None:
            self.core.on_fetch(node, broker_epoch, min(part.durable, part.offset), now)
        return fetch(self, node, broker_epoch, source, part, max_bytes, now)

    def begin(self, epochs):
        self.asking = None  # the dialogue would leave nothing that diverges

    patch.setattr(leading_module.Leading, "fetch", record)
    patch.setattr(follower_module.Follower, "begin", begin)


def acknowledge_before_the_flush(patch: pytest.MonkeyPatch) -> None:
    """Written counts as durable."""
    patch.setattr(Log, "durable", property(lambda self: self.end))


def forget_sequences(patch: pytest.MonkeyPatch) -> None:
    """Every batch of an idempotent producer is new."""
    patch.setattr(ProducerState, "check", lambda self, header: None)


def stay_in_the_isr(patch: pytest.MonkeyPatch) -> None:
    """A server whose session ended, or that registers anew, keeps its place in the ISR beside others."""
    patch.setattr(metadata, "without", lambda isr, node: isr)


def trust_the_page_cache(patch: pytest.MonkeyPatch) -> None:
    """After a failed flush, what it covered stays in the files for the next life to find."""
    patch.setattr(Log, "discard_unsynced", lambda self: None)


def read_beyond_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """Consumers get what is not committed."""
    answer = leading_module.Leading._answer_read

    def give_all(self, source, id, read):
        hidden = leading_module.Leading.high_watermark
        leading_module.Leading.high_watermark = property(lambda role: role._log.end)
        try:
            answer(self, source, id, read)
        finally:
            leading_module.Leading.high_watermark = hidden

    patch.setattr(leading_module.Leading, "_answer_read", give_all)


def ignore_min_insync_replicas(patch: pytest.MonkeyPatch) -> None:
    """A leader alone commits, whatever the topic demands."""
    patch.setattr(Leader, "has_quorum", True)


MUTANTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    forget_sequences,
    ignore_followers,
    acknowledge_before_the_flush,
    never_truncate,
    truncate_to_the_high_watermark,
    commit_without_proposed_members,
    join_at_the_high_watermark,
    count_diverged_followers,
    resume_leader_epoch,
    stay_in_the_isr,
    trust_the_page_cache,
    read_beyond_the_high_watermark,
    ignore_min_insync_replicas,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_rule_is_noticed(mutant, monkeypatch):
    mutant(monkeypatch)
    assert any(run_seed(seed).fault is not None for seed in range(SEEDS)), f"nothing notices {mutant.__name__}"
