"""Checks whether a cluster keeps its promises. What clients did and saw is recorded while faults happen, and checked
afterwards. ``tidelog verify record`` and ``tidelog verify check`` are the commands; ``docs/verify.md`` describes the
anomalies and the file format.

    with Recorder("run.history") as recorder:        # from any number of trio tasks
        ...                                          # record each operation and its result
    recording = load("run.history")
    anomalies = check(recording.history)
"""

from tidelog.verify.anomalies import KINDS, Anomaly
from tidelog.verify.checker import check
from tidelog.verify.history import OperationHistory, identity
from tidelog.verify.history_reader import Recording, load
from tidelog.verify.history_writer import Operation, Recorder, Sending, Transacting

__all__ = [
    "KINDS",
    "Anomaly",
    "Operation",
    "OperationHistory",
    "Recorder",
    "Recording",
    "Sending",
    "Transacting",
    "check",
    "identity",
    "load",
]
