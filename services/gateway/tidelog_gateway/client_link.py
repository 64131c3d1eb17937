"""What the gateway needs of the link to a client. ``tidelog.net.link.Link`` is one over a WebSocket, and
``http/http_link.py`` one over HTTP. All rights, quotas and limits are applied to links, so they hold for both."""

from __future__ import annotations

from typing import Protocol

from tidelog.errors import TidelogError
from tidelog.net.tls import NodeIdentity
from tidelog.net.transport import Outgoing
from tidelog.wire.messages import Hello, Message, Welcome


class AcceptedEnd(Protocol):
    """The other end of a connection that was accepted, before it is known who that is."""

    @property
    def remote(self) -> str:
        """Return the address of the other end."""

    @property
    def identities(self) -> tuple[NodeIdentity, ...] | None:
        """Return the identities in the certificate of the other end; None if none was asked for."""


class ClientLink(Protocol):
    """The link to one client: it sends answers and one-way messages to the client, and can be closed."""

    @property
    def source(self) -> int:
        """Return the number of this link, unique in this process."""

    @property
    def peer(self) -> Hello | Welcome:
        """Return the hello of the client."""

    @property
    def remote(self) -> str:
        """Return the address of the client."""

    @property
    def closed(self) -> bool:
        """Return whether the link has ended or is closing, so that nothing more is sent."""

    @property
    def sent_bytes(self) -> int:
        """Return how many bytes were sent or queued since the link was opened."""

    def post(self, message: Message) -> None:
        """Send a one-way message without waiting."""

    def post_encoded(self, message: Message, encoded: Outgoing) -> None:
        """Send a one-way message that was encoded already, since many clients get it."""

    def answer(self, id: int, message: Message | TidelogError) -> None:
        """Send the answer, or the error, to the client's request with number ``id``, without waiting."""

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the link with a WebSocket close code, which says why; returns at once."""

    async def wait_closed(self) -> None:
        """Wait until the link has ended."""
