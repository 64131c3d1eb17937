"""Rules broken on purpose: each must be noticed by a scenario, by the simulation, or by Raft's own tests."""

from mutants import controller, lives, messages, quorum, raft, replica, rescue, storage, transactions
from mutants.rules import MUTANTS

__all__ = [
    "MUTANTS",
    "controller",
    "lives",
    "messages",
    "quorum",
    "raft",
    "replica",
    "rescue",
    "storage",
    "transactions",
]
