"""Configuration: one frozen dataclass per service, read once from a TOML file, the environment and flags.

Later sources win: the dataclass's defaults, then TOML, then the environment, then flags. A field that is itself a
dataclass is a TOML table; its settings are ``table.name`` in flags and ``PREFIX_TABLE_NAME`` in the environment. All
faults are reported together: unknown names (with the nearest known one), wrong types, values out of range, settings
that are missing, and the relations that the class's own ``faults() -> list[str]`` checks.

Types: ``int``, ``float`` (an integer will do), ``bool``, ``str``, ``tuple[str, ...]``, ``dict[str, str]``,
``X | None``, and dataclasses. As text (environment, flags): ``true`` or ``false``; ``a,b,c``; ``k=v,k=v``. A number
may be a text with a unit in every source, TOML included: ``"500ms"``, ``"64MiB"`` (``tidelog.quantities``). What a
number without a unit counts is said by the name of the setting, or by the metadata of its field.

Field metadata: ``help`` (one sentence with the unit), ``min``, ``max``, ``choices``, ``unit``.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import sys
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from tidelog.errors import ConfigError
from tidelog.quantities import COUNT, Unit, parse, parse_whole, unit_of

T = TypeVar("T")

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}


def setting(
    default: Any, help: str, minimum: float | None = None, maximum: float | None = None, *, unit: Unit | None = None
) -> Any:
    """Return a dataclass field that declares a setting: its default, a sentence of help with the unit, and the least
    and largest value allowed (None: no bound). ``unit`` is what a number counts; None: what its name says
    (``unit_of``)."""
    bounds = {"min": minimum, "max": maximum, "unit": unit}
    return dataclasses.field(
        default=default, metadata={"help": help, **{k: v for k, v in bounds.items() if v is not None}}
    )


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a configuration class, as flags and the generated page show it. ``default`` is None if the
    setting is required."""

    name: str
    """The name in flags and TOML: ``table.name``."""
    variable: str
    """Its environment variable."""
    kind: str
    default: object
    required: bool
    help: str
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    unit: Unit


def load(
    cls: type[T],
    path: str | Path | None = None,
    prefix: str = "TIDELOG_",
    flags: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> T:
    """Read a configuration from a TOML file, the environment and flags (later ones win), and return it as an instance
    of the frozen dataclass ``cls``. Flags that are None count as not given. An environment variable with ``prefix``
    that no setting has is ignored unless it looks like a misspelt one. Raises ``ConfigError`` with all errors, one on
    each line: unknown names, wrong types, values out of range, missing settings, contradictions."""
    faults: list[str] = []
    given: dict[str, tuple[object, str]] = {}  # setting -> value and where it comes from
    known = {name: variable for name, variable, _, _ in _walk(cls, prefix)}
    if path is not None:
        for name, value in _flatten(_read(Path(path), faults), known):
            _take(given, known, name, value, str(path), faults)
    variables = {variable: name for name, variable in known.items()}
    for variable, text in sorted((os.environ if environ is None else environ).items()):
        if variable in variables:
            given[variables[variable]] = (text, variable)
        elif variable.startswith(prefix):
            near = difflib.get_close_matches(variable, variables, 1, 0.85)
            faults += [f"{variable} is unknown; did you mean {near[0]}?"] if near else []
    for name, value in (flags or {}).items():
        if value is not None:
            _take(given, known, name, value, f"--{name.replace('_', '-')}", faults)
    made = _make(cls, "", given, faults)
    if faults or made is None:
        raise ConfigError("\n".join(faults))
    return made


def settings_of(cls: type, prefix: str = "TIDELOG_") -> list[Setting]:
    """Return every setting of a configuration class, in the order of its fields and with those of nested tables.
    ``prefix`` is that of the environment variables."""
    rows = []
    for name, variable, field, kind in _walk(cls, prefix):
        default = _default(field)
        meta = field.metadata
        required = default is MISSING
        rows.append(
            Setting(
                name,
                variable,
                _kind_name(kind),
                None if required else default,
                required,
                str(meta.get("help", "")),
                meta.get("min"),
                meta.get("max"),
                tuple(meta.get("choices", ())),
                _unit(name, field),
            )
        )
    return rows


def _walk(cls: type, prefix: str, table: str = "") -> Iterator[tuple[str, str, Field[Any], Any]]:
    """Yield each setting of a configuration class: its name, environment variable, dataclass field and type. Nested
    dataclasses are walked, too."""
    hints = typing.get_type_hints(cls)
    for field in fields(cls):
        name = table + field.name
        kind = hints[field.name]
        if is_dataclass(kind) and isinstance(kind, type):
            yield from _walk(kind, prefix, name + ".")
        else:
            yield name, prefix + name.replace(".", "_").upper(), field, kind


def _read(path: Path, faults: list[str]) -> dict[str, Any]:
    """Return the content of a TOML file. If it cannot be read or parsed, add the reason to ``faults`` and return an
    empty dict."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        faults.append(f"{path}: cannot be read: {error.strerror}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        faults.append(f"{path}: is not TOML: {error}")
    return {}


def _flatten(table: Mapping[str, Any], known: Mapping[str, str], start: str = "") -> Iterator[tuple[str, object]]:
    """Yield name and value of each setting in a TOML table; the names of nested tables are joined by dots."""
    for key, value in table.items():
        name = start + key
        if isinstance(value, dict) and name not in known:
            yield from _flatten(value, known, name + ".")
        else:
            yield name, value


def _take(
    given: dict[str, tuple[object, str]],
    known: Mapping[str, str],
    name: str,
    value: object,
    source: str,
    faults: list[str],
) -> None:
    """Add a value and its source to ``given`` under its setting's name. If no setting has the name, add an error with
    the nearest known name to ``faults``."""
    if name in known:
        given[name] = (value, source)
        return
    near = difflib.get_close_matches(name, known, 1, 0.5)
    faults.append(f"{source}: {name} is unknown" + (f"; did you mean {near[0]}?" if near else ""))


def _make(cls: type[T], table: str, given: Mapping[str, tuple[object, str]], faults: list[str]) -> T | None:
    """Return an instance of ``cls`` made from the given values; None if a value is wrong or missing, after adding the
    reasons to ``faults``. The faults that the instance finds in itself are added, too."""
    before = len(faults)
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for field in fields(cls):  # type: ignore[arg-type]
        name, kind = table + field.name, hints[field.name]
        if is_dataclass(kind) and isinstance(kind, type):
            values[field.name] = _make(kind, name + ".", given, faults)
        elif name in given:
            value, source = given[name]
            try:
                unit = _unit(name, field)
                values[field.name] = _check(_convert(value, kind, unit), field, unit)
            except ValueError as error:
                faults.append(f"{source}: {name} {error}")
        elif _default(field) is MISSING:
            faults.append(f"{name} is missing: {field.metadata.get('help', 'it has no default')}")
    if len(faults) > before:
        return None
    try:
        made = cls(**values)
    except ConfigError as error:
        faults.append(error.message)
        return None
    own = getattr(made, "faults", None)
    if own is not None:
        faults += [table + fault if table else fault for fault in own()]
    return made


def _default(field: Field[Any]) -> Any:
    """Return the default of a dataclass field; ``MISSING`` if it has none."""
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _unit(name: str, field: Field[Any]) -> Unit:
    """Return what a number of this setting counts: what its metadata say, or else what its name says."""
    declared: Unit | None = field.metadata.get("unit")
    return declared or unit_of(name)


def _convert(value: object, kind: Any, unit: Unit = COUNT) -> Any:
    """Return ``value`` converted to the type ``kind``; texts are parsed, and those of numbers may have a unit. Raises
    ``ValueError`` that says what the value must be, and ``TypeError`` if no setting can have that type."""
    options = [arg for arg in typing.get_args(kind) if arg is not type(None)]
    if type(None) in typing.get_args(kind):
        return None if value is None or value == "" else _convert(value, options[0], unit)
    if kind is bool:
        return _to_bool(value)
    if kind is int:
        return _to_int(value, unit)
    if kind is float:
        return _to_float(value, unit)
    if kind is str:
        if type(value) is str:
            return value
        raise ValueError(f"= {value!r}: must be a text")
    if typing.get_origin(kind) is tuple:
        return _to_texts(value)
    if typing.get_origin(kind) is dict:
        return _to_map(value)
    raise TypeError(f"no setting can have the type {kind}")


def _to_bool(value: object) -> bool:
    """Return a bool, or a text such as ``true`` or ``off``, as a bool. Raises ``ValueError`` for anything else."""
    if type(value) is bool:
        return value
    if isinstance(value, str) and value.lower() in _TRUE + _FALSE:
        return value.lower() in _TRUE
    raise ValueError(f"= {value!r}: must be true or false")


def _to_int(value: object, unit: Unit) -> int:
    """Return an integer, or a text such as ``64 MiB``, as an integer in what ``unit`` counts. Raises ``ValueError``
    for anything else."""
    if type(value) is int:
        return value
    if not isinstance(value, str):
        raise ValueError(f"= {value!r}: must be {unit.accepted(whole=True)}")
    try:
        return parse_whole(value, unit)
    except ValueError as error:
        raise ValueError(f"= {value!r}: {error}") from None


def _to_float(value: object, unit: Unit) -> float:
    """Return a finite number, or a text such as ``500ms``, as a float in what ``unit`` counts. Raises ``ValueError``
    for anything else."""
    if isinstance(value, str):
        try:
            return float(parse(value, unit))
        except ValueError as error:
            raise ValueError(f"= {value!r}: {error}") from None
    if isinstance(value, int | float) and type(value) is not bool and abs(value) <= sys.float_info.max:
        return float(value)
    raise ValueError(f"= {value!r}: must be {unit.accepted(whole=False)}")


def _to_texts(value: object) -> tuple[str, ...]:
    """Return a list of texts, or a text such as ``a,b,c``, as a tuple without empty texts. Raises ``ValueError`` for
    anything else."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, list | tuple) and all(type(part) is str for part in value):
        return tuple(value)
    raise ValueError(f"= {value!r}: must be a list of texts")


def _to_map(value: object) -> dict[str, str]:
    """Return a table of texts, or a text such as ``k=v,k=v``, as a dict. Raises ``ValueError`` for anything else."""
    if isinstance(value, str):
        pairs = [part.partition("=") for part in value.split(",") if part.strip()]
        if all(sign and key.strip() for key, sign, _ in pairs):
            return {key.strip(): text.strip() for key, _, text in pairs}
    elif isinstance(value, Mapping) and all(type(k) is str and type(v) is str for k, v in value.items()):
        return dict(value)
    raise ValueError(f"= {value!r}: must be a table of texts (k=v,k=v)")


def _check(value: Any, field: Field[Any], unit: Unit) -> Any:
    """Return a value if it is within the bounds and choices of its setting; raises ``ValueError`` otherwise, which
    names what ``unit`` counts. None is always allowed."""
    meta = field.metadata
    low, high, choices = meta.get("min"), meta.get("max"), meta.get("choices")
    if value is None:
        return value
    if (low is not None and value < low) or (high is not None and value > high):
        said = f"from {low} to {high}" if low is not None and high is not None else ""
        said = said or (f"at least {low}" if high is None else f"at most {high}")
        raise ValueError(f"= {value}: must be {said} {unit.noun}".rstrip())
    if choices and value not in choices:
        raise ValueError(f"= {value!r}: must be one of {', '.join(map(str, choices))}")
    return value


def _kind_name(kind: Any) -> str:
    """Return the name of a setting's type for the generated page, such as "an integer"."""
    if type(None) in typing.get_args(kind):
        inner = next(arg for arg in typing.get_args(kind) if arg is not type(None))
        return f"{_kind_name(inner)}, or nothing"
    if typing.get_origin(kind) is tuple:
        return "a list of texts"
    if typing.get_origin(kind) is dict:
        return "a table of texts"
    return _NAMES.get(kind, str(kind))
