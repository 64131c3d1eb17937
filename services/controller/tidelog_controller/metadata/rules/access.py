"""Tokens, rules and quotas (``tidelog.acl``): how a command is planned from a request, and what it changes.

The controllers only keep tokens, rules and quotas; gateways apply them. A request is checked when it is planned. Its
command may be applied after another one and is carried out all the same: the given tokens, rules and quotas take the
place of those with the same name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tidelog.acl import ANONYMOUS, DIGEST, PRINCIPAL, PRINCIPAL_IS, TOKEN_ID, heirs_of, refuse_rule
from tidelog.errors import TidelogError, refuse
from tidelog.feature_levels import SECURITY
from tidelog.types import AUDIT, Access, Quota, Token
from tidelog.wire.messages import (
    AlterAcls,
    AlterQuotas,
    CreateTopic,
    Done,
    PrepareAudit,
    PutToken,
    RevokeTokens,
    TopicCreated,
)

from tidelog_controller.metadata.changeset import ChangeSet
from tidelog_controller.metadata.commands import AddTopic, ChangeAccess
from tidelog_controller.metadata.registry import applies
from tidelog_controller.metadata.rules.placement import Random, candidates
from tidelog_controller.metadata.rules.topics import plan_topic
from tidelog_controller.metadata.state import MetadataState

AccessRequest = PutToken | RevokeTokens | AlterAcls | AlterQuotas | PrepareAudit
MOST = 10_000
"""Number of tokens, of rules and of quotas, at most. Every gateway has all of them in memory."""
AUDIT_REPLICAS = 3
"""Replicas of ``__audit``, as far as there are servers when it is created."""
AUDIT_RETENTION_MS = 365 * 86_400_000
"""``retention_ms`` of ``__audit`` when it is created: a year. It can be altered."""
YEARS_MS = 100 * 365 * 86_400_000


def plan_access(
    state: MetadataState, request: AccessRequest, rng: Random, wall_ms: int
) -> ChangeAccess | AddTopic | TopicCreated | TidelogError:
    """Return the command that changes tokens, rules or quotas, or that creates the topic ``__audit``; if that topic
    exists, return the answer with its id. Return an error instead: ``INVALID_CONFIG``, ``UNKNOWN_TOKEN``,
    ``FORBIDDEN``, ``UNSUPPORTED_LEVEL`` or ``NOT_ENOUGH_REPLICAS``."""
    match request:
        case PrepareAudit():
            return _plan_audit(state, rng, wall_ms)
        case PutToken():
            return _plan_token(state, request, wall_ms)
        case RevokeTokens(token_id, principal):
            known = [t for t in state.access.tokens if t.token_id == token_id or t.principal == principal]
            if not known:
                what = f"with the id {token_id!r}" if token_id else f"of {principal!r}"
                return refuse("UNKNOWN_TOKEN", f"there is no token {what}")
            refusal = _refuse_spared(request.spared, [token.principal for token in known])
            return refusal or ChangeAccess(wall_ms, drop_tokens=tuple(token.token_id for token in known))
        case AlterAcls(add, remove):
            if request.drop_inherited and state.level < SECURITY:
                text = f"'security' is an operation of its own from feature level {SECURITY} on"
                step = "raise it ('tidelog features raise')"
                return refuse("UNSUPPORTED_LEVEL", f"{text}; the cluster is at {state.level}: {step}")
            faults = [fault for fault in map(refuse_rule, add) if fault]
            if faults:
                return refuse("INVALID_CONFIG", "; ".join(faults))
            new = tuple(acl for acl in dict.fromkeys(add) if acl not in state.access.acls)
            return _full(len(state.access.acls) + len(new), "rules") or ChangeAccess(
                wall_ms, drop_acls=remove, acls=new, drop_heirs=request.drop_inherited
            )
        case AlterQuotas(quotas):
            refusal = _refuse_spared(request.spared, [quota.principal for quota in quotas])
            return refusal or _plan_quotas(state, quotas, wall_ms)


def _refuse_spared(spared: Sequence[str], principals: Iterable[str]) -> TidelogError | None:
    """Return the error ``FORBIDDEN`` if one of ``principals`` is in ``spared``, the superusers: only superusers
    change their tokens and quotas. Otherwise return None."""
    found = next((principal for principal in principals if principal in spared), None)
    if found is None:
        return None
    return refuse("FORBIDDEN", f"{found} is a superuser: only superusers change its tokens and quotas")


def _plan_token(state: MetadataState, request: PutToken, wall_ms: int) -> ChangeAccess | TidelogError:
    """Return the command that adds a token, or replaces one. A replaced token is valid for its grace time still.
    Return an error instead: ``UNKNOWN_TOKEN``, ``FORBIDDEN``, or ``INVALID_CONFIG`` with all faults in one."""
    known = {token.token_id: token for token in state.access.tokens}
    former = known.get(request.replaces)
    if request.replaces and former is None:
        return refuse("UNKNOWN_TOKEN", f"there is no token with the id {request.replaces!r}")
    principal = former.principal if former is not None else request.principal
    if refusal := _refuse_spared(request.spared, [principal]):
        return refusal
    faults = []
    if not PRINCIPAL.fullmatch(principal) or principal == ANONYMOUS:
        faults.append(f"{principal!r} cannot have a token: a principal is {PRINCIPAL_IS}")
    if not TOKEN_ID.fullmatch(request.token_id) or not DIGEST.fullmatch(request.digest):
        faults.append("a token is known by an id of 16 and a SHA-256 of 64 hexadecimal digits")
    if request.token_id in known:
        faults.append("there is a token with this id already")
    if request.lifetime_ms != -1 and not 1 <= request.lifetime_ms <= YEARS_MS:
        faults.append("a token lives for a millisecond at least and a hundred years at most, or never ends")
    if faults:
        return refuse("INVALID_CONFIG", "; ".join(faults))
    expires_ms = -1 if request.lifetime_ms == -1 else wall_ms + request.lifetime_ms
    token = Token(request.token_id, principal, request.digest, wall_ms, expires_ms)
    if former is None:
        return _full(len(known) + 1, "tokens") or ChangeAccess(wall_ms, tokens=(token,))
    if request.grace_ms == 0:
        return ChangeAccess(wall_ms, drop_tokens=(former.token_id,), tokens=(token,))
    end_ms = wall_ms + request.grace_ms
    ending = replace(former, expires_ms=end_ms if former.expires_ms == -1 else min(end_ms, former.expires_ms))
    return _full(len(known) + 1, "tokens") or ChangeAccess(wall_ms, tokens=(ending, token))


def _plan_quotas(state: MetadataState, quotas: tuple[Quota, ...], wall_ms: int) -> ChangeAccess | TidelogError:
    """Return the command that sets quotas, and removes those that limit nothing; the error ``INVALID_CONFIG`` for a
    wrong principal or rate."""
    faults = [f"{quota.principal!r} is no principal" for quota in quotas if not PRINCIPAL.fullmatch(quota.principal)]
    for quota in quotas:
        for name in ("bytes_in_s", "bytes_out_s", "requests_s"):
            if getattr(quota, name) == 0:
                faults.append(f"{name} of {quota.principal} is 0: a rate is 1 at least, or -1 for none")
    if faults:
        return refuse("INVALID_CONFIG", "; ".join(faults))
    gone = tuple(quota.principal for quota in quotas if quota.is_none)
    put = tuple(quota for quota in quotas if not quota.is_none)
    return _full(len(state.access.quotas) + len(put), "quotas") or ChangeAccess(wall_ms, drop_quotas=gone, quotas=put)


def _full(count: int, what: str) -> TidelogError | None:
    """Return the error ``INVALID_CONFIG`` if ``count`` is more than the ``MOST`` that may be kept; otherwise None."""
    if count <= MOST:
        return None
    return refuse("INVALID_CONFIG", f"there would be more than {MOST} {what}: remove some first")


def _plan_audit(state: MetadataState, rng: Random, wall_ms: int) -> AddTopic | TopicCreated | TidelogError:
    """Return the command that creates ``__audit``, on up to ``AUDIT_REPLICAS`` servers; its id if it exists; or the
    error ``NOT_ENOUGH_REPLICAS`` if no server is live."""
    if AUDIT in state.names:
        return TopicCreated(state.names[AUDIT])
    live = len(candidates(state, AUDIT_REPLICAS))
    config = {"retention_ms": str(AUDIT_RETENTION_MS), "segment_max_bytes": str(16 << 20)}
    if not live:
        return refuse("NOT_ENOUGH_REPLICAS", f"no replica server is live that could hold {AUDIT}")
    return plan_topic(state, CreateTopic(AUDIT, 1, min(live, AUDIT_REPLICAS), config), rng, wall_ms)


@applies(ChangeAccess)
def change_access(changes: ChangeSet, command: ChangeAccess) -> Done:
    """Remove and add tokens, rules and quotas as the command says. A new one with the name of a present one takes its
    place in the order. Rights that were inherited end with the rules that gave them. Always returns ``Done``."""
    before = changes.access
    tokens = {t.token_id: t for t in before.tokens if t.token_id not in command.drop_tokens}
    tokens |= {t.token_id: t for t in command.tokens}
    acls = dict.fromkeys(acl for acl in before.acls if acl not in command.drop_acls)
    acls |= dict.fromkeys(command.acls)
    quotas = {q.principal: q for q in before.quotas if q.principal not in command.drop_quotas}
    quotas |= {q.principal: q for q in command.quotas}
    holders = () if command.drop_heirs else heirs_of(acls)
    heirs = tuple(heir for heir in before.heirs if heir in holders)
    changes.access = Access(tuple(tokens.values()), tuple(acls), tuple(quotas.values()), heirs)
    return Done()


def separate_security(changes: ChangeSet) -> None:
    """Begin to require the right ``security`` for changes of tokens, rules and quotas. The principals that could make
    such changes before inherit the right."""
    changes.access = replace(changes.access, heirs=heirs_of(changes.access.acls))
