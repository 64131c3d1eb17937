"""Where things are in a TOML text."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog.spark.pipelines.file.toml_lines import Path, scan

TEXT = '''# a comment = 1
name = "x"  # [no.table]
"a key".'b.c' = 1

[in.one]
topic = "t" # x
options = { a = 1, b.c = [ "]", '}' ] }
list = [
  "first", # , ]
  """sec
ond""",
  { x = 1,
    y = 2 },
]
at = 1979-05-27 07:32:00
[in . two]
schema = """
line one \\
   the same
line \\"\\"\\" two\\nthree
line four"""""
literal = \'\'\'
a\\
b\'\'\'

[[plot]]
x = 1
[[plot]]
y = """q"""
[plot.deep]
z = 1
'''


def paths(tree: Any, path: Path = ()) -> Iterator[Path]:
    if path:
        yield path
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for name, value in items:
        yield from paths(value, (*path, name))


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("name",), 2),
        (("a key", "b.c"), 3),
        (("in", "one"), 5),
        (("in", "one", "topic"), 6),
        (("in", "one", "options", "b", "c", 1), 7),
        (("in", "one", "list"), 8),
        (("in", "one", "list", 1), 10),
        (("in", "one", "list", 2, "y"), 13),
        (("in", "one", "at"), 15),
        (("in", "two"), 16),
        (("plot", 0), 26),
        (("plot", 1, "y"), 29),
        (("plot", 1, "deep", "z"), 31),
        (("in", "one", "none"), 5),
        (("none", "at all"), 1),
    ],
)
def test_the_line_of_a_key(path: Path, line: int) -> None:
    try:
        tomllib.loads(TEXT)
    except tomllib.TOMLDecodeError:  # an inline table on two lines is TOML 1.1
        tomllib.loads(TEXT.replace("{ x = 1,\n    y", "{ x = 1, y"))
    assert scan(TEXT).of(path) == line


def test_the_lines_of_a_text() -> None:
    lines = scan(TEXT)
    schema = ("in", "two", "schema")
    assert [lines.within(schema, n) for n in (1, 2, 3, 4)] == [18, 20, 20, 21]
    assert (lines.within(schema, 99), lines.within(schema, 0)) == (21, 18)
    assert [lines.within(("in", "two", "literal"), n) for n in (1, 2)] == [23, 24]
    assert lines.within(("in", "one", "topic"), 7) == 6


VALUES = st.recursive(
    st.one_of(
        st.integers(-99, 99).map(str),
        st.sampled_from(
            ["true", '"a"', "'b'", '"""\nq"""', '"""a\n\\\n b""""', "'''x\n''''", "1.5", "07:32:00", '"\\""']
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[\n{', '.join(items)} # c\n]"),
        st.lists(inner, max_size=3).map(
            lambda items: "{" + ", ".join(f"k{n}.'x y' = {item}" for n, item in enumerate(items)) + "}"
        ),
    ),
    max_leaves=6,
)
LINES = st.one_of(
    st.builds("{} = {}".format, st.sampled_from(["a", "b . c", '"d e".f', "'g'"]), VALUES),
    st.sampled_from(["[t]", "[t.u]", "[ 'v w' . x ]", "[[r]]", "[[r.s]]", "# c", ""]),
)


@given(st.lists(LINES, max_size=8).map("\n".join))
def test_every_key_of_a_text_has_a_line_that_has_it(text: str) -> None:
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    lines = scan(text)
    rows = text.split("\n")
    for path in paths(tree):
        assert path in lines.keys
        if isinstance(path[-1], str):
            assert path[-1] in rows[lines.keys[path] - 1]
