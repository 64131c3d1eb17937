"""How services without TLS know each other: each proves in the handshake that it has the cluster's secret.

Theory. Challenge and response, in both directions (as in ISO/IEC 9798-4, three-pass mutual authentication)::

    hello    connecting -> accepting    its nonce, and the URL that it dialed
    welcome  accepting -> connecting    its nonce, and MAC("accepting", both nonces, who both are, the URL)
    prove    connecting -> accepting    MAC("connecting", the same)

A MAC is HMAC-SHA256 under the secret. Both nonces are fresh, so nothing can be replayed; the first word differs, so
nothing can be reflected; roles, names and cluster are covered, so nobody passes for another one of the cluster's
services in a handshake that is not his. The accepting end refuses a URL that is not its own: a program that listens
where a service was before is dialed under that URL, and cannot pass the handshake on to a service that lives
elsewhere. The connecting end proves nothing before the other one has.

What it is not: encryption. Whoever can read or change what passes on the network can do so after the handshake. On
one machine that takes the rights of root, or a place in between, which only a wrong URL gives. TLS is for the rest.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection
from dataclasses import dataclass, replace

from tidelog.errors import TidelogError, refuse
from tidelog.wire.messages import Hello, Prove, Welcome

NONCE_BYTES = 32
MIN_SECRET_BYTES = 32
"""Shortest secret: as text, 128 bits if they are hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class Prover:
    """One end of one handshake. ``nonce`` is random and used once. ``urls``: of the end that connects the one that
    it dialed, of the other one all that are its own."""

    secret: bytes
    nonce: bytes
    urls: Collection[str]

    def greeting(self, hello: Hello) -> Hello:
        """The hello of the connecting end."""
        (url,) = self.urls
        return replace(hello, nonce=self.nonce, url=url)

    def refuse_hello(self, hello: Hello) -> TidelogError | None:
        """Why the accepting end does not go on."""
        if len(hello.nonce) != NONCE_BYTES:
            return refuse("UNAUTHENTICATED", "services of this cluster have a secret: set cluster_secret_file")
        if _plain(hello.url) not in map(_plain, filter(None, self.urls)):
            here = " or ".join(sorted(filter(None, self.urls)))
            return refuse("UNAUTHENTICATED", f"{hello.url[:249]!r} was dialed, and this is {here}: use that URL")
        return None

    def answer(self, hello: Hello, welcome: Welcome) -> Welcome:
        """The welcome of the accepting end, with its proof."""
        welcome = replace(welcome, nonce=self.nonce)
        return replace(welcome, proof=self._mac("accepting", hello, welcome))

    def refuse_welcome(self, hello: Hello, welcome: Welcome) -> TidelogError | None:
        """Why the connecting end does not go on."""
        if len(welcome.nonce) != NONCE_BYTES or not welcome.proof:
            return refuse("UNAUTHENTICATED", f"{welcome.node} does not prove that it has the cluster's secret")
        if not hmac.compare_digest(welcome.proof, self._mac("accepting", hello, welcome)):
            return refuse("UNAUTHENTICATED", f"{welcome.node} has another cluster secret")
        return None

    def prove(self, hello: Hello, welcome: Welcome) -> Prove:
        """The last word of the connecting end."""
        return Prove(self._mac("connecting", hello, welcome))

    def refuse_proof(self, hello: Hello, welcome: Welcome, proof: bytes) -> TidelogError | None:
        """Why the accepting end does not let the other one in."""
        if hmac.compare_digest(proof, self._mac("connecting", hello, welcome)):
            return None
        return refuse("UNAUTHENTICATED", f"{hello.node} has another cluster secret")

    def _mac(self, end: str, hello: Hello, welcome: Welcome) -> bytes:
        texts = (end, hello.role, hello.node, hello.cluster, hello.url, welcome.role, welcome.node, welcome.cluster)
        parts = [b"tidelog.v1 proof", hello.nonce, welcome.nonce, *(text.encode() for text in texts)]
        told = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.new(self.secret, told, hashlib.sha256).digest()


def _plain(url: str) -> str:
    return url.rstrip("/").lower()
