"""Fingerprints of record batches, by which copies of a log are compared without moving their bytes.

A fingerprint names the offsets of a batch and holds two digests (BLAKE2b-128):

    sent      of the header that the batch had when its producer sent it, as its leader stamped it. Compaction keeps
              it (``records.chain_after``)
    content   of all its bytes, header and stamp included

Copies of a batch that compaction has not changed must agree in both. Each replica compacts its own copy. So if a
batch is sparse in one copy, which means that compaction has removed records from it, only ``sent`` is compared.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

from tidelog.batch.format import NO_CHAIN, BatchHeader, chain_after
from tidelog.types import Buffer

_FORM = struct.Struct(">qI?16s16s")
FINGERPRINT_BYTES = _FORM.size


class Fingerprint(NamedTuple):
    """The offsets that a batch covers in one copy of a log, and two digests of the batch: ``sent`` of its header as
    its producer sent it and its leader stamped it, ``content`` of all its bytes. Copies of a log are compared by
    them."""

    base_offset: int
    record_count: int
    is_sparse: bool
    sent: bytes
    content: bytes

    @property
    def end_offset(self) -> int:
        """Return the offset after the last one that the batch covers."""
        return self.base_offset + self.record_count

    def agrees(self, other: Fingerprint) -> bool:
        """Return whether both fingerprints can be of the same batch in two copies of a log: the offsets and the
        digest ``sent`` are equal, and the digest ``content`` too unless one of the copies is sparse."""
        if (self.base_offset, self.record_count, self.sent) != (other.base_offset, other.record_count, other.sent):
            return False
        return self.is_sparse or other.is_sparse or self.content == other.content


def fingerprint_of(header: BatchHeader, batch: Buffer) -> Fingerprint:
    """Compute the fingerprint of a whole batch from its decoded header and its bytes."""
    content = blake2b(batch, digest_size=16).digest()
    return Fingerprint(
        header.base_offset, header.record_count, header.is_sparse, chain_after(NO_CHAIN, batch), content
    )


def pack(fingerprint: Fingerprint) -> bytes:
    """Encode a fingerprint in its wire format: base offset, record count, whether it is sparse, and both digests,
    big-endian, ``FINGERPRINT_BYTES`` long."""
    return _FORM.pack(*fingerprint)


def unpack(payload: Buffer) -> Iterator[Fingerprint]:
    """Iterate over the fingerprints in a payload, which is a sequence of results of ``pack``. Raises ``struct.error``
    at once if the length is no multiple of ``FINGERPRINT_BYTES``."""
    return map(Fingerprint._make, _FORM.iter_unpack(payload))
