"""Whether a cluster keeps what it promises: what clients did and saw is recorded while things go wrong, and judged
afterwards. ``tidelog verify record`` and ``tidelog verify check`` are its commands, ``docs/verify.md`` says what is
found and what the file looks like.

    with Recorder("run.history") as recorder:        # from any number of trio tasks
        ...                                          # tell it what is done, and what came of it
    recording = load("run.history")
    anomalies = check(recording.history)
"""

from tidelog.verify.anomalies import KINDS, Anomaly
from tidelog.verify.checker import check
from tidelog.verify.history import History, identity
from tidelog.verify.history_reader import Recording, load
from tidelog.verify.history_writer import Operation, Recorder, Sending, Transacting

__all__ = [
    "KINDS",
    "Anomaly",
    "History",
    "Operation",
    "Recorder",
    "Recording",
    "Sending",
    "Transacting",
    "check",
    "identity",
    "load",
]
