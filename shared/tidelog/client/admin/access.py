"""Administration of tokens, rules and quotas (``tidelog.acl``): ``Log.access``."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.acl import new_token
from tidelog.client.admin.old_names import keep_old_call
from tidelog.client.connection import GatewayConnection
from tidelog.types import Acl, Quota
from tidelog.wire.messages import (
    AccessAnswer,
    AlterAcls,
    AlterQuotas,
    DescribeAccess,
    Done,
    PutToken,
    RevokeTokens,
    RotateTicketKeys,
)


@keep_old_call("access")
class AccessAdmin:
    """The methods that create and revoke tokens and change access rules and quotas; each ``Log`` has them as
    ``log.access``."""

    def __init__(self, connection: GatewayConnection) -> None:
        self._connection = connection

    async def create_token(self, principal: str, lifetime_s: float | None = None) -> str:
        """Create a bearer token of a principal and return its text. The text is stored nowhere, since the cluster
        keeps only its SHA-256. The token expires after ``lifetime_s`` seconds, or never if that is None. Raises
        ``INVALID_CONFIG``."""
        return await self._put_token(PutToken("", "", principal, _ms(lifetime_s)))

    async def rotate_token(self, token_id: str, grace_s: float = 0.0, lifetime_s: float | None = None) -> str:
        """Create a new token for the principal of an existing one, and return the new token's text. The old token
        expires ``grace_s`` seconds later. The new one expires after ``lifetime_s`` seconds, or never if that is None.
        Raises ``UNKNOWN_TOKEN``."""
        return await self._put_token(PutToken("", "", "", _ms(lifetime_s), token_id, round(grace_s * 1000)))

    async def _put_token(self, wanted: PutToken) -> str:
        """Make a random token, store its digest in the cluster with the fields of ``wanted``, and return its text."""
        made = new_token()
        request = PutToken(
            made.token_id, made.digest, wanted.principal, wanted.lifetime_ms, wanted.replaces, wanted.grace_ms
        )
        await self._connection.ask(request, Done, again=False)
        return made.text

    async def revoke_token(self, token_id: str) -> None:
        """Revoke the token with this id at once, and close the connections that were opened with it. Raises
        ``UNKNOWN_TOKEN``."""
        await self._connection.ask(RevokeTokens(token_id), Done, again=False)

    async def revoke_tokens_of(self, principal: str) -> None:
        """Revoke all tokens of a principal at once, and close the connections that were opened with them."""
        await self._connection.ask(RevokeTokens("", principal), Done, again=False)

    async def rotate_ticket_keys(self) -> None:
        """Make the cluster sign the tickets of producer ids with a new key. Tickets of the previous key stay valid
        until the next rotation. Raises ``UNSUPPORTED_LEVEL`` below feature level 4."""
        await self._connection.ask(RotateTicketKeys(), Done, again=False)

    async def alter_acls(self, add: Iterable[Acl] = (), remove: Iterable[Acl] = ()) -> None:
        """Add the access rules ``add`` and remove the rules ``remove``. Raises ``INVALID_CONFIG``."""
        await self._connection.ask(AlterAcls(tuple(add), tuple(remove)), Done)

    async def drop_inherited_security(self) -> None:
        """From now on allow only superusers, and principals with the right ``security``, to change tokens and rules.
        Raises ``UNSUPPORTED_LEVEL`` below feature level 5."""
        await self._connection.ask(AlterAcls(drop_inherited=True), Done)

    async def alter_quotas(self, quotas: Iterable[Quota]) -> None:
        """Set the quota of each principal that ``quotas`` names. Raises ``INVALID_CONFIG``."""
        await self._connection.ask(AlterQuotas(tuple(quotas)), Done)

    async def describe(self) -> AccessAnswer:
        """Return all tokens (without their secret parts), access rules and quotas."""
        return await self._connection.ask(DescribeAccess(), AccessAnswer)


def _ms(lifetime_s: float | None) -> int:
    return -1 if lifetime_s is None else max(1, round(lifetime_s * 1000))
