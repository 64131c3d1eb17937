"""What commands print, for people and for programs, and that every list can be read by programs."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

import click
import pytest
from click.testing import CliRunner, Result
from support.fake_gateway import FakeCluster
from support.gateway_thread import served
from tidelog.cli.main import main
from tidelog.cli.output import Cell, Column, Table, fitted

NAME = "orders-of-the-northern-warehouse"
CONFIG = {
    "commit_rule": "isr",
    "cleanup": "delete",
    "retention_ms": "604800000",
    "segment_max_bytes": "67108864",
    "unclean_election": "false",
    "min_insync_replicas": "1",
}


@contextmanager
def filled() -> Iterator[tuple[FakeCluster, str]]:
    """A cluster with a topic that has two partitions and settings."""
    with served() as (cluster, url):
        del cluster.topics["orders"]
        cluster.epoch = 0
        cluster.add_topic(NAME, 2, **CONFIG)
        yield cluster, url


def run(url: str, *arguments: str) -> Result:
    done = CliRunner().invoke(main, [*arguments, "--gateway", url])
    assert done.exit_code == 0, done.output
    return done


def test_a_list_in_each_format() -> None:
    with filled() as (cluster, url):
        topic_id = cluster.topics[NAME].topic_id
        people = run(url, "topics", "list").stdout
        assert [line.split() for line in people.splitlines()] == [
            ["name", "partitions", "replicas", "in", "sync"],
            [NAME, "2", "1", "all"],
        ]
        assert topic_id in run(url, "topics", "list", "-o", "wide").stdout
        assert run(url, "topics", "list", "--output", "names").stdout == f"{NAME}\n"
        assert run(url, "topics", "list", "-o", "tsv").stdout == (
            f"name\tpartitions\treplicas\tunder_replicated\ttopic_id\n{NAME}\t2\t1\t0\t{topic_id}\n"
        )
        found = json.loads(run(url, "topics", "list", "-o", "json").stdout)
        assert found == json.loads(run(url, "topics", "list", "--json").stdout)
        assert [(topic["name"], topic["topic_id"]) for topic in found] == [(NAME, topic_id)]


def test_a_description_in_each_format() -> None:
    with filled() as (cluster, url):
        described = json.loads(run(url, "topics", "describe", NAME, "-o", "json").stdout)
        assert described["config"] == {
            "commit_rule": "isr",
            "cleanup": "delete",
            "retention_ms": 604_800_000,
            "segment_max_bytes": 64 << 20,
            "unclean_election": False,
            "min_insync_replicas": 1,
        }
        assert run(url, "topics", "describe", NAME, "-o", "names").stdout == f"{NAME}/0\n{NAME}/1\n"
        lines = [line.split("\t") for line in run(url, "describe", NAME, "-o", "tsv").stdout.splitlines()]
        assert [line[:3] for line in lines] == [
            ["partition", "leader", "leader_epoch"],
            ["0", "r1", "0"],
            ["1", "r1", "0"],
        ]
        people = run(url, "topics", "describe", NAME).stdout
        assert "retention_ms = 604800000 (7d)\n" in people and "segment_max_bytes = 67108864 (64MiB)\n" in people
        assert cluster.topics[NAME].topic_id not in people
        assert cluster.topics[NAME].topic_id in run(url, "topics", "describe", NAME, "-o", "wide").stdout


def test_lists_of_partitions_and_servers_name_what_other_commands_take() -> None:
    with filled() as (_, url):
        assert run(url, "partitions", "list", "-o", "names").stdout == f"{NAME}/0\n{NAME}/1\n"
        header, first, _ = run(url, "partitions", "list", "-o", "tsv").stdout.splitlines()
        assert dict(zip(header.split("\t"), first.split("\t"), strict=True)) == {
            "partition": f"{NAME}/0",
            "leader": "r1",
            "leader_epoch": "0",
            "isr": "r1",
            "replicas": "r1",
            "remarks": "",
        }


def test_an_empty_list_has_its_header() -> None:
    with served() as (cluster, url):
        cluster.topics.clear()
        assert run(url, "topics", "list", "-o", "tsv").stdout.startswith("name\tpartitions")
        assert run(url, "topics", "list", "-o", "names").stdout == ""
        assert run(url, "topics", "list", "-o", "json").stdout == "[]\n"


def test_json_and_another_format_contradict_each_other() -> None:
    with filled() as (_, url):
        done = CliRunner().invoke(main, ["topics", "list", "--json", "-o", "tsv", "--gateway", url])
        assert done.exit_code == 2 and "--json means -o json" in done.stderr
        assert run(url, "topics", "list", "--json", "-o", "json").stdout


def printed(table: Table, out: io.StringIO, *, tsv: bool = False) -> list[str]:
    with redirect_stdout(out):
        if tsv:
            table.print_tsv()
        else:
            table.print()
    return out.getvalue().splitlines()


def test_values_for_programs_are_those_of_the_cluster_and_stay_on_their_line() -> None:
    table = Table("name", Column("in sync", "isr"), "on", Column("of", wide=True), "more", "none")
    table.add("a\tb\n\\c", Cell(("r1", "r2"), "all"), True, 0, {"x": 1}, None)
    assert printed(table, io.StringIO(), tsv=True) == [
        "name\tisr\ton\tof\tmore\tnone",
        'a\\tb\\n\\\\c\tr1,r2\ttrue\t0\t{"x": 1}\t',
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def wide_table() -> Table:
    table = Table("name", "leader epoch", Column("count", right=True), "remarks")
    table.add("x" * 100, 3, 1234, "no leader since the replicas have not reported " * 3)
    return table


def test_nothing_is_cut_where_stdout_is_no_terminal() -> None:
    head, row = printed(wide_table(), io.StringIO())
    assert head.split() == ["name", "leader", "epoch", "count", "remarks"]
    assert row.startswith("x" * 100 + "  3              1234  no leader since") and row.count("reported") == 3


@pytest.mark.parametrize("width", [20, 40, 60, 200])
def test_on_a_terminal_the_widest_columns_are_wrapped_and_nothing_is_cut(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = [click.unstyle(line) for line in printed(wide_table(), Terminal())]
    text = "".join(lines)
    assert max(map(len, lines)) <= width
    assert "…" not in text and text.count("x") == 100 and "1234" in text
    if width >= 40:
        assert "leader" in lines[0] and text.count("reported") == 3


def test_widths_are_taken_from_the_widest_columns() -> None:
    assert fitted([5, 30, 20], [4, 4, 4], 60) == [5, 30, 20]
    assert fitted([5, 30, 20], [4, 4, 4], 45) == [5, 20, 20]
    assert sorted(fitted([5, 30, 20], [4, 4, 4], 26)) == [5, 10, 11]
    assert fitted([5, 30, 20], [5, 15, 4], 24) == [5, 15, 4]
    assert fitted([5, 30, 20], [10, 10, 10], 3) == [1, 1, 1]
    assert fitted([5, 30], [5, 30], 1) == [1, 1]


@pytest.mark.parametrize("form", [[], ["-o", "json"], ["-o", "tsv"], ["-o", "names"]])
def test_rich_is_not_imported_where_stdout_is_no_terminal(form: list[str]) -> None:
    code = "import sys; from tidelog.cli.main import main; main(sys.argv[1:], standalone_mode=False)\n"
    code += "assert 'rich' not in sys.modules; import rich"
    with filled() as (_, url):
        command = [sys.executable, "-c", code, "topics", "list", "--gateway", url, *form]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and NAME in done.stdout, done.stderr


# --- all commands ----------------------------------------------------------------------------------------

SENTENCES = {
    *("dev", "demo", "certs", "completion", "controller", "replica", "gateway", "consume", "mcp"),
    *(
        f"topics {word}"
        for word in ("configure", "alter", "grow", "learners", "set-readonly", "pause", "resume", "delete")
    ),
    *(f"partitions {word}" for word in ("transfer", "reassign", "cancel")),
    *("servers drain", "servers resume", "servers forget", "features raise", "groups delete"),
    *("transactions abort", "transactions settle", "controllers add", "controllers remove", "controllers rescue"),
    *("verify record", "capture take", "tickets rotate", "tokens create", "tokens revoke", "tokens rotate"),
    *("acls add", "acls remove", "acls check", "acls drop-inherited", "quotas set"),
    *(f"cluster {word}" for word in ("down", "kill", "end", "pause", "resume", "restart")),
    *("context add", "context remove", "context use", "help", "pipeline graph"),
}
"""The commands that print neither a list nor a description: a sentence, a token, a script, a picture, or records."""


def commands(group: click.Group, context: click.Context, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield the path and the object of every command below a group."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        full = f"{path} {name}".strip()
        if isinstance(command, click.Group):
            yield from commands(command, context, full)
        else:
            yield full, command


def test_every_command_that_prints_a_list_or_a_description_has_formats_for_programs() -> None:
    found = dict(commands(main, click.Context(main)))
    without = {
        path for path, command in found.items() if not any("--output" in param.opts for param in command.params)
    }
    assert without == SENTENCES
    for path in found.keys() - without:
        options = {opt: param for param in found[path].params for opt in param.opts}
        choices = options["--output"].type
        assert isinstance(choices, click.Choice) and "json" in choices.choices and "-o" in options, path
        assert "--json" in options, path
        if path.endswith((" list", " describe")):
            assert {"json", "tsv", "names", "wide"} == set(choices.choices), path
