"""Variables in the texts of a pipeline's file."""

from __future__ import annotations

import pytest
from tidelog.spark.pipelines.declaration import NO_VARIABLES, parse, read
from tidelog.spark.pipelines.file.variables import hidden, replaced

VALUES = {"A": "one", "EMPTY": "", "SECRET": 'pass"word\n'}
LEAST = 'name = "p"\n[in.a]\ntopic = "t"\n[out.b]\nfrom = "a"\nparquet = "f"\n'


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("${A}", "one"),
        ("x${A}y${A}", "xoneyone"),
        ("${A:-two}", "one"),
        ("${B:-two}", "two"),
        ("${B:-}", ""),
        ("${EMPTY:-two}", ""),
        ("${EMPTY}", ""),
        ("$${A}", "${A}"),
        ("$A and $", "$A and $"),
        ("${SECRET}", 'pass"word\n'),
        ("regexp '^a{2}$'", "regexp '^a{2}$'"),
    ],
)
def test_what_stands_for_a_variable(text: str, result: str) -> None:
    tree, faults, _ = replaced({"in": [{"x": text}], "n": 1}, VALUES)
    assert (tree, faults) == ({"in": [{"x": result}], "n": 1}, [])


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("${B}", "the variable B has no value: give --set B=…, set it in the environment, or write ${B:-default}"),
        ("${1}", "a variable is ${NAME} or ${NAME:-default}; for the characters ${ write $${"),
        ("${A", "a variable is ${NAME} or ${NAME:-default}; for the characters ${ write $${"),
    ],
)
def test_a_wrong_variable_is_told_with_its_place(text: str, fault: str) -> None:
    assert replaced({"a": {"b": text}}, VALUES)[1] == [(("a", "b"), fault)]
    assert [one.line for one in read(LEAST + f'options = {{\nx = "{text}" }}\n'.replace("{\n", "{ "), {}).faults] == [
        7
    ]


def test_a_value_cannot_change_the_rest_of_the_file() -> None:
    text = LEAST.replace('"f"', '"${PATH_OF_IT}"')
    assert parse(text, {"PATH_OF_IT": 'x"\n[out.c]\n'}).outputs[0].parquet == 'x"\n[out.c]\n'


def test_values_are_hidden_in_what_is_printed() -> None:
    reading = read(LEAST + 'mode = "${SECRET}"\n', {"SECRET": "hunter2", "OTHER": "append"})
    assert [one.text for one in reading.faults] == ["[out.b]: mode is one of append, complete; not '${SECRET}'"]
    assert hidden("ab abcd abcde", {"A": "ab", "B": "abcd", "C": "abcde"}) == "ab ${B} ${C}"


def test_a_picture_needs_no_values() -> None:
    reading = read(LEAST.replace('"t"', '"${TOPIC}"') + 'trigger = "${EVERY}"\n', None)
    assert (reading.faults, reading.pipeline.inputs[0].topic) == ((), "${TOPIC}")
    assert [one.line for one in read(LEAST.replace('"t"', '"${TOPIC}"'), NO_VARIABLES).faults] == [3]
