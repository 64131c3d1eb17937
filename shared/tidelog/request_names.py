"""Under which name the controllers know a request, so that they do it once however often it is sent.

A request of a client has the name that the gateway makes of the principal and of the id that the client gives
itself. The principal is in it, so no principal can name a request of another, whatever id it chooses; and the name is
the same at every gateway, so a retry through another one is recognised. What a gateway asks for by itself has the
gateway's own name: those of clients begin in another way."""

from __future__ import annotations

import hashlib

LONGEST_ID = 64
"""Most bytes of the id that a client gives itself."""
LONGEST_NAME = 512
"""Most bytes of a name that controllers take. Earlier releases' gateways pass on whatever a client gives itself."""
_CLIENT, _GATEWAY = "client:", "gateway:"


def name_of_client(principal: str, client: str) -> str:
    """The name of a client's requests."""
    return f"{_CLIENT}{_hash(principal)}/{_hash(client)}"


def name_of_gateway(node: str, life: int) -> str:
    """The name of a gateway's own requests. ``life``: 64 random bits."""
    return f"{_GATEWAY}{node}/{life:016x}"


def owner_of(name: str) -> str:
    """What the names of all clients of one principal have in common; "" for services and earlier releases."""
    return name.partition("/")[0] if name.startswith(_CLIENT) else ""


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
