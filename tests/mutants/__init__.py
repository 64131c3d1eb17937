"""Rules broken on purpose: each must be noticed by a scenario, by the simulation, by a unit test, by a test of Raft,
or, where it is a rule of the real disk, by a power loss."""

from mutants import (
    controller,
    disk,
    gateway,
    lives,
    messages,
    outside,
    quorum,
    raft,
    readers,
    replica,
    rescue,
    sequences,
    storage,
    store,
    task_producers,
    tickets,
    transactions,
)
from mutants.rules import MUTANTS

__all__ = [
    "MUTANTS",
    "controller",
    "disk",
    "gateway",
    "lives",
    "messages",
    "outside",
    "quorum",
    "raft",
    "readers",
    "replica",
    "rescue",
    "sequences",
    "storage",
    "store",
    "task_producers",
    "tickets",
    "transactions",
]
