"""The connections of a gateway that are reserved for operators, as a database reserves some for superusers: with as
many clients as the gateway may have, somebody must still be able to look at it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tidelog_gateway.client_link import ClientLink


@dataclass(slots=True)
class OperatorReserve:
    """The reserved connections that are in use. A link gets one only if a bound of ordinary connections would refuse
    it, and keeps it until it closes or has a place among the ordinary ones."""

    most: int
    """How many there are: ``operator_reserved_connections``."""
    links: set[ClientLink] = field(default_factory=set)
    """The links that have one."""

    @property
    def has_room(self) -> bool:
        """Return whether another link may have one."""
        return len(self.links) < self.most

    def on_close(self, link: ClientLink, exceeds: Callable[[ClientLink], bool]) -> None:
        """Forget a link that has closed, and take the reserved connections from those links that are within the
        bounds of ordinary connections now. ``exceeds`` returns whether a link is not."""
        self.links.discard(link)
        self.links = {one for one in self.links if exceeds(one)}
