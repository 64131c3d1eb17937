"""Names by which the controllers recognise a repeated request, so that it takes effect once.

The gateway makes the name of a client's request from the principal and the id that the client gives itself. Since the
principal is part of it, no principal can use the name of another one's request, whatever id it chooses. Every gateway
makes the same name, so a retry through another gateway is recognised. A gateway's own requests have the gateway's
name, which begins differently.
"""

from __future__ import annotations

import hashlib

LONGEST_ID = 64
"""Most bytes of the id that a client gives itself."""
LONGEST_NAME = 512
"""Most bytes of a name that controllers accept. Gateways of earlier releases pass on any id of a client."""
_CLIENT, _GATEWAY = "client:", "gateway:"


def name_of_client(principal: str, client: str) -> str:
    """Return the name under which the controllers know a client's requests: ``client:`` with the hash of its
    principal and the hash of the id that it gives itself."""
    return f"{_CLIENT}{_hash(principal)}/{_hash(client)}"


def name_of_gateway(node: str, life: int) -> str:
    """Return the name under which the controllers know a gateway's own requests: ``gateway:`` with its node name and
    ``life``, 64 random bits of its process."""
    return f"{_GATEWAY}{node}/{life:016x}"


def owner_of(name: str) -> str:
    """Return the part of a client's name that all clients of its principal have in common; "" for a name of a service
    or of an earlier release."""
    return name.partition("/")[0] if name.startswith(_CLIENT) else ""


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
