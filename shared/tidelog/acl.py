"""Tokens, rules and quotas, as the controllers store them and the gateways apply them. Pure.

A *principal* is a name: the one in the token of a client's hello, otherwise in its certificate
(``tidelog:client/NAME``), otherwise ``anonymous``. A *rule* allows a principal (``*``: every principal) an operation
(``*``: every operation) on a resource, or denies it. Resources are ``topic:NAME``, ``group:NAME``, ``app:NAME`` and
``stream:PATH``, with a ``*`` at the end for every name with that prefix, and ``cluster``. Operations without a rule
are forbidden, and a rule that denies overrides all that allow. A principal that may do anything with a topic, group
or application may describe it. ``topic:*`` does not cover the cluster's own topics, whose names begin with ``__``: a
rule has to name them, ``topic:__audit`` or ``topic:__*``.

To administer the cluster (``cluster``) and to change permissions (``security``: tokens, rules, keys of tickets) are
two operations. In earlier releases the first included the second. A principal that had it then is an *heir*: it has
the second as long as it has the first, until that is ended.

A *token* is 256 random bits that only its owner has; the controllers and gateways know its SHA-256. A slow hash or a
salt would protect secrets that people choose and that can be guessed. Nobody can guess 256 random bits, and a fast
hash keeps connecting cheap.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import NamedTuple

from tidelog.types import INTERNAL_PREFIX, SHARES, Acl

ANYBODY = "*"
ANONYMOUS = "anonymous"
PRINCIPAL = re.compile(r"[A-Za-z0-9._@|-]{1,249}", re.ASCII)
PRINCIPAL_IS = "1 to 249 of A-Z a-z 0-9 . _ @ | -"
TOKEN_ID = re.compile(r"[0-9a-f]{16}", re.ASCII)
DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
OPERATIONS = {
    "topic": ("read", "write", "create", "alter", "delete", "describe"),
    "group": ("group", "describe"),
    "app": ("transact", "describe"),
    "stream": ("read", "write", "create", "delete", "describe"),
    "cluster": ("cluster", "security", "describe"),
}
"""Operations on each kind of resource. ``cluster``: administer the cluster; ``security``: change permissions;
``group``: be a member of a group; ``transact``: have transactions under the name of an application."""
IMPLY_DESCRIBE = ("read", "write", "create", "alter", "delete", "group", "transact", "cluster", "security")
CLUSTER, SECURITY = "cluster", "security"
_NAME = re.compile(r"[A-Za-z0-9._-]{0,249}\*?", re.ASCII)
_STREAM = re.compile(r"[A-Za-z0-9._~:@=+/-]{0,1024}\*?", re.ASCII)


class NewToken(NamedTuple):
    """A bearer token that was just made: ``text`` is for its owner, id and digest are for the cluster."""

    token_id: str
    text: str
    digest: str


def new_token() -> NewToken:
    """Return a new random bearer token: its text, its id, and its digest. Stores nothing."""
    token_id = secrets.token_hex(8)
    text = f"tide_{token_id}_{secrets.token_urlsafe(32)}"
    return NewToken(token_id, text, digest_of(text))


def share_of_principal(principal: str) -> int:
    """Return the share of producer ids (``tidelog.types.share_of``) from which this principal gets its ids."""
    return hashlib.sha256(principal.encode()).digest()[0] % SHARES


def digest_of(text: str) -> str:
    """Return the SHA-256 of a token's text in hexadecimal digits, which the cluster stores in place of the token."""
    return hashlib.sha256(text.encode()).hexdigest()


def id_of(text: str) -> str:
    """Return the token id that a token's text contains; "" if the text does not have the form of a token."""
    parts = text.split("_", 2)
    return parts[1] if len(parts) == 3 and parts[0] == "tide" and TOKEN_ID.fullmatch(parts[1]) else ""


def refuse_rule(acl: Acl) -> str:
    """Return a sentence that says what is wrong with the principal, resource or operation of an access rule; "" if
    the rule is valid."""
    kind, colon, name = acl.resource.partition(":")
    if acl.principal != ANYBODY and not PRINCIPAL.fullmatch(acl.principal):
        return f"{acl.principal!r} is no principal: use {PRINCIPAL_IS}, or * for everybody"
    named = bool(name) and (_STREAM if kind == "stream" else _NAME).fullmatch(name) is not None
    if kind not in OPERATIONS or (named if kind == CLUSTER else not named) or (kind == CLUSTER and colon):
        kinds = "topic:NAME, topic:BEGINNING*, the same with group:, app: or stream:, or cluster"
        return f"{acl.resource!r} is no resource: it is {kinds}"
    if acl.operation not in (*OPERATIONS[kind], ANYBODY):
        return (
            f"{acl.operation!r} is nothing that is done to a {kind}: there are {', '.join(OPERATIONS[kind])}, and *"
        )
    return ""


def heirs_of(acls: Iterable[Acl]) -> tuple[str, ...]:
    """Return the principals, as rules name them, that a rule allows to administer the cluster, without repetition."""
    return tuple(dict.fromkeys(a.principal for a in acls if not a.deny and a.operation == a.resource == CLUSTER))


def decide(acls: Iterable[Acl], principal: str, operation: str, resource: str, heirs: Collection[str] = ()) -> bool:
    """Return whether the rules allow the principal the operation on the resource: some rule allows it and none denies
    it. ``resource`` is one resource, without a pattern. ``heirs``: principals to whom a rule that allows them to
    administer the cluster also gives ``security``, unless another rule denies them to administer it."""
    acls = tuple(acls)
    if operation == SECURITY and heirs and _decide(acls, principal, CLUSTER, resource):
        inherited = tuple(replace(a, operation=SECURITY) for a in acls if _is_inherited(a, heirs))
        return _decide(acls + inherited, principal, SECURITY, resource)
    return _decide(acls, principal, operation, resource)


def _is_inherited(acl: Acl, heirs: Collection[str]) -> bool:
    return not acl.deny and acl.operation == acl.resource == CLUSTER and acl.principal in heirs


def _decide(acls: tuple[Acl, ...], principal: str, operation: str, resource: str) -> bool:
    """Return whether some rule allows the principal the operation on the resource and none denies it. A rule that
    allows another operation on the resource also allows ``describe``."""
    allowed = False
    for acl in acls:
        if acl.principal not in (ANYBODY, principal) or not _covers(acl.resource, resource):
            continue
        if acl.operation in (ANYBODY, operation):
            if acl.deny:
                return False
            allowed = True
        elif operation == "describe" and not acl.deny and acl.operation in IMPLY_DESCRIBE:
            allowed = True
    return allowed


def _covers(pattern: str, resource: str) -> bool:
    """Return whether the resource of a rule, which may end with ``*``, matches a resource. A pattern matches one of
    the cluster's own topics only if it begins with their prefix."""
    if not pattern.endswith("*"):
        return pattern == resource
    start = pattern[:-1]
    internal = f"topic:{INTERNAL_PREFIX}"
    return resource.startswith(start) and (start.startswith(internal) or not resource.startswith(internal))
