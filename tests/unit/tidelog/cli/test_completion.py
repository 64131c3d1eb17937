"""What the shell is told when somebody presses the tab key."""

from __future__ import annotations

import pytest
from click.shell_completion import ShellComplete, get_completion_class
from click.testing import CliRunner
from support.gateway_thread import served
from tidelog.cli.main import main


def completed(arguments: str, incomplete: str) -> list[str]:
    complete = ShellComplete(main, {}, "tidelog", "_TIDELOG_COMPLETE")
    return [item.value for item in complete.get_completions(arguments.split(), incomplete)]


@pytest.mark.parametrize(
    ("arguments", "incomplete", "found"),
    [
        ("", "be", ["bench"]),
        ("bench", "f", ["fanout"]),
        ("consume orders --format", "hex", ["hex", "hexdump"]),
        ("consume", "", ["orders"]),
        ("topics describe", "o", ["orders"]),
        ("bench produce --topic", "ord", ["orders"]),
        ("consume", "__", ["__timeline"]),
        ("topics create", "o", []),
        ("why", "or", ["orders/0", "orders/1"]),
        ("why", "orders/1", ["orders/1"]),
        ("why", "order/", []),
    ],
)
def test_commands_options_topics_and_partitions_are_completed(
    arguments: str, incomplete: str, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(partitions=2) as (cluster, url):
        monkeypatch.setenv("TIDELOG_GATEWAY", url)
        monkeypatch.setattr("tidelog.cli.completion.ASK_S", 100.0)  # on a busy machine a completion would give up
        cluster.add_topic("__timeline")
        assert completed(arguments, incomplete) == found


def test_without_a_gateway_there_are_no_topics_and_no_complaint() -> None:
    assert completed("consume --gateway ws://127.0.0.1:1", "") == []


@pytest.mark.parametrize(
    ("shell", "words"), [("bash", "complete -o nosort"), ("zsh", "compdef"), ("fish", "complete --no-files")]
)
def test_the_script_of_each_shell_is_for_the_command(shell: str, words: str) -> None:
    said = CliRunner().invoke(main, ["completion", shell]).stdout
    assert words in said and "_TIDELOG_COMPLETE" in said
    made = get_completion_class(shell)
    assert made is not None and said.strip() == made(main, {}, "tidelog", "_TIDELOG_COMPLETE").source().strip()
