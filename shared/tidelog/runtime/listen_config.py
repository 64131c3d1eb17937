"""Settings that every service has: certificates, listening without them, and the highest feature level."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tidelog.errors import ConfigError
from tidelog.feature_levels import NEWEST, OLDEST, Levels
from tidelog.net.origins import is_loopback
from tidelog.net.tls import TlsFiles, TlsOptions
from tidelog.net.websocket.transport import MAX_CONNECTIONS
from tidelog.runtime.config import setting
from tidelog.wire.proof import MIN_SECRET_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenConfig:
    """The settings that the configurations of all services inherit: those about certificates, secrets and listening,
    and the highest feature level. Each service adds a ``host``."""

    tls_cert: str = setting("", "PEM file of the certificate shown to others, with its chain; empty: no TLS here.")
    tls_key: str = setting("", "PEM file of the certificate's key, without a passphrase.")
    tls_ca: str = setting(
        "", "PEM file of the authorities that sign the other services' certificates: with it they must show one."
    )
    cluster_secret_file: str = setting(
        "",
        "File with the cluster's secret, 32 characters or more, the same for all services: without TLS they know each"
        " other by it; empty: they do not.",
    )
    insecure: bool = setting(
        False, "Listen on an address that others can reach although anybody could connect and read along."
    )

    allowed_hosts: tuple[str, ...] = setting(
        (),
        "Names (log.example) under which /metrics may be asked for without TLS, besides addresses and localhost. A"
        " page whose name was made to lead here uses another.",
    )

    feature_level_max: int = setting(
        NEWEST,
        "Highest feature level that this process says it understands; lower to act as an earlier release.",
        OLDEST,
        NEWEST,
    )

    @property
    def levels(self) -> Levels:
        """Return the range of feature levels that this process announces to others: all that the release understands,
        up to ``feature_level_max``."""
        return Levels(OLDEST, self.feature_level_max)

    @property
    def max_connections(self) -> int:
        """Return the most connections that the process accepts."""
        return MAX_CONNECTIONS

    @property
    def secret(self) -> bytes:
        """Read the file ``cluster_secret_file`` and return the cluster's secret without surrounding white space;
        empty if no file is configured. Raises ``ConfigError`` if the file cannot be read or the secret is too short.
        """
        if not self.cluster_secret_file:
            return b""
        where = f"cluster_secret_file = {self.cluster_secret_file!r}"
        try:
            secret = Path(self.cluster_secret_file).read_bytes().strip()
        except OSError as error:
            raise ConfigError(f"{where}: cannot be read: {error.strerror}") from error
        if len(secret) < MIN_SECRET_BYTES:
            step = "'openssl rand -hex 32' makes one"
            raise ConfigError(f"{where}: a secret has {MIN_SECRET_BYTES} characters or more; {step}")
        return secret

    @property
    def tls(self) -> TlsFiles | None:
        """Read the configured certificates and return them, with whether peers must show one; None if none are
        configured. Raises ``ConfigError`` if they cannot be read."""
        if not (self.tls_cert or self.tls_ca):
            return None
        return TlsFiles(TlsOptions(self.tls_ca, self.tls_cert, self.tls_key), self._client_certificates)

    @property
    def _client_certificates(self) -> str:
        return "required" if self.tls_ca else "none"

    def faults_of_listening(self, host: str, authenticates: bool, how: str) -> list[str]:
        """Return what is wrong with listening at ``host`` with these settings, one sentence for each fault; an empty
        list if nothing is. It is wrong if others can reach the address and there is no TLS or no authentication,
        unless ``insecure`` is set. ``authenticates``: whether the service authenticates its peers; ``how``: how an
        operator makes it do so, for the text."""
        found = []
        if bool(self.tls_cert) != bool(self.tls_key):
            found.append("tls_cert and tls_key go together: give both, or neither")
        if self.insecure or is_loopback(host):
            return found
        missing = [*([] if self.tls_cert else ["TLS"]), *([] if authenticates else ["authentication"])]
        if missing:
            steps = [*([] if self.tls_cert else ["set tls_cert and tls_key"]), *([] if authenticates else [how])]
            found.append(
                f"host = {host!r}: others can reach this address, and there is no {' and no '.join(missing)}. "
                f"Either {' and '.join(steps)} ('tidelog certs' makes certificates to try it with), or listen on "
                f"127.0.0.1, or say insecure = true if the network itself keeps strangers out"
            )
        return found

    def faults_of_urls(self, urls: Iterable[tuple[str, str]]) -> list[str]:
        """Return what is wrong with the URLs of other services, one sentence for each fault; an empty list if nothing
        is. ``urls``: pairs of a setting's name and a URL."""
        found = []
        for name, url in urls:
            if not url.startswith(("ws://", "wss://")):
                found.append(f"{name} = {url!r}: must be a URL of the form ws://host:port or wss://host:port")
            elif self.tls_ca and url.startswith("ws://"):
                found.append(f"{name} = {url!r}: with tls_ca the other services speak TLS: wss://host:port")
            elif self.cluster_secret_file and url.startswith("ws://") and _is_localhost(url):
                found.append(
                    f"{name} = {url!r}: localhost is both 127.0.0.1 and [::1], and another program may listen at the"
                    f" one that the service does not use. With cluster_secret_file write 127.0.0.1 or [::1]"
                )
        return found


def _is_localhost(url: str) -> bool:
    """Return whether the host of the URL is the name ``localhost`` or ends with ``.localhost``, which may mean
    several addresses. False for a malformed URL."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    return f".{host.rstrip('.')}".endswith(".localhost")
