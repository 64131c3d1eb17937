"""The options of the sink. Pure: parses the texts of a write's options into a ``WriteOptions``, and reports every
error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.batch.format import CODECS, Codec
from tidelog.client.options import ACKS
from tidelog.spark import option_parsers as texts
from tidelog.spark.errors import SourceError
from tidelog.spark.option_parsers import Parsers
from tidelog.spark.options import CONNECTION, HowToConnect

DELIVERIES = ("exactly-once", "idempotent", "at-least-once")


@dataclass(frozen=True, slots=True)
class WriteOptions(HowToConnect):
    """The checked options of a batch write or a stream. ``parse`` makes one on the driver, and Spark ships it to
    every task."""

    topic: str = ""
    """Topic of the rows that do not name one in the column ``topic``."""
    acks: str = "all"
    compression: Codec = "none"
    app: str = ""
    """Transactional id of the writing application, which stays the same after a restart; "": the query's id in
    Spark, and a new one for each batch write."""
    batch: int = 0
    """Number of a batch write in its application, with ``appId``. Streams have Spark's numbers."""
    keyed: bool = False
    """Whether each batch has all rows of the result again, as Spark's mode ``complete`` does: they need keys, and
    compacted topics. No option; the mode says so."""
    delivery: str = "idempotent"
    transaction_timeout_ms: int = 120_000
    """Milliseconds after which the transaction of a task is aborted, with exactly-once, if the task makes no
    progress. Readers of committed records wait this long for a task that was killed."""


WRITE: Parsers = {
    **CONNECTION,
    "topic": ("topic", texts.name_of("a topic")),
    "acks": ("acks", texts.one_of(*ACKS)),
    "compression": ("compression", texts.one_of(*CODECS)),
    "appId": ("app", texts.name_of("the writer")),
    "batchId": ("batch", texts.count(0)),
    "delivery": ("delivery", texts.one_of(*DELIVERIES)),
    "transactionTimeout": ("transaction_timeout_ms", texts.duration_ms),
}


def parse(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Parse the options of a batch write, or of a streaming query if ``streaming``, and return them as
    ``WriteOptions``. Raises ``SourceError`` (``TIDELOG_OPTION``), whose text lists every unknown, malformed or
    contradictory option."""
    values, faults = texts.collect(options, WRITE, "a stream" if streaming else "a write")
    numbered = texts.given_of(options, ("appId", "batchId"))
    values.setdefault("delivery", "exactly-once" if streaming or numbered else "idempotent")
    if streaming and "batchId" in numbered:
        faults.append("batchId belongs to batch writes: Spark numbers the batches of a stream")
    if not streaming and len(numbered) == 1:
        faults.append("a batch write takes both appId and batchId, or neither: without a number it is never repeated")
    if not streaming and numbered and values["delivery"] != "exactly-once":
        faults.append(f"appId and batchId of a batch write go with delivery exactly-once, not {values['delivery']}")
    if not faults:
        result = WriteOptions(**values)
        faults = result.contradictions()
        if result.acks == "none" and result.delivery != "at-least-once":
            faults.append(f"acks none goes with delivery at-least-once only, not with {result.delivery}")
        if result.acks == "leader" and result.delivery == "exactly-once":
            faults.append("acks leader goes with delivery idempotent and at-least-once, not with exactly-once")
        if result.delivery != "exactly-once" and texts.given_of(options, ("transactionTimeout",)):
            faults.append(f"transactionTimeout belongs to delivery exactly-once, not to {result.delivery}")
    if faults:
        raise SourceError("TIDELOG_OPTION", "; ".join(faults))
    return result
