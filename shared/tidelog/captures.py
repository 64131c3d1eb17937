"""The file format of a capture: the state of a cluster at one moment, and its past (docs/capture.md).

It is a zip archive of JSON documents, each a part. ``capture.json`` holds the format's version, and the parts that
are missing and why. A reader ignores parts and fields that it does not know.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidelog.errors import ConfigError
from tidelog.private import make_file

FORMAT = 1
HEAD = "capture"
MOST_BYTES = 1 << 30
"""A longer part is refused."""
_SECRET = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)
_ASSIGNED = re.compile(r"^(\s*[\"']?([A-Za-z0-9_.-]+)[\"']?\s*=\s*)(.+)$", re.MULTILINE)
REDACTED = '"redacted"'


@dataclass(frozen=True, slots=True)
class Capture:
    """The contents of a capture file, in memory: its head (``capture.json``), and the other parts by name."""

    head: dict[str, Any]
    parts: Mapping[str, Any] = field(default_factory=dict)

    def part(self, name: str) -> Any:
        """Return the content of the part with this name. Raises ``ConfigError`` if it is missing, with the reason
        that the head gives."""
        if name not in self.parts:
            why = self.head.get("missing", {}).get(name, "the file has no such part")
            raise ConfigError(f"the capture lacks {name}: {why}")
        return self.parts[name]

    def save(self, path: Path) -> None:
        """Write the capture to a file that only its user may read. An existing file is replaced only when everything
        is written."""
        temporary = path.with_name(path.name + ".new")
        make_file(temporary)
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, part in {HEAD: {"format": FORMAT, **self.head}, **self.parts}.items():
                archive.writestr(f"{name}.json", json.dumps(part, indent=1, ensure_ascii=False) + "\n")
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> Capture:
        """Read a capture file and return its contents. Parts longer than ``MOST_BYTES`` are left out. Raises
        ``ConfigError`` if the file cannot be read, is no capture, or has another format."""
        parts = {}
        try:
            with zipfile.ZipFile(path) as archive:
                for info in archive.infolist():
                    if info.filename.endswith(".json") and info.file_size <= MOST_BYTES:
                        parts[info.filename.removesuffix(".json")] = json.loads(archive.read(info))
        except (OSError, zipfile.BadZipFile, ValueError) as error:
            raise ConfigError(f"{path} cannot be read as a capture: {error}") from error
        head = parts.pop(HEAD, None)
        if not isinstance(head, dict) or head.get("format") != FORMAT:
            found = head.get("format") if isinstance(head, dict) else None
            raise ConfigError(f"{path} is no capture of format {FORMAT} (its format: {found})")
        return cls(head, parts)


def redact(config: str) -> str:
    """Return the text of a configuration file in which the values of secrets are replaced by ``"redacted"``. A value
    is a secret if its name contains key, token, secret, password or credential."""
    return _ASSIGNED.sub(lambda m: m[1] + (REDACTED if _SECRET.search(m[2]) else m[3]), config)
