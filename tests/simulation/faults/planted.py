"""Faults of the product, planted by tests to see that they are found."""

from __future__ import annotations

import pytest
from tidelog_replica.partition.follower_replica import FollowerReplica
from tidelog_replica.replication.producer_state import ProducerState


def forget_sequences(patch: pytest.MonkeyPatch) -> None:
    """Let replicas accept every batch of an idempotent producer as new."""
    patch.setattr(ProducerState, "check", lambda self, header: None)


def truncate_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """Let a new follower cut its log at its HW without asking the leader (as before KIP-101)."""
    begin = FollowerReplica.__init__

    def cut(self: FollowerReplica, *arguments: object) -> None:
        begin(self, *arguments)  # type: ignore[arg-type]
        self._log.truncate(self.core.high_watermark)
        self._producers.rebuild(self._log.segments.headers())
        self.core.asking = None

    patch.setattr(FollowerReplica, "__init__", cut)
