"""Applies quotas to links: counts the bytes and requests of each principal, and delays those beyond its quota.

Requests beyond the quota are refused with ``QUOTA_EXCEEDED`` and the time to wait. The credit of subscriptions cannot
be refused: it is held back for that time, and given then.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import trio
from tidelog.errors import TidelogError
from tidelog.net.link import Link
from tidelog.types import Quota
from tidelog.wire.codec import payload_size
from tidelog.wire.messages import (
    Credit,
    Message,
    Produce,
    Read,
    ReadCopy,
    ReleaseProducer,
    Subscribe,
    Unsubscribe,
    UseProducer,
)

from tidelog_gateway.limits.heavy_requests import cost_of
from tidelog_gateway.limits.quotas import Quotas

MAX_HELD = 10_000
"""Most subscriptions of one link for which credit is held back; no client has more open."""
FREE = (Credit, Unsubscribe, UseProducer, ReleaseProducer)
"""Neither counted nor refused: ``Credit`` lets a client have what it was promised, ``Unsubscribe`` and
``ReleaseProducer`` spare us work, and without ``UseProducer`` the batches behind it would fail for good."""


class QuotaEnforcer:
    """The quotas of principals applied to their links: it refuses requests and holds back credit. ``clock`` is trio's
    clock; ``on_credit`` is called with credit whose pause is over. The owner runs ``run``."""

    def __init__(
        self,
        clock: Callable[[], float],
        on_credit: Callable[[Link, Credit], None],
        most_connections: int = sys.maxsize,
    ) -> None:
        self._quotas = Quotas(most_connections)
        self._clock = clock
        self._on_credit = on_credit
        self._principals: dict[Link, str] = {}
        self._sent: dict[Link, int] = {}
        """Of the bytes sent over each link, those that were counted already."""
        self._held: dict[Link, tuple[float, dict[int, int]]] = {}
        """Credit that is held back: when to give it (seconds), and the bytes for each subscription."""
        self._wake = trio.Event()

    def update(self, quotas: tuple[Quota, ...]) -> None:
        """Replace all quotas, and move the time of credit that is held back accordingly. Bytes that were sent before
        do not count for a principal that gets a quota now."""
        now = self._clock()
        for link, principal in self._principals.items():
            self._count_sent(link, principal, now)
        self._quotas.update(quotas, now)
        for link, (_, held) in self._held.items():
            pause_s = self._quotas.pause_s(self._principals[link], "bytes_out_s", now)
            self._held[link] = now + pause_s, held
        self._wake.set()

    def refuse_connection(self, principal: str) -> TidelogError | None:
        """Return the error with which another connection of the principal is refused; None if it may have one."""
        return self._quotas.refuse_connection(principal)

    def on_open(self, link: Link, principal: str) -> None:
        """Count an accepted connection of ``principal``, and begin to count the bytes sent over it."""
        self._quotas.on_open(principal)
        self._principals[link] = principal
        self._sent[link] = link.sent_bytes

    def on_close(self, link: Link) -> None:
        """Forget a closed connection. Bytes sent over it are charged to its principal, and credit held back for it is
        dropped."""
        principal = self._principals.pop(link)
        self._held.pop(link, None)
        self._quotas.on_close(principal)
        self._count_sent(link, principal, self._clock())
        del self._sent[link]

    def refuse_over_quota(self, link: Link, message: Message, topics: int = 0) -> TidelogError | None:
        """Return ``QUOTA_EXCEEDED`` for a message of a principal that has used up its quota. Otherwise charge what
        the message costs and return None. ``topics``: the number of topics of the cluster."""
        principal = self._principals[link]
        if not self._quotas.has_quota(principal) or isinstance(message, FREE):
            return None
        now = self._clock()
        self._count_sent(link, principal, now)
        rates = ["requests_s"]
        if isinstance(message, Produce):
            rates.append("bytes_in_s")
        elif isinstance(message, Read | ReadCopy | Subscribe):
            rates.append("bytes_out_s")
        refusal = self._quotas.refuse_over_quota(principal, rates, now)
        if refusal is None:
            self._quotas.spend(principal, "requests_s", cost_of(message, topics), now)
            if isinstance(message, Produce):
                self._quotas.spend(principal, "bytes_in_s", payload_size(message.payload), now)
        return refusal

    def charge(self, principal: str, size: int) -> None:
        """Charge ``size`` bytes as sent to the principal: those that a server has read of its copy for it."""
        self._quotas.spend(principal, "bytes_out_s", size, self._clock())

    def holds_back(self, link: Link, credit: Credit) -> bool:
        """Return whether the principal has used up its quota of sent bytes. If so, keep the credit and give it when
        the pause is over."""
        principal = self._principals[link]
        if not self._quotas.has_quota(principal):
            return False
        now = self._clock()
        self._count_sent(link, principal, now)
        pause_s = self._quotas.pause_s(principal, "bytes_out_s", now)
        if not pause_s:
            return False
        _, held = self._held.setdefault(link, (now + pause_s, {}))
        if credit.sub in held or len(held) < MAX_HELD:
            held[credit.sub] = held.get(credit.sub, 0) + credit.bytes
        self._wake.set()
        return True

    def _count_sent(self, link: Link, principal: str, now: float) -> None:
        sent = link.sent_bytes
        self._quotas.spend(principal, "bytes_out_s", sent - self._sent[link], now)
        self._sent[link] = sent

    async def run(self) -> None:
        """Pass credit that was held back to ``on_credit`` when its pause is over, until cancelled."""
        while True:
            with trio.move_on_at(min((due for due, _ in self._held.values()), default=math.inf)):
                await self._wake.wait()
            self._wake = trio.Event()
            for link, (due, held) in list(self._held.items()):
                if due <= self._clock():
                    del self._held[link]
                    for number, size in held.items():
                        self._on_credit(link, Credit(number, size))
