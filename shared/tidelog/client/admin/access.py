"""Administration of tokens, rules and quotas (``tidelog.acl``): ``Log.access``."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.acl import new_token
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


class AccessAdmin:
    """Change tokens, rules and quotas: ``log.access``."""

    def __init__(self, connection: GatewayConnection) -> None:
        self._connection = connection

    async def create_token(self, principal: str, lifetime_s: float | None = None) -> str:
        """Create a bearer token of a principal and return it. The token is stored nowhere: the cluster keeps its
        SHA-256 only. ``lifetime_s`` None: it never expires. Raises ``INVALID_CONFIG``."""
        return await self._put_token(PutToken("", "", principal, _ms(lifetime_s)))

    async def rotate_token(self, token_id: str, grace_s: float = 0.0, lifetime_s: float | None = None) -> str:
        """Create a new token of the same principal; the old one expires ``grace_s`` later. Raises
        ``UNKNOWN_TOKEN``."""
        return await self._put_token(PutToken("", "", "", _ms(lifetime_s), token_id, round(grace_s * 1000)))

    async def _put_token(self, wanted: PutToken) -> str:
        made = new_token()
        request = PutToken(
            made.token_id, made.digest, wanted.principal, wanted.lifetime_ms, wanted.replaces, wanted.grace_ms
        )
        await self._connection.ask(request, Done, again=False)
        return made.text

    async def revoke_token(self, token_id: str) -> None:
        """Revoke a token at once, and close the connections that were opened with it. Raises ``UNKNOWN_TOKEN``."""
        await self._connection.ask(RevokeTokens(token_id), Done, again=False)

    async def revoke_tokens_of(self, principal: str) -> None:
        """Revoke all tokens of a principal."""
        await self._connection.ask(RevokeTokens("", principal), Done, again=False)

    async def rotate_ticket_keys(self) -> None:
        """Let the cluster sign the tickets of producer ids with a new key. Tickets of the key before stay valid until
        the next rotation. Raises ``UNSUPPORTED_LEVEL`` below feature level 4."""
        await self._connection.ask(RotateTicketKeys(), Done, again=False)

    async def alter_acls(self, add: Iterable[Acl] = (), remove: Iterable[Acl] = ()) -> None:
        """Add these rules and remove those. Raises ``INVALID_CONFIG``."""
        await self._connection.ask(AlterAcls(tuple(add), tuple(remove)), Done)

    async def drop_inherited_security(self) -> None:
        """Let only superusers, and principals with the right ``security``, change tokens and rules from now on.
        Raises ``UNSUPPORTED_LEVEL`` below feature level 5."""
        await self._connection.ask(AlterAcls(drop_inherited=True), Done)

    async def alter_quotas(self, quotas: Iterable[Quota]) -> None:
        """Set the quotas of these principals. Raises ``INVALID_CONFIG``."""
        await self._connection.ask(AlterQuotas(tuple(quotas)), Done)

    async def describe(self) -> AccessAnswer:
        """Describe tokens (without their secret parts), rules and quotas."""
        return await self._connection.ask(DescribeAccess(), AccessAnswer)


def _ms(lifetime_s: float | None) -> int:
    return -1 if lifetime_s is None else max(1, round(lifetime_s * 1000))
