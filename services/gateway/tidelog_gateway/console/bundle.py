"""One script from many JavaScript modules, so that a browser sends one request and not one for each.

Each module becomes a function that is called once, after those of the modules that it imports, and returns what it
exports. Browsers run modules in that order, too. Refused are modules that import each other in a circle, default
exports, and ``export let``, whose importers would have to see its changes. Statements of import and export are found
at the beginning of a line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from posixpath import dirname, join, normpath

_FROM = re.compile(r'^(?:import|export) [^;"]*? from "(\.[^"]+)";$', re.MULTILINE)
_IMPORT_NAMES = re.compile(r'^import \{([^}]*)\} from "(\.[^"]+)";$', re.MULTILINE)
_IMPORT_ALL = re.compile(r'^import \* as (\w+) from "(\.[^"]+)";$', re.MULTILINE)
_EXPORT_FROM = re.compile(r'^export \{([^}]*)\} from "(\.[^"]+)";$', re.MULTILINE)
_EXPORT_NAMES = re.compile(r"^export \{([^}]*)\};?$", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|class|const|var) (\w+))", re.MULTILINE)
_UNKNOWN = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


def bundle(sources: Mapping[str, str], first: str) -> str:
    """Return one module that does and exports what the module ``first`` does, from the texts of all modules by path.
    Raises ``ValueError`` for modules that import each other and for a statement of import or export that is not known
    here, and ``KeyError`` for a module that is missing."""
    order: list[str] = []
    _add(order, sources, first, ())
    names = {path: f"module{number}" for number, path in enumerate(order)}
    functions = {path: _function(sources[path], path, names) for path in order}
    text = "".join(f"// {path}\nconst {names[path]} = {function};\n" for path, (function, _) in functions.items())
    _, exported = functions[first]
    return f"{text}export const {{ {', '.join(exported)} }} = {names[first]};\n" if exported else text


def _add(order: list[str], sources: Mapping[str, str], path: str, importers: tuple[str, ...]) -> None:
    """Append to ``order`` the paths of a module and of all that it needs, each after those that it imports. The
    module is imported by the last of ``importers``, which is imported by the one before, and so on."""
    if path in importers:
        raise ValueError(f"modules import each other: {' '.join(importers)} {path}")
    if path not in order:
        for name in _FROM.findall(sources[path]):
            _add(order, sources, _target(path, name), (*importers, path))
        order.append(path)


def _target(path: str, name: str) -> str:
    """Return the path of the module that a module imports under a relative name."""
    return normpath(join(dirname(path), name))


def _function(text: str, path: str, names: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return an expression that runs a module and whose value is an object with what the module exports, and the
    names of that."""
    exported: dict[str, str] = {}

    def of(name: str) -> str:
        return names[_target(path, name)]

    def export_from(found: re.Match[str]) -> str:
        exported.update({new: f"{of(found[2])}.{old}" for old, new in _pairs(found[1])})
        return ""

    def export_names(found: re.Match[str]) -> str:
        exported.update({new: old for old, new in _pairs(found[1])})
        return ""

    def export(found: re.Match[str]) -> str:
        exported[found[1]] = found[1]
        return ""

    def import_names(found: re.Match[str]) -> str:
        return f"const {{ {', '.join(f'{old}: {new}' for old, new in _pairs(found[1]))} }} = {of(found[2])};"

    text = _IMPORT_NAMES.sub(import_names, text)
    text = _IMPORT_ALL.sub(lambda found: f"const {found[1]} = {of(found[2])};", text)
    text = _EXPORT_FROM.sub(export_from, text)
    text = _EXPORT_NAMES.sub(export_names, text)
    text = _EXPORT.sub(export, text)
    if unknown := _UNKNOWN.search(text):
        raise ValueError(f"{path}: not known here: {unknown[0]}")
    values = ", ".join(f"{name}: {value}" for name, value in exported.items())
    return f"(() => {{\n{text}\nreturn {{ {values} }};\n}})()", list(exported)


def _pairs(names: str) -> list[tuple[str, str]]:
    """Return the pairs of names of a list such as ``a, b as c``: inside and outside of the module that has them."""
    found = (one.split(" as ") for one in names.replace("\n", " ").split(",") if one.strip())
    return [(pair[0].strip(), pair[-1].strip()) for pair in found]
