"""The cluster's metadata: a pure state machine over the committed Raft log.

``apply(state, command, index)`` gives the next state. It reads no clock, draws no random number and does no I/O. So
every controller that applied the same entries holds the same state, and a replayed log rebuilds it. What each command
changes is in the module of its subject in ``metadata/rules``, which registers it (``metadata/registry.py``).

Invariants, for every partition after every command (``tests/unit/controller/metadata/test_application.py`` throws
random logs at them):

- ISR and ELR are disjoint subsets of the replicas, in replica order; the ELR is empty while the ISR holds
  ``min_insync_replicas``; learners are no replicas;
- the doubtful are members of ISR or ELR, and none of them leads;
- the leader is an unfenced member of the ISR; it was in the ISR or in the ELR before, so it holds everything
  committed (R3), unless the election was unclean, which its history says;
- a server that registered and is not safe is in no ISR or ELR until a leader's proposal adds it (R9) or an unclean
  election finds no better one; only ``quorum`` keeps the promise of one that is away or restarted;
- a fenced server is in an ISR only alone, and offline; a restarted one only alone, with a new leader epoch (but for
  ``quorum``);
- ``epoch`` grows with every change, ``leader_epoch`` with every change of leader, also to none and also to a
  new incarnation of the same server (R1; no leader epoch is ever resumed after a restart).
"""

from __future__ import annotations

from dataclasses import replace

from tidelog_controller.metadata.changeset import ChangeSet
from tidelog_controller.metadata.commands import Command
from tidelog_controller.metadata.registry import RULES
from tidelog_controller.metadata.rules import (  # noqa: F401 (each registers what it applies)
    access,
    doubtful_tails,
    feature_level,
    losses,
    partitions,
    producer_ids,
    reassignment,
    servers,
    suspension,
    ticket_keys,
    topics,
)
from tidelog_controller.metadata.rules.ticket_keys import add_first_key
from tidelog_controller.metadata.state import Applied, MetadataState

__all__ = ["Applied", "MetadataState", "apply", "skip"]


def apply(state: MetadataState, command: Command, index: int) -> Applied:
    """Return the outcome of ``command``, which stands in the log at ``index``: the new state, the answer and what
    changed. ``state`` stays as it is. Every controller gets the same outcome from the same state. A command that can
    no longer be carried out has an error as its answer, and changes at most an epoch. The first command of a cluster
    also sets the feature level."""
    changes = ChangeSet(state, index, command.time_ms, command.asker)
    if not state.level:
        changes.level = command.level or 1
    answer = RULES[type(command)](changes, command)
    add_first_key(changes, command)
    return changes.finish(answer)


def skip(state: MetadataState, index: int) -> MetadataState:
    """Return the state after an entry that holds no command, such as Raft's no-op: only the index is another."""
    return replace(state, index=index)
