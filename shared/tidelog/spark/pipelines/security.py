"""How a pipeline identifies itself to the cluster: the settings ``[security]`` of its declaration.

The token and the files of TLS are declared once and are used by all inputs, outputs and topics of bad records. The
token need not stand in the declaration: a file or a variable of the environment has it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidelog.errors import ConfigError

FILES = ("ca", "cert", "key")
MASK = "***"
_SECRET = re.compile(r"(?:token|password|secret|secret-access-key|credential)$", re.IGNORECASE)
"""How the name of an option ends whose value is a secret, such as ``s3.session-token``."""


@dataclass(frozen=True, slots=True)
class Security:
    """The settings ``[security]``. At most one of ``token``, ``token_file`` and ``token_env`` is given."""

    token: str = field(default="", repr=False)
    token_file: str = ""
    token_env: str = ""
    """Name of the environment variable that has the token."""
    ca: str = ""
    cert: str = ""
    key: str = ""
    """PEM files of TLS, at the same place on every machine of Spark."""
    app_prefix: str = ""
    """Each output topic has the ``appId`` of this and the output's name; "": the ids of the queries."""

    def identity(self, folder: Path, given: Mapping[str, str]) -> dict[str, str]:
        """Return the options ``token``, ``ca``, ``cert`` and ``key`` of source and sink, without those that nothing
        gives. ``given`` are options from the command line or the environment, which go before these settings.
        Relative paths are below ``folder``. Raises ``ConfigError`` if there is no token in the file or variable that
        is to have it."""
        found = {name: str(folder / path) for name in FILES if (path := getattr(self, name))}
        if "token" not in given and (token := self._read_token(folder)):
            found["token"] = token
        return found | dict(given)

    def faults(self) -> list[str]:
        """Return what is wrong with the settings together, without their values; an empty list if nothing is."""
        faults = []
        if sum(map(bool, (self.token, self.token_file, self.token_env))) > 1:
            faults.append("give one of token, token-file and token-env")
        if bool(self.cert) != bool(self.key):
            faults.append("cert and key go together")
        return faults

    def _read_token(self, folder: Path) -> str:
        """Return the token of the settings; "" if they name none. Raises ``ConfigError``."""
        if self.token_env:
            token = os.environ.get(self.token_env, "").strip()
            if not token:
                raise ConfigError(f"[security]: token-env: the environment has no {self.token_env}, or it is empty")
            return token
        if not self.token_file:
            return self.token
        path = folder / self.token_file
        try:
            token = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"[security]: token-file: {path}: no token can be read there: {error}") from None
        if not token:
            raise ConfigError(f"[security]: token-file: {path} is empty")
        return token


def secrets_of(options: Mapping[str, str]) -> list[str]:
    """Return the values of those options that are secrets: tokens, passwords and keys of sources, sinks and
    catalogs."""
    return [value for name, value in options.items() if _SECRET.search(name)]


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return a text with ``***`` in place of each secret. Empty ones are ignored."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text
