"""The graph of a pipeline, and its pictures. Tests ``parts``, ``picture`` and ``texts`` of the room."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from click.testing import CliRunner
from tidelog.cli import main
from tidelog.spark.pipelines.declaration import read
from tidelog.spark.pipelines.graph.parts import Graph, Part, graph_of
from tidelog.spark.pipelines.graph.picture import MAX_CHARACTERS, svg
from tidelog.spark.pipelines.graph.texts import lines, mermaid

ROOT = Path(__file__).resolve().parents[6]
EXAMPLE = ROOT / "docs" / "examples" / "ssh_attacks.toml"
PIPELINE = """
name = "p"
[in.orders]
topic = "orders, orders-eu"
value = "json"
schema = "id INT"
bad = "orders-${ENV}-bad"
[in.all]
subscribe-pattern = "c.*"
watermark = { column = "timestamp", delay = "1 minute" }
[table.by_hand]
python = "steps.py:make"
[table.joined]
sql = "SELECT * FROM by_hand JOIN Orders USING (id)"
[out.a]
from = "Joined"
topic = "orders"
mode = "complete"
[out.b]
from = "joined"
delta = "d"
trigger = "1 minute"
[plot.c]
sql = "SELECT * FROM b"
x = "x"
y = "y"
"""
STEPS = "def make(spark):\n    return spark.table('all').join(spark.sql('select * from orders'))\ndef other(): 'b'\n"
LINES = """\
orders (topic)
orders-eu (topic)
orders (input · json) <- orders, orders-eu
orders-${ENV}-bad (topic · bad records of orders) <- orders
/c.*/ (topics)
all (input · raw · watermark timestamp, 1 minute) <- /c.*/
by_hand (table · Python steps.py:make) <- all, orders
joined (table · SQL) <- by_hand, orders
orders (topic · a · complete · available-now) <- joined
d (delta · b · 1 minute) <- joined
c.svg (plot c) <- d
"""


def test_what_comes_from_what() -> None:
    reading = read(PIPELINE, None)
    assert not reading.faults
    assert lines(graph_of(reading.pipeline, {"steps.py": STEPS})) == LINES
    alone = graph_of(reading.pipeline, {"steps.py": "def make(:"})
    assert [end for _, end in alone.flows].count(6) == 0


def test_texts_are_escaped_in_every_form() -> None:
    odd = Graph("<p>", (Part("topic", 'a"<b>&\\n]', "x" * 99), Part("output", "ü.1", "")), ((0, 1),))
    tree = ElementTree.fromstring(svg(odd))
    texts = [element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["<p>", 'a"<b>&\\n]', "x" * (MAX_CHARACTERS - 1) + "…", "ü.1", None]
    assert 'n0(["a#34;#60;b#62;#38;#92;n#93;<br><small>xxx' in mermaid(odd)
    assert "  n0 --> n1\n" in mermaid(odd)


def test_the_command_draws_the_example(tmp_path: Path) -> None:
    out = tmp_path / "p.svg"
    done = CliRunner().invoke(main, ["pipeline", "graph", str(EXAMPLE), "--out", str(out)])
    assert (done.exit_code, done.output) == (0, "")
    assert out.read_text() == (ROOT / "docs" / "plots" / "pipeline-ssh-attacks.svg").read_text()
    done = CliRunner().invoke(main, ["pipeline", "graph", str(EXAMPLE)])
    assert done.stdout == out.read_text()
    (tmp_path / "p.toml").write_text("name = 3")
    done = CliRunner().invoke(main, ["pipeline", "graph", str(tmp_path / "p.toml")])
    assert (done.exit_code, "p.toml:1: name is a text, not a number" in done.stderr) == (2, True)
    done = CliRunner().invoke(main, ["pipeline", "graph", str(EXAMPLE), "--out", str(tmp_path / "none" / "p.svg")])
    assert (done.exit_code, "No such file or directory" in done.stderr) == (2, True)


def test_a_picture_of_a_circle_is_drawn() -> None:
    text = 'name = "p"\n[in.i]\ntopic = "t"\n[table.a]\nsql = "FROM b"\n[table.b]\nsql = "FROM a, b"\n'
    graph = graph_of(read(text + '[out.o]\nfrom = "a"\ntopic = "u"\n', None).pipeline, {})
    assert ElementTree.fromstring(svg(graph)).get("role") == "img"
