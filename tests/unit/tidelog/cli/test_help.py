"""``tidelog help``, the help of all commands, and what is suggested for a word that is none. Tests ``cli/help.py``
and ``cli/main.py``."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import IO

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from support.gateway_thread import served
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.cli.main import COMMANDS, SECTIONS, main


def output(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, words, prog_name="tidelog")
    assert done.exit_code == code, done.output
    return done.output


@pytest.mark.parametrize("words", ["", "topics", "topics create", "bench produce", "controller", "help"])
def test_help_of_a_command_is_that_of_its_option(words: str) -> None:
    if words == "controller":  # which passes its options on to the service
        assert "--help lists its settings" in " ".join(output("help", "controller").split())
    else:
        assert output("help", *words.split()) == output(*words.split(), "--help")


def test_the_help_has_every_command_in_a_section() -> None:
    text = output("--help")
    assert sum(map(len, SECTIONS.values())) == len(COMMANDS)
    for title, section in SECTIONS.items():
        assert f"\n{title}:\n" in text
        for name, entry in section.items():
            assert f"  {name} " in text and entry.summary in text


def test_the_options_of_the_connection_are_explained_once() -> None:
    page = output("help", "connection")
    for option in ("--gateway", "--context", "--ca", "--cert", "--cert-key", "--token-file"):
        assert option in page and option in output("--help")
    assert "TIDELOG_CONTEXT" in page and "the context in use" in " ".join(page.split())


def test_a_misspelt_page_is_suggested() -> None:
    assert "'connection'" in output("help", "conection", code=2)
    assert "'topics'" in output("help", "topcs", code=2)
    assert "'connection'" not in output("help", "topics", "conection", code=2)


def test_a_short_option_means_the_same_in_every_command() -> None:
    meanings: dict[str, set[str]] = {}

    def collect(command: click.Command, context: click.Context) -> None:
        for param in command.get_params(context):
            short, long = ([one for one in param.opts if one.startswith("--") is way] for way in (False, True))
            if isinstance(param, click.Option) and short:
                assert len(short) == len(long) == 1, f"{context.command_path}: {param.opts}"
                meanings.setdefault(short[0], set()).add(long[0].removesuffix("s"))
        for name in command.list_commands(context) if isinstance(command, click.Group) else ():
            inner = command.get_command(context, name)
            assert inner is not None
            collect(inner, click.Context(inner, parent=context, info_name=name, **inner.context_settings))

    collect(main, click.Context(main, info_name="tidelog", **main.context_settings))
    assert len(meanings) > 8 and not {short: long for short, long in meanings.items() if len(long) > 1}


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        ("topcs list", "topics"),
        ("tipics", "topics"),
        ("topics lst", "list"),
        ("topics list --gatway ws://a", "--gateway"),
        ("topics --gatway ws://a list", "--gateway"),
        ("--gatway ws://a topics list", "--gateway"),
        ("consume orders --form json", "--format"),
        ("help topcs", "topics"),
        ("help topics creat", "create"),
    ],
)
def test_something_similar_is_suggested_at_every_level(words: str, suggestion: str) -> None:
    said = output(*words.split(), code=2)
    assert "Did you mean" in said and f"'{suggestion}'" in said.partition("Did you mean")[2]


def test_help_of_something_below_a_command_says_that_there_is_nothing() -> None:
    assert "'tidelog topics create' has no sub-commands" in output("help", "topics", "create", "x", code=2)


@pytest.mark.parametrize(
    ("arguments", "incomplete", "found"),
    [("help", "conn", ["connection"]), ("help", "topi", ["topics"]), ("help topics", "cr", ["create"]),
     ("help topics create", "", []), ("help nothing", "", []), ("", "con", ["conformance", "consume", "controller",
     "controllers", "context"])],
)  # fmt: skip
def test_commands_are_completed(arguments: str, incomplete: str, found: list[str]) -> None:
    complete = ShellComplete(main, {}, "tidelog", "_TIDELOG_COMPLETE")
    assert sorted(item.value for item in complete.get_completions(arguments.split(), incomplete)) == sorted(found)


def test_an_address_at_which_nothing_listens_is_said_with_the_next_step() -> None:
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        url = f"ws://127.0.0.1:{bound.getsockname()[1]}"
        said = output("topics", "list", "--gateway", url, code=1)
    assert f"{url}: nothing listens there" in said and "'tidelog dev'" in said


def test_an_address_without_ws_is_understood_and_another_scheme_is_corrected() -> None:
    said = output("topics", "list", "--gateway", "http://localhost:1", code=2)
    assert "did you mean ws://localhost:1?" in said
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        assert f"ws://{address}: nothing listens there" in output("topics", "list", "--gateway", address, code=1)


def ended(words: list[str | bytes], stdout: int | IO[bytes] = subprocess.PIPE) -> tuple[int, str]:
    """The exit status and the errors of a process that runs the command."""
    command = [sys.executable, "-m", "tidelog.cli", *words]
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, check=False)
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize(
    "words", [["topics", "create", b"h\xff"], ["consume", b"h\xff", "--to-end"], ["sql", b"select '\xff'"]]
)
def test_an_argument_that_is_not_utf_8_is_refused_in_one_line(words: list[str | bytes]) -> None:
    with served() as (_, url):
        status, said = ended([*words, "--gateway", url])
    assert status == 2 and "not text in UTF-8" in said and len(said.splitlines()) == 1, said


@pytest.mark.parametrize("words", [["help"], ["topics", "list", "-o", "json"], ["consume", "orders", "--to-end"]])
def test_output_that_cannot_be_written_ends_the_command_in_one_line(words: list[str | bytes]) -> None:
    with served() as (cluster, url), Path("/dev/full").open("wb") as full:
        cluster.log("orders").append(encode_batch([NewRecord(b"x", timestamp_ms=1)]), 0)
        more = [] if words == ["help"] else ["--gateway", url]
        status, said = ended([*words, *more], full)
    assert (status, said.splitlines()) == (1, ["tidelog: cannot write: No space left on device"])
