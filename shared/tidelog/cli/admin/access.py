"""``tidelog tokens …``, ``tickets …``, ``acls …`` and ``quotas …``: identities, permissions and quotas of clients."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from tidelog.acl import CLUSTER, SECURITY, decide, refuse_rule
from tidelog.cli.command_group import CommandGroup
from tidelog.cli.exit_status import FAILED
from tidelog.cli.main import connect, gateway_option, run
from tidelog.cli.option_types import Quantity
from tidelog.cli.output import NAMES, Cell, Column, Table, list_output, say, show
from tidelog.quantities import BYTES_PER_S, COUNT, SECONDS, Unit, in_words
from tidelog.types import Acl, Quota

if TYPE_CHECKING:
    from tidelog.wire.messages import AccessAnswer


class _Quota(Quantity):
    """The type of an option for a quota: a number per second, or ``none``, which becomes -1, no bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return -1 if value == "none" else super().convert(value, param, ctx)


_expires = click.option(
    "--expires", type=Quantity(SECONDS, least=0), help="After how long it ends, such as 90d.  [default: never]"
)
"""Decorator that adds the option ``--expires`` to a command."""


async def _access(gateways: tuple[str, ...]) -> AccessAnswer:
    """Ask the cluster for all of its tokens, rules and quotas, and return them. Raises the client's error, such as
    ``FORBIDDEN``."""
    async with connect(gateways, operator=True) as log:
        return await log.access.describe()


def _show_token(text: str) -> None:
    """Print a new token on stdout, and on stderr the remark that it is shown only now."""
    say(text)
    say("It is shown this once: the cluster keeps its SHA-256 only. Use it as TIDELOG_TOKEN.", err=True)


@click.group(cls=CommandGroup)
def tokens() -> None:
    """Create, list, revoke and rotate bearer tokens, by which clients identify themselves."""


@tokens.command()
@click.argument("principal")
@_expires
@gateway_option
def create(principal: str, expires: float | None, gateways: tuple[str, ...]) -> None:
    """Create a bearer token for PRINCIPAL, and print it. It is shown only now, since the cluster keeps no more than
    its SHA-256."""

    async def task() -> str:
        async with connect(gateways, operator=True) as log:
            return await log.access.create_token(principal, expires)

    _show_token(run(task))


@tokens.command("list")
@list_output
@gateway_option
def list_tokens(output: str, gateways: tuple[str, ...]) -> None:
    """List the bearer tokens: id, principal, when each was created and when it expires. The tokens themselves are not
    shown; the id is the second part of a token."""
    found = run(lambda: _access(gateways)).tokens
    table = Table("id", "principal", Column("made", "created_ms"), Column("ends", "expires_ms"))
    for token in found:
        made, ends = Cell(token.created_ms, _time(token.created_ms)), _time(token.expires_ms) or "never"
        table.add(token.token_id, token.principal, made, Cell(token.expires_ms, ends))
    show(output, table, [asdict(token) for token in found])


@tokens.command()
@click.argument("token_id", metavar="ID", required=False)
@click.option("--principal", help="Instead of one token all that this principal has.")
@gateway_option
def revoke(token_id: str | None, principal: str | None, gateways: tuple[str, ...]) -> None:
    """Revoke one token by its ID, or all tokens of a principal, at once, and close the connections that were opened
    with them."""
    if bool(token_id) == bool(principal):
        raise click.UsageError("name the token's ID, or --principal")

    async def task() -> None:
        async with connect(gateways, operator=True) as log:
            await (log.access.revoke_token(token_id) if token_id else log.access.revoke_tokens_of(principal or ""))

    run(task)
    say(f"revoked {token_id or 'all tokens of ' + str(principal)}")


@tokens.command()
@click.argument("token_id", metavar="ID")
@click.option(
    "--grace",
    type=Quantity(SECONDS, least=0),
    default="0s",
    show_default=True,
    help="How long the former is still good.",
)
@_expires
@gateway_option
def rotate(token_id: str, grace: float, expires: float | None, gateways: tuple[str, ...]) -> None:
    """Replace a token: create a new one for its principal, and print it, only now. The former token stays valid for
    --grace."""

    async def task() -> str:
        async with connect(gateways, operator=True) as log:
            return await log.access.rotate_token(token_id, grace, expires)

    _show_token(run(task))


@click.group(cls=CommandGroup)
def tickets() -> None:
    """Rotate the key that signs the tickets of producer ids. A ticket proves that the cluster gave a producer id to
    its writer."""


@tickets.command("rotate")
@gateway_option
def rotate_ticket_keys(gateways: tuple[str, ...]) -> None:
    """Sign tickets with a new key from now on.

    Tickets of the key before stay valid, so a rotation disturbs no producer. A second rotation ends them: a producer
    that has not connected again in between must get a new producer id."""

    async def task() -> None:
        async with connect(gateways, operator=True) as log:
            await log.access.rotate_ticket_keys()

    run(task)
    say("the cluster signs tickets of producer ids with a new key")


@click.group(cls=CommandGroup)
def acls() -> None:
    """Add, remove, list and check rules that allow or deny operations. They apply if the gateways have authorization
    = true."""


def _rule(command: Any) -> Any:
    """Add the arguments of a rule to a command: principal, operation and resource, in this order. Returns the
    command."""
    for name in ("resource", "operation", "principal"):
        command = click.argument(name)(command)
    return command


def _acl(principal: str, operation: str, resource: str, deny: bool = False) -> Acl:
    """Return the access rule that the arguments of a command describe. Raises ``click.BadParameter`` if it is not
    valid."""
    acl = Acl(principal, operation, resource, deny)
    if fault := refuse_rule(acl):
        raise click.BadParameter(fault)
    return acl


@acls.command()
@_rule
@click.option("--deny", is_flag=True, help="Forbid it, whatever other rules allow.")
@gateway_option
def add(principal: str, operation: str, resource: str, deny: bool, gateways: tuple[str, ...]) -> None:
    """Allow PRINCIPAL (* for everybody) OPERATION (* for each) on RESOURCE.

    RESOURCE is topic:NAME, topic:BEGINNING*, the same with group: or app:, or cluster. OPERATION is read, write,
    create, alter, delete or describe on a topic; group or describe on a group; transact or describe on an
    application; cluster (administer it), security (decide about tokens and rules) or describe on the cluster."""
    acl = _acl(principal, operation, resource, deny)

    async def task() -> None:
        async with connect(gateways, operator=True) as log:
            await log.access.alter_acls(add=[acl])

    run(task)
    say(str(acl))


@acls.command()
@_rule
@click.option("--deny", is_flag=True, help="The rule is one that forbids.")
@gateway_option
def remove(principal: str, operation: str, resource: str, deny: bool, gateways: tuple[str, ...]) -> None:
    """Remove a rule, written as it was added, with --deny if it was. Exit code 1 if there is no such rule."""
    acl = _acl(principal, operation, resource, deny)

    async def task() -> bool:
        async with connect(gateways, operator=True) as log:
            there = acl in (await log.access.describe()).acls
            await log.access.alter_acls(remove=[acl])
            return there

    if not run(task):
        say(f"there is no rule: {acl}. 'tidelog acls list' shows those that there are.", err=True)
        raise SystemExit(FAILED)
    say(f"removed: {acl}")


@acls.command("list")
@click.option("--principal", help="Only rules that apply to this one.")
@list_output
@gateway_option
def list_acls(principal: str | None, output: str, gateways: tuple[str, ...]) -> None:
    """List the access rules: allow or deny, principal, operation and resource; then the rights that principals have
    inherited. -o names prints each rule as 'tidelog acls remove' takes it."""
    access = run(lambda: _access(gateways))
    found = [a for a in access.acls if principal is None or a.principal in (principal, "*")]
    table = Table("rule", "principal", "operation", "resource")
    for acl in found:
        name = f"{acl.principal} {acl.operation} {acl.resource}{' --deny' if acl.deny else ''}"
        table.add("deny" if acl.deny else "allow", acl.principal, acl.operation, acl.resource, name=name)
    if output != NAMES:
        for heir in access.heirs:
            if principal is None or heir in (principal, "*"):
                table.add("inherited", heir, SECURITY, CLUSTER)
    show(output, table, [asdict(acl) for acl in found])


@acls.command("drop-inherited")
@gateway_option
def drop_inherited(gateways: tuple[str, ...]) -> None:
    """End the inherited right of cluster administrators to change tokens and rules.

    Before feature level 5 the right to administer the cluster included tokens and rules. A principal that
    had it keeps both when the level is raised. After this command, changing them requires a
    rule: 'tidelog acls add PRINCIPAL security cluster'."""

    async def task() -> tuple[str, ...]:
        async with connect(gateways, operator=True) as log:
            before = (await log.access.describe()).heirs
            await log.access.drop_inherited_security()
            return before

    heirs = ", ".join(run(task))
    say(f"no longer decide about tokens and rules: {heirs}" if heirs else "nobody inherits security")


@acls.command()
@_rule
@gateway_option
def check(principal: str, operation: str, resource: str, gateways: tuple[str, ...]) -> None:
    """Check whether the rules allow PRINCIPAL to do OPERATION on RESOURCE, and print the answer; exit code 1 if they
    do not."""
    _acl(principal, operation, resource.rstrip("*"))
    access = run(lambda: _access(gateways))
    allowed = decide(access.acls, principal, operation, resource, access.heirs)
    say(f"{principal} {'may' if allowed else 'may not'} {operation} {resource}")
    if not allowed:
        raise SystemExit(FAILED)


@click.group(cls=CommandGroup)
def quotas() -> None:
    """Set and list quotas of principals. Each gateway applies them over all connections of the principal."""


@quotas.command("set")
@click.argument("principal")
@click.option(
    "--bytes-in",
    type=_Quota(BYTES_PER_S, least=0, whole=True),
    help="Bytes of records a second that it may produce, or none.",
)
@click.option(
    "--bytes-out",
    type=_Quota(BYTES_PER_S, least=0, whole=True),
    help="Bytes of records a second that it is sent, or none.",
)
@click.option("--requests", type=_Quota(COUNT, least=0, whole=True), help="Messages a second, or none.")
@click.option("--connections", type=_Quota(COUNT, least=0, whole=True), help="Open connections, or none.")
@gateway_option
def set_quota(principal: str, gateways: tuple[str, ...], **rates: int | None) -> None:
    """Set quotas of PRINCIPAL; quotas that are not named stay as they are."""
    names = {"bytes_in": "bytes_in_s", "bytes_out": "bytes_out_s", "requests": "requests_s"}
    wanted = {names.get(name, name): rate for name, rate in rates.items() if rate is not None}
    if not wanted:
        raise click.UsageError("name what is to be bounded, such as --bytes-in 10m")

    async def task() -> Quota:
        async with connect(gateways, operator=True) as log:
            before = next(
                (q for q in (await log.access.describe()).quotas if q.principal == principal), Quota(principal)
            )
            quota = Quota(**asdict(before) | wanted)
            await log.access.alter_quotas([quota])
            return quota

    made = asdict(run(task))
    bounds = [f"{name} {value}" for name, value in made.items() if name != "principal" and value >= 0]
    say(f"{principal}: {', '.join(bounds) or 'no quota'}")


@quotas.command("list")
@list_output
@gateway_option
def list_quotas(output: str, gateways: tuple[str, ...]) -> None:
    """List the quotas of all principals: bytes in and out and requests per second, and connections."""
    found = run(lambda: _access(gateways)).quotas
    table = Table(
        "principal",
        Column("bytes in/s", "bytes_in_s"),
        Column("bytes out/s", "bytes_out_s"),
        Column("requests/s", "requests_s"),
        "connections",
    )
    for quota in found:
        bytes_in, bytes_out = _bound(quota.bytes_in_s, BYTES_PER_S), _bound(quota.bytes_out_s, BYTES_PER_S)
        table.add(
            quota.principal, bytes_in, bytes_out, _bound(quota.requests_s, COUNT), _bound(quota.connections, COUNT)
        )
    show(output, table, [asdict(quota) for quota in found])


def _bound(bound: int, unit: Unit) -> Cell:
    """Return the cell of a quota, which people see with a larger unit beside, and as nothing if it is no bound."""
    words = in_words(bound, unit)
    return Cell(bound, "" if bound < 0 else f"{bound} ({words})" if words else bound)


def _time(time_ms: int) -> str:
    """Return a time, in milliseconds since 1970, as a text in UTC; "" if it is negative."""
    return "" if time_ms < 0 else datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
