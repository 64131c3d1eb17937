"""``tidelog context`` as a user types it, and the file that it writes. Tests ``cli/context.py`` and
``cli/contexts.py``."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result
from tidelog.cli.contexts import Context, Contexts, load, save
from tidelog.cli.main import main
from tidelog.errors import ConfigError


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the folder of the file, which is not there yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for variable in ("GATEWAY", "CONTEXT", "TOKEN"):
        monkeypatch.delenv(f"TIDELOG_{variable}", raising=False)
    return tmp_path / "config" / "tidelog"


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["context", *words])


def done(*words: str) -> str:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words: str) -> str:
    result = run(*words)
    assert result.exit_code == 2, result.output
    return result.stderr


def test_contexts_are_added_used_shown_and_removed(folder: Path, tmp_path: Path) -> None:
    token = tmp_path / "prod.token"
    token.write_text("a secret")
    assert "there are no contexts" in done("list")
    done("add", "prod", "--gateway", "wss://a:1", "--gateway", "wss://b:2", "--token-file", str(token))
    done("add", "test", "--gateway", "localhost:1234", "--use")
    assert load() == Contexts(
        "test",
        {
            "prod": Context(("wss://a:1", "wss://b:2"), token_file=str(token)),
            "test": Context(("ws://localhost:1234",)),
        },
    )
    written = folder / "contexts.toml"
    assert stat.S_IMODE(written.stat().st_mode) == 0o600 and stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert "a secret" not in written.read_text() and list(folder.iterdir()) == [written]

    listed = {one["name"]: one for one in json.loads(done("list", "--json"))}
    assert [name for name, one in listed.items() if one["in_use"]] == ["test"]
    done("use", "prod")
    assert [line.split()[1] for line in done("list").splitlines() if line.strip().startswith("*")] == ["prod"]
    shown = done("show")
    assert shown.startswith("prod (in use)") and str(token) in shown and "a secret" not in shown
    assert json.loads(done("show", "test", "--json"))["gateways"] == ["ws://localhost:1234"]
    assert "no context is in use now" in done("remove", "prod")
    assert load() == Contexts("", {"test": Context(("ws://localhost:1234",))})
    done("use", "test")
    done("use", "--none")
    assert load().current == ""


def test_the_options_before_the_command_are_those_of_the_context() -> None:
    assert CliRunner().invoke(main, ["-G", "ws://a:1", "context", "add", "prod"]).exit_code == 0
    assert load().by_name["prod"].gateways == ("ws://a:1",)


def test_files_are_kept_by_their_whole_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ca.pem").touch()
    done("add", "prod", "--gateway", "wss://a:1", "--ca", "ca.pem")
    assert load().by_name["prod"].ca == str(tmp_path / "ca.pem")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add", "prod"), "--gateway URL"),
        (("add", "prod", "-G", "http://a:1"), "did you mean ws://a:1"),
        (("add", "a b", "-G", "ws://a:1"), "is no name for a context"),
        (("add", "old", "-G", "ws://a:1"), "--replace replaces it"),
        (("add", "prod", "-G", "ws://a:1", "--ca", "/not/there"), "does not exist"),
        (("add", "prod", "-G", "ws://a:1", "--cert", __file__), "go together"),
        (("use", "prod"), "there is no context 'prod'; there are old"),
        (("use",), "name a context, or say --none"),
        (("use", "old", "--none"), "name a context, or say --none"),
        (("show",), "no context is in use"),
        (("show", "prod"), "there is no context 'prod'"),
        (("remove", "prod"), "there is no context 'prod'"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(words: tuple[str, ...], said: str) -> None:
    before = Contexts("", {"old": Context(("ws://old",))})
    save(before)
    assert said in refused(*words)
    assert load() == before


def test_another_context_of_that_name_replaces_it_if_asked_for() -> None:
    done("add", "prod", "-G", "ws://a:1")
    done("add", "prod", "-G", "ws://b:1", "--replace")
    assert load().by_name["prod"].gateways == ("ws://b:1",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("current = 1x", "line 1"),
        ("\xff", "cannot be read"),
        ('gateways = ["ws://a"]', "'gateways' is not"),
        ('current = "x"', "the current context 'x' is not in the file"),
        ("[contexts.prod]", "contexts.prod.gateways is no list"),
        ('[contexts.prod]\ngateways = "ws://a"', "contexts.prod.gateways is no list"),
        ('[contexts.prod]\ngateways = ["ws://a"]\ntoken = "t"', "contexts.prod has 'token', which is none of"),
        ('[contexts.prod]\ngateways = ["ws://a"]\nca = 1', "contexts.prod.ca is no path"),
        ('[contexts.prod]\ngateways = ["ws://a"]\nca = "a\\u0000b"', "contexts.prod.ca is no path"),
        ('[contexts.prod]\ngateways = ["ws://a"]\nca = "~no-such-user/ca"', "home directory"),
        ("a=" + "[" * 100_000, "mend the file"),
        ('contexts.prod = "ws://a"', "contexts.prod is no table"),
        ('[contexts."a b"]\ngateways = ["ws://a"]', "'a b' is no name"),
    ],
)
def test_a_broken_file_is_named_with_its_fault(text: str, said: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "contexts.toml").write_bytes(text.encode("latin-1"))
    for command in (["context", "list"], ["topics", "list"]):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 2 and f"{folder / 'contexts.toml'}: " in result.stderr and said in result.stderr
    assert CliRunner().invoke(main, ["topics", "list", "--help"]).exit_code == 0


def test_paths_are_relative_to_the_file_and_may_begin_at_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    folder.mkdir(parents=True)
    (folder / "contexts.toml").write_text('[contexts.a]\ngateways = ["ws://a"]\nca = "ca.pem"\ncert = "~/c.pem"\n')
    assert load().by_name["a"] == Context(("ws://a",), ca=str(folder / "ca.pem"), cert="/home/me/c.pem")


def test_without_xdg_config_home_the_file_is_below_dot_config(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for home in ("", "relative"):
        monkeypatch.setenv("XDG_CONFIG_HOME", home)
        assert save(Contexts()) == tmp_path / ".config" / "tidelog" / "contexts.toml"


def test_any_text_is_read_as_it_was_written() -> None:
    odd = 'a "b"\\ \n\t\x7f é 😀'
    contexts = Contexts("x", {"x": Context((odd,), ca=f"/{odd}")})
    save(contexts)
    assert load() == contexts


def test_a_link_to_the_file_stays_a_link(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "contexts.toml").symlink_to(tmp_path / "kept.toml")
    save(Contexts("", {"prod": Context(("ws://a",))}))
    assert (folder / "contexts.toml").is_symlink() and "ws://a" in (tmp_path / "kept.toml").read_text()


def test_contexts_in_something_else_than_a_file_are_refused(folder: Path) -> None:
    folder.mkdir(parents=True)
    os.mkfifo(folder / "contexts.toml")
    assert "is not a file" in refused("list")


def test_a_file_that_cannot_be_written_is_named(folder: Path) -> None:
    folder.parent.mkdir()
    folder.write_text("in the way")
    with pytest.raises(ConfigError, match=r"contexts\.toml: the contexts cannot be written"):
        save(Contexts())


@pytest.mark.parametrize(
    ("arguments", "incomplete", "found"),
    [
        ("topics list --context", "", ["prod", "test"]),
        ("topics list -C", "p", ["prod"]),
        ("--context", "t", ["test"]),
        ("context use", "", ["prod", "test"]),
        ("context remove", "pr", ["prod"]),
        ("mirror orders --from-context", "te", ["test"]),
    ],
)
def test_names_are_completed(arguments: str, incomplete: str, found: list[str]) -> None:
    save(Contexts("", {"prod": Context(("ws://a",)), "test": Context(("ws://b",))}))
    complete = ShellComplete(main, {}, "tidelog", "_TIDELOG_COMPLETE")
    assert [item.value for item in complete.get_completions(arguments.split(), incomplete)] == found


def test_names_of_a_broken_file_are_not_completed(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "contexts.toml").write_text("x")
    complete = ShellComplete(main, {}, "tidelog", "_TIDELOG_COMPLETE")
    assert complete.get_completions(["context", "use"], "") == []
