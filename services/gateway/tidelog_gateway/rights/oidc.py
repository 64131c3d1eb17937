"""Verifies tokens of an OpenID Connect issuer (RFC 7519, OpenID Connect Core), and finds their principals.

A token is valid if a key of the issuer has signed it with one of the configured algorithms, if it is for this
audience, and if it is neither expired nor too early. The token only names its key, by an id (``kid``); the key itself
is one of the set (JWKS, RFC 7517) that the gateway fetched from the issuer. Only keys of asymmetric algorithms are
used from the set: a key that verifies tokens can then not sign any.

An id that is not in the set may be that of a new key. So may be the key of a token that names none. Then the set is
fetched again, at most every ``REFETCH_S``, and the token is refused with a retriable error until a set that was
requested afterwards has arrived. While the set cannot be fetched, the last one stays in force for ``max_age_s``.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

from joserfc import jws, jwt
from joserfc.errors import BadSignatureError, ClaimError, ExpiredTokenError, UnsupportedAlgorithmError
from joserfc.jwk import ECKey, OKPKey, RSAKey
from tidelog.acl import ANONYMOUS, PRINCIPAL, PRINCIPAL_IS
from tidelog.errors import TidelogError, refuse

from tidelog_gateway.rights.authorizer import ClientIdentity
from tidelog_gateway.settings import OIDC_ALGORITHMS, OidcRules

KINDS: dict[str, Any] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}
TYPES = ("", "jwt", "at+jwt", "application/at+jwt")
"""``typ`` of ID and access tokens; an issuer signs other things, too, with the same keys (RFC 8725)."""
MAX_TOKEN_BYTES = 16 << 10
MAX_HEADER_BYTES = 4 << 10
MAX_KEY_ID_BYTES = 256
LEAST_RSA_BITS = 2048
MAX_KEYS = 100
"""Most keys of a set that are used; the rest is ignored."""
MAX_UNKNOWN = 1000
"""Most ids remembered that were not in the set."""
REFETCH_S = 10.0
"""Least seconds between two tries to fetch the set."""
LATEST_S = 1 << 40
"""No expiry counts as later than this second of the wall clock."""


class _Refused(Exception):
    """Raised while a token is decoded, to refuse it; ``args[0]`` is the refusal, a ``TidelogError``."""


class Issuer:
    """The keys of an OpenID Connect issuer, and the verification of its tokens by them. It fetches nothing itself:
    the owner fetches the keys when they are ``due`` and reports the result. ``now`` is in seconds of a monotonic
    clock."""

    def __init__(self, rules: OidcRules) -> None:
        self.rules = rules
        self._registry = jws.JWSRegistry(algorithms=list(rules.algorithms), strict_check_header=False)
        self._registry.max_header_length = MAX_HEADER_BYTES
        self._keys: list[Any] = []
        self._tried_at = self._got_at = -math.inf
        self._tries = self._answered = 0
        """Number of tries to fetch the set, and the number of the last try that succeeded."""
        self._has_failed = False
        self._unknown: dict[str, int] = {}
        """Ids of keys that were not in the set, or digests of tokens that name no key, each with the number of tries
        that had begun before."""
        self._is_wanted = False

    # --- keys ------------------------------------------------------------------------------------------------

    def due(self) -> float:
        """Return when the set of keys is to be fetched next, in seconds: ``REFETCH_S`` after the last try if that
        failed or a key is missing, otherwise ``refresh_s`` after it."""
        soon = self._is_wanted or self._has_failed
        return self._tried_at + (REFETCH_S if soon else self.rules.refresh_s)

    def on_try(self, now: float) -> None:
        """Record that the owner begins to fetch the set of keys."""
        self._tried_at = now
        self._tries += 1
        self._is_wanted = False

    def on_keys(self, data: bytes, now: float) -> bool:
        """Replace the keys by those of the fetched document ``data``. Return whether they differ from the ones
        before. Raises ``ValueError``, and keeps the keys, if the data is no set of keys or has none for a configured
        algorithm."""
        keys = [key for one in _listed(data) if (key := self._usable(one)) is not None]
        if not keys:
            raise ValueError(f"no key of it is for {', '.join(self.rules.algorithms)}")
        changed = [key.as_dict() for key in keys] != [key.as_dict() for key in self._keys]
        self._keys, self._got_at, self._answered, self._has_failed = keys, now, self._tries, False
        return changed

    def on_failure(self, now: float) -> None:
        """Record that the owner could not fetch the set of keys, so that the next try is due soon. If the present
        keys are older than ``max_age_s``, drop them."""
        self._has_failed = True
        if now - self._got_at > self.rules.max_age_s:
            self._keys = []

    def _usable(self, one: object) -> Any:
        """Return the key that an item of a key set describes; None if it is malformed, too short, or not for a
        configured algorithm."""
        if not isinstance(one, dict) or one.get("use", "sig") != "sig":
            return None
        kind = one.get("kty")
        if kind not in [OIDC_ALGORITHMS[name] for name in self.rules.algorithms]:
            return None
        if kind == "RSA" and 6 * len(str(one.get("n"))) < LEAST_RSA_BITS:  # base64
            return None
        try:
            key = KINDS[kind].import_key({name: value for name, value in one.items() if name != "key_ops"})
        except Exception:  # whatever is wrong with it
            return None
        if kind == "RSA" and key.public_key.key_size < LEAST_RSA_BITS:
            return None
        return key

    # --- tokens ----------------------------------------------------------------------------------------------

    def recognize(self, text: str, wall_ms: int) -> ClientIdentity | TidelogError:
        """Verify a token, and return the identity of its client, or the error with which the client is refused:
        ``UNAUTHENTICATED``, or ``OFFLINE``, which clients retry, if the key that has signed the token may become
        known soon. ``wall_ms``: the wall clock in milliseconds."""
        if len(text) > MAX_TOKEN_BYTES:
            return refuse("UNAUTHENTICATED", f"the token is larger than {MAX_TOKEN_BYTES} bytes")
        try:
            token = jwt.decode(text, self._key_of, registry=self._registry)
            return self._client_of(token.claims, wall_ms)
        except _Refused as refused:
            answer: TidelogError = refused.args[0]
            return answer
        except BadSignatureError as error:
            if jws.extract_compact(text.encode(), registry=self._registry).headers().get("kid"):
                return refuse("UNAUTHENTICATED", f"the token is not taken here: {_words(error)}")
            return self._on_unknown(hashlib.sha256(text.encode()).hexdigest())  # a new key may have signed it
        except Exception as error:  # whatever a stranger sends, the library fails on it in many ways
            return refuse("UNAUTHENTICATED", f"the token is not taken here: {_words(error)}")

    def _key_of(self, token: Any) -> Any:
        """Return the key that a token names, or the only one that may have signed it if it names none. Raises
        ``_Refused`` if there is no such key or the token's header is not acceptable."""
        header = token.headers()
        kid, algorithm = header.get("kid", ""), header["alg"]
        if str(header.get("typ", "")).lower() not in TYPES:
            raise _refusal("its type is not that of an ID or access token")
        if not isinstance(kid, str) or len(kid) > MAX_KEY_ID_BYTES:
            raise _refusal("it names its key by something that is no id")
        suited = [
            key for key in self._keys if key.key_type == OIDC_ALGORITHMS[algorithm] and key.alg in (None, algorithm)
        ]
        found = [key for key in suited if key.kid == kid] if kid else suited
        if len(found) == 1:
            return found[0]
        if not found and any(key.kid == kid for key in self._keys):
            raise _refusal("its algorithm is not that of its key")
        if found:
            raise _refusal("it does not say which of the issuer's keys it is signed with")
        raise _Refused(self._on_unknown(kid))

    def _on_unknown(self, kid: str) -> TidelogError:
        """Return the refusal of a token whose key is not in the set: ``OFFLINE``, and the set becomes due, if it was
        not fetched since the key was first missed; ``UNAUTHENTICATED`` otherwise."""
        if not self._keys:
            self._is_wanted = True
            return refuse("OFFLINE", "the keys of the tokens' issuer cannot be had now", pause_ms=1000)
        if len(self._unknown) >= MAX_UNKNOWN and kid not in self._unknown:
            self._unknown.clear()
        if self._unknown.setdefault(kid, self._tries) < self._answered:
            return refuse("UNAUTHENTICATED", "the token is not taken here: its issuer has no such key")
        self._is_wanted = True
        return refuse("OFFLINE", "the token's key is not known yet: the issuer is being asked", pause_ms=1000)

    def _client_of(self, claims: dict[str, Any], wall_ms: int) -> ClientIdentity | TidelogError:
        """Return the client of a token whose signature is valid, or its refusal. Raises an exception of the library
        if the token has expired or is not for this gateway."""
        rules = self.rules
        jwt.JWTClaimsRegistry(
            wall_ms // 1000,
            rules.leeway_s,
            iss={"essential": True, "value": rules.issuer},
            aud={"essential": True, "values": list(rules.audiences)},
            exp={"essential": True},
        ).validate(claims)
        name = claims.get(rules.claim)
        if rules.claim == "email" and claims.get("email_verified") is not True:
            return refuse("UNAUTHENTICATED", "the token is not taken here: its issuer has not verified its email")
        principal = f"{rules.prefix}{name}"
        if not isinstance(name, str) or not PRINCIPAL.fullmatch(principal) or principal == ANONYMOUS:
            text = f"the token is not taken here: its {rules.claim} names no principal, which is {PRINCIPAL_IS}"
            return refuse("UNAUTHENTICATED", f"{text}; another claim may (oidc.principal_claim)")
        expires_s = math.floor(min(claims["exp"], LATEST_S)) + rules.leeway_s
        return ClientIdentity(principal, expires_ms=expires_s * 1000)


def _listed(data: bytes) -> list[object]:
    """Return the keys that a JWKS document lists, at most ``MAX_KEYS``. Raises ``ValueError`` if it is no such
    document."""
    try:
        found = json.loads(data)
    except RecursionError as error:
        raise ValueError("it is no set of keys") from error
    keys = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(keys, list):
        raise ValueError("it is no set of keys")
    return keys[:MAX_KEYS]


def _refusal(why: str) -> _Refused:
    return _Refused(refuse("UNAUTHENTICATED", f"the token is not taken here: {why}"))


def _words(error: Exception) -> str:
    """Return in words why a token is refused. The library's own text is not used, since it may repeat parts of the
    token."""
    match error:
        case ExpiredTokenError():
            return "it has expired"
        case ClaimError(claim=claim):
            return f"its {claim} is missing, or not what this gateway takes"
        case BadSignatureError():
            return "no key of its issuer has signed it"
        case UnsupportedAlgorithmError():
            return "its algorithm is not one of oidc.algorithms"
    return "it is malformed"
