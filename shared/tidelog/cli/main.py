"""The command group ``tidelog``, and what all commands share: the options of the connection, errors with a next step,
and the run of a command's async part."""

from __future__ import annotations

import errno
import gc
import importlib
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tidelog.cli.connection_options import OPTIONS, ConnectionOption, settings_of
from tidelog.cli.exit_status import FAILED, INTERRUPTED, UNUSABLE
from tidelog.errors import ConfigError, TidelogError, UnreadableBatch

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from tidelog.client.log import Log
    from tidelog.net.tls import TlsOptions

CONNECT_TIMEOUT_S = 3.0
"""Seconds within which a gateway must have let the command in."""
FAILED_TIMEOUT_S = 0.3
"""Seconds after which a command gives up if every gateway has failed: enough for one that is being restarted."""
REQUEST_TIMEOUT_S = 30.0
"""Seconds that a request may take, with reconnections."""
GC_THRESHOLD = 50_000
"""New objects before Python's garbage collector runs: with 100,000 records in flight and the default of 700, the
collector took a third of a command's CPU. It also runs less while modules are loaded."""


class Entry(NamedTuple):
    """One command: the module that defines it, below ``tidelog.cli``, and its line in ``tidelog --help``."""

    module: str
    summary: str


SECTIONS = {
    "Records": {
        "produce": Entry("records.produce", "Send records to a topic."),
        "consume": Entry("records.consume", "Read records of a topic, alone or as a member of a group."),
        "sql": Entry("sql", "Query topics with SQL."),
        "groups": Entry("admin.groups", "List, describe, reset and delete consumer groups."),
        "transactions": Entry("admin.transactions", "List, describe and end transactions."),
        "pipeline": Entry("pipeline", "Run Spark over topics, into tables and topics."),
        "table": Entry("records.tables", "Compact and expire the tables of pipelines."),
    },
    "Topics and partitions": {
        "topics": Entry("admin.topics", "Create, list, describe, configure and delete topics."),
        "partitions": Entry("admin.partitions", "List partitions, and move their leaders and replicas."),
        "backup": Entry("admin.backup", "Save a topic as files, or check such a backup."),
        "restore": Entry("admin.backup", "Write a backup into a new topic."),
        "mirror": Entry("admin.mirror", "Copy a topic to another cluster, and keep copying."),
        "import": Entry("imports", "Copy topics from Kafka."),
    },
    "Explain": {
        "status": Entry("explain.status", "Show the cluster: servers, controllers, what is wrong."),
        "doctor": Entry("explain.doctor", "Say what is wrong, and what to do about it."),
        "why": Entry("explain.why", "Explain a partition, a record, a lag or a refusal."),
        "describe": Entry("explain.describe", "Show topics and servers, also as they were at a time."),
        "verify": Entry("verify", "Check that nothing was lost, and that replicas are equal."),
        "mcp": Entry("mcp.command", "Let agents ask about the cluster (Model Context Protocol)."),
        "capture": Entry("explain.capture", "Save the state of the cluster in a file, for a bug report."),
        "conformance": Entry("conformance", "Check a client library in any language."),
        "bench": Entry("bench", "Measure throughput and latency of the cluster."),
    },
    "Run a cluster": {
        "dev": Entry("local.dev", "A whole cluster in this process, for development."),
        "cluster": Entry("local.cluster", "A cluster of real processes on this machine."),
        "demo": Entry("demo", "Start a cluster, kill a leader, and show that nothing is lost."),
        "controller": Entry("local.services", "Run a controller."),
        "replica": Entry("local.services", "Run a replica server."),
        "gateway": Entry("local.services", "Run a gateway."),
    },
    "Operate a cluster": {
        "servers": Entry("admin.servers", "List, drain and forget replica servers."),
        "controllers": Entry("admin.controllers", "List, add, remove and rescue controllers."),
        "features": Entry("admin.features", "Show and raise the feature level, for upgrades."),
    },
    "Security": {
        "certs": Entry("admin.certs", "Make certificates for development."),
        "tokens": Entry("admin.access", "Create, list, rotate and revoke bearer tokens."),
        "acls": Entry("admin.access", "List, change and check the rules of who may do what."),
        "quotas": Entry("admin.access", "Set and list the quotas of principals."),
        "tickets": Entry("admin.access", "Rotate the keys of producers' tickets."),
    },
    "This command": {
        "context": Entry("context", "Name clusters, and choose the one that commands talk to."),
        "completion": Entry("completion", "Print the script that completes commands in the shell."),
        "help": Entry("help", "Explain a command, or the options of the connection."),
    },
}
"""The commands by the sections of ``tidelog --help``, in order. A module is imported when its command is used."""
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}
"""Every command by its name."""

NEXT_STEP = {
    "UNREACHABLE": "'tidelog dev' or 'cluster up' starts one; --gateway or 'tidelog context use' names another.",
    "UNKNOWN_TOPIC": "'tidelog topics list' shows what there is; 'tidelog topics create' makes one.",
    "TOPIC_EXISTS": "'tidelog topics create --if-not-exists' leaves it as it is; 'tidelog topics delete' deletes it.",
    "INVALID_REPLICATION_FACTOR": "'tidelog status' shows the live replica servers.",
    "NOT_ENOUGH_REPLICAS": "'tidelog topics describe TOPIC' shows the in-sync replicas.",
    "TOPIC_READ_ONLY": "'tidelog topics set-readonly TOPIC --off' makes it take records again.",
    "TOPIC_PAUSED": "'tidelog topics resume TOPIC' makes it serve again; 'tidelog status' shows what is paused.",
    "OFFSET_OUT_OF_RANGE": "'tidelog topics describe TOPIC' shows where the log starts and ends.",
    "INVALID_REPLICAS": "'tidelog servers list' shows the servers, 'tidelog topics describe TOPIC' the replicas.",
    "UNKNOWN_SERVER": "'tidelog servers list' shows the servers that there are.",
    "NOT_IN_SYNC": "'tidelog topics describe TOPIC' shows who is in sync; try again when the server has caught up.",
    "NO_REASSIGNMENT": "'tidelog partitions reassignments' shows what is in progress.",
    "CHANGE_IN_PROGRESS": "Try again in a moment: 'tidelog controllers list' shows how far it is.",
    "QUORUM_AT_RISK": "'tidelog controllers list' shows which are live; first remove those that are not.",
    "SERVER_IN_USE": "'tidelog servers drain', then 'tidelog partitions rebalance --empty-drained'; then stop it.",
    "UNSUPPORTED_LEVEL": "'tidelog features list' shows what each process supports; docs/upgrade.md has the steps.",
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
    "IMPORT_FAILED": "docs/kafka.md has the rules. Copied records stay, and the same command continues after them.",
    "LOG_TRUNCATED": "The records that were read there are gone: 'tidelog why TOPIC/PARTITION' shows why.",
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


class _Main(click.Group):
    """The group of all commands. It imports the module of a command when that command is used, and turns errors of
    commands into messages and exit statuses."""

    def main(self, *args: Any, **details: Any) -> Any:
        """Run the command line, or complete it for the shell, as click does. Before that, make Python's garbage
        collector run less often (``GC_THRESHOLD``). If an argument is not text, or the output cannot be written,
        print that on one line and end the process with ``UNUSABLE`` or ``FAILED``."""
        gc.set_threshold(GC_THRESHOLD)
        try:
            return super().main(*args, **details)
        except (UnicodeEncodeError, OSError, ExceptionGroup) as error:
            status, text = _fault_of_surroundings(error)
            if not text:
                raise
            from tidelog.cli.output import say

            _discard_output()
            say(f"tidelog: {text}", err=True)
            sys.exit(status)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        name = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        command: click.Command = getattr(importlib.import_module(f"tidelog.cli.{entry.module}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return name, command and remaining arguments. Raises ``click.NoSuchCommand``, which suggests similar
        commands."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:  # click knows none of the commands before they are imported
            raise click.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that begin with ``incomplete``; no command is imported for it."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=e.summary) for name, e in COMMANDS.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by sections, then the options."""
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.summary) for name, entry in section.items()])
        connection: list[tuple[str, str]] = []
        others: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            if isinstance(param, ConnectionOption):
                connection.append(param.full_help_record(ctx))
            elif record := param.get_help_record(ctx):
                others.append(record)
        with formatter.section("Connection, before or after the command ('tidelog help connection')"):
            formatter.write_dl(connection)
        with formatter.section("Options"):
            formatter.write_dl(others)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command, and return its result. If it raises a ``TidelogError``, print the error and its
        next step and end the process (``fail``). Other errors of click are raised with their text escaped."""
        try:
            return super().invoke(ctx)
        except TidelogError as error:
            fail(error)
        except click.ClickException as error:
            from tidelog.printable import escaped_lines

            error.message = escaped_lines(error.message)  # type: ignore[misc]
            raise


UNWRITABLE = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
"""The errors of output that has no space left."""


def _fault_of_surroundings(error: Exception) -> tuple[int, str]:
    """Return the exit status and the text for an argument or environment variable that is not UTF-8, or for output
    that has no space left; the text is "" for another error. Of a group the first error counts."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:
        return UNUSABLE, f"an argument or environment variable is not text in UTF-8: {error.object!a}"
    if isinstance(error, OSError) and error.errno in UNWRITABLE:
        return FAILED, f"cannot write: {error.strerror}"
    return FAILED, ""


def _discard_output() -> None:
    """Have what is still buffered for stdout written to nowhere, so that the end of the process does not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def fail(error: TidelogError) -> None:
    """Print an error and its next step to stderr, and end the process: with status ``UNUSABLE`` for a
    ``ConfigError``, whose text may have several lines, otherwise with ``FAILED``."""
    from tidelog.cli.output import say

    for line in f"tidelog: {error.message}".split("\n") if isinstance(error, ConfigError) else [f"tidelog: {error}"]:
        say(line, err=True)
    step = NEXT_STEP.get(error.code)
    if isinstance(error, UnreadableBatch):
        step = DAMAGED_STEP if error.is_damaged else UNREADABLE_STEP
    if step:
        say(step, err=True)
    sys.exit(UNUSABLE if isinstance(error, ConfigError) else FAILED)


def gateway_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the connection to a command: --gateway, --context, and those that identify this client
    (``connection_options``). Returns the command, which gets ``gateways`` as an argument: the URLs of the gateways to
    try in turn."""
    for field in reversed(OPTIONS):
        command = click.option(cls=ConnectionOption, field=field, exposed=field == "gateways")(command)
    return command


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tidelog")
def main() -> None:
    """Tidelog: a replicated, partitioned commit log.

    'tidelog dev' starts a cluster on this machine; the other commands talk to a gateway, by default that of 'tidelog
    dev'. 'tidelog help COMMAND' explains a command. 'tidelog doctor' says what is wrong and what to do.

    Exit codes: 0 done; 1 the cluster refused, or something was lost or found wrong; 2 wrong usage or configuration;
    130 interrupted."""


main.params[:0] = [ConnectionOption(field=field) for field in OPTIONS]


def connect(
    gateways: tuple[str, ...], patience_s: float = 0.0, *, token: str | None = None, operator: bool = False
) -> AbstractAsyncContextManager[Log]:
    """Return a context manager that connects a client for the running command, with the TLS files and the token of
    its options. Entering it raises ``UNREACHABLE``, whose message says what listens there instead: after
    ``FAILED_TIMEOUT_S`` if every gateway has failed by then, otherwise after ``CONNECT_TIMEOUT_S``, and the time of a
    handshake for each further gateway. Both are short, since a user waits at a terminal. ``patience_s``: for a
    cluster that has answered before, try at least for so long. ``token``: present this token ("": none)
    instead of the token and certificate of the options. ``operator``: the command is one with which operators look
    after the cluster, and a gateway that is full may let it in."""
    from tidelog.client.log import open_log
    from tidelog.client.trio_loop import TrioLoop
    from tidelog.net.tls import TlsFiles, TlsOptions
    from tidelog.net.websocket.transport import HANDSHAKE_TIMEOUT_S, WebSocketTransport

    settings = settings_of(click.get_current_context())
    tls = tls_options() if token is None else TlsOptions(settings.ca)
    return open_log(
        gateways,
        TrioLoop(WebSocketTransport(tls=TlsFiles(tls))),
        max(patience_s, CONNECT_TIMEOUT_S + HANDSHAKE_TIMEOUT_S * (len(gateways) - 1)),
        REQUEST_TIMEOUT_S,
        token_in(settings.token_file) or settings.token if token is None else token,
        client_name(),
        failed_timeout_s=max(patience_s, FAILED_TIMEOUT_S),
        operator=operator,
    )


def client_name() -> str:
    """Return ``USER@HOST``: the name under which the histories of a cluster record a command that has neither token
    nor certificate."""
    import socket

    return f"{_user()}@{socket.gethostname()}"


def tls_options() -> TlsOptions:
    """Return the TLS files of the running command, from its options, the environment or its context; "" for each that
    is not given. Raises ``ConfigError`` if only one of certificate and key is given. Works only while a click command
    runs."""
    from tidelog.net.tls import TlsOptions

    settings = settings_of(click.get_current_context())
    return TlsOptions(settings.ca, settings.cert, settings.cert_key)


def _user() -> str:
    """Return the name of the operating system's user; "somebody" if the user id has no name."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return "somebody"


def token_in(file: str) -> str:
    """Return the bearer token in a file, without surrounding white space; "" if ``file`` is "". Raises
    ``ConfigError`` if the file cannot be read. No option takes the token itself, since every user of the machine can
    read command lines."""
    if not file:
        return ""
    from pathlib import Path

    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: no token can be read there: {error}") from error


def run(main_task: Callable[[], Awaitable[Any]]) -> Any:
    """Run the async part of a command, and return its result. Ctrl-C ends the process with status ``INTERRUPTED``. A
    ``TidelogError``, also inside a group of errors, is printed and ends the process (``fail``); of several only the
    first is printed."""
    import trio

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
