"""``tidelog certs``: makes a development authority, and certificates for services and clients."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelog.cli.output import say
from tidelog.errors import ConfigError
from tidelog.extras import install_hint
from tidelog.net.tls import CLIENT, NodeIdentity

if TYPE_CHECKING:
    from tidelog.net.dev_certificates import Authority

LOCAL = ("localhost", "127.0.0.1", "::1")
"""Names and addresses of the hosts of a cluster on one machine."""
ROLES = ("controller", "replica", "gateway")
"""Roles of services that a certificate can name."""
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
"""Pattern of the name of a service or client."""


def open_authority(folder: Path, days: int) -> Authority:
    """Return the certificate authority that is kept in a folder. If there is none, create one, valid for ``days``
    days, and write its files. Raises ``ConfigError`` if the files cannot be used, or ``cryptography`` is not
    installed."""
    try:
        from tidelog.net import dev_certificates as certs
    except ModuleNotFoundError as error:
        raise ConfigError(f"certificates need the package cryptography: {install_hint('security')}") from error
    return certs.open_authority(folder, datetime.now(UTC), timedelta(days=days))


def issue(authority: Authority, identity: NodeIdentity, hosts: tuple[str, ...], days: int) -> Path:
    """Create the certificate of one service or client, write it with its key into the authority's folder, replacing
    earlier ones of the same name, and return the certificate's path. ``hosts`` are the names and addresses under
    which a service is reached."""
    lasts = timedelta(days=days)
    files = authority.issue(f"{identity.role}-{identity.node}", [identity], hosts, datetime.now(UTC), lasts)
    return Path(files.cert)


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--node", "nodes", multiple=True, metavar="ROLE/NODE", help="A service, such as replica/r1; repeatable."
)
@click.option(
    "--client", "clients", multiple=True, metavar="PRINCIPAL", help="A client, such as billing; repeatable."
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="A name or address under which the services are reached; repeatable.  [default: localhost, 127.0.0.1, ::1]",
)
@click.option("--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="How long they are good.")
def certs(folder: Path, nodes: tuple[str, ...], clients: tuple[str, ...], hosts: tuple[str, ...], days: int) -> None:
    """Make a certificate in DIR for each --node and --client, and first an authority (ca.pem, ca.key) if there is
    none. A certificate and key of the same name are replaced; the authority is kept.

    For development and tests: the authority's key lies beside the certificates. Where it matters let your own
    authority sign certificates with the same alternative names: URI:tidelog:ROLE/NODE (URI:tidelog:client/PRINCIPAL
    for a client), and for services also the hosts."""
    wanted = [_service(text) for text in nodes] + [NodeIdentity(CLIENT, _name(text)) for text in clients]
    authority = open_authority(folder, days)
    say(f"{authority.ca}")
    for identity in wanted:
        made = issue(authority, identity, () if identity.role == CLIENT else hosts or LOCAL, days)
        say(f"{made}  {identity}")
    if not wanted:
        say("Name whom certificates are for: --node replica/r1, --client billing", err=True)


def _service(text: str) -> NodeIdentity:
    """Parse ``ROLE/NODE``, a value of ``--node``, and return it as an identity. Raises ``click.BadParameter`` for
    another form or an unknown role."""
    role, slash, node = text.partition("/")
    if not slash or role not in ROLES:
        raise click.BadParameter(f"{text!r} is not ROLE/NODE, with a role of {', '.join(ROLES)}", param_hint="--node")
    return NodeIdentity(role, _name(node))


def _name(text: str) -> str:
    """Return the text if it is a valid name; otherwise raise ``click.BadParameter``."""
    if not NAME.fullmatch(text):
        raise click.BadParameter(f"{text!r} is no name: use 1 to 64 of A-Z a-z 0-9 . _ -")
    return text
