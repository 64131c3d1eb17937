"""The gateways that clients may be told of, and the URLs under which clients reach them.

Each gateway announces its URL to the active controller every few seconds, and gets the URLs of all. An announcement
holds as long as the link that it came over. Nothing of this is in the metadata log: a new active controller knows a
gateway as soon as that has found the controller and announced itself. The gateways are listed for clients in
``metadata`` (docs/protocol.md)."""

from __future__ import annotations

from tidelog.errors import TidelogError, refuse
from tidelog.net.addresses import MAX_ADVERTISED, refuse_advertised
from tidelog.types import NodeId
from tidelog.wire.messages import GatewayInfo, GatewaysAnswer


class GatewayDirectory:
    """The URLs that gateways have announced over links that are open, on the active controller. In memory only."""

    def __init__(self) -> None:
        self._announced: dict[int, GatewayInfo] = {}

    def announce(self, source: int, node: NodeId, url: str) -> GatewaysAnswer | TidelogError:
        """Record under which URL clients reach the gateway ``node``, which has announced it over the link ``source``;
        "" withdraws an earlier announcement. Return the gateways that clients may be told of, or ``MALFORMED`` if
        ``url`` is none."""
        self._announced.pop(source, None)
        if url:
            if fault := refuse_advertised(url):
                return refuse("MALFORMED", f"gateway {node} announces {url[:100]!r}: {fault}")
            self._announced[source] = GatewayInfo(node, url)
        return GatewaysAnswer(tuple(GatewayInfo(*pair) for pair in self.urls.items()))

    def on_link_closed(self, source: int) -> None:
        """Forget the gateway at the other end of the link ``source``, which has closed. Does nothing if no gateway
        has announced itself over it."""
        self._announced.pop(source, None)

    @property
    def urls(self) -> dict[NodeId, str]:
        """Return the announced URLs by the names of the gateways, sorted by name, ``MAX_ADVERTISED`` at most. If a
        gateway has announced itself over two links, its later announcement counts."""
        found = {one.node: one.url for one in self._announced.values()}
        return dict(sorted(found.items())[:MAX_ADVERTISED])
