"""The addresses of gateways that a client tries, in which order: what it was given, and what it has found.

Answers to ``metadata`` name the gateways of the cluster (docs/protocol.md, "Other gateways"). A client that was given
one address can so go on at another gateway when that one ends. The rules:

- What was given comes first. Addresses are tried in *rounds*: all given ones in turn, from the one after the address
  whose link was lost, then one found address. So a client behind a load balancer or a tunnel, which reaches none of
  those that are named, loses the time of one try in a round.
- The found addresses take turns, in an order of each client's own, so that the clients of a gateway that ends spread
  over the others. One that has failed comes last.
- A found address is as safe as what was given, at least. Beside a given ``wss:`` address only ``wss:`` is taken. A
  ``ws:`` address of another machine is taken only beside one that was given. An address that means the client's own
  machine (127.0.0.1) is taken only over a link to such an address: elsewhere it would mean another machine than the
  gateway's.

Each answer that names gateways replaces what was found before. An answer that names none, as those of earlier
releases, changes nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import urlsplit

from tidelog.net.addresses import MAX_ADVERTISED, is_loopback_url, refuse_advertised

Shuffle = Callable[[list[str]], None]
"""Puts a list into a random order, in place."""


class GatewayAddresses:
    """The addresses of one client: ``given`` and ``found``, and what to try next. ``discover``: whether anything may
    be found."""

    def __init__(self, given: Sequence[str], shuffle: Shuffle, *, discover: bool = True) -> None:
        assert given
        self.given = tuple(given)
        self.found: list[str] = []
        """The found addresses, the next one to be tried first. None of them means the same as a given one."""
        self._shuffle = shuffle
        self.discover = discover
        self._round = deque(self.given)
        self._secure = any(_is_secure(url) for url in given)
        self._in_clear = any(not _is_secure(url) and not is_loopback_url(url) for url in given)

    @property
    def round_over(self) -> bool:
        """Whether every address of this round has been tried, so that the client pauses."""
        return not self._round

    def next(self) -> str:
        """Return the address to try now. Begins a new round if this one is over."""
        if not self._round:
            self._begin_round(self.given)
        return self._round.popleft()

    def on_lost(self, url: str) -> None:
        """Begin a new round, because the link to this address was lost."""
        turn = self.given.index(url) + 1 if url in self.given else 0
        self._begin_round(self.given[turn:] + self.given[:turn])

    def _begin_round(self, given: Sequence[str]) -> None:
        self._round = deque(given)
        if self.found:
            self._round.append(self.found[0])
            self.found.append(self.found.pop(0))

    def learn(self, named: Iterable[str], over: str) -> None:
        """Replace the found addresses by those that a gateway has named over the link to the address ``over``, as far
        as they follow the rules; ``MAX_ADVERTISED`` at most. Does nothing if none is named, or without
        ``discover``."""
        urls = list(named)[:MAX_ADVERTISED]
        if not urls or not self.discover:
            return
        known = {_meaning(url) for url in self.given}
        kept = dict.fromkeys(url for url in urls if self._may_use(url, over) and _meaning(url) not in known)
        fresh = [url for url in kept if url not in self.found]
        self._shuffle(fresh)
        self.found = fresh + [url for url in self.found if url in kept]

    def _may_use(self, url: str, over: str) -> bool:
        """Return whether an address that a gateway has named over the link to ``over`` is valid, and as safe as the
        given ones."""
        if refuse_advertised(url):
            return False
        if is_loopback_url(url) and not is_loopback_url(over):
            return False
        return _is_secure(url) or (not self._secure and (self._in_clear or is_loopback_url(url)))


def _is_secure(url: str) -> bool:
    return url[:4].lower() == "wss:"


def _meaning(url: str) -> tuple[str, ...]:
    """Return what is equal for two URLs that differ in capitals or in a default port only. A text that is no URL
    means itself."""
    secure = _is_secure(url)
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if secure else 80)
    except ValueError:
        return (url,)
    return "wss" if secure else "ws", parts.hostname or "", str(port), parts.path or "/"
