"""Options of commands for durations, sizes, rates and counts."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner
from tidelog.cli.option_types import Quantity
from tidelog.quantities import BYTES, COUNT, SECONDS


@click.command()
@click.option("--wait", type=Quantity(SECONDS, least=0, most=3600, above=True), default="1m")
@click.option("--size", type=Quantity(BYTES, least=1024, whole=True), default="1MiB")
@click.option("--records", type=Quantity(COUNT, least=1, whole=True))
def command(wait: float, size: int, records: int | None) -> None:
    click.echo(f"{wait!r} {size!r} {records!r}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "60.0 1048576 None"),
        ("--wait 500ms --size 64KiB --records 10k", "0.5 65536 10000"),
        ("--wait 2 --size 2048 --records 3", "2.0 2048 3"),
    ],
)
def test_a_quantity_may_have_a_unit(arguments: str, said: str) -> None:
    assert CliRunner().invoke(command, arguments.split()).stdout.strip() == said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--wait soon", "'soon' must be a number of seconds, or a time such as 500ms, 12h or 7d."),
        ("--wait 0", "'0' must be more than 0 seconds."),
        ("--wait 2h", "'2h' must be at most 1h."),
        ("--wait -1", "'-1' must be more than 0 seconds."),
        ("--size 1b", "'1b' must be at least 1KiB."),
        ("--size 0.3KiB", "'0.3KiB' must be a whole number of bytes, or a size such as 64KiB, 64MiB or 1GB."),
        ("--records 1KiB", "'1KiB' must be a whole number, such as 500, 10k or 5M."),
    ],
)
def test_another_text_is_a_usage_error_that_says_what_is_accepted(arguments: str, words: str) -> None:
    done = CliRunner().invoke(command, arguments.split())
    assert done.exit_code == 2 and words in done.stderr
