"""The faults of chaos runs, one module for each part of the cluster that they strike; ``registry.py`` says what a
fault is. Importing this package fills ``FAULTS``: each module registers its own faults."""

from chaos.faults import disks, links, processes, spark, stores, versions  # noqa: F401 (they enter their faults)
from chaos.faults.registry import DISK, FAULTS, HOST, NET, Fault

__all__ = ["DISK", "FAULTS", "HOST", "NET", "Fault"]
