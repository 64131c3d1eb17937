"""Text from outside: what a gateway takes of it, and how it is shown.

A terminal obeys control characters: an escape sequence moves the cursor or changes the window's title, a newline
begins a line that nobody wrote, U+202E turns the rest of a line round. So a gateway takes no text of a client that is
not printable, and everything that is shown to people is escaped, wherever it came from: names may be older than this
rule, and not every peer is a gateway of ours.

Printable is what ``str.isprintable`` says: no control and format characters, no separator but the space.
"""

from __future__ import annotations

MAX_NAME_BYTES = 249
"""Longest name that a client gives itself, in UTF-8."""
MAX_TEXT_BYTES = 1024
"""Longest text of a request that has no bound of its own, in UTF-8."""


def escaped(text: str) -> str:
    """The text on one line, with the escapes of Python for what is not printable: ``\\x1b``, ``\\n``, ``\\u202e``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def escaped_lines(text: str) -> str:
    """A text of several lines, each ``escaped``."""
    return "\n".join(map(escaped, text.split("\n")))


def fault_of_text(text: str, what: str, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Why a text of a client is refused; "" for nothing. ``what`` names it."""
    if not text.isprintable():
        return f"{what} has characters that are not printable"
    if len(text) > max_bytes // 4 and len(text.encode()) > max_bytes:
        return f"{what} is longer than {max_bytes} bytes"
    return ""
