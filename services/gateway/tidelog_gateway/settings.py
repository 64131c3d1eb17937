"""Bounds and times of the gateway's cores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """Bounds and times of the router."""

    merge_max_bytes: int = 1 << 20
    """A ``Produce`` to a leader is closed when it holds this much."""
    server_max_bytes: int = 8 << 20
    """In flight to one replica server."""
    server_max_batches: int = 1000
    """The same in batches: what a server has taken and cannot copy in time makes its followers late."""
    client_max_bytes: int = 32 << 20
    """Held for one client."""
    total_max_bytes: int = 256 << 20
    """Held for all clients, who share it fairly: a principal that is alone has three eighths."""
    retry_first_s: float = 0.02
    """First pause of a lane after a refusal; it doubles up to ``retry_max_s``."""
    retry_max_s: float = 0.5
    fate_grace_s: float = 1.0
    """How long a replaced leader may still tell the fate of a batch that must not be sent twice."""
    ack_timeout_s: float = 5.0
    """How long a batch waits for its ack if its client gives no timeout."""
    produce_max_timeout_ms: int = 120_000
    """Longer timeouts of clients are cut to this."""
    throttle_target_s: float = 1.0
    """A server is slow if its quickest ack within a second took longer: then it is sent less (``server_limits.py``).
    0: no server is limited."""
    throttle_least_bytes_s: int = 1 << 20
    """The limit of a slow server is never lower, for all principals together."""


@dataclass(frozen=True, slots=True)
class SubscriptionSettings:
    """Bounds and times of the subscriptions."""

    client_max_subscriptions: int = 1000
    """Open subscriptions of one client."""
    principal_max_subscriptions: int = 20_000
    """The same of all clients of one principal."""
    credit_max_bytes: int = 8 << 20
    """Credit of one subscription beyond this is forgotten."""
    read_max_bytes: int = 1 << 20
    """Asked of a leader at a time; less when the credit is less."""
    tail_cache_bytes: int = 64 << 20
    """The newest batches of all partitions, kept for subscribers that are about to want them."""
    tail_cache_max_age_s: float = 1.0
    """How long after it was read a batch is served from there. What compaction has removed is served for no longer
    than that."""
    read_max_wait_ms: int = 5000
    """A read at the end of the log waits this long at the leader for news, then is asked again."""
    read_grace_s: float = 2.0
    """How much later than ``read_max_wait_ms`` an answer may come before it counts as lost."""
    leader_stay_s: float = 5.0
    """A reader whom another replica could not serve stays with the leader for so long."""
    retry_first_s: float = 0.02
    """First pause after a retriable error; it doubles up to ``retry_max_s``."""
    retry_max_s: float = 0.5


OIDC_ALGORITHMS = {
    "RS256": "RSA",
    "RS384": "RSA",
    "RS512": "RSA",
    "PS256": "RSA",
    "PS384": "RSA",
    "PS512": "RSA",
    "ES256": "EC",
    "ES384": "EC",
    "ES512": "EC",
    "Ed25519": "OKP",
}
"""What may be taken, and the type of key that each needs. Those with a shared secret (HS256) are not among them."""


@dataclass(frozen=True, slots=True)
class OidcRules:
    """Which tokens are taken, and how their claims become principals."""

    issuer: str
    """The claim ``iss``, to the letter."""
    audiences: tuple[str, ...]
    """The claim ``aud`` names one of these."""
    algorithms: tuple[str, ...] = ("RS256",)
    leeway_s: int = 30
    """Seconds by which the issuer's clock may differ."""
    claim: str = "sub"
    """The claim that names the principal."""
    prefix: str = "oidc-"
    """Stands before it."""
    refresh_s: float = 300.0
    """The keys are asked for so often."""
    max_age_s: float = 86_400.0
    """Keys that are older than this are not used."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """How many clients are let in, and what is told of it."""

    client_max_connections: int = 4000
    """Of all clients."""
    principal_max_connections: int = 3000
    """Of one principal, unless its quota says another number."""
    address_max_connections: int = 3000
    """From one address."""
    audit_logins: bool = False
    """Who came in is written to the audit topic."""
