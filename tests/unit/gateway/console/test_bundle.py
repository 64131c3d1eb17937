"""Many modules as one script: it does what they do."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.js_tools import NODE
from tidelog_gateway.console.bundle import bundle

SOURCES = {
    "app.js": """
import { Counter, NAMES as words, by } from "./data/counter.js";
import * as tools from "./tools.js";
import { last } from "./data/counter.js";

const name = "that of app.js";
console.log(JSON.stringify([name, words, by(2), tools.kept, tools.name(), new Counter().name, last().next().value]));
""",
    "tools.js": """
import {
  Counter as One,
  once as only,
} from "./data/counter.js";

export { NAMES as kept } from "./data/counter.js";
export function name() {
  return `${new One().name} ${only}`;
}
""",
    "data/counter.js": """
/** A module that no other one needs twice:
 *     import { never } from "./nowhere.js";
 */
import { name } from "../names.js";

export const NAMES = ["a", "b"];
const once = 1;
export class Counter {
  name = name;
}
export async function later() {}
export function* last() {
  yield "the end";
}
export const by = (times) => times * 2;
export { once };
""",
    "names.js": """
console.log("first");
export var name = "that of names.js";
""",
}


def run(script: str, folder: Path) -> list[str]:
    """Return the lines that a script prints."""
    assert NODE is not None
    (folder / "bundle.mjs").write_text(script)
    done = subprocess.run([NODE, "bundle.mjs"], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.skipif(NODE is None, reason="no Node")
def test_the_script_does_what_the_modules_do(tmp_path: Path) -> None:
    for path, text in SOURCES.items():
        file = tmp_path / "modules" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "modules" / "package.json").write_text('{"type": "module"}')
    apart = run('import "./modules/app.js";', tmp_path)
    assert run(bundle(SOURCES, "app.js"), tmp_path) == apart
    assert apart[0] == "first" and json.loads(apart[1])[0] == "that of app.js"


@pytest.mark.skipif(NODE is None, reason="no Node")
def test_the_script_exports_what_its_first_module_does(tmp_path: Path) -> None:
    (tmp_path / "tools.mjs").write_text(bundle(SOURCES, "tools.js"))
    script = 'import * as tools from "./tools.mjs"; console.log(Object.keys(tools).sort().join(), tools.name());'
    assert run(script, tmp_path) == ["first", "kept,name that of names.js 1"]


def test_modules_that_import_each_other_are_refused() -> None:
    circle = {"a.js": 'import { b } from "./b.js";\nexport const a = 1;', "b.js": 'export { a as b } from "./a.js";'}
    with pytest.raises(ValueError, match=r"modules import each other: a\.js b\.js a\.js"):
        bundle(circle, "a.js")


@pytest.mark.parametrize(
    "statement",
    [
        "export default 1;",
        "export let count = 1;",
        'export * from "./b.js";',
        'import "./b.js";',
        "import b from 'b';",
    ],
)
def test_a_statement_that_is_not_known_is_refused(statement: str) -> None:
    with pytest.raises(ValueError, match=r"a\.js: not known here: (export|import)"):
        bundle({"a.js": f"const a = 1;\n{statement}\n", "b.js": ""}, "a.js")


def test_a_module_that_is_missing_is_an_error() -> None:
    with pytest.raises(KeyError, match=r"c\.js"):
        bundle({"a.js": 'import { c } from "./c.js";'}, "a.js")
