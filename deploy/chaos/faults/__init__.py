"""The faults of chaos runs, a module for each part that they strike at; ``registry.py`` says what a fault is.

Whoever imports this package finds all of them in ``FAULTS``: each module enters its own.
"""

from chaos.faults import disks, links, processes, spark, stores, versions  # noqa: F401 (they enter their faults)
from chaos.faults.registry import DISK, FAULTS, HOST, NET, Fault

__all__ = ["DISK", "FAULTS", "HOST", "NET", "Fault"]
