"""``tidelog consume`` as a user types it: where it begins and ends, in which order, and what does not go together."""

from __future__ import annotations

import pytest
import tidelog.sync
from click.testing import CliRunner, Result
from serving import served
from tidelog.cli.main import main


def run(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["consume", *arguments, "--gateway", url])


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        ("--from earliest --to-end", "0 1 2 3 4 5 6 7 8 9"),
        ("--from 3 --until 6", "3 4 5"),
        ("--from 1970-01-01T00:00:07+00:00 --until latest", "7 8 9"),
        ("--from earliest --until 1970-01-01T00:00:02+00:00", "0 1"),
        ("--reverse", "9 8 7 6 5 4 3 2 1 0"),
        ("--reverse --max 3", "9 8 7"),
        ("--reverse --from 6 --until 4", "5 4"),
        ("--reverse --until 1970-01-01T00:00:08+00:00", "9 8"),
    ],
)
def test_a_range_of_records_in_either_order(arguments: str, printed: str) -> None:
    with served() as (_, url):
        with tidelog.sync.connect(url) as log, log.producer("orders") as producer:
            for n in range(10):
                producer.submit(b"%d" % n, timestamp_ms=1000 * n)
        done = run(url, "orders", *arguments.split())
        assert (done.exit_code, done.stdout.split()) == (0, printed.split()), done.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--to-end --reverse", "--to-end does not go with --reverse"),
        ("--to-end --until 5", "--to-end does not go with --until"),
        ("--until never", "--until"),
        ("--from never", "--from"),
    ],
)
def test_wrong_usage_is_told_by_option(arguments: str, words: str) -> None:
    done = run("ws://127.0.0.1:1", "orders", *arguments.split())
    assert done.exit_code == 2 and words in done.output
