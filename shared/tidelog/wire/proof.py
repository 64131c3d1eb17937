"""Mutual authentication of services without TLS: each end proves in the handshake that it has the cluster's secret.

Theory. The handshake is challenge and response in both directions (as in ISO/IEC 9798-4, three-pass mutual
authentication)::

    hello    connecting -> accepting    its nonce, and the URL that it dialed
    welcome  accepting -> connecting    its nonce, and MAC("accepting", both nonces, both identities, the URL)
    prove    connecting -> accepting    MAC("connecting", both nonces, both identities, the URL)

A MAC is HMAC-SHA256 under the secret. Both nonces are fresh, so no message can be replayed. The first word of the two
MACs differs, so no MAC can be reflected. Both MACs cover role, name and cluster of both ends, so the handshake of one
service cannot be passed off as that of another. The accepting end refuses a URL that is not its own. So a program
that listens where a service was before, and is dialed under that URL, cannot pass the handshake on to a service at
another URL. The connecting end proves nothing before the accepting end has.

The proof is no encryption. An attacker that can read or change the traffic of the network can still do so after the
handshake. On one machine that takes the rights of root, or a place in between, which only a wrong URL gives. TLS is
for all other cases."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection
from dataclasses import dataclass, replace

from tidelog.errors import TidelogError, refuse
from tidelog.wire.messages import Hello, Prove, Welcome

NONCE_BYTES = 32
MIN_SECRET_BYTES = 32
"""Shortest secret in bytes. As text of hexadecimal digits it has 128 bits."""


@dataclass(frozen=True, slots=True)
class Prover:
    """One end of one handshake in which both ends prove that they have the cluster's ``secret``. ``nonce`` is random
    and used for this handshake only. ``urls`` of the connecting end is the one URL that it dialed; ``urls`` of the
    accepting end are all its own. It does no I/O: the session (``link_session``) sends and receives the messages."""

    secret: bytes
    nonce: bytes
    urls: Collection[str]

    def greeting(self, hello: Hello) -> Hello:
        """Return ``hello``, to be sent by the connecting end, with its nonce and the URL that it dialed."""
        (url,) = self.urls
        return replace(hello, nonce=self.nonce, url=url)

    def refuse_hello(self, hello: Hello) -> TidelogError | None:
        """Return the error with which the accepting end refuses the hello: the hello has no nonce, or a URL was
        dialed that is not one of this end's. Return None if the hello is accepted."""
        if len(hello.nonce) != NONCE_BYTES:
            return refuse("UNAUTHENTICATED", "services of this cluster have a secret: set cluster_secret_file")
        if _plain(hello.url) not in map(_plain, filter(None, self.urls)):
            here = " or ".join(sorted(filter(None, self.urls)))
            return refuse("UNAUTHENTICATED", f"{hello.url[:249]!r} was dialed, and this is {here}: use that URL")
        return None

    def answer(self, hello: Hello, welcome: Welcome) -> Welcome:
        """Return ``welcome``, to be sent by the accepting end, with its nonce and its proof that it has the
        secret."""
        welcome = replace(welcome, nonce=self.nonce)
        return replace(welcome, proof=self._mac("accepting", hello, welcome))

    def refuse_welcome(self, hello: Hello, welcome: Welcome) -> TidelogError | None:
        """Return the error with which the connecting end refuses the welcome: its proof is missing, or was made with
        another secret. Return None if the welcome is accepted."""
        if len(welcome.nonce) != NONCE_BYTES or not welcome.proof:
            return refuse("UNAUTHENTICATED", f"{welcome.node} does not prove that it has the cluster's secret")
        if not hmac.compare_digest(welcome.proof, self._mac("accepting", hello, welcome)):
            return refuse("UNAUTHENTICATED", f"{welcome.node} has another cluster secret")
        return None

    def prove(self, hello: Hello, welcome: Welcome) -> Prove:
        """Return the last message of the handshake, with which the connecting end proves that it has the secret."""
        return Prove(self._mac("connecting", hello, welcome))

    def refuse_proof(self, hello: Hello, welcome: Welcome, proof: bytes) -> TidelogError | None:
        """Return an ``UNAUTHENTICATED`` error if the connecting end's proof is missing or was made with another
        secret; None if the proof is right."""
        if hmac.compare_digest(proof, self._mac("connecting", hello, welcome)):
            return None
        return refuse("UNAUTHENTICATED", f"{hello.node} has another cluster secret")

    def _mac(self, end: str, hello: Hello, welcome: Welcome) -> bytes:
        """Return the MAC by which an end ("accepting" or "connecting") proves that it has the secret: over both
        nonces, both identities and the dialed URL."""
        texts = (end, hello.role, hello.node, hello.cluster, hello.url, welcome.role, welcome.node, welcome.cluster)
        parts = [b"tidelog.v1 proof", hello.nonce, welcome.nonce, *(text.encode() for text in texts)]
        signed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.new(self.secret, signed, hashlib.sha256).digest()


def _plain(url: str) -> str:
    return url.rstrip("/").lower()
