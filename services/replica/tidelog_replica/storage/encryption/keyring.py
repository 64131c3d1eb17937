"""The keys of at-rest encryption: how they are configured, and the cipher that uses them.

A *key-encryption key* has an id and is configured in a file or an environment variable. It encrypts nothing but the
data keys of segments (``storage/encryption/files.py``). Several may be known: the first one is current and wraps new
data keys, the others unwrap older ones.

The text, in both places: ``ID:KEY``, separated by white space or commas; ``#`` begins a comment. KEY is 32 bytes as
base64. No part of a key is ever in an error text.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidelog.errors import ConfigError
from tidelog.extras import install_hint
from tidelog.types import Buffer

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
ID_BYTES = 64
_ID = re.compile(rf"[A-Za-z0-9._-]{{1,{ID_BYTES}}}")


class Cipher:
    """AES-256-GCM encryption with one key. A nonce must not be given to ``encrypt`` twice."""

    def __init__(self, key: bytes) -> None:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._invalid = InvalidTag
        self._aes = AESGCM(key)

    def encrypt(self, nonce: bytes, data: Buffer, associated_data: bytes | None = None) -> bytes:
        """Return the ciphertext of ``data``, followed by an authentication tag of ``TAG_BYTES``. ``associated_data``
        is authenticated but not encrypted."""
        return self._aes.encrypt(nonce, data, associated_data)

    def decrypt(self, nonce: Buffer, data: Buffer, associated_data: bytes | None = None) -> bytes | None:
        """Return the plain text of ``data``, a ciphertext with its tag. Return None if the ciphertext, nonce, key or
        associated data is not exactly the one used to encrypt it."""
        try:
            return self._aes.decrypt(nonce, data, associated_data)
        except self._invalid:
            return None


@dataclass(frozen=True, slots=True)
class Keyring:
    """The configured key-encryption keys by id. A server reads them when it starts and never changes them.
    ``current`` is the id of the key that wraps new data keys; None means that new segments are not encrypted."""

    keys: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    current: str | None = None
    entropy: Callable[[int], bytes] = field(default=os.urandom, repr=False)
    """Return as many unpredictable random bytes as the argument says."""


def parse(text: str, source: str) -> Keyring:
    """Return the keys in ``text``, the content of a key file or environment variable; the first one becomes the
    current key. Raises ``ConfigError`` if an entry is malformed, an id is used twice, or there is no key. The error
    names ``source`` and the number of the entry, but no key."""
    keys: dict[str, bytes] = {}
    lines = (line.partition("#")[0] for line in text.splitlines())
    for number, entry in enumerate((e for line in lines for e in re.split(r"[\s,]+", line) if e), 1):
        name, _, encoded = entry.partition(":")
        try:
            key = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != KEY_BYTES or not _ID.fullmatch(name):
            raise ConfigError(
                f"{source}: entry {number} is not ID:KEY, with an id of letters, digits, '.', '_', '-'"
                f" (at most {ID_BYTES}) and {KEY_BYTES} bytes as base64 (openssl rand -base64 {KEY_BYTES})"
            )
        if name in keys:
            raise ConfigError(f"{source}: key {name!r} is given twice")
        keys[name] = key
    if not keys:
        raise ConfigError(f"{source}: there is no key")
    return Keyring(keys, next(iter(keys)))


def load_keys(file: str, variable: str, environ: Mapping[str, str]) -> Keyring:
    """Return the keys in the file at path ``file`` or in the environment variable ``variable`` of ``environ``; a ring
    without keys if both names are empty. Raises ``ConfigError`` if the keys cannot be read or are malformed, or if
    the package ``cryptography`` is missing."""
    if not file and not variable:
        return Keyring()
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise ConfigError(f"encryption at rest needs the package cryptography: {install_hint('security')}") from None
    if variable:
        if variable not in environ:
            raise ConfigError(f"encryption_key_env = {variable}: there is no such environment variable")
        return parse(environ[variable], f"encryption_key_env = {variable}")
    try:
        text = Path(file).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise ConfigError(f"encryption_key_file = {file}: cannot be read: {reason}") from None
    return parse(text, f"encryption_key_file = {file}")
