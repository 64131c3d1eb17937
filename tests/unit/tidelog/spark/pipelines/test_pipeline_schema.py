"""Tests ``docs/pipeline.schema.json``: it takes the files that the parser takes."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

DOCS = Path(__file__).resolve().parents[5] / "docs"
LEAST = 'name = "p"\n[in.a]\ntopic = "t"\n[out.b]\nfrom = "a"\nparquet = "f"\n'


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json.loads((DOCS / "pipeline.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


@pytest.mark.parametrize("text", [LEAST, LEAST + 'mode = "${MODE}"\n', LEAST + "[spark]\na = 1\n"])
def test_a_good_file_is_taken(text: str, validator: Any) -> None:
    assert validator.is_valid(tomllib.loads(text))


def test_the_examples_are_taken(validator: Any) -> None:
    pages = "".join((DOCS / name).read_text() for name in ("spark.md", "pipelines.md"))
    fences = [part.partition("\n```")[0] for part in pages.split("```toml\n")[1:]]
    for text in [(DOCS / "examples" / "ssh_attacks.toml").read_text(), *fences]:
        assert list(validator.iter_errors(tomllib.loads(text))) == []


@pytest.mark.parametrize(
    "text",
    [
        LEAST.replace("name", "nam"), LEAST + 'mode = "upsert"\n', LEAST + "partition-by = [1]\n",
        LEAST.replace("in.a", "in.a-b"), LEAST + "[table.t]\nwatermark = {column = 'a'}\n", LEAST + "[plot.a]\n",
        'name = "p"\n[in]\n[out]\n',
    ],
)  # fmt: skip
def test_a_wrong_file_is_not_taken(text: str, validator: Any) -> None:
    assert not validator.is_valid(tomllib.loads(text))
