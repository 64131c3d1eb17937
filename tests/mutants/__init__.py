"""Rules broken on purpose: each must be noticed by a scenario, by the simulation, or by Raft's own tests."""

from mutants import controller, disk, gateway, lives, messages, quorum, raft, replica, storage, store, transactions
from mutants.rules import MUTANTS

__all__ = [
    "MUTANTS",
    "controller",
    "disk",
    "gateway",
    "lives",
    "messages",
    "quorum",
    "raft",
    "replica",
    "storage",
    "store",
    "transactions",
]
