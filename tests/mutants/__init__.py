"""Rules broken on purpose: each must be noticed by a scenario or by the simulation."""

from mutants import controller, replica, storage
from mutants.rules import MUTANTS

__all__ = ["MUTANTS", "controller", "replica", "storage"]
