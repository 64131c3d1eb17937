"""Access control (``tidelog.acl``): tokens, rules, quotas and the keys of producer tickets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.types import Acl, Quota
from tidelog.wire.messages.base import AdminRequest, Done, Message, SequencedRequest
from tidelog.wire.messages.metadata import TopicCreated


@dataclass(frozen=True, slots=True)
class PutToken(SequencedRequest):
    """Request of a client, passed on by its gateway to the active controller: create a bearer token, or replace one.
    The client has made the token itself; the message has only its SHA-256. The answer comes when the metadata has the
    token. The request is refused with ``INVALID_CONFIG`` for a malformed token, and with ``UNKNOWN_TOKEN`` if the
    token to replace does not exist."""

    OP: ClassVar[str] = "put_token"
    ANSWER: ClassVar[type[Message]] = Done
    token_id: str
    """Id of the token: 16 hexadecimal digits."""
    digest: str = field(repr=False)
    """SHA-256 of the token: 64 hexadecimal digits."""
    principal: str = ""
    """Principal that the token identifies. With ``replaces`` it is the principal of the replaced token."""
    lifetime_ms: int = -1
    """How long the token is valid, in milliseconds; -1: for ever."""
    replaces: str = ""
    """Id of another token that this one replaces; "": none."""
    grace_ms: int = 0
    """How long the replaced token stays valid, in milliseconds."""
    spared: tuple[str, ...] = field(default=(), kw_only=True)
    """Principals that the request must not affect; otherwise it is refused with ``FORBIDDEN``. The gateway sets it to
    the superusers, if the principal of the client is none."""


@dataclass(frozen=True, slots=True)
class RevokeTokens(SequencedRequest):
    """Request of a client, passed on by its gateway to the active controller: revoke one token, or all tokens of a
    principal. Gateways then close the connections that were opened with these tokens. The request is refused with
    ``UNKNOWN_TOKEN`` if there is no such token."""

    OP: ClassVar[str] = "revoke_tokens"
    ANSWER: ClassVar[type[Message]] = Done
    token_id: str = ""
    """Id of the token; "": revoke by ``principal``."""
    principal: str = ""
    """Principal whose tokens are all revoked; "": revoke by ``token_id``."""
    spared: tuple[str, ...] = field(default=(), kw_only=True)
    """As in ``PutToken``."""


@dataclass(frozen=True, slots=True)
class AlterAcls(SequencedRequest):
    """Request of a client, passed on by its gateway to the active controller: remove the rules ``remove``, then add
    the rules ``add``. Adding a rule that exists, or removing one that does not, is no error. Malformed rules are
    refused with ``INVALID_CONFIG``."""

    OP: ClassVar[str] = "alter_acls"
    ANSWER: ClassVar[type[Message]] = Done
    add: tuple[Acl, ...] = ()
    remove: tuple[Acl, ...] = ()
    drop_inherited: bool = field(default=False, kw_only=True)
    """Limit the operation ``security`` to principals that have it by a rule of their own. Since feature level 5."""


@dataclass(frozen=True, slots=True)
class AlterQuotas(SequencedRequest):
    """Request of a client, passed on by its gateway to the active controller: set the quotas of these principals. A
    quota whose values are all -1 removes every bound of its principal. Malformed quotas are refused with
    ``INVALID_CONFIG``."""

    OP: ClassVar[str] = "alter_quotas"
    ANSWER: ClassVar[type[Message]] = Done
    quotas: tuple[Quota, ...] = ()
    spared: tuple[str, ...] = field(default=(), kw_only=True)
    """As in ``PutToken``."""


@dataclass(frozen=True, slots=True)
class RotateTicketKeys(AdminRequest):
    """Request of a client, passed on by its gateway to the active controller: create a new key for the signatures of
    producer tickets (``tidelog.tickets``). Tickets that the previous key signed stay valid; those of older keys no
    longer are. Since feature level 4."""

    OP: ClassVar[str] = "rotate_ticket_keys"
    ANSWER: ClassVar[type[Message]] = Done


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """Part of ``AccessAnswer``: a bearer token of the cluster, with its principal and times, but nothing by which it
    could be used."""

    token_id: str
    principal: str
    created_ms: int = 0
    """Wall clock when the token was created, in milliseconds."""
    expires_ms: int = -1
    """Wall clock when the token expires, in milliseconds; -1: never."""


@dataclass(frozen=True, slots=True)
class AccessAnswer(Message):
    """Answer to ``DescribeAccess``, from a gateway: the tokens, rules and quotas of the cluster."""

    tokens: tuple[TokenInfo, ...] = ()
    acls: tuple[Acl, ...] = ()
    quotas: tuple[Quota, ...] = ()
    heirs: tuple[str, ...] = ()
    """Principals, as rules name them, whose right to administer the cluster includes ``security``."""
    authentication: bool = False
    """The gateway refuses clients that show neither a token nor a certificate. A gateway of an earlier release does
    not say, here and below."""
    authorization: bool = False
    """The gateway enforces the rules."""
    principal: str = ""
    """Principal of the client that asked, as rules name it."""
    superuser: bool = False
    """The gateway's configuration names this principal among its superusers: rules do not bind it."""


@dataclass(frozen=True, slots=True)
class DescribeAccess(Message):
    """Request of a client to its gateway: describe the tokens, rules and quotas of the cluster, as the gateway has
    them, and say which of them the gateway enforces."""

    OP: ClassVar[str] = "describe_access"
    ANSWER: ClassVar[type[Message]] = AccessAnswer


@dataclass(frozen=True, slots=True)
class PrepareAudit(SequencedRequest):
    """Request of a gateway to the active controller, before it writes its first audit event: create the topic
    ``__audit``. Does nothing if the topic exists; the answer has its id in any case."""

    OP: ClassVar[str] = "prepare_audit"
    ANSWER: ClassVar[type[Message]] = TopicCreated
