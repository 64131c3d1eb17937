"""Capabilities: what one end of a connection can do, beyond the first release of the protocol.

A client names in its ``hello`` the capabilities that it wants to use, a gateway in its ``welcome`` those that it has.
A capability is in force if the welcome names it, and, for ``STRICT``, if the hello has named it, too. An end ignores
names that it does not know. Feature levels (``tidelog.feature_levels``) are another thing: they are agreed on by the
processes of a cluster, and clients have none.

A new field of a client's request needs no capability if it is no harm that an older gateway ignores it. Otherwise a
library sends it only to a gateway that has ``STRICT``, which refuses a field that it does not know.
"""

from __future__ import annotations

from tidelog.errors import TidelogError, refuse
from tidelog.wire.messages import Hello, Welcome

STRICT = "strict"
"""A request of the client with a key that the gateway does not know is refused with ``UNSUPPORTED``. Without this
capability the key is ignored."""
CONDITIONAL_APPEND = "conditional_append"
"""The gateway heeds ``expected_offset`` of a ``ProducePart``."""
OF_GATEWAYS = (STRICT, CONDITIONAL_APPEND)
"""The capabilities of a gateway of this release."""
OF_CLIENTS = (STRICT,)
"""The capabilities that a client of this release asks for."""


def refuse_without(capability: str, what: str, welcome: Hello | Welcome) -> TidelogError | None:
    """Return ``UNSUPPORTED`` if the gateway that sent ``welcome`` lacks the capability that a request needs, so that
    the request is not sent; None if the gateway has it. ``what``: the part of the request that needs it."""
    if capability in welcome.capabilities:
        return None
    text = (
        f"gateway {welcome.node} does not announce {capability}, and may ignore {what}: nothing was sent; upgrade it"
    )
    return refuse("UNSUPPORTED", text, capability=capability)
