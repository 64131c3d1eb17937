"""Which clients a gateway has refused lately, and why: for its metrics and ``tidelog doctor``.

A client that is refused sees one error. The operator wants to know the cause behind it: the gateway or one address
has as many connections as it may have, or the client shows a token that was revoked, or has expired. Refusals of one
client for one cause are one row with their number. No decision depends on this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tidelog.sansio.counters import count, counter
from tidelog.wire.messages import RefusedClient

CAUSE = "cause"
"""Key of an error's detail that names the cause of a refused connection, one of ``CAUSES``."""
GATEWAY_FULL, ADDRESS_FULL, PRINCIPAL_FULL = "gateway_full", "address_full", "principal_full"
ENDING, MALFORMED, UNAUTHENTICATED = "ending", "malformed", "unauthenticated"
TOKEN_REVOKED, TOKEN_EXPIRED, TOKEN_UNKNOWN = "token_revoked", "token_expired", "token_unknown"
CAUSES = (
    *(GATEWAY_FULL, ADDRESS_FULL, PRINCIPAL_FULL, ENDING, MALFORMED),
    *(UNAUTHENTICATED, TOKEN_REVOKED, TOKEN_EXPIRED, TOKEN_UNKNOWN),
)
"""Causes of refused connections, from ``client_max_connections`` to a token of no cluster. ``unauthenticated``: the
client shows neither token nor certificate, or a token of an outside issuer that is not valid."""
KEPT_MS = 60_000
"""Milliseconds after its last refusal for which a client is listed."""
MOST = 100
"""Most rows; the one that was refused longest ago goes."""


@dataclass(slots=True)
class RefusedClients:
    """The connections that a gateway has refused, by cause, since its start, and the clients of the last
    ``KEPT_MS``."""

    causes: dict[str, int] = counter(
        "tidelog_gateway_refused_connections",
        "connections",
        "Connections of clients that were refused, by cause. gateway_full, address_full, principal_full: the gateway,"
        " the address or the principal has as many as it may have; token_unknown: it was revoked before this gateway"
        " started, or is of another cluster.",
        CAUSE,
        CAUSES,
    )
    _rows: dict[tuple[str, str, str], RefusedClient] = field(default_factory=dict)

    def add(self, cause: str, address: str, name: str, detail: Mapping[str, int | str], now_ms: int) -> None:
        """Count a refused connection from ``address`` of a client that calls itself ``name``. ``detail`` is that of
        the error: it may name the token and its principal."""
        count(self.causes, cause)
        principal, token = str(detail.get("principal", "")), str(detail.get("token", ""))
        key = cause, address, token or name
        row = self._rows.pop(key, None)
        if row is None or now_ms - row.last_ms > KEPT_MS:
            row = RefusedClient(cause, address, name, principal, token, 0, now_ms, now_ms)
        if len(self._rows) >= MOST:
            del self._rows[next(iter(self._rows))]
        self._rows[key] = replace(row, times=row.times + 1, last_ms=now_ms)

    def recent(self, now_ms: int) -> tuple[RefusedClient, ...]:
        """Return the clients that were refused within the last ``KEPT_MS``, the last one at the end."""
        return tuple(row for row in self._rows.values() if now_ms - row.last_ms <= KEPT_MS)
