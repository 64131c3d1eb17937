"""Who may do what (``tidelog.acl``): tokens, rules, quotas and keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.types import Acl, Quota
from tidelog.wire.messages.base import AdminRequest, Done, Message, SequencedRequest
from tidelog.wire.messages.metadata import TopicCreated


@dataclass(frozen=True, slots=True)
class PutToken(SequencedRequest):
    """There is a bearer token with this SHA-256 (hexadecimal) now; its owner has made it. ``lifetime_ms`` -1: it
    never expires. With ``replaces`` another token ends, in ``grace_ms``, and this one has the same principal."""

    OP: ClassVar[str] = "put_token"
    ANSWER: ClassVar[type[Message]] = Done
    token_id: str
    digest: str = field(repr=False)
    principal: str = ""
    lifetime_ms: int = -1
    replaces: str = ""
    grace_ms: int = 0
    spared: tuple[str, ...] = field(default=(), kw_only=True)
    """Principals that the request must not be about: the superusers, where who asks is none. For gateways to say."""


@dataclass(frozen=True, slots=True)
class RevokeTokens(SequencedRequest):
    """A token ends now, and with it the connections that were opened with it; or all of a principal."""

    OP: ClassVar[str] = "revoke_tokens"
    ANSWER: ClassVar[type[Message]] = Done
    token_id: str = ""
    principal: str = ""
    spared: tuple[str, ...] = field(default=(), kw_only=True)
    """As in ``PutToken``."""


@dataclass(frozen=True, slots=True)
class AlterAcls(SequencedRequest):
    """These rules are gone, then those are there. A rule that is there or gone already is no fault. With
    ``drop_inherited`` nobody has ``security`` any more but by a rule that says so; since feature level 5."""

    OP: ClassVar[str] = "alter_acls"
    ANSWER: ClassVar[type[Message]] = Done
    add: tuple[Acl, ...] = ()
    remove: tuple[Acl, ...] = ()
    drop_inherited: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class AlterQuotas(SequencedRequest):
    """What these principals may have from now on; all -1: whatever it likes."""

    OP: ClassVar[str] = "alter_quotas"
    ANSWER: ClassVar[type[Message]] = Done
    quotas: tuple[Quota, ...] = ()
    spared: tuple[str, ...] = field(default=(), kw_only=True)
    """As in ``PutToken``."""


@dataclass(frozen=True, slots=True)
class RotateTicketKeys(AdminRequest):
    """The cluster is to sign producer tickets with a new key (``tidelog.tickets``). Tickets of the key before stay
    valid, those of older keys do not. Since feature level 4."""

    OP: ClassVar[str] = "rotate_ticket_keys"
    ANSWER: ClassVar[type[Message]] = Done


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """Part: a token, without anything that would help to use it. ``expires_ms`` -1: never."""

    token_id: str
    principal: str
    created_ms: int = 0
    expires_ms: int = -1


@dataclass(frozen=True, slots=True)
class AccessAnswer(Message):
    """Answer: who may do what."""

    tokens: tuple[TokenInfo, ...] = ()
    acls: tuple[Acl, ...] = ()
    quotas: tuple[Quota, ...] = ()
    heirs: tuple[str, ...] = ()
    """Principals, as rules name them, whose right to administer the cluster includes ``security``."""


@dataclass(frozen=True, slots=True)
class DescribeAccess(Message):
    """Who may do what, as the gateway knows it? ``authorization`` of the gateway decides whether it is heeded."""

    OP: ClassVar[str] = "describe_access"
    ANSWER: ClassVar[type[Message]] = AccessAnswer


@dataclass(frozen=True, slots=True)
class PrepareAudit(SequencedRequest):
    """A gateway wants the topic ``__audit``; it is created where there is none yet."""

    OP: ClassVar[str] = "prepare_audit"
    ANSWER: ClassVar[type[Message]] = TopicCreated
