"""Which text from outside a gateway accepts, and how such text is shown.

A terminal obeys control characters: an escape sequence moves the cursor or changes the window's title, a newline
begins a forged line, U+202E reverses the rest of a line. So a gateway refuses text of a client that is not printable,
and all text is escaped before people see it, wherever it came from: names may be older than this rule, and a peer may
not be a gateway of ours.

Printable means ``str.isprintable``: no control and format characters, no separator but the space.
"""

from __future__ import annotations

MAX_NAME_BYTES = 249
"""Longest name that a client gives itself, in UTF-8."""
MAX_TEXT_BYTES = 1024
"""Longest text of a request that has no bound of its own, in UTF-8."""


def escaped(text: str) -> str:
    r"""Return the text on one line: characters that are not printable are replaced by Python's escapes, such as
    ``\x1b``, ``\n`` and ``\u202e``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def escaped_lines(text: str) -> str:
    """Return a text of several lines in which each line is ``escaped``; the line breaks stay."""
    return "\n".join(map(escaped, text.split("\n")))


def refuse_text(text: str, what: str, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Return the reason why a client's text is refused (not printable, or longer than ``max_bytes`` of UTF-8); "" if
    the text is accepted. ``what`` names the text in the reason."""
    if not text.isprintable():
        return f"{what} has characters that are not printable"
    if len(text) > max_bytes // 4 and len(text.encode()) > max_bytes:
        return f"{what} is longer than {max_bytes} bytes"
    return ""
