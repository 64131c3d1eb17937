"""Everything that docs/tutorials/kafka.md shows of Tidelog runs as it stands, and so does the program for Kafka: with
the mock of librdkafka, which needs no Java. The defaults that the page names for Tidelog are those of the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields

import pytest
import tidelog
import tidelog.sync
from pages.place import ROOT, Place, blocks
from pages.terminal import Terminal, terminal

pytest.importorskip("confluent_kafka", reason="librdkafka is missing: pip install 'tidelog[kafka]'")

from support.kafka.mock import PARTITIONS, MockKafka, mock_kafka

pytestmark = pytest.mark.real
PAGE = (ROOT / "docs" / "tutorials" / "kafka.md").read_text()
DEV, FILE, RUN, MOVE, LOOK = blocks(PAGE, "sh")
WITH_KAFKA, WITH_TIDELOG = blocks(PAGE, "python")
BROKER = "localhost:9092"
INSTALL = "pip install 'tidelog[kafka]'\n"
"""What is here already, or this module was skipped."""


def section(heading: str) -> str:
    """The text of a section of the page."""
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def rows(heading: str) -> list[list[str]]:
    """The cells of the table in a section, without its head."""
    lines = [line for line in section(heading).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.fixture(scope="module")
def kafka() -> Iterator[MockKafka]:
    with mock_kafka() as mock:
        yield mock


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, kafka: MockKafka) -> Iterator[Place]:
    """A place with the cluster and the programs of the page."""
    place = Place(tmp_path_factory.mktemp("kafka"))
    for name, program in (("with_kafka.py", WITH_KAFKA), ("with_tidelog.py", WITH_TIDELOG)):
        assert f"`{name}`" in PAGE
        (place.folder / name).write_text(place.own(program.replace(BROKER, kafka.address)))
    with terminal(place) as first:
        first.run(f"{DEV.strip()} &")
        first.wait("Ctrl-C ends it.")
        yield place


@pytest.fixture(scope="module")
def typed(place: Place) -> Iterator[Terminal]:
    """The second terminal."""
    with terminal(place) as second:
        yield second


def test_every_command_beside_one_of_kafkas_runs(typed: Terminal) -> None:
    typed.run(FILE)
    said = {}
    table = rows("Commands side by side")
    for theirs, ours in table:
        assert re.match(r"`kafka-[a-z-]+\.sh |the same", theirs)
        (command, *_) = re.findall("`([^`]+)`", ours)
        said[command] = typed.run(command)
    assert len(said) == len(table)
    orders = ["10 EUR", "20 EUR", "30 EUR"]
    assert sorted(said["tidelog consume orders --from earliest --to-end"].splitlines()) == orders
    assert sorted(said["tidelog consume orders --group billing --to-end"].splitlines()) == orders
    assert "billing" in said["tidelog groups list"] and "orders" in said["tidelog topics list"]


def test_both_programs_print_the_same(place: Place, typed: Terminal) -> None:
    expected = sorted(f"customer-{number % 3} {number} EUR" for number in range(10))
    assert sorted(place.run("python", "with_kafka.py").splitlines()) == expected
    assert sorted(typed.run(RUN).splitlines()) == expected
    with tidelog.sync.connect(place.url) as log:
        assert sum(at.lag for at in log.groups.progress("billing")) == 0


def test_the_topic_and_the_position_of_the_group_come_over(place: Place, typed: Terminal, kafka: MockKafka) -> None:
    """The group has read ten records in Kafka, and one more has come to each partition since."""
    assert INSTALL in MOVE and f"--partitions {PARTITIONS}\n" in MOVE
    for partition in range(PARTITIONS):
        kafka.produce("payments", partition, [{"value": b"10 EUR", "key": b"late"}])
    said = typed.run(MOVE.replace(INSTALL, "").replace(BROKER, kafka.address))
    assert (
        f"payments: {10 + PARTITIONS} records copied" in said
        and "verified: every record is the same on both sides" in said
    )
    said = typed.run(LOOK)
    assert {f"{number} EUR" for number in range(11)} <= set(said.splitlines())
    with tidelog.sync.connect(place.url) as log:
        assert {at.lag for at in log.groups.progress("billing")} == {1}


@pytest.mark.parametrize(
    ("heading", "options"),
    [
        ("Settings of producers", (tidelog.ProducerOptions(),)),
        ("Settings of consumers", (tidelog.ConsumerOptions(), tidelog.GroupOptions())),
    ],
)
def test_the_options_and_their_defaults_are_those_of_the_code(heading: str, options: tuple[object, ...]) -> None:
    values = {field.name: getattr(each, field.name) for each in options for field in fields(each)}  # type: ignore[arg-type]
    named = set()
    for _, _, ours, default in rows(heading):
        found = re.match(r"`([a-z_]+)(?:=[^`]*)?`", ours)
        if found is None or found[1] not in values or not (number := re.fullmatch(r"([\d.]+)( [KM]iB)?", default)):
            continue
        unit = {None: 1, " KiB": 1 << 10, " MiB": 1 << 20}[number[2]]
        assert float(number[1]) * unit == values[found[1]], ours
        named.add(found[1])
    assert len(named) >= 5, named


def test_the_settings_of_servers_and_their_defaults_are_those_of_the_code() -> None:
    """As docs/configuration.md has them, which is generated from the code."""
    text = (ROOT / "docs" / "configuration.md").read_text()
    known = dict(
        re.findall(r"^\| `([a-z0-9_.]+)` \| (?:`TIDELOG_[A-Z0-9_]+` \| )?[^|]+ \| `?([^|`]+?)`? ", text, re.M)
    )
    amounts = {"7 days": 7 * 86_400_000, "64 MiB": 64 << 20, "1 MiB": 1 << 20}
    compared = 0
    for _, _, ours, default in rows("Settings of servers"):
        names = [name for name in re.findall(r"`([a-z_.]+)`", ours) if "tidelog" not in name]
        settings = [name for name in names if name in known]
        if settings and (default in amounts or re.fullmatch(r"[\d,]+", default)):
            expected = amounts.get(default) or int(default.replace(",", ""))
            assert float(known[settings[0]]) == expected, ours
            compared += 1
    assert compared >= 10
