"""Applies quotas to links: counts the bytes and requests of each principal, and delays those beyond its quota.

Requests beyond the quota are refused with ``QUOTA_EXCEEDED`` and the time to wait. The credit of subscriptions cannot
be refused: it is held back for that time, and given then.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio
from tidelog.errors import TidelogError
from tidelog.types import Quota
from tidelog.wire.codec import payload_size
from tidelog.wire.messages import (
    AppendStream,
    CreateStream,
    Credit,
    Message,
    Produce,
    Read,
    ReadCopy,
    ReadStream,
    ReleaseProducer,
    Subscribe,
    Unsubscribe,
    UseProducer,
)

from tidelog_gateway.client_link import ClientLink
from tidelog_gateway.limits.heavy_requests import cost_of
from tidelog_gateway.limits.quotas import Quotas

BRINGING = (Produce, CreateStream, AppendStream)
"""Messages whose payload counts as received bytes."""
TAKING = (Read, ReadCopy, ReadStream, Subscribe)
"""Messages that have the gateway send records; they are refused while the quota of sent bytes is used up."""
MAX_HELD = 10_000
"""Most subscriptions of one link for which credit is held back; no client has more open."""
FREE = (Credit, Unsubscribe, UseProducer, ReleaseProducer)
"""Messages that are neither counted nor refused: ``Credit`` lets a client have what it was promised,
``Unsubscribe`` and ``ReleaseProducer`` save the gateway work, and without ``UseProducer`` the batches behind it
would fail for good."""


class QuotaEnforcer:
    """The quotas of principals, applied to the links of clients: it counts the bytes and requests of each link,
    refuses requests beyond a quota, and holds back credit of subscriptions. ``clock`` is trio's clock in seconds.
    ``on_credit`` is called with a link and its credit when the pause is over. ``quotas`` keeps the levels. The owner
    runs ``run``."""

    def __init__(
        self,
        clock: Callable[[], float],
        on_credit: Callable[[ClientLink, Credit], None],
        quotas: Quotas | None = None,
    ) -> None:
        self._quotas = quotas or Quotas()
        self._clock = clock
        self._on_credit = on_credit
        self._principals: dict[ClientLink, str] = {}
        self._sent: dict[ClientLink, int] = {}
        """By link: how many of the bytes sent over it were charged already."""
        self._held: dict[ClientLink, tuple[float, dict[int, int]]] = {}
        """Credit that is held back: when to give it (seconds), and the bytes for each subscription."""
        self._refused: set[ClientLink] = set()
        """Links whose last read or subscription was refused since a quota was used up."""
        self._wake = trio.Event()

    def update(self, quotas: tuple[Quota, ...]) -> None:
        """Replace the quotas of all principals. Credit that is held back is given when the pause under the new quota
        is over. Bytes that were sent before this call are not charged to a quota that begins now."""
        now = self._clock()
        for link, principal in self._principals.items():
            self._count_sent(link, principal, now)
        self._quotas.update(quotas, now)
        for link, (_, held) in self._held.items():
            pause_s = self._quotas.pause_s(self._principals[link], "bytes_out_s", now)
            self._held[link] = now + pause_s, held
        self._wake.set()

    def refuse_connection(self, principal: str) -> TidelogError | None:
        """Return ``QUOTA_EXCEEDED`` if the principal has as many connections as its quota, or the bound for all
        principals, allows; None if it may open another. Counts nothing."""
        return self._quotas.refuse_connection(principal)

    def is_over(self, principal: str) -> bool:
        """Return whether the principal has more connections than it may have, since some are reserved ones."""
        return self._quotas.is_over(principal)

    def on_open(self, link: ClientLink, principal: str) -> None:
        """Count an accepted connection for ``principal``, and charge the bytes that are sent over it from now on."""
        self._quotas.on_open(principal)
        self._principals[link] = principal
        self._sent[link] = link.sent_bytes

    def on_close(self, link: ClientLink) -> None:
        """Forget a closed connection and count it no more. The bytes sent over it are charged to its principal, and
        the credit held back for it is dropped. Raises ``KeyError`` for an unknown link."""
        principal = self._principals.pop(link)
        self._held.pop(link, None)
        self._refused.discard(link)
        self._quotas.on_close(principal)
        self._count_sent(link, principal, self._clock())
        del self._sent[link]

    def refuse_over_quota(self, link: ClientLink, message: Message, topics: int = 0) -> TidelogError | None:
        """Charge a client's message to the quotas of its principal and return None, or return ``QUOTA_EXCEEDED`` with
        the time to wait if one of them is used up: that of requests, of received bytes (for ``BRINGING``) or of sent
        bytes (for reads and subscriptions). A refused message is not charged. Messages listed in ``FREE``, and those
        of principals without a quota, are neither charged nor refused. ``topics``: the number of topics of the
        cluster."""
        principal = self._principals[link]
        if not self._quotas.has_quota(principal) or isinstance(message, FREE):
            return None
        now = self._clock()
        self._count_sent(link, principal, now)
        rates = ["requests_s"]
        if isinstance(message, BRINGING):
            rates.append("bytes_in_s")
        elif isinstance(message, TAKING):
            rates.append("bytes_out_s")
        refusal = self._quotas.refuse_over_quota(principal, rates, now)
        if isinstance(message, TAKING):
            (self._refused.discard if refusal is None else self._refused.add)(link)
        if refusal is None:
            self._quotas.spend(principal, "requests_s", cost_of(message, topics), now)
            if isinstance(message, BRINGING):
                self._quotas.spend(principal, "bytes_in_s", payload_size(message.payload), now)
        return refusal

    def charge(self, principal: str, size: int) -> None:
        """Charge ``size`` bytes to the principal's quota of sent bytes, after a replica server has read them from its
        copy for a client. Does nothing if the principal has no such quota."""
        self._quotas.spend(principal, "bytes_out_s", size, self._clock())

    def holds_back(self, link: ClientLink, credit: Credit) -> bool:
        """Return True if the principal of the link has used up its quota of sent bytes; the credit is then held back,
        and ``run`` gives it when the pause is over. Return False otherwise: the caller gives the credit now. While
        credit of ``MAX_HELD`` subscriptions is held back for a link, that of further ones is dropped."""
        principal = self._principals[link]
        if not self._quotas.has_quota(principal):
            return False
        now = self._clock()
        self._count_sent(link, principal, now)
        pause_s = self._quotas.pause_s(principal, "bytes_out_s", now)
        if not pause_s:
            return False
        self._quotas.count_refusal(principal, "bytes_out_s")
        _, held = self._held.setdefault(link, (now + pause_s, {}))
        if credit.sub in held or len(held) < MAX_HELD:
            held[credit.sub] = held.get(credit.sub, 0) + credit.bytes
        self._wake.set()
        return True

    def held_ms(self, link: ClientLink) -> int:
        """Return for how long records for a link are still held back, in milliseconds: credit of its subscriptions,
        or a read or subscription that was refused and that the client sends again. 0 if nothing is."""
        now = self._clock()
        due, _ = self._held.get(link, (0.0, {}))
        held_s = due - now
        if link in self._refused:
            held_s = max(held_s, self._quotas.pause_s(self._principals[link], "bytes_out_s", now))
        return max(0, round(1000 * held_s))

    def _count_sent(self, link: ClientLink, principal: str, now: float) -> None:
        """Charge the bytes that were sent over the link since the last call to its principal."""
        sent = link.sent_bytes
        self._quotas.spend(principal, "bytes_out_s", sent - self._sent[link], now)
        self._sent[link] = sent

    async def run(self) -> None:
        """Pass each credit that was held back to ``on_credit`` when its pause is over, until cancelled."""
        while True:
            with trio.move_on_at(min((due for due, _ in self._held.values()), default=math.inf)):
                await self._wake.wait()
            self._wake = trio.Event()
            for link, (due, held) in list(self._held.items()):
                if due <= self._clock():
                    del self._held[link]
                    for number, size in held.items():
                        self._on_credit(link, Credit(number, size))
