"""The options by which every command finds the cluster: where they may stand, what counts, and where they are
explained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from support.gateway_thread import served
from tidelog.cli.connection_options import ConnectionOption, ConnectionSettings, settings_of
from tidelog.cli.contexts import Context, Contexts, save
from tidelog.cli.main import gateway_option, main

PROD = Context(("ws://prod",), ca="/prod.ca", token_file="/prod.token")
TEST = Context(("ws://test",), token_file="/test.token")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the machine counts."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for variable in ("GATEWAY", "CONTEXT", "TOKEN", "CLIENT_CA", "CLIENT_CERT", "CLIENT_KEY", "CLIENT_TOKEN_FILE"):
        monkeypatch.delenv(f"TIDELOG_{variable}", raising=False)


def resolved(words: str, environment: str, current: str = "") -> ConnectionSettings:
    """What counts for a command with these words, these variables and this context in use."""
    found: list[ConnectionSettings] = []
    save(Contexts(current, {"prod": PROD, "test": TEST, "bare": Context(("ws://bare",))}))

    @click.command()
    @gateway_option
    def command(gateways: tuple[str, ...]) -> None:
        settings = settings_of(click.get_current_context())
        assert gateways == settings.gateways
        found.append(settings)

    variables = dict(one.split("=") for one in environment.split())
    done = CliRunner().invoke(command, words.split(), env=variables, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return found[0]


@pytest.mark.parametrize(
    ("words", "environment", "current", "gateways", "shown"),
    [
        ("", "", "", ("ws://127.0.0.1:9292",), ""),
        ("", "", "prod", ("ws://prod",), "/prod.token"),
        ("", "TIDELOG_CONTEXT=test", "prod", ("ws://test",), "/test.token"),
        ("", "TIDELOG_GATEWAY=ws://e", "prod", ("ws://e",), ""),
        ("-G ws://a -G ws://b", "TIDELOG_GATEWAY=ws://e", "prod", ("ws://a", "ws://b"), ""),
        ("-C test", "TIDELOG_GATEWAY=ws://e", "prod", ("ws://test",), "/test.token"),
        ("-C test", "TIDELOG_CONTEXT=prod TIDELOG_TOKEN=t", "prod", ("ws://test",), "/test.token"),
        ("-C bare", "TIDELOG_GATEWAY=ws://e TIDELOG_TOKEN=t TIDELOG_CLIENT_TOKEN_FILE=e", "", ("ws://bare",), ""),
        ("-C test --token-file f", "", "", ("ws://test",), "f"),
        ("--token-file f", "TIDELOG_CLIENT_TOKEN_FILE=e", "prod", ("ws://prod",), "f"),
        ("", "TIDELOG_CLIENT_TOKEN_FILE=e TIDELOG_TOKEN=t", "prod", ("ws://prod",), "e"),
        ("", "TIDELOG_TOKEN=t", "prod", ("ws://prod",), "t"),
        ("", "TIDELOG_TOKEN=t TIDELOG_GATEWAY=ws://e", "prod", ("ws://e",), "t"),
    ],
)
def test_the_first_that_has_a_value_counts(
    words: str, environment: str, current: str, gateways: tuple[str, ...], shown: str
) -> None:
    found = resolved(words, environment, current)
    assert (found.gateways, found.token_file or found.token) == (gateways, shown)


def test_a_context_and_a_gateway_as_options_are_refused() -> None:
    for words in ("-C here topics list -G ws://a", "-G ws://a topics list -C here"):
        done = CliRunner().invoke(main, words.split())
        assert (done.exit_code, "give one of them" in done.output) == (2, True), done.output


def test_the_context_in_use_is_left_aside_whole_where_another_gateway_is_named() -> None:
    assert resolved("", "", "prod").ca == "/prod.ca"
    assert resolved("-G ws://a", "", "prod").ca == ""
    assert resolved("-G ws://a --ca mine", "", "prod").ca == "mine"


@pytest.mark.parametrize(
    "words",
    [
        "--gateway {url} topics list",
        "topics --gateway {url} list",
        "topics list --gateway {url}",
        "-G {url} topics list",
        "topics list -G {url}",
        "-G ws://127.0.0.1:1 topics -G {url} list",
        "--context here topics list",
        "capture -G {url} take {folder}/file",
        "capture -G {url} {folder}/file",
    ],
)
def test_the_options_may_stand_before_and_after_the_command(words: str, tmp_path: Path) -> None:
    with served() as (cluster, url):
        save(Contexts("", {"here": Context((url,))}))
        done = CliRunner().invoke(main, words.format(url=url, folder=tmp_path).split())
        assert cluster.seen, done.output


def commands(group: click.Group, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, parent=context, info_name=name)
        yield command, inner
        if isinstance(command, click.Group):
            yield from commands(command, inner)


def test_the_help_of_a_command_has_one_line_about_all_of_them() -> None:
    checked = 0
    for command, context in commands(main, click.Context(main, info_name="tidelog")):
        if any(isinstance(param, ConnectionOption) for param in command.get_params(context)):
            text = command.get_help(context)
            assert text.count("help connection") == 1, context.command_path
            assert not any(option in text for option in ("--token-file FILE", "--cert-key FILE", "env var: TIDELOG_"))
            checked += 1
    assert checked > 60


def test_a_group_whose_commands_talk_to_no_cluster_does_not_take_them() -> None:
    done = CliRunner().invoke(main, ["context", "--gateway", "ws://a", "list"])
    assert done.exit_code == 2 and "No such option" in done.output


def test_a_file_of_a_pipeline_goes_before_the_context_in_use_only() -> None:
    def found(words: str, environment: dict[str, str]) -> ConnectionSettings:
        made: list[ConnectionSettings] = []

        @click.command()
        @gateway_option
        def command(gateways: tuple[str, ...]) -> None:
            made.append(settings_of(click.get_current_context(), ("ws://file",)))

        CliRunner().invoke(command, words.split(), env=environment, catch_exceptions=False)
        return made[0]

    save(Contexts("prod", {"prod": PROD, "test": TEST}))
    assert found("", {})[:1] == (("ws://file",),) and found("", {}).token_file == ""
    assert found("", {"TIDELOG_GATEWAY": "ws://e"}).gateways == ("ws://e",)
    assert found("-C test", {}).gateways == ("ws://test",)
    assert found("-G ws://a", {}).gateways == ("ws://a",)
