"""Configuration of a gateway."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from tidelog.net.addresses import EVERYWHERE, refuse_advertised
from tidelog.net.link import OUTBOX_BYTES
from tidelog.net.origins import is_loopback, is_origin
from tidelog.net.transport import MAX_MESSAGE_BYTES
from tidelog.net.websocket.transport import HELLO_BYTES, MAX_CONNECTIONS
from tidelog.quantities import COUNT
from tidelog.runtime.config import setting
from tidelog.runtime.listen_config import ListenConfig
from tidelog.wire.codec import STRANGER

from tidelog_gateway.consume.server_read_window import WindowSettings
from tidelog_gateway.rights.authorizer import AuthorizerSettings
from tidelog_gateway.rights.producer_tickets import MAX_PRODUCERS
from tidelog_gateway.settings import (
    OIDC_ALGORITHMS,
    ConnectionSettings,
    OidcRules,
    RouterSettings,
    SubscriptionSettings,
)

_ROUTER = RouterSettings()
_SUBSCRIPTIONS = SubscriptionSettings()
_WINDOW = WindowSettings()
_CONNECTIONS = ConnectionSettings()
_OIDC = OidcRules("", ())
LEAST_BYTES = 2 << 20
"""Bytes of two batches of the largest size."""
MOST_CLIENTS = 60_000
"""Highest bound on client connections: a process can rarely open more files."""
SPARE_CONNECTIONS = 96
"""Connections beyond the bound on clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcConfig:
    """The OpenID Connect issuer whose tokens are accepted besides the cluster's own."""

    issuer: str = setting(
        "", "Take the tokens (JWT) of this OpenID Connect issuer: its URL, as their iss says it. Empty: of none."
    )
    audience: tuple[str, ...] = setting((), "The aud of a token must name one of these.")
    jwks: str = setting("", "The issuer's keys (JWKS): an https:// URL, or a file.")
    ca: str = setting(
        "", "PEM file of the authorities of that URL's certificate; empty: those that the system trusts."
    )
    algorithms: tuple[str, ...] = setting(_OIDC.algorithms, "Algorithms of signatures that are taken.")
    leeway_s: int = setting(_OIDC.leeway_s, "Seconds by which the issuer's clock may differ.", 0, 600)
    principal_claim: str = setting(
        _OIDC.claim, "The claim that names the principal. email counts only with email_verified."
    )
    principal_prefix: str = setting(
        _OIDC.prefix,
        "Stands before that name, so that the issuer's names are nobody else's. Empty: the issuer may name anybody,"
        " superusers too.",
    )
    refresh_s: float = setting(_OIDC.refresh_s, "The keys are asked for again after so many seconds.", 10.0, 86_400.0)
    max_age_s: float = setting(
        _OIDC.max_age_s, "Seconds for which the keys stay in force while they cannot be had.", 60.0, 2_592_000.0
    )

    def faults(self) -> list[str]:
        """Check the settings of the issuer against each other. Return one sentence for each contradiction; an empty
        list if there is none."""
        if not self.issuer:
            return ["jwks: without issuer nothing is verified"] if self.jwks else []
        found = []
        if not self.audience:
            found.append("audience: say for whom the tokens must be; those for other services would be taken, too")
        if not self.jwks:
            found.append("jwks: name the file or URL of the issuer's keys")
        elif "://" in self.jwks and not _is_trusted(self.jwks):
            found.append(f"jwks = {self.jwks!r}: must be https://…, a file, or on this machine")
        for name in self.algorithms or ("",):
            if name not in OIDC_ALGORITHMS:
                found.append(f"algorithms: {name!r} is not one of {', '.join(OIDC_ALGORITHMS)}")
        if self.max_age_s < self.refresh_s:
            found.append("max_age_s must not be smaller than refresh_s")
        return found


def _is_trusted(url: str) -> bool:
    """Return whether the keys of an issuer may be fetched from this URL: it is https, or http on this machine. False
    for a malformed URL."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises where it is none
    except ValueError:
        return False
    host = parts.hostname or ""
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig(ListenConfig):
    """The settings of a gateway, read once at the start by ``tidelog.runtime.config.load``, which checks each setting
    against its bounds."""

    node: str = setting("g1", "Name of this gateway, unique in the cluster.")
    cluster: str = setting("", "Id of the cluster; empty: whichever the controllers belong to.")
    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(9292, "Port to listen on; 0 takes a free one.", 0, 65535)
    advertised_url: str = setting(
        "",
        "URL under which clients reach this gateway; every gateway names it to its clients. Empty: the one listened"
        " on, and none if host means every address of the machine (0.0.0.0, ::).",
    )
    controllers: tuple[str, ...] = setting(("ws://127.0.0.1:9192",), "URLs of the controllers.")
    rack: str = setting(
        "",
        "Where this gateway is: who may be served by any replica is served by one with this rack, if there is one.",
    )
    client_max_connections: int = setting(
        _CONNECTIONS.client_max_connections,
        "Clients connected at a time; more are refused and go to another gateway.",
        1,
        MOST_CLIENTS,
    )
    principal_max_connections: int = setting(
        _CONNECTIONS.principal_max_connections,
        "Of these so many belong to one principal at most, so that there is room for others; a quota of its own goes"
        " before. All clients without a name are one principal.",
        1,
        MOST_CLIENTS,
    )
    address_max_connections: int = setting(
        _CONNECTIONS.address_max_connections,
        "And so many come from one address; raise it behind a proxy, which all clients share.",
        1,
        MOST_CLIENTS,
    )
    operator_reserved_connections: int = setting(
        _CONNECTIONS.operator_reserved_connections,
        "Connections beyond these bounds that are reserved for operators, who use commands such as 'tidelog doctor'."
        " Only superusers get one with authorization, or with authentication and superusers. 0: none are reserved.",
        0,
        SPARE_CONNECTIONS // 2,
    )
    client_max_in_flight: int = setting(
        1024, "Requests of one connection that may wait for answers; one more is refused.", 1
    )
    client_max_batches: int = setting(
        _ROUTER.client_max_batches, "Batches of one connection that may wait for their acks; one more is refused.", 1
    )
    client_max_bytes: int = setting(
        _ROUTER.client_max_bytes,
        "Bytes of batches of one connection that may wait for their acks; a batch beyond is refused.",
        LEAST_BYTES,
    )
    total_max_bytes: int = setting(
        _ROUTER.total_max_bytes,
        "Bytes held for all clients until they are acked, shared fairly: a principal gets three eighths.",
        LEAST_BYTES,
    )
    server_max_bytes: int = setting(
        _ROUTER.server_max_bytes, "Bytes in flight to one replica server.", LEAST_BYTES, OUTBOX_BYTES // 2
    )
    server_max_read_bytes: int = setting(
        _WINDOW.max_bytes,
        "Bytes of answers to reads on their way from one replica server. Clients share them fairly: a principal gets"
        " half of them at most.",
        LEAST_BYTES,
        OUTBOX_BYTES // 4,
    )
    server_max_batches: int = setting(_ROUTER.server_max_batches, "Batches in flight to one replica server.", 1)
    ack_timeout_s: float = setting(
        _ROUTER.ack_timeout_s,
        "Seconds to wait for the ack of a batch whose producer gives no timeout.",
        0.01,
        _ROUTER.produce_max_timeout_ms / 1000,
    )
    throttle_target_s: float = setting(
        _ROUTER.throttle_target_s,
        "A replica server is slow if its quickest ack within a second took longer than this, in seconds. Principals"
        " share a lower rate to it until it is quick again. 0: there are no such limits.",
        0.0,
        60.0,
    )
    throttle_least_bytes_s: int = setting(
        _ROUTER.throttle_least_bytes_s,
        "The limit of a slow server is never lower than this, in bytes a second for all principals together.",
        1024,
    )
    client_max_subscriptions: int = setting(
        _SUBSCRIPTIONS.client_max_subscriptions, "Open subscriptions of one client.", 1
    )
    principal_max_subscriptions: int = setting(
        _SUBSCRIPTIONS.principal_max_subscriptions, "Open subscriptions of all clients of one principal.", 1
    )
    read_max_wait_ms: int = setting(
        _SUBSCRIPTIONS.read_max_wait_ms, "How long a subscription's read waits at the end of the log.", 10, 30_000
    )
    tail_cache_bytes: int = setting(
        _SUBSCRIPTIONS.tail_cache_bytes,
        "The newest batches of partitions with several subscribers are kept, so that these share reads. 0: none are.",
        0,
    )
    tail_cache_max_age_s: float = setting(
        _SUBSCRIPTIONS.tail_cache_max_age_s,
        "Seconds for which such batches are served after they were read. Readers may get what compaction or retention"
        " has deleted for this long.",
        0.0,
        60.0,
    )
    authentication: bool = setting(
        False, "Refuse clients that show neither a token nor, which takes tls_ca, a certificate that names them."
    )
    authorization: bool = setting(False, "Let clients do what the rules allow (tidelog acls), and nothing else.")
    audit: bool = setting(
        False, "Write to the topic __audit who changes the cluster, is refused, or cannot say who he is."
    )
    audit_failures_s: int = setting(
        10, "Of those refused at most so many a second are written.", 1, 10_000, unit=COUNT
    )
    audit_logins: bool = setting(False, "Write to the topic __audit also who has connected.")
    superusers: tuple[str, ...] = setting((), "Principals that may do everything, whatever the rules say.")
    oidc: OidcConfig = OidcConfig()
    allowed_origins: tuple[str, ...] = setting(
        (),
        "Web pages of these origins (https://app.example) may connect, besides those of the gateway's own address;"
        " *: of any.",
    )
    shutdown_s: float = setting(
        5.0,
        "At the end, the longest wait for what clients have in flight.",
        0.0,
        60.0,
    )
    metrics: bool = setting(True, "Show metrics to Prometheus: HTTP GET /metrics on the port.")
    console: bool = setting(True, "Show the console to browsers: HTTP GET /console/ on the port.")
    log_json: bool | None = setting(None, "Log as JSON; unset: unless on a terminal.")

    def faults(self) -> list[str]:
        """Check what the bounds of single settings cannot: empty names, malformed URLs and origins, and settings that
        contradict each other. Return one sentence for each error; an empty list if the configuration is valid."""
        found = [] if self.node else ["node: must not be empty"]
        if not self.controllers:
            found.append("controllers: name at least one")
        found += self.faults_of_urls([("controllers", url) for url in self.controllers])
        if self.advertised_url:
            if fault := refuse_advertised(self.advertised_url):
                found.append(f"advertised_url = {self.advertised_url!r}: {fault}")
            elif self.tls_cert and self.advertised_url.startswith("ws://"):
                found.append(f"advertised_url = {self.advertised_url!r}: this gateway speaks TLS: wss://host:port")
        for origin in self.allowed_origins:
            if not is_origin(origin):
                found.append(f"allowed_origins: {origin!r} is no origin of the form https://host or http://host:port")
        if self.total_max_bytes < self.client_max_bytes:
            found.append("total_max_bytes must not be smaller than client_max_bytes")
        how = "set authentication = true"
        return found + self.faults_of_listening(self.host, self.authentication, how)

    def advertised(self, listening: str) -> str:
        """Return the URL of which clients of all gateways are told; "" if they are not told of this gateway.
        ``listening``: the URL with the real port on which the gateway listens."""
        everywhere = self.host in ("", *EVERYWHERE)  # of which the URL listened on names one
        return self.advertised_url or ("" if everywhere or refuse_advertised(listening) else listening)

    @property
    def authorizer(self) -> AuthorizerSettings:
        """Return the part of these settings that the authorizer needs."""
        return AuthorizerSettings(self.authentication, self.authorization, self.superusers)

    @property
    def max_connections(self) -> int:
        """Return the most connections that the process accepts. There are some more than clients: a client beyond the
        bound gets an error that gives the reason, and metrics and console stay available."""
        return max(MAX_CONNECTIONS, self.client_max_connections + SPARE_CONNECTIONS)

    @property
    def limits(self) -> dict[str, int]:
        """Return the limits of a client's connection by the names under which they are announced in the welcome."""
        return {
            "message_bytes": MAX_MESSAGE_BYTES,
            "hello_bytes": HELLO_BYTES,
            "header_bytes": STRANGER.header_bytes,
            "header_items": STRANGER.header_items,
            "requests": self.client_max_in_flight,
            "produce_batches": self.client_max_batches,
            "produce_bytes": self.client_max_bytes,
            "producer_ids": MAX_PRODUCERS,
            "subscriptions": self.client_max_subscriptions,
            "credit_bytes": _SUBSCRIPTIONS.credit_max_bytes,
        }

    @property
    def connections(self) -> ConnectionSettings:
        """Return the part of these settings that the connections of clients need."""
        return ConnectionSettings(
            self.client_max_connections,
            self.principal_max_connections,
            self.address_max_connections,
            self.audit_logins,
            self.operator_reserved_connections,
        )

    @property
    def oidc_rules(self) -> OidcRules | None:
        """Return the rules for tokens of the configured OpenID Connect issuer; None if no issuer is configured."""
        oidc = self.oidc
        if not oidc.issuer:
            return None
        return OidcRules(
            oidc.issuer,
            oidc.audience,
            oidc.algorithms,
            oidc.leeway_s,
            oidc.principal_claim,
            oidc.principal_prefix,
            oidc.refresh_s,
            oidc.max_age_s,
        )

    @property
    def _client_certificates(self) -> str:
        return "optional" if self.tls_ca else "none"

    @property
    def router(self) -> RouterSettings:
        """Return the part of these settings that the produce router needs."""
        return RouterSettings(
            server_max_bytes=self.server_max_bytes,
            server_max_batches=self.server_max_batches,
            client_max_batches=self.client_max_batches,
            client_max_bytes=self.client_max_bytes,
            total_max_bytes=self.total_max_bytes,
            ack_timeout_s=self.ack_timeout_s,
            throttle_target_s=self.throttle_target_s,
            throttle_least_bytes_s=self.throttle_least_bytes_s,
        )

    @property
    def subscriptions(self) -> SubscriptionSettings:
        """Return the part of these settings that the subscriptions need."""
        return SubscriptionSettings(
            client_max_subscriptions=self.client_max_subscriptions,
            principal_max_subscriptions=self.principal_max_subscriptions,
            read_max_wait_ms=self.read_max_wait_ms,
            tail_cache_bytes=self.tail_cache_bytes,
            tail_cache_max_age_s=self.tail_cache_max_age_s,
        )

    @property
    def window(self) -> WindowSettings:
        """Return the part of these settings that the read windows need."""
        return WindowSettings(max_bytes=self.server_max_read_bytes)
