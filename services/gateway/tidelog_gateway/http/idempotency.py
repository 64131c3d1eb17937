"""``Idempotency-Key``: a request that is sent again is appended once.

Theory. The leader of a partition remembers producers and their last batches: a function of the log, which survives a
failover and is the same at every replica. So a key needs no memory of its own. It becomes a *producer id* that every
gateway computes alike, and the request's batch is that producer's first and only one, sequence 0 of epoch 0. Then

    the log has no batch of that producer    the batch is appended
    it has the same bytes                    a copy: acked with the first one's offset
    it has other bytes                       SEQUENCE_CONFLICT, with the offset of the batch in the log

A request that is sent again has other bytes, since the gateway that it reaches gives its records another time. So
after a conflict the gateway reads the batch at that offset, once it is committed, and compares the records without
the times (``is_same``). Are they the same, the request is answered as a copy; otherwise the key was used for another
request (422).

The id has 44 bits of the hash of principal and key. So a new key meets one of ten thousand remembered keys by chance
in one of 1.7 thousand million requests; such a request is refused, and nothing is lost. Ids of keys are larger than
all that the cluster gives, so clients get no tickets for them and cannot write under one by themselves.

What is promised, and how long a key is remembered: ``docs/http.md``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tidelog.acl import share_of_principal
from tidelog.batch.format import NewRecord, Record
from tidelog.types import REPORTED_IDS_END, SHARE_IDS, SHARES

from tidelog_gateway.http.responses import HttpError

MAX_KEY_LENGTH = 255


def key_of(header: str) -> str:
    """Return the key in a header ``Idempotency-Key``. Raises ``HttpError`` if it is empty, too long or no text."""
    if not 1 <= len(header) <= MAX_KEY_LENGTH or not header.isascii() or not header.isprintable():
        raise HttpError(400, f"an Idempotency-Key has 1 to {MAX_KEY_LENGTH} printable characters of ASCII")
    return header


def producer_id_of(principal: str, key: str) -> int:
    """Return the producer id of a principal's key: the same at every gateway, in the share of the principal, and
    beyond the ids that the cluster gives."""
    digest = hashlib.sha256(b"tidelog idempotency key 1\0" + f"{principal}\0{key}".encode()).digest()
    number = int.from_bytes(digest[:8], "big")
    high, low = divmod(number % REPORTED_IDS_END, SHARE_IDS * SHARES)
    share = share_of_principal(principal)
    return REPORTED_IDS_END + (high * SHARES + share) * SHARE_IDS + low % SHARE_IDS


def partition_of_key(key: str, partitions: int) -> int:
    """Return the partition of a request's records without a key of their own, so that another try goes there, too."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % partitions


def is_same(sent: Sequence[NewRecord], found: Sequence[Record]) -> bool:
    """Return whether the records of a request are those of a batch in the log. Times are not compared."""
    mine = [(record.key, record.value, record.headers) for record in sent]
    return mine == [(record.key, record.value, record.headers) for record in found]
