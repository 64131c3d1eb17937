"""Text from outside never reaches a terminal, a log or a page but as text on its own line."""

from __future__ import annotations

import ast
import dataclasses
import io
import json
import logging
import re
import typing
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import click
import pytest
import structlog
from click.testing import CliRunner, Result
from support.fake_gateway import FakeCluster
from support.gateway_thread import served
from support.message_strategies import CHOICES
from tidelog.batch.format import Record
from tidelog.cli import output
from tidelog.cli.main import main
from tidelog.cli.records.formats import FORMATS, style_of
from tidelog.errors import TidelogError, refuse
from tidelog.net.link import Link, connect_link
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.printable import MAX_TEXT_BYTES, escaped, refuse_text
from tidelog.runtime import logs
from tidelog.types import TopicConfig
from tidelog.wire.codec import MESSAGES
from tidelog.wire.fields import hints, is_payload, optional_of
from tidelog.wire.messages import (
    BeginTransaction,
    CreateTopic,
    Delivery,
    Hello,
    Message,
    Produce,
    ProduceAck,
    Produced,
    ProducePart,
    Subscribe,
)
from tidelog_gateway.rights.text_check import MAX_TOKEN_BYTES, fault_of_texts
from tidelog_gateway.server import CLIENT_OPS

from unit.gateway.test_server import running

CONTROLS = "\x00\x07\b\t\n\v\f\r\x1b[2J\x1b]0;owned\x07\x7f\x85\x9b31m\u200b\u2028\u202e\u2066\ufeff\U000e0041"
HOSTILE = f"x{CONTROLS}23:59:59 forged [bold red]line[/] :smile:"

FIXED: dict[str, Any] = {"partition": 0, "level": 4, "code": "FORBIDDEN", "page": "tidelog_x 1\n"}
"""Values of fields, by their names, with which the commands go on."""


def hostile(kind: Any, name: str = "", flag: bool = False) -> Any:
    """A value of that type, with hostile text wherever there is text."""
    if (inner := optional_of(kind)) is not None:
        return hostile(inner, name, flag)
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        return kind(
            **{
                field: CHOICES[f"{kind.__name__}.{field}"][-1]
                if f"{kind.__name__}.{field}" in CHOICES
                else hostile(hint, field, flag)
                for field, hint in hints(kind).items()
            }
        )
    if is_payload(kind):
        return b""
    if name in FIXED and not typing.get_origin(kind):
        return FIXED[name]
    if name == "config":
        return {**TopicConfig().texts(), HOSTILE: HOSTILE}
    if typing.get_origin(kind) is tuple:
        return (hostile(typing.get_args(kind)[0], "", flag),)
    simple: dict[Any, Any] = {int: 1, bool: flag, str: HOSTILE, bytes: b"", dict[str, str]: {HOSTILE: HOSTILE}}
    return simple[kind]


class HostileCluster(FakeCluster):
    """Every text of every answer is hostile. ``refuses``: all requests but the first so many, with hostile errors."""

    accepts = 1 << 30
    flag = False

    def answer(self, link: Link, message: Message) -> Message:
        self.accepts -= 1
        if self.accepts < 0:
            raise refuse("FORBIDDEN", HOSTILE, **{HOSTILE: HOSTILE})
        assert message.ANSWER is not None
        told: Message = hostile(message.ANSWER, flag=self.flag)
        return told

    def on_message(self, link: Link, id: int | None, message: Message) -> None:
        error = refuse("FORBIDDEN", HOSTILE).to_info()
        if isinstance(message, Produce):
            link.post(Produced(tuple(ProduceAck(part.id, error=error) for part in message.parts)))
        elif isinstance(message, Subscribe) and id is not None:
            link.answer(id, hostile(message.ANSWER))
            link.post(Delivery(message.sub, error=error))
        else:
            super().on_message(link, id, message)


ARGUMENTS: dict[str, tuple[str, ...]] = {
    "topics alter": ("{name}", "{name}={name}"),
    "topics configure": ("{name}", "{name}={name}"),
    "topics create": ("{name}", "--config", "{name}={name}"),
    "topics delete": ("{name}", "--yes"),
    "topics describe": ("{name}",),
    "topics grow": ("{name}", "--partitions", "3"),
    "topics learners": ("{name}/0", "{name}"),
    "topics list": (),
    "topics pause": ("{name}",),
    "topics resume": ("{name}",),
    "topics set-readonly": ("{name}",),
    "describe": ("{name}",),
    "partitions cancel": ("{name}/0",),
    "partitions list": ("--internal",),
    "partitions reassign": ("{name}/0", "{name}"),
    "partitions reassignments": (),
    "partitions rebalance": ("--dry-run",),
    "partitions transfer": ("{name}/0", "{name}"),
    "servers drain": ("{name}", "--timeout", "0.1"),
    "servers forget": ("{name}",),
    "servers list": (),
    "servers resume": ("{name}",),
    "servers scrub": ("{name}", "--no-wait"),
    "features list": (),
    "features raise": ("--dry-run",),
    "produce": ("{name}",),
    "consume": ("{name}", "--to-end"),
    "sql": ("select * from topic('{name}')",),
    "groups delete": ("{name}", "--yes"),
    "groups describe": ("{name}",),
    "groups list": (),
    "groups reset": ("{name}", "--to", "earliest", "--topic", "{name}"),
    "transactions abort": ("{name}",),
    "transactions describe": ("{name}",),
    "transactions list": (),
    "transactions settle": ("{name}/0", "--producer", "1", "--epoch", "1", "--commit"),
    "status": (),
    "why": ("{name}/0",),
    "controllers add": ("{name}", "ws://127.0.0.1:1", "--timeout", "0.1"),
    "controllers list": (),
    "controllers remove": ("{name}",),
    "verify replicas": ("{name}", "--quick"),
    "verify record": ("{folder}/history", "--seconds", "1", "--patience", "0.1"),
    "backup": ("{name}", "{folder}/backup"),
    "restore": ("{folder}/none", "{name}"),
    "mirror": ("{name}", "--from", "{url}", "--to", "{url}", "--to-end"),
    "doctor": (),
    "capture take": ("{folder}/capture",),
    "tickets rotate": (),
    "tokens create": ("{name}",),
    "tokens list": (),
    "tokens revoke": ("0123456789abcdef",),
    "tokens rotate": ("0123456789abcdef",),
    "acls add": ("{name}", "read", "topic:x"),
    "acls drop-inherited": (),
    "acls check": ("{name}", "read", "topic:x"),
    "acls list": (),
    "acls remove": ("a", "read", "topic:x"),
    "quotas list": (),
    "quotas set": ("a", "--requests", "1"),
    "bench consume": (),
    "bench fanout": (),
    "bench latency": (),
    "bench produce": (),
}
"""Of every command that asks a gateway."""
LOCAL = {
    *("dev", "demo", "certs", "completion", "controller", "replica", "gateway", "capture show"),
    *(f"pipeline {word}" for word in ("check", "graph", "run", "try")),
    *("table compact", "table expire"),
    *("controllers rescue", "verify check", "help", "import kafka", "conformance", "mcp"),
    *(f"context {word}" for word in ("add", "list", "remove", "show", "use")),
    *(f"cluster {word}" for word in ("up", "down", "end", "kill", "pause", "restart", "resume", "status")),
}
"""Those that ask none, the import, which asks Kafka before, and the server for agents, which waits for them."""


def commands(group: click.Group, context: click.Context, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command under the group."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, context, f"{path} {name}".strip())
        else:
            yield f"{path} {name}".strip(), command


ALL = dict(commands(main, click.Context(main)))


def test_every_command_is_fed() -> None:
    assert set(ALL) == LOCAL | set(ARGUMENTS)


def unprintable(text: str) -> list[str]:
    """What a terminal would obey in a text of lines."""
    return [line for line in text.split("\n") if not line.isprintable()]


def check(done: Result) -> None:
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    assert not unprintable(done.stdout), done.stdout
    assert not unprintable(done.stderr), done.stderr
    forged = [line for line in done.output.split("\n") if line.startswith("23:59:59")]
    assert not forged, done.output


@contextmanager
def fed(monkeypatch: pytest.MonkeyPatch, accepts: int = 1 << 30, flag: bool = False) -> Iterator[str]:
    monkeypatch.setattr("support.gateway_thread.FakeCluster", HostileCluster)
    monkeypatch.setattr(HostileCluster, "flag", flag)
    with served() as (cluster, url):
        cluster.accepts = accepts  # type: ignore[attr-defined]
        yield url


@pytest.mark.parametrize("command", ARGUMENTS)
def test_no_control_character_of_any_answer_reaches_the_terminal(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forms = [[], ["--json"]] if any(p.name == "as_json" for p in ALL[command].params) else [[]]
    reached = []
    runs = ((1 << 30, False), (1 << 30, True), (0, False), (1, False), (2, False))
    for accepts, flag in runs if command != "verify record" else runs[2:3]:
        with fed(monkeypatch, accepts, flag) as url:
            for number, form in enumerate(forms):
                folder = tmp_path / f"{accepts}-{flag}-{number}"
                folder.mkdir()
                given = [a.format(name=HOSTILE, url=url, folder=folder) for a in ARGUMENTS[command]]
                gateway = [] if command == "mirror" else ["--gateway", url]
                words = [*command.split(), *given, *form, *gateway]
                done = CliRunner().invoke(main, words, input="one\n")
                check(done)
                if form and done.exit_code == 0:
                    json.loads(done.stdout)
                reached.append((done.exit_code, "forged" in done.output))
    if command not in ("acls add", "controllers add", "restore"):
        assert any(forged for _, forged in reached), reached


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_markup_and_escapes_are_shown_as_they_are() -> None:
    table = output.Table("name")
    table.add("[bold]x[/bold] :smile: [/] \x1b[2J")
    for out in (Terminal(), io.StringIO()):
        with redirect_stdout(out):
            table.print()
        assert "[bold]x[/bold] :smile: [/] \\x1b[2J" in out.getvalue()


def test_a_capture_of_hostile_texts_is_shown_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fed(monkeypatch) as url:
        file = str(tmp_path / "capture")
        check(CliRunner().invoke(main, ["capture", "take", file, "--gateway", url]))
    for form in ([], ["--json"]):
        done = CliRunner().invoke(main, ["capture", "show", file, *form])
        check(done)


def test_records_on_a_terminal_stay_in_their_lines() -> None:
    record = Record("t", 0, 0, 0, 0, HOSTILE.encode(), b"\xff\x1b[2J\n", ((HOSTILE, b"\x1b\n"),))
    for name in (*FORMATS, r"%t %k %v %h\n"):
        printed = style_of(name, b"\t", True)(record).decode().split("\n")
        assert not any(unprintable(line.replace("\t", "")) for line in printed)
        assert name == "hexdump" or len(printed) == 2, "one line, and its end"


class Lines:
    """What a service writes to stderr."""

    def __init__(self, *, as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        before = structlog.get_config()
        monkeypatch.setattr(logging.getLogger("tidelog"), "handlers", [])
        logs.configure(as_json=as_json)
        try:
            structlog.get_logger().warning("client_refused", reason=HOSTILE, parts=[HOSTILE], name=HOSTILE)
            logging.getLogger("tidelog").warning("event %s", HOSTILE)
            try:
                raise ValueError(HOSTILE)
            except ValueError:
                structlog.get_logger().exception("failed", reason=HOSTILE)
        finally:
            structlog.configure(**before)
        self.text = capsys.readouterr().err


@pytest.mark.parametrize("as_json", [True, False])
def test_no_control_character_reaches_a_log(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = Lines(as_json=as_json, monkeypatch=monkeypatch, capsys=capsys).text
    own = re.sub(r"\x1b\[[0-9;]*m", "", text)  # structlog's colours
    assert "forged" in own
    assert not unprintable(own)
    assert not [line for line in own.split("\n") if line.startswith("23:59:59")]
    if as_json:
        assert json.loads(own.split("\n")[0])["reason"] == HOSTILE


def texts_in(kind: Any) -> list[tuple[str, ...]]:
    """Paths to every text of a message class, found without the code under test."""
    found: list[tuple[str, ...]] = []
    for name, hint in typing.get_type_hints(kind).items():
        if typing.get_origin(hint) is typing.ClassVar:
            continue
        inner = [arg for arg in typing.get_args(hint) if arg not in (type(None), ...)]
        if hint is str or str in inner:
            found.append((name,))
        for part in (hint, *inner):
            if dataclasses.is_dataclass(part) and part is not Message:
                found += [(name, *path) for path in texts_in(part)]
    return found


def put(kind: Any, path: tuple[str, ...], text: str) -> Any:
    """A message with one hostile text, all others being empty or harmless."""
    values: dict[str, Any] = {}
    for name, declared in hints(kind).items():
        hint = optional_of(declared) or declared
        inner = typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else None
        value: Any
        if name == path[0]:
            if hint is str:
                value = text
            elif hint == dict[str, str]:
                value = {text: "x"}
            elif inner is str:
                value = (text,)
            else:
                part = put(inner or hint, path[1:], text)
                value = part if inner is None else (part,)
        elif is_payload(hint):
            value = b""
        elif typing.get_origin(hint) is tuple:
            value = ()
        elif dataclasses.is_dataclass(hint):
            value = None
        else:
            value = {int: 0, bool: False, str: "", bytes: b"", dict[str, str]: {}}[hint]
        values[name] = value
    return kind(**values)


CLIENTS = [kind for kind in MESSAGES if kind.OP in CLIENT_OPS | {"hello"}]


@pytest.mark.parametrize("kind", CLIENTS, ids=lambda kind: kind.OP)
def test_a_gateway_takes_no_text_that_is_not_printable(kind: type[Message]) -> None:
    for path in texts_in(kind):
        for character in CONTROLS:
            if character.isprintable():
                continue
            fault = fault_of_texts(put(kind, path, f"a{character}b"))
            assert bool(fault) == (path != ("positions", "metadata")), path
            assert character not in fault
        assert fault_of_texts(put(kind, path, "plain Ärger 日本")) == ""
        if path != ("positions", "metadata"):
            most = MAX_TOKEN_BYTES if path == ("token",) and kind is Hello else MAX_TEXT_BYTES
            assert "longer than" in fault_of_texts(put(kind, path, "x" * (most + 1)))


async def test_a_gateway_refuses_them_at_its_door() -> None:
    async with running() as (cluster, client):
        for hello in (Hello(1, "client", HOSTILE), Hello(1, "client", "x" * 250)):
            with pytest.raises(TidelogError, match="node") as caught:
                async with connect_link(WebSocketTransport(), client.link.remote, hello):
                    pass
            assert caught.value.code == "MALFORMED"
        for message in (CreateTopic("x\n"), CreateTopic("x", client="\x1b"), BeginTransaction("a", "\u202e")):
            with pytest.raises(TidelogError, match="printable") as caught:
                await client.link.call(message, 5)
            assert caught.value.code == "MALFORMED"
        client.link.post(Produce((ProducePart(1, "t", 0, 0, 0, 1, transaction="\n"),), b""))
        await client.link.wait_closed()
        assert not [topic for topic in cluster.image.topics if topic.name == "x"]


def test_all_that_commands_print_is_escaped_in_one_place() -> None:
    folder = Path(output.__file__).parent
    for path in folder.rglob("*.py"):
        if path.name in ("output.py", "spark_job.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert called not in ("click.echo", "click.secho", "print", "Console", "sys.stdout.write"), path
            assert not called.endswith(".add_row"), path


def test_escapes_are_those_of_python() -> None:
    assert escaped("a\x1b\n\u202e\x9b ä日") == "a\\x1b\\n\\u202e\\x9b ä日"
    assert refuse_text("ä" * 125, "node", 249) == "node is longer than 249 bytes"
