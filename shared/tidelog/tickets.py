"""Tickets: proof that the cluster gave a producer id to the principal that writes under it. Pure.

A producer id is a small number that anybody can guess. A *ticket* is a message authentication code (HMAC-SHA-256,
RFC 2104, cut to 128 bits) by a key that only controllers and gateways know. It covers

    producer ids      the first, and how many: one request may ask for many
    producer epoch    exactly: only the cluster raises an epoch
    principal         of the connection that asked; a ticket that leaks is of no use to another principal

A gateway checks a ticket with nothing but the keys of the metadata, so a ticket is valid at every gateway and for as
long as its key is. A ticket says nothing about topics: what its principal may write is for the rules of
``tidelog.acl``.

The cluster has up to two keys. The newest signs, the one before still verifies. Rotation adds a key and drops the
oldest. Ids of keys rise, so a gateway can distinguish a dropped key from one that it has not got yet.

As text a ticket is the hexadecimal digits of

    key id     8 bytes, unsigned, big endian
    first id   8 bytes
    count      4 bytes
    MAC       16 bytes, over a fixed prefix, the three numbers above, the epoch (4 bytes) and the principal (UTF-8)

Every part of what is signed but the last has a fixed length, so no two different contents have the same bytes. The
prefix keeps a MAC that was made for another purpose from being a ticket.
"""

from __future__ import annotations

import hmac
import re
import struct
from collections.abc import Sequence

from tidelog.errors import TidelogError, refuse
from tidelog.types import TicketKey

KEYS = 2
"""Number of keys of the cluster: the one that signs, and the one before."""
SECRET_BITS = 256
MAC_BYTES = 16
_PREFIX = b"tidelog producer ticket 1\0"
_IDS = struct.Struct(">QQI")
_EPOCH = struct.Struct(">I")
_TEXT = re.compile(rf"[0-9a-f]{{{2 * (_IDS.size + MAC_BYTES)}}}", re.ASCII)


def sign(keys: Sequence[TicketKey], first_id: int, count: int, epoch: int, principal: str) -> str:
    """Return a ticket by which ``principal`` may write under the ``count`` producer ids from ``first_id`` on, at this
    producer epoch. ``keys``: the keys of the cluster, oldest first; the newest signs. Returns "" if there are no
    keys."""
    if not keys:
        return ""
    ids = _IDS.pack(keys[-1].key_id, first_id, count)
    return (ids + _mac(keys[-1], ids, epoch, principal)).hex()


def refuse_ticket(
    keys: Sequence[TicketKey], ticket: str, producer_id: int, epoch: int, principal: str
) -> TidelogError | None:
    """Return None if the ticket lets the principal write under this producer id at this producer epoch. Otherwise
    return the error: ``INVALID_TICKET``, or ``UNKNOWN_TICKET_KEY`` if the ticket's key is newer than ``keys``."""
    what = f"producer id {producer_id} at epoch {epoch}"
    if _TEXT.fullmatch(ticket) is None:
        return refuse("INVALID_TICKET", f"{what}: that is no ticket")
    raw = bytes.fromhex(ticket)
    ids, mac = raw[: _IDS.size], raw[_IDS.size :]
    key_id, first_id, count = _IDS.unpack(ids)
    if not keys or key_id > keys[-1].key_id:
        return refuse("UNKNOWN_TICKET_KEY", f"{what}: this gateway has not heard of the ticket's key yet")
    key = next((key for key in keys if key.key_id == key_id), None)
    if key is None:
        text = "the key of the ticket is gone, since the cluster has rotated its keys: ask for a producer id again"
        return refuse("INVALID_TICKET", f"{what}: {text}")
    if not hmac.compare_digest(mac, _mac(key, ids, epoch, principal)) or not 0 <= producer_id - first_id < count:
        return refuse("INVALID_TICKET", f"{what}: the ticket is not for this id, this epoch and {principal}")
    return None


def successor(key: TicketKey, key_id: int) -> TicketKey:
    """Return a ticket key with id ``key_id`` that is derived from the key ``key``, for a rescue. The metadata then
    need a key with a greater id than any that was lost, and every repetition of the rescue must make an identical
    key."""
    content = b"tidelog ticket key 1\0" + key_id.to_bytes(8, "big")
    return TicketKey(key_id, hmac.digest(bytes.fromhex(key.secret), content, "sha256").hex())


def _mac(key: TicketKey, ids: bytes, epoch: int, principal: str) -> bytes:
    """Return the message authentication code, by this key, of a ticket's packed numbers, the producer epoch and the
    principal."""
    signed = _PREFIX + ids + _EPOCH.pack(epoch) + principal.encode()
    return hmac.digest(bytes.fromhex(key.secret), signed, "sha256")[:MAC_BYTES]
