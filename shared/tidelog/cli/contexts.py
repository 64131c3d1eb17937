"""The contexts of the command line: names for clusters, each with its gateways and the files by which this client
identifies itself.

They are stored in one TOML file, ``tidelog/contexts.toml`` below ``XDG_CONFIG_HOME`` or ``~/.config``, which only its
owner may read::

    current = "prod"

    [contexts.prod]
    gateways = ["wss://log.example:9292"]
    ca = "/etc/tidelog/ca.pem"
    token_file = "/home/me/.config/tidelog/prod.token"

The file never contains a token, only the path of the file that holds it. Paths may begin with ``~`` and are relative
to the folder of the file.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tidelog.errors import ConfigError

HEAD = "# Written by 'tidelog context'; see 'tidelog help connection'.\n"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Context:
    """One cluster: the URLs of its gateways, and the paths of files; "" for a file that the context does not name."""

    gateways: tuple[str, ...]
    ca: str = ""
    cert: str = ""
    cert_key: str = ""
    token_file: str = ""


@dataclass(slots=True)
class Contexts:
    """All contexts of a user, by name. ``current`` is the name of the one in use; "" if none is."""

    current: str = ""
    by_name: dict[str, Context] = field(default_factory=dict)

    def get(self, name: str) -> Context:
        """Return the context of this name. Raises ``ConfigError``, which names the existing contexts, if there is
        none of this name."""
        found = self.by_name.get(name)
        if found is None:
            there = f"there are {', '.join(self.by_name)}" if self.by_name else "there are none"
            raise ConfigError(f"there is no context {name!r}; {there}: 'tidelog context add' makes one")
        return found


FILES = tuple(one.name for one in fields(Context) if one.name != "gateways")
"""The fields of a context that are paths of files."""


def file_of_contexts() -> Path | None:
    """Return the path of the file with the contexts, which need not exist; None if this user has no home."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if folder.is_absolute():  # others count as unset: XDG Base Directory Specification
        return folder / "tidelog" / "contexts.toml"
    try:
        return Path.home() / ".config" / "tidelog" / "contexts.toml"
    except RuntimeError:
        return None


def load() -> Contexts:
    """Return the contexts of this user; none if there is no file. Raises ``ConfigError``, which names the file and
    the fault, if the file cannot be read or is not as it must be."""
    path = file_of_contexts()
    try:
        if path is not None and path.exists() and not path.is_file():  # a FIFO would keep the command waiting
            raise ConfigError(f"{path} is not a file")
        text = "" if path is None else path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Contexts()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the contexts cannot be read: {error}") from error
    if path is None or not text:
        return Contexts()
    import tomllib

    try:
        return _parse(tomllib.loads(text), path.parent)
    except (ValueError, RuntimeError) as error:  # TOMLDecodeError, RecursionError; ~USER of nobody
        raise ConfigError(f"{path}: {error}; mend the file, or remove it and add the contexts again") from error


def save(contexts: Contexts) -> Path:
    """Replace the file with the contexts at once, readable by its owner only, and return its path. Makes the folder
    if it is missing. Raises ``ConfigError`` if the file cannot be written."""
    from tidelog.private import DIRECTORY_MODE, write_file

    path = file_of_contexts()
    if path is None:
        raise ConfigError("there is no place for contexts: set XDG_CONFIG_HOME or HOME")
    lines = [HEAD, f"current = {_quoted(contexts.current)}\n"]
    for name, context in sorted(contexts.by_name.items()):
        lines.append(f"\n[contexts.{_quoted(name)}]\n")
        lines.append(f"gateways = [{', '.join(map(_quoted, context.gateways))}]\n")
        lines += [f"{one} = {_quoted(value)}\n" for one in FILES if (value := getattr(context, one))]
    try:
        path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        target = path.resolve()  # the file may be a link to one that is kept elsewhere
        written = target.with_suffix(f".{os.getpid()}")
        write_file(written, "".join(lines).encode())
        written.replace(target)
    except OSError as error:
        raise ConfigError(f"{path}: the contexts cannot be written: {error.strerror}") from error
    return path


def _parse(content: dict[str, Any], folder: Path) -> Contexts:
    """Return the contexts that a parsed file holds; paths in it are relative to ``folder``. Raises ``ValueError``,
    which says what is wrong, for anything that is not as it must be."""
    current, tables = content.pop("current", ""), content.pop("contexts", {})
    if content or not isinstance(current, str) or not isinstance(tables, dict):
        raise ValueError(f"{next(iter(content), 'current')!r} is not 'current = \"NAME\"' or '[contexts.NAME]'")
    found = Contexts(current)
    for name, table in tables.items():
        found.by_name[name] = _context(name, table, folder)
    if current and current not in found.by_name:
        raise ValueError(f"the current context {current!r} is not in the file")
    return found


def _context(name: str, table: object, folder: Path) -> Context:
    """Return the context of one table of the file. Raises ``ValueError`` if the table is not as it must be."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a context")
    if not isinstance(table, dict):
        raise ValueError(f"contexts.{name} is no table")
    gateways = table.get("gateways")
    if not isinstance(gateways, list) or not gateways or not all(isinstance(one, str) for one in gateways):
        raise ValueError(f"contexts.{name}.gateways is no list of URLs")
    unknown = table.keys() - {"gateways", *FILES}
    if unknown:
        raise ValueError(f"contexts.{name} has {min(unknown)!r}, which is none of gateways, {', '.join(FILES)}")
    files = {one: table.get(one, "") for one in FILES}
    for one, value in files.items():
        if not isinstance(value, str) or "\0" in value:
            raise ValueError(f"contexts.{name}.{one} is no path")
        files[one] = value and str(folder / Path(value).expanduser())
    return Context(tuple(gateways), **files)


def _quoted(text: str) -> str:
    """Return a text as a basic string of TOML."""
    import json

    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
