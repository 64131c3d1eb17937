"""Who a client is, and what it may do: tokens and rules of the metadata (``tidelog.acl``), applied.

A client is whoever its token says, be it one of the cluster or of an issuer outside (``oidc``); without a token, whom
its certificate names; without either ``anonymous``, where the gateway takes strangers. A token that is shown must be
good: nobody is let in as somebody else because a token has expired. A token that ends takes the clients with it that
came with it (``is_over``).

Decisions are remembered until the rules change: a produce asks for each of its parts.
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
from tidelog.printable import MAX_NAME_BYTES, fault_of_text
from tidelog.types import Access, Token
from tidelog.wire.messages import CommitOffsets, JoinGroup, Message, Metadata

from tidelog_gateway.rights.permissions import ALSO, BESIDES, BY_ID, resource_of

REMEMBERED = 100_000
"""Decisions kept at most."""


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """How strict a gateway is."""

    authentication: bool = False
    """Strangers are refused."""
    authorization: bool = False
    """Rules are heeded."""
    superusers: tuple[str, ...] = ()
    """Principals that may do everything."""


class Client(NamedTuple):
    """Who is at the other end of a link. ``digest`` is that of the cluster's own token that it came with; "": it came
    with none. ``expires_ms`` is when the token of an issuer expires that it came with; -1: it came with none."""

    principal: str
    token_id: str = ""
    digest: str = ""
    expires_ms: int = -1


class Outside(Protocol):
    """Judges tokens that are not the cluster's own."""

    def recognize(self, token: str, wall_ms: int) -> Client | TidelogError: ...


class Authorizer:
    """``access`` is what the metadata says; set it with ``update``."""

    def __init__(self, settings: GuardSettings, outside: Outside | None = None) -> None:
        self.settings = settings
        self._outside = outside
        self.access = Access()
        self._heirs: tuple[str, ...] = ()
        self._tokens: dict[str, Token] = {}
        self._decided: dict[tuple[str, str, str], bool] = {}

    def update(self, access: Access, level: int = NEWEST) -> None:
        """The metadata says something else now. ``level``: the cluster's feature level."""
        self.access = access
        self._heirs = heirs_at(access, level)
        self._tokens = {token.token_id: token for token in access.tokens}
        self._decided.clear()

    # --- who -------------------------------------------------------------------------------------------------

    def recognize(self, token: str, identities: Iterable[NodeIdentity] | None, wall_ms: int) -> Client | TidelogError:
        """Who shows this token ("": none), and a certificate that names these. Or ``UNAUTHENTICATED``."""
        if token:
            return self._by_token(token, wall_ms)
        for identity in identities or ():
            if identity.role == CLIENT and not fault_of_text(identity.node, "name", MAX_NAME_BYTES):
                return Client(identity.node)
        if self.settings.authentication:
            text = "this gateway takes no strangers: connect with a token, or with a client certificate"
            return refuse("UNAUTHENTICATED", text)
        return Client(ANONYMOUS)

    def _by_token(self, text: str, wall_ms: int) -> Client | TidelogError:
        if self._outside is not None and text.count(".") == 2:  # those of the cluster have no dot
            return self._outside.recognize(text, wall_ms)
        known, digest = self._tokens.get(id_of(text)), digest_of(text)
        if known is None or not hmac.compare_digest(known.digest, digest):
            return refuse("UNAUTHENTICATED", "the token is not known here: it was revoked, or is of another cluster")
        if known.is_expired(wall_ms):
            return refuse("UNAUTHENTICATED", f"token {known.token_id} of {known.principal} has expired")
        return Client(known.principal, known.token_id, digest)

    def is_over(self, client: Client, wall_ms: int) -> bool:
        """The token that it came with is good no more."""
        if not client.token_id:
            return 0 <= client.expires_ms <= wall_ms
        token = self._tokens.get(client.token_id)
        return token is None or token.digest != client.digest or token.is_expired(wall_ms)

    def expiry_ms(self, client: Client) -> int:
        """When its token expires (wall clock); -1: never."""
        known = self._tokens.get(client.token_id)
        return client.expires_ms if known is None else known.expires_ms

    def next_expiry_ms(self, clients: Iterable[Client]) -> int | None:
        """When the first of their tokens expires (wall clock)."""
        return min((end for end in map(self.expiry_ms, clients) if end >= 0), default=None)

    # --- what ------------------------------------------------------------------------------------------------

    def may(self, principal: str, operation: str, resource: str) -> bool:
        """Whether the principal may do that."""
        if not self.settings.authorization or principal in self.settings.superusers:
            return True
        key = (principal, operation, resource)
        known = self._decided.get(key)
        if known is None:
            if len(self._decided) >= REMEMBERED:
                self._decided.clear()
            known = self._decided[key] = decide(self.access.acls, principal, operation, resource, self._heirs)
        return known

    def spared(self, principal: str) -> tuple[str, ...]:
        """Principals whose tokens and quotas are not for this one to change: the superusers, where it is none."""
        if not self.settings.authorization or principal in self.settings.superusers:
            return ()
        return self.settings.superusers

    def judge(self, principal: str, message: Message) -> TidelogError | None:
        """Why a request that names no topic by id is refused."""
        if isinstance(message, Metadata):
            return None
        need = resource_of(message, message.OP)
        if need is not None and not self.may(principal, *need):
            also = ALSO.get(message.OP)
            if also is None or not self.may(principal, also, CLUSTER):
                return forbidden(principal, *need)
        if isinstance(message, CommitOffsets):
            return self.judge_app(principal, message.transaction)
        if isinstance(message, JoinGroup):
            return self._judge_topics(principal, BESIDES[JoinGroup.OP], message.topics)
        return None

    def _judge_topics(self, principal: str, operation: str, names: Iterable[str]) -> TidelogError | None:
        """Why a request that names these topics by name is refused."""
        resources = (f"topic:{name}" for name in names)
        denied = next((resource for resource in resources if not self.may(principal, operation, resource)), None)
        return None if denied is None else forbidden(principal, operation, denied)

    def judge_topic(
        self, principal: str, op: str, topic_id: str, partition: int, name: str | None
    ) -> TidelogError | None:
        """Why a request for a topic that it names by id is refused. ``name``: the topic's; None: there is none."""
        operation = BY_ID.get(op) or BESIDES[op]
        if name is not None and self.may(principal, operation, f"topic:{name}"):
            return None
        if name is None or not self.may(principal, "describe", f"topic:{name}"):
            return refuse("UNKNOWN_TOPIC", f"no partition {topic_id}/{partition}")
        return forbidden(principal, operation, f"topic:{name}")

    def judge_app(self, principal: str, app: str) -> TidelogError | None:
        """Why a batch, or a group's positions, of a transaction of ``app`` are refused; "": they are of none."""
        if not app or self.may(principal, "transact", f"app:{app}"):
            return None
        return forbidden(principal, "transact", f"app:{app}")


def heirs_at(access: Access, level: int) -> tuple[str, ...]:
    """Whose right to administer the cluster includes ``security``: below the feature level everybody's."""
    return access.heirs if level >= SECURITY else heirs_of(access.acls)


def forbidden(principal: str, operation: str, resource: str) -> TidelogError:
    """The refusal that says what is missing."""
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
