"""Authenticates clients and authorizes their requests, by the tokens and rules of the metadata (``tidelog.acl``).

The principal of a client is that of its token, which the cluster or an outside issuer (``oidc``) has made. Without a
token it is the name in the client's certificate, and without either ``anonymous``, if the gateway does not require
authentication. A token that is shown must be valid: a client with an expired token is refused and does not become
another principal. When a token ends, its clients are disconnected (``is_invalid``).

Decisions are cached until the rules change, since a produce needs one for each of its parts.
"""

from __future__ import annotations

import hmac
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tidelog.acl import ANONYMOUS, CLUSTER, decide, digest_of, heirs_of, id_of
from tidelog.errors import TidelogError, refuse
from tidelog.feature_levels import NEWEST, SECURITY
from tidelog.net.tls import CLIENT, NodeIdentity
from tidelog.printable import MAX_NAME_BYTES, refuse_text
from tidelog.types import Access, Token
from tidelog.wire.messages import CommitOffsets, JoinGroup, Message, Metadata

from tidelog_gateway.rights.permissions import ALSO, BESIDES, BY_ID, resource_of

MAX_DECISIONS = 100_000
"""Most decisions in the cache."""
MAX_REVOKED = 1000
"""Most revoked tokens that are remembered, so that a client that still shows one can be named."""


@dataclass(frozen=True, slots=True)
class AuthorizerSettings:
    """The settings of a gateway's authorizer: what clients must show, whether rules are enforced, and for whom they
    are not."""

    authentication: bool = False
    """Clients with neither token nor certificate are refused."""
    authorization: bool = False
    """Rules are enforced."""
    superusers: tuple[str, ...] = ()
    """Principals that may do everything."""


class ClientIdentity(NamedTuple):
    """The identity of a connected client: its principal, and what its validity depends on. ``token_id`` and
    ``digest`` are those of the cluster's own token with which it connected; "" without one. ``expires_ms`` (wall
    clock) is when its token of an outside issuer expires; -1 without one."""

    principal: str
    token_id: str = ""
    digest: str = ""
    expires_ms: int = -1


class TokenIssuer(Protocol):
    """The part of an outside issuer that the authorizer needs: it verifies tokens."""

    def recognize(self, token: str, wall_ms: int) -> ClientIdentity | TidelogError: ...


class Authorizer:
    """The tokens and rules of the metadata, and the decisions that follow from them: who a client is, and what a
    principal may do. ``update`` replaces tokens and rules."""

    def __init__(self, settings: AuthorizerSettings, issuer: TokenIssuer | None = None) -> None:
        self.settings = settings
        self._issuer = issuer
        self.access = Access()
        self._heirs: tuple[str, ...] = ()
        self._tokens: dict[str, Token] = {}
        self._revoked: dict[str, Token] = {}
        """The last ``MAX_REVOKED`` tokens that were revoked since this gateway started, by id."""
        self._decided: dict[tuple[str, str, str], bool] = {}

    def update(self, access: Access, level: int = NEWEST) -> None:
        """Replace the tokens and rules, and forget all cached decisions. ``level``: the cluster's feature level. The
        caller checks the connected clients afterwards."""
        self.access = access
        self._heirs = heirs_at(access, level)
        before, self._tokens = self._tokens, {token.token_id: token for token in access.tokens}
        for token_id in before.keys() - self._tokens.keys():
            self._revoked[token_id] = before[token_id]
            if len(self._revoked) > MAX_REVOKED:
                del self._revoked[next(iter(self._revoked))]
        self._decided.clear()

    # --- who -------------------------------------------------------------------------------------------------

    def recognize(
        self, token: str, identities: Iterable[NodeIdentity] | None, wall_ms: int
    ) -> ClientIdentity | TidelogError:
        """Return the identity of a client that shows this token ("": none) and these names in its certificate: by the
        token, else by the certificate, else ``anonymous``. Returns ``UNAUTHENTICATED`` as a value if the token is not
        valid, even with a certificate, or if authentication is required and the client shows neither; ``OFFLINE`` if
        an issuer's key is not known yet."""
        if token:
            return self._by_token(token, wall_ms)
        for identity in identities or ():
            if identity.role == CLIENT and not refuse_text(identity.node, "name", MAX_NAME_BYTES):
                return ClientIdentity(identity.node)
        if self.settings.authentication:
            text = "this gateway takes no strangers: connect with a token, or with a client certificate"
            return refuse("UNAUTHENTICATED", text)
        return ClientIdentity(ANONYMOUS)

    def _by_token(self, text: str, wall_ms: int) -> ClientIdentity | TidelogError:
        """Return the identity of the client that shows a token of the cluster or of an outside issuer, or the
        refusal."""
        if self._issuer is not None and text.count(".") == 2:  # those of the cluster have no dot
            return self._issuer.recognize(text, wall_ms)
        known, digest = self._tokens.get(id_of(text)), digest_of(text)
        if known is None or not hmac.compare_digest(known.digest, digest):
            return self._refuse_unknown(id_of(text), digest)
        if known.is_expired(wall_ms):
            text = f"token {known.token_id} of {known.principal} has expired"
            return refuse(
                "UNAUTHENTICATED", text, cause="token_expired", token=known.token_id, principal=known.principal
            )
        return ClientIdentity(known.principal, known.token_id, digest)

    def _refuse_unknown(self, token_id: str, digest: str) -> TidelogError:
        """Return the refusal of a token that the metadata do not have. A client that shows a token which was revoked
        is told so; who has only its id learns nothing."""
        revoked = self._revoked.get(token_id)
        if revoked is None or not hmac.compare_digest(revoked.digest, digest):
            text = "the token is not known here: it was revoked, or is of another cluster"
            return refuse("UNAUTHENTICATED", text, cause="token_unknown")
        text = f"token {token_id} of {revoked.principal} was revoked"
        return refuse("UNAUTHENTICATED", text, cause="token_revoked", token=token_id, principal=revoked.principal)

    def is_invalid(self, client: ClientIdentity, wall_ms: int) -> bool:
        """Return whether the token with which a client connected is no longer valid at ``wall_ms``: it was revoked or
        replaced, or has expired. False for a client that connected without a token."""
        if not client.token_id:
            return 0 <= client.expires_ms <= wall_ms
        token = self._tokens.get(client.token_id)
        return token is None or token.digest != client.digest or token.is_expired(wall_ms)

    def expiry_ms(self, client: ClientIdentity) -> int:
        """Return when the client's token expires, in milliseconds of the wall clock; -1 if it never does or the
        client has none."""
        known = self._tokens.get(client.token_id)
        return client.expires_ms if known is None else known.expires_ms

    def next_expiry_ms(self, clients: Iterable[ClientIdentity]) -> int | None:
        """Return the earliest time at which a token of these clients expires, in milliseconds of the wall clock; None
        if none expires."""
        return min((end for end in map(self.expiry_ms, clients) if end >= 0), default=None)

    # --- what ------------------------------------------------------------------------------------------------

    def may(self, principal: str, operation: str, resource: str) -> bool:
        """Return whether the rules allow the principal the operation on the resource (``topic:orders``). Always true
        for superusers, and if rules are not enforced. Decisions are cached."""
        if not self.settings.authorization or principal in self.settings.superusers:
            return True
        key = (principal, operation, resource)
        known = self._decided.get(key)
        if known is None:
            if len(self._decided) >= MAX_DECISIONS:
                self._decided.clear()
            known = self._decided[key] = decide(self.access.acls, principal, operation, resource, self._heirs)
        return known

    def is_operator(self, principal: str) -> bool:
        """Return whether the principal may use connections that are reserved for operators: superusers may. Where
        clients need not say who they are, or nobody is a superuser and rules are not enforced, everybody may."""
        settings = self.settings
        if settings.authorization or (settings.authentication and settings.superusers):
            return principal in settings.superusers
        return True

    def spared(self, principal: str) -> tuple[str, ...]:
        """Return the principals whose tokens and quotas this principal may not change: the superusers, unless it is
        one itself. Empty if rules are not enforced."""
        if not self.settings.authorization or principal in self.settings.superusers:
            return ()
        return self.settings.superusers

    def refuse_request(self, principal: str, message: Message) -> TidelogError | None:
        """Return ``FORBIDDEN``, naming the missing right, for a request that the principal may not make; None if it
        may. This covers the op's own resource and topics named by name; ``refuse_topic`` covers topics named by id.
        ``metadata`` is always allowed."""
        if isinstance(message, Metadata):
            return None
        need = resource_of(message, message.OP)
        if need is not None and not self.may(principal, *need):
            also = ALSO.get(message.OP)
            if also is None or not self.may(principal, also, CLUSTER):
                return forbidden(principal, *need)
        if isinstance(message, CommitOffsets):
            return self.refuse_application(principal, message.transaction)
        if isinstance(message, JoinGroup):
            return self._refuse_topics(principal, BESIDES[JoinGroup.OP], message.topics)
        return None

    def _refuse_topics(self, principal: str, operation: str, names: Iterable[str]) -> TidelogError | None:
        """Return ``FORBIDDEN`` if the principal lacks the right to one of the topics that a request names by name;
        None if it has all of them."""
        resources = (f"topic:{name}" for name in names)
        denied = next((resource for resource in resources if not self.may(principal, operation, resource)), None)
        return None if denied is None else forbidden(principal, operation, denied)

    def refuse_topic(
        self, principal: str, op: str, topic_id: str, partition: int, name: str | None
    ) -> TidelogError | None:
        """Return the refusal of a request for a topic that it names by id, if the principal lacks the right that
        ``op`` needs; None if it has it. ``name``: the topic's name; None: there is no such topic. The refusal is
        ``UNKNOWN_TOPIC`` if there is none or the principal may not even describe it, otherwise ``FORBIDDEN``."""
        operation = BY_ID.get(op) or BESIDES[op]
        if name is not None and self.may(principal, operation, f"topic:{name}"):
            return None
        if name is None or not self.may(principal, "describe", f"topic:{name}"):
            return refuse("UNKNOWN_TOPIC", f"no partition {topic_id}/{partition}")
        return forbidden(principal, operation, f"topic:{name}")

    def refuse_application(self, principal: str, app: str) -> TidelogError | None:
        """Return ``FORBIDDEN`` if the principal lacks the right to write or commit positions in transactions of the
        application ``app``; None if it has it, or if ``app`` is "" (no transaction)."""
        if not app or self.may(principal, "transact", f"app:{app}"):
            return None
        return forbidden(principal, "transact", f"app:{app}")


def heirs_at(access: Access, level: int) -> tuple[str, ...]:
    """Return the principals for whom a rule that allows to administer the cluster also allows ``security``, as such
    rules did before that right existed: those recorded in the metadata, or below feature level ``SECURITY`` all with
    such a rule. Rules for ``security`` itself, and rules that deny, are not considered."""
    return access.heirs if level >= SECURITY else heirs_of(access.acls)


def forbidden(principal: str, operation: str, resource: str) -> TidelogError:
    """Return a ``FORBIDDEN`` error that says which right the principal lacks, and which command would grant it."""
    rule = shlex.join((principal, operation, resource))  # a shell must not take a name for a command
    words = {
        "cluster": "administer",
        "security": "decide who may do what on",
        "group": "take part in",
        "transact": "begin transactions as",
    }
    word = words.get(operation, operation)
    return refuse(
        "FORBIDDEN",
        f"{principal} may not {word} {resource}; 'tidelog acls add {rule}' would allow it, if nothing denies it",
        principal=principal,
        operation=operation,
        resource=resource,
    )
