"""The kinds of anomalies, each with its letter in the test plan and its meaning."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """The description of one kind of anomaly (broken promise) that the checker looks for: its letter, and its
    meaning. The table ``KINDS`` has all of them."""

    letter: str
    """Letter and number as in Jepsen's workloads and the test plan: A1 to A14; T1 to T6 for transactions."""
    meaning: str


KINDS: dict[str, Kind] = {
    "lost_write": Kind("A1", "A record that was acknowledged with acks=all is not in the log at the end."),
    "phantom": Kind("A2", "A record is in the log, or was shown, that nobody sent, or not with these bytes."),
    "vanished": Kind("A3", "A consumer was shown a record that is not there at the end, or another is in its place."),
    "failed_seen": Kind("A4", "A record was refused, which says that nothing was written, and it is there."),
    "conflict": Kind("A5", "Two values for one offset: of acknowledgements, readers or replicas."),
    "order": Kind("A6", "Records of one producer are in another order than they were sent, or against real time."),
    "consumer_skip": Kind("A7", "A consumer went back, or passed over a record, or a group committed what none had."),
    "duplicate": Kind("A8", "A record of an idempotent producer is in the log twice."),
    "stale_latest": Kind("A9", "An answer that must know all that was acknowledged before (latest, linearizable, or"
                       " bounded by so much) does not."),
    "gap": Kind("A10", "Offsets are missing in the log."),
    "wrong_partition": Kind("A11", "A record is in another partition than it was sent to."),
    "no_progress": Kind("A12", "No record was acknowledged for a while although the cluster was well."),
    "double_win": Kind("A13", "Two conditional appends both won the same offset."),
    "double_commit": Kind("A14", "Two members commit a partition in one generation, or one in a generation"
                          " that is over."),
    "commit_back": Kind("A14", "What a group had committed went back, or is not known any more."),
    "aborted_read": Kind("T1", "A record is seen whose transaction was aborted, or not asked to be committed (G1a)."),
    "torn": Kind("T2", "Of one transaction some records are seen and others are not."),
    "lost_commit": Kind("T3", "A transaction that was reported as committed is not seen."),
    "twice": Kind("T4", "A record of a transaction, or two tries of one batch, are seen."),
    "lost_update": Kind("T5", "Two transactions moved a group on from the same position; or it moved, and what was"
                        " written with it is not seen."),
    "went_back": Kind("T6", "A reader of what is committed was shown what it had passed, or the last stable offset"
                      " went back."),
}  # fmt: skip
"""The kinds of anomalies that the checker reports, by name."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A broken promise that the checker has found in a history: its kind (a key of ``KINDS``), and a text with the
    records, processes and times."""

    kind: str
    text: str
