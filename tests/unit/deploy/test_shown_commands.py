"""What the documentation tells its reader to type exists: commands with these options, make targets, modules,
files, environment variables. Tests ``docs`` and ``Makefile``."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from click.parser import _OptionParser as OptionParser
from support.deployment_files import DEPLOY, ROOT, SERVICES
from tidelog.cli.main import main
from tidelog.runtime.config import settings_of

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
DEPLOYED = sorted(
    path
    for folder in ("docker", "systemd", "kubernetes", "helm/tidelog", "helm/tidelog/templates")
    for path in (DEPLOY / folder).iterdir()
    if path.is_file()
)
FENCED = re.compile(r"^ *```(?:sh|console)?\n(.*?)^ *```", re.M | re.S)
INLINE = re.compile(r"`([^`\n]+)`")
SPLIT = re.compile(r"\s(?:\||\|\||&&|;)\s")
OURS = re.compile(r"\s*(?:sudo (?:-u \w+ )?)?(?:[A-Z_]+=\S+ )*(?:\S*/bin/)?(tidelog|make|python3?) (.*)")
STOP = re.compile(r"[…{}]|\.\.\.")
"""From there on a command is only hinted at."""
TEST = re.compile(r"def (test_\w+)\(")
NAME = re.compile(r"\bTIDELOG_[A-Z][A-Z_]*[A-Z]\b")


class Shown(NamedTuple):
    """A command that the documentation shows, with the page that shows it."""

    page: str
    words: list[str]
    whole: bool
    """It is to be typed as it stands; else it may be the name of a command only."""


def shown(page: Path) -> Iterator[Shown]:
    """Yield every command of a page that is one of this project."""
    text = page.read_text()
    name = str(page.relative_to(ROOT))
    for block in FENCED.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            for part in SPLIT.split(line.partition(" # ")[0]):
                yield from _ours(name, part, whole=True)
    for code in INLINE.findall(FENCED.sub("", text)):
        yield from _ours(name, code, whole=False)


def _ours(page: str, text: str, whole: bool) -> Iterator[Shown]:
    found = OURS.match(text)
    if found is None:
        return
    try:
        words = shlex.split(STOP.split(found[2])[0], comments=True)
    except ValueError:  # a quotation that goes on in the next line
        words = found[2].split()
    yield Shown(page, [found[1], *takewhile(lambda word: word != ">", words)], whole)


def commands(program: str) -> list[Shown]:
    found = [one for page in PAGES for one in shown(page) if one.words[0].rstrip("3") == program]
    assert found
    return found


def check(one: Shown) -> None:
    """Raise ``click.UsageError`` or ``AssertionError`` if there is no such command."""
    command, words = main, one.words[1:]
    context = click.Context(main, info_name="tidelog")
    while isinstance(command, click.Group):
        if words and type(command).parse_args is not click.Group.parse_args:  # it has short forms of its commands
            command.parse_args(context, words)
            words = [*context._protected_args, *context.args]
        if not words or words[0].startswith("-"):
            assert not one.whole or set(words) <= {"--help", "--version"}, "a command is missing"
            return
        alternatives = [command.get_command(context, word) for word in words.pop(0).split("|")]
        assert all(alternatives), "there is no such command"
        assert alternatives[0] is not None
        command = alternatives[0]
        context = click.Context(command, parent=context)
    if command.name in SERVICES:
        flags = {f"--{setting.name.replace('_', '-')}" for setting in settings_of(SERVICES[command.name])}
        assert {word for word in words if word.startswith("--")} <= flags | {"--config", "--help"}
        return
    parser = command.make_parser(context)
    assert isinstance(parser, OptionParser)
    if not one.whole and words and words[-1].startswith("--"):
        words.append("what the option takes")
    values, _, order = parser.parse_args(words)
    arguments = [param for param in order if isinstance(param, click.Argument)]
    given = [param for param in arguments if values.get(param.name) not in (None, ())]
    missing = [param.name for param in arguments if param.required and param not in given]
    assert not one.whole or not missing or "--help" in words, f"{missing} is missing"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist_with_these_options(page: Path) -> None:
    for one in shown(page):
        if one.words[0] == "tidelog":
            try:
                check(one)
            except (click.UsageError, AssertionError) as error:
                raise AssertionError(f"{' '.join(one.words)}: {error}") from error


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for one in commands("make"):
        named = {word for word in one.words[1:] if re.fullmatch(r"[a-z-]{3,}", word)}
        assert not one.whole or named <= targets, one


def test_modules_and_programs_exist() -> None:
    for one in commands("python"):
        words = one.words[1:]
        if words[:1] == ["-m"] and words[1].startswith("tidelog"):
            assert importlib.util.find_spec(words[1]), one
        elif words and words[0].startswith("deploy/"):
            assert (ROOT / words[0]).exists(), one


def test_files_that_are_named_exist() -> None:
    for page in PAGES:
        for path in re.findall(r"(?<![\w/.])((?:deploy|services|tests)/[\w./*-]+[\w*])", page.read_text()):
            assert any(ROOT.glob(path)), f"{page.name} names {path}"


def test_tests_that_are_named_exist() -> None:
    """A procedure says which test has run it."""
    there = {name for path in (ROOT / "tests").rglob("*.py") for name in TEST.findall(path.read_text())}
    for page in PAGES:
        named = {name for code in INLINE.findall(page.read_text()) for name in re.findall(r"^test_\w+$", code)}
        assert named <= there, f"{page.name} names {named - there}"


@pytest.mark.parametrize("path", [*PAGES, *DEPLOYED], ids=lambda path: str(path.relative_to(ROOT)))
def test_environment_variables_exist(path: Path) -> None:
    assert not set(NAME.findall(path.read_text())) - known_names(), "nothing reads a variable of that name"


@cache
def known_names() -> frozenset[str]:
    """Return the names of settings, of the command's variables, and those that the code itself uses."""
    sources = [path for folder in ("shared", "deploy", "tests") for path in (ROOT / folder).rglob("*.py")]
    written = {name for path in sources for name in NAME.findall(path.read_text())}
    settings = {setting.variable for kind in SERVICES.values() for setting in settings_of(kind)}
    return frozenset(settings | set(of_commands(main)) | written)


def of_commands(command: click.Command) -> Iterator[str]:
    """Return the environment variables from which options of the command line are read."""
    for param in command.params:
        envvar = getattr(param, "envvar", None)
        yield from [envvar] if isinstance(envvar, str) else envvar or ()
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from of_commands(inner)
