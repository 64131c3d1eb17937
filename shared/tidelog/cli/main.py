"""The command group ``tidelog``, and what all commands share: the gateway option, errors with a next step, the JSON
option, and the run of a command's async part."""

from __future__ import annotations

import gc
import getpass
import importlib
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import trio

from tidelog.cli.exit_status import FAILED, INTERRUPTED, UNUSABLE
from tidelog.cli.output import say
from tidelog.errors import ConfigError, TidelogError, UnreadableBatch
from tidelog.net.tls import TlsOptions
from tidelog.printable import escaped_lines

if TYPE_CHECKING:
    from tidelog.client.log import Log

CONNECT_TIMEOUT_S = 3.0
DEFAULT_GATEWAY = "ws://127.0.0.1:9292"
GC_THRESHOLD = 50_000
"""New objects before Python's garbage collector runs: with 100,000 records in flight and the default of 700, the
collector took a third of a command's CPU."""

COMMANDS = {
    "dev": "local.dev",
    "cluster": "local.cluster",
    "controller": "local.services",
    "replica": "local.services",
    "gateway": "local.services",
    "topics": "admin.topics",
    "describe": "explain.describe",
    "partitions": "admin.partitions",
    "servers": "admin.servers",
    "features": "admin.features",
    "produce": "produce",
    "consume": "consume",
    "sql": "sql",
    "groups": "admin.groups",
    "transactions": "admin.transactions",
    "status": "explain.status",
    "why": "explain.status",
    "controllers": "admin.controllers",
    "verify": "verify",
    "backup": "admin.backup",
    "restore": "admin.backup",
    "mirror": "admin.mirror",
    "doctor": "explain.doctor",
    "capture": "explain.capture",
    "certs": "admin.certs",
    "tickets": "admin.access",
    "tokens": "admin.access",
    "acls": "admin.access",
    "quotas": "admin.access",
    "pipeline": "pipeline",
    "bench": "bench",
    "completion": "completion",
    "demo": "demo",
}
"""Command -> the module that defines it, which is imported when the command is used."""

NEXT_STEP = {
    "UNREACHABLE": "Is the cluster up? 'tidelog dev' or 'tidelog cluster up' starts one; --gateway names another.",
    "UNKNOWN_TOPIC": "'tidelog topics list' shows what there is; 'tidelog topics create' makes one.",
    "TOPIC_EXISTS": "Choose another name, or delete it first with 'tidelog topics delete'.",
    "INVALID_REPLICATION_FACTOR": "'tidelog status' shows the live replica servers.",
    "NOT_ENOUGH_REPLICAS": "'tidelog topics describe TOPIC' shows the in-sync replicas.",
    "TOPIC_READ_ONLY": "'tidelog topics set-readonly TOPIC --off' has it take records again.",
    "TOPIC_PAUSED": "'tidelog topics resume TOPIC' has it serve again; 'tidelog status' shows what is paused.",
    "OFFSET_OUT_OF_RANGE": "'tidelog topics describe TOPIC' shows where the log starts and ends.",
    "INVALID_REPLICAS": "'tidelog servers list' shows the servers, 'tidelog topics describe TOPIC' the replicas.",
    "UNKNOWN_SERVER": "'tidelog servers list' shows the servers that there are.",
    "NOT_IN_SYNC": "'tidelog topics describe TOPIC' shows who is in sync; try again when the server has caught up.",
    "NO_REASSIGNMENT": "'tidelog partitions reassignments' shows what is in progress.",
    "CHANGE_IN_PROGRESS": "Try again in a moment: 'tidelog controllers list' shows how far it is.",
    "QUORUM_AT_RISK": "'tidelog controllers list' shows who is live; take out those that are not first.",
    "SERVER_IN_USE": "'tidelog servers drain', then 'tidelog partitions rebalance --empty-drained'; then stop it.",
    "UNSUPPORTED_LEVEL": "'tidelog features list' shows who understands what; docs/upgrade.md has the steps.",
    "UNKNOWN_CONTROLLER": "'tidelog controllers list' shows the group.",
    "UNAUTHENTICATED": "Give --token-file FILE or TIDELOG_TOKEN ('tidelog tokens create'), or --cert and --cert-key.",
    "FORBIDDEN": "'tidelog acls list' shows the rules to those who may administer the cluster.",
    "UNKNOWN_TOKEN": "'tidelog tokens list' shows the tokens that there are.",
    "QUOTA_EXCEEDED": "Wait, or have the quota raised: 'tidelog quotas list'.",
    "LIMIT_EXCEEDED": "Delete what is not needed, or have the setting raised that the message names.",
    "ANSWER_TOO_LARGE": "'tidelog topics describe TOPIC' asks for one topic only.",
    "UNKNOWN_GROUP": "'tidelog groups list' shows the groups; 'tidelog consume TOPIC --group NAME' begins one.",
    "GROUP_NOT_EMPTY": "End its consumers first: 'tidelog groups describe NAME' shows them.",
    "FENCED_INSTANCE": "Two processes have the same --instance: give each its own.",
    "GROUP_FULL": "'tidelog groups describe NAME' shows the members; end some, or begin another group.",
    "BAD_BACKUP": "'tidelog backup --check DIR' names every file that is not as it was.",
    "LOG_TRUNCATED": "What was read there is gone: 'tidelog why TOPIC/PARTITION' says why.",
    "INVALID_VALUE": "'--on-invalid null' makes it null; '--values raw' takes keys and values as bytes.",
    "NO_QUORUM": "A majority of the controllers must run: 'tidelog status'.",
}
"""Error code -> the next step that ``fail`` prints for the user."""
UNREADABLE_STEP = (
    "'--on-unreadable skip' passes over such batches; docs/operations.md, Batches that cannot be decoded, says more."
)
"""Next step after a batch that cannot be decoded and is not damaged."""
DAMAGED_STEP = "Read again; if it stays, 'tidelog doctor' and the logs of the servers show where it was damaged."
"""Next step after a batch whose bytes are damaged."""


class _Lazy(click.Group):
    """The group of all commands. It imports the module of a command when that command is used, and turns errors of
    commands into messages and exit statuses."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = getattr(importlib.import_module(f"tidelog.cli.{module}"), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command, and return its result. If it raises a ``TidelogError``, print the error and its
        next step and end the process (``fail``). Other errors of click are raised with their text escaped."""
        try:
            return super().invoke(ctx)
        except TidelogError as error:
            fail(error)
        except click.ClickException as error:
            error.message = escaped_lines(error.message)  # type: ignore[misc]
            raise


def fail(error: TidelogError) -> None:
    """Print an error and its next step to stderr, and end the process: with status ``UNUSABLE`` for a
    ``ConfigError``, otherwise with ``FAILED``."""
    say(f"tidelog: {error.message if isinstance(error, ConfigError) else error}", err=True)
    step = NEXT_STEP.get(error.code)
    if isinstance(error, UnreadableBatch):
        step = DAMAGED_STEP if error.is_damaged else UNREADABLE_STEP
    if step:
        say(step, err=True)
    sys.exit(UNUSABLE if isinstance(error, ConfigError) else FAILED)


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tidelog")
def main() -> None:
    """Tidelog: a replicated, partitioned commit log.

    'tidelog dev' starts a cluster on this machine; the other commands talk to a gateway, which --gateway or
    TIDELOG_GATEWAY names (default ws://127.0.0.1:9292). 'tidelog doctor' says what is wrong and what to do.

    Exit codes: 0 done; 1 the cluster refused, or something was lost or found wrong; 2 wrong usage or configuration;
    130 interrupted."""
    gc.set_threshold(GC_THRESHOLD)


_SHOWN = {
    "ca": ("CA", "PEM file of the authorities for the gateways' certificates (wss://).  [default: the system's]"),
    "cert": ("CERT", "PEM file of the certificate to show."),
    "cert-key": ("KEY", "PEM file of the certificate's private key."),
    "token-file": ("TOKEN_FILE", "File with the bearer token to show; else TIDELOG_TOKEN is one."),
}
"""Options that identify this client to gateways: name -> end of the environment variable, help text."""


def _keep(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Store the value of an option in the context of the running command, from which ``connect`` reads it, so that
    commands need not pass it on. A callback of click."""
    assert param.name is not None
    ctx.meta[__name__ + param.name] = value or ""


def gateway_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option --gateway to a command, and the options that identify this client: --ca, --cert, --cert-key
    and --token-file. Returns the command, which gets ``gateways`` as an argument. --gateway is repeatable: another
    gateway is tried when one does not answer."""
    for name, (variable, help) in reversed(_SHOWN.items()):
        command = click.option(
            f"--{name}",
            metavar="FILE",
            envvar=f"TIDELOG_CLIENT_{variable}",
            show_envvar=True,
            expose_value=False,
            callback=_keep,
            help=help,
        )(command)
    return click.option(
        "--gateway",
        "gateways",
        multiple=True,
        metavar="URL",
        envvar="TIDELOG_GATEWAY",
        default=(DEFAULT_GATEWAY,),
        show_default=True,
        help="A gateway of the cluster; may be given several times.",
    )(command)


def connect(
    gateways: tuple[str, ...], connect_timeout_s: float = CONNECT_TIMEOUT_S
) -> AbstractAsyncContextManager[Log]:
    """Return a context manager that connects a client for the running command, with the TLS files and the token of
    its options. Entering it raises ``UNREACHABLE`` if no gateway answers within ``connect_timeout_s``, which is
    short, since a user waits at a terminal."""
    import tidelog

    token = _token(click.get_current_context().meta)
    tls = tls_options()
    return tidelog.connect(gateways, connect_timeout_s=connect_timeout_s, tls=tls, token=token, name=client_name())


def client_name() -> str:
    """Return ``USER@HOST``: the name under which the histories of a cluster record a command that has neither token
    nor certificate."""
    return f"{_user()}@{socket.gethostname()}"


def tls_options() -> TlsOptions:
    """Return the TLS files that the options --ca, --cert and --cert-key of the running command name, or their
    environment variables; "" for each that is not given. Raises ``ConfigError`` if only one of certificate and key
    is given. Works only while a click command runs."""
    meta = click.get_current_context().meta
    return TlsOptions(*[meta.get(__name__ + name, "") for name in ("ca", "cert", "cert_key")])


def _user() -> str:
    """Return the name of the operating system's user; "somebody" if the user id has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return "somebody"


def _token(meta: dict[str, Any]) -> str:
    """Return the bearer token of the running command: the contents of the token file if one is named, otherwise
    ``TIDELOG_TOKEN``; "" if neither is set. Raises ``ConfigError`` if the file cannot be read. No option takes the
    token itself, since every user of the machine can read command lines."""
    file = meta.get(__name__ + "token_file", "")
    return token_in(file) if file else os.environ.get("TIDELOG_TOKEN", "")


def token_in(file: str) -> str:
    """Return the bearer token in a file, without surrounding white space; "" if ``file`` is "". Raises
    ``ConfigError`` if the file cannot be read."""
    if not file:
        return ""
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: no token can be read there: {error}") from error


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option ``--json`` to a command, and return the command, which gets the option as its argument
    ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")(command)


def run(main_task: Callable[[], Awaitable[Any]]) -> Any:
    """Run the async part of a command, and return its result. Ctrl-C ends the process with status ``INTERRUPTED``. A
    ``TidelogError``, also inside a group of errors, is printed and ends the process (``fail``); of several only the
    first is printed."""
    try:
        return trio.run(main_task, strict_exception_groups=True)
    except* KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except* TidelogError as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        assert isinstance(error, TidelogError)
        fail(error)
    return None
