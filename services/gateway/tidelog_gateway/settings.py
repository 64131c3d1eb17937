"""Bounds and times of the gateway's cores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """Bounds and times of the produce router. Sizes are in bytes, times in seconds unless the name says otherwise."""

    merge_max_bytes: int = 1 << 20
    """Bytes at which a ``Produce`` to a leader is closed."""
    server_max_bytes: int = 8 << 20
    """Bytes in flight to one replica server."""
    server_max_batches: int = 1000
    """Batches in flight to one replica server. Batches that a server has and cannot copy in time delay its
    followers."""
    client_max_batches: int = 8192
    """Batches held for one client until they are acked."""
    client_max_bytes: int = 32 << 20
    """Bytes held for one client until they are acked."""
    total_max_bytes: int = 256 << 20
    """Bytes held for all clients, who share them fairly: a principal without competitors gets three eighths."""
    retry_first_s: float = 0.02
    """First pause of a produce queue after a refusal; it doubles up to ``retry_max_s``."""
    retry_max_s: float = 0.5
    fate_grace_s: float = 1.0
    """How long a replaced leader may still report the outcome of a batch that must not be sent twice."""
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
    """Bounds and times of the subscriptions. Sizes are in bytes, times in seconds unless the name says otherwise."""

    client_max_subscriptions: int = 1000
    """Open subscriptions of one client."""
    principal_max_subscriptions: int = 20_000
    """Open subscriptions of all clients of one principal."""
    credit_max_bytes: int = 8 << 20
    """Credit of one subscription beyond this many bytes is dropped."""
    read_max_bytes: int = 1 << 20
    """Bytes that one read asks for; less when the credit is less."""
    tail_cache_bytes: int = 64 << 20
    """Bytes of the newest batches of all partitions, kept for the subscribers that read them next."""
    tail_cache_max_age_s: float = 1.0
    """How long after it was read a batch is served from the tail cache. A record that compaction has removed is
    served for at most that long."""
    read_max_wait_ms: int = 5000
    """A read at the end of the log waits this long at the leader for new records; then it is repeated."""
    read_grace_s: float = 2.0
    """How much later than ``read_max_wait_ms`` an answer may come before it counts as lost."""
    leader_stay_s: float = 5.0
    """A subscription that a copy could not serve reads from the leader for this long."""
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
"""Signature algorithms that may be configured, and the key type of each. None has a shared secret (as HS256 has)."""


@dataclass(frozen=True, slots=True)
class OidcRules:
    """Rules for the tokens of an OpenID Connect issuer: which are accepted, and how their claims become
    principals."""

    issuer: str
    """The exact value of the claim ``iss``."""
    audiences: tuple[str, ...]
    """The claim ``aud`` must name one of these."""
    algorithms: tuple[str, ...] = ("RS256",)
    leeway_s: int = 30
    """Seconds by which the issuer's clock may differ."""
    claim: str = "sub"
    """The claim that names the principal."""
    prefix: str = "oidc-"
    """Put before the claim's value to make the principal."""
    refresh_s: float = 300.0
    """Seconds after which the keys are fetched again."""
    max_age_s: float = 86_400.0
    """Keys that were fetched more seconds ago are not used."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Bounds on the number of client connections, and whether logins are audited."""

    client_max_connections: int = 4000
    """Connections of all clients."""
    principal_max_connections: int = 3000
    """Connections of one principal, unless its quota sets another number."""
    address_max_connections: int = 3000
    """Connections from one address."""
    audit_logins: bool = False
    """Whether each login is written to the audit topic."""
    operator_reserved_connections: int = 3
    """Connections beyond these bounds, for operators only."""
