"""TLS of all planes: certificates from files, and the identities that they name.

A certificate *names* services and clients by URIs among its alternative names: ``tidelog:replica/r1``,
``tidelog:client/billing``. A certificate without such URIs names the service or client whose role is its
organizational unit and whose node is its common name. Between services each end checks that the other's certificate
names what its hello or welcome says, so that no holder of a certificate of the cluster can pass for another. The end
that connects also checks the host name.

The files are read again when one of them has changed, before the next handshake; open connections go on. If the files
do not go together (one is replaced, the other not yet), the certificates that were read before stay in force.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tidelog.errors import ConfigError, TidelogError, refuse
from tidelog.net.certificates import expiry_of
from tidelog.wire.messages import Hello, Welcome

URI = "tidelog:"
CLIENT = "client"

log = logging.getLogger("tidelog")


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The paths of the PEM files for TLS. ``ca`` has the authorities that may sign the other end's certificate; if it
    is "", the authorities that the system trusts. ``cert`` and ``key`` are this end's certificate with its chain, and
    its key without a passphrase; if they are "", this end shows no certificate. Raises ``ConfigError`` if only one of
    the two is given."""

    ca: str = ""
    cert: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise ConfigError("a certificate and its key go together: give both, or neither")


class NodeIdentity(NamedTuple):
    """The role (``replica``, ``client``, …) and node id of a service or client that a certificate names."""

    role: str
    node: str

    def __str__(self) -> str:
        return f"{self.role}/{self.node}"


class TlsFiles:
    """The source of SSL contexts for handshakes, which reads the certificate files again when they change.
    ``clients`` is what this end asks of a peer that connects: ``none`` (no certificate), ``optional`` or
    ``required``. Creating the object raises ``ConfigError`` if the files cannot be read."""

    def __init__(self, options: TlsOptions, clients: str = "none") -> None:
        self._options = options
        self._clients = clients
        self._read: dict[Callable[[], ssl.SSLContext], tuple[object, ssl.SSLContext]] = {}
        self._complained: object = None
        self._expiry: tuple[ssl.SSLContext, float | None] | None = None
        """The context for the end that accepts, and when its certificate expires."""
        if options != TlsOptions():
            self.connecting()
        if options.cert:
            self.accepting()

    @property
    def can_accept(self) -> bool:
        """Return whether there is a certificate to show to a peer that connects, so that ports can speak TLS."""
        return bool(self._options.cert)

    def connecting(self) -> ssl.SSLContext:
        """Return the SSL context for the end that connects, which checks the server's host name. The files are read
        if they have changed. If changed files cannot be read, the former context stays in force and a warning is
        logged; without a former context ``ConfigError`` is raised."""
        return self._current(self._for_connecting)

    def accepting(self) -> ssl.SSLContext:
        """Return the SSL context for the end that accepts. The files are read if they have changed. If changed files
        cannot be read, the former context stays in force and a warning is logged; without a former context
        ``ConfigError`` is raised."""
        return self._current(self._for_accepting)

    def expires_s(self) -> float | None:
        """Return when the certificate that this end shows to a peer that connects expires, in seconds since 1970. The
        files are read if they have changed. None if this end shows no certificate, or none that a server may show."""
        if not self.can_accept:
            return None
        context = self.accepting()
        if self._expiry is None or self._expiry[0] is not context:
            try:
                self._expiry = context, expiry_of(self._options.cert, self._options.key)
            except OSError:  # the files are being replaced
                return None
        return self._expiry[1]

    def _current(self, make: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        """Return the context that ``make`` returns, made anew only if the files have changed since the last call."""
        stamp = self._stamp()
        known = self._read.get(make)
        if known is not None and known[0] == stamp:
            return known[1]
        try:
            context = make()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            if known is None:
                raise ConfigError(f"{self._names()}: cannot be used for TLS: {_plain(error)}") from error
            if self._complained != stamp:
                self._complained = stamp
                log.warning("certificates_not_read: %s: %s; the former stay in force", self._names(), _plain(error))
            return known[1]
        self._read[make] = stamp, context
        return context

    def _for_connecting(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self._options.ca or None)
        return self._prepared(context)

    def _for_accepting(self) -> ssl.SSLContext:
        """Make the SSL context for the end that accepts, which asks for client certificates as ``clients`` says."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self._options.ca or None)
        context.verify_mode = {
            "none": ssl.CERT_NONE,
            "optional": ssl.CERT_OPTIONAL,
            "required": ssl.CERT_REQUIRED,
        }[self._clients]
        return self._prepared(context)

    def _prepared(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._options.cert:
            context.load_cert_chain(self._options.cert, self._options.key, password=lambda: "")
        return context

    def _stamp(self) -> tuple[object, ...]:
        """Return time, size and inode of each file, which change when a file is replaced; None for a file that does
        not exist."""
        found: list[object] = []
        for name in (self._options.ca, self._options.cert, self._options.key):
            try:
                state = Path(name).stat() if name else None
            except OSError:
                state = None
            found.append(state and (state.st_mtime_ns, state.st_size, state.st_ino))
        return tuple(found)

    def _names(self) -> str:
        return ", ".join(filter(None, (self._options.ca, self._options.cert, self._options.key)))


def identities_of(certificate: Mapping[str, Any] | None) -> tuple[NodeIdentity, ...]:
    """Return the identities that a certificate (as ``SSLObject.getpeercert`` returns it) names: those of its
    ``tidelog:`` URIs, or else the one of its subject. Return an empty tuple if there is no certificate or it names
    none."""
    if not certificate:
        return ()
    uris = [text for kind, text in certificate.get("subjectAltName", ()) if kind == "URI" and text.startswith(URI)]
    if uris:
        named = [uri.removeprefix(URI).partition("/") for uri in uris]
        return tuple([NodeIdentity(role, node) for role, slash, node in named if slash and role and node])
    subject = {kind: text for names in certificate.get("subject", ()) for kind, text in names}
    role, node = subject.get("organizationalUnitName"), subject.get("commonName")
    return (NodeIdentity(role, node),) if role and node else ()


def refuse_peer(peer: Hello | Welcome, identities: tuple[NodeIdentity, ...] | None) -> TidelogError | None:
    """Return the error that refuses a service whose certificate does not name it: ``UNAUTHENTICATED`` if the
    certificate names no service, ``FORBIDDEN`` if it names others. Return None if the certificate names the service,
    if the peer is a client, or if no certificates are asked for (``identities`` is None)."""
    if identities is None or peer.role == CLIENT or NodeIdentity(peer.role, peer.node) in identities:
        return None
    if not identities:
        return refuse(
            "UNAUTHENTICATED",
            f"the certificate names no Tidelog service; {peer.role}/{peer.node} must show one with the alternative "
            f"name URI:{URI}{peer.role}/{peer.node}",
        )
    names = ", ".join(map(str, identities))
    return refuse("FORBIDDEN", f"the certificate is of {names}, and cannot speak for {peer.role}/{peer.node}")


def handshake_failure(error: BaseException) -> str:
    """Return a text for users that says why a TLS handshake failed and what to do about it; "" if TLS was not the
    cause of ``error``."""
    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, ssl.SSLError):
        inner = inner.__cause__
    if inner is None:
        return ""
    if isinstance(inner, ssl.SSLCertVerificationError):
        return f"the certificate shown is not accepted: {inner.verify_message}"
    reason = (inner.reason or str(inner)).replace("_", " ").lower()
    hint = {
        "wrong version number": "; is it a port without TLS (ws://)?",
        "tlsv13 alert certificate required": "; a client certificate is needed",
        "tlsv1 alert unknown ca": "; the other end does not trust the authority of the certificate shown to it",
    }.get(reason, "")
    return f"TLS failed: {reason}{hint}"


def _plain(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error)
