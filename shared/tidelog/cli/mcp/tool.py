"""What a tool is: its arguments, its data, the function that answers a call, and the errors of calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from tidelog.cli.main import NEXT_STEP
from tidelog.cli.mcp.next_steps import for_agents
from tidelog.errors import CODES, TidelogError

if TYPE_CHECKING:
    from tidelog.client.log import Log

OTHER_STEP = "Call 'doctor', which says what is wrong with the cluster."
"""Next step after an error that has none of its own."""
TOKEN_STEP = (
    "Over HTTP give a token in the header 'Authorization: Bearer TOKEN';"
    " over stdin and stdout start the server with --token-file."
)
"""Next step after ``UNAUTHENTICATED``."""


class CallError(Exception):
    """A call that was refused or failed: ``code`` is one of ``errors.CODES`` or of this module, ``message`` may quote
    names of strangers, ``next_step`` has fixed words only."""

    def __init__(self, code: str, message: str, next_step: str, detail: Mapping[str, object] | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.next_step = next_step
        self.detail = dict(detail or {})

    @property
    def meaning(self) -> str:
        """The meaning of the code, in fixed words."""
        return OWN_CODES.get(self.code) or (CODES[self.code].text if self.code in CODES else "the call failed")


OWN_CODES = {
    "BAD_ARGUMENTS": "the arguments are not those of the tool",
    "READ_ONLY_SERVER": "this server only reads",
    "UNKNOWN_TOOL": "there is no such tool",
    "TOO_SLOW": "the cluster did not answer in time, or an expression takes too long",
    "NOT_OVER_HTTP": "this argument is for servers over stdio",
}
"""Codes of this server, beside those of the cluster, with their meanings."""


def error_of(error: TidelogError) -> CallError:
    """Return an error of the cluster as that of a call."""
    step = TOKEN_STEP if error.code == "UNAUTHENTICATED" else for_agents(NEXT_STEP.get(error.code, OTHER_STEP))
    return CallError(error.code, error.message, step, {"error": str(error)})


@dataclass(frozen=True)
class Answer:
    """What a tool answers. ``summary`` has fixed words, numbers and codes only: no text that anybody else has
    chosen. ``left_out`` counts the entries of lists that are missing in the data, and ``narrower`` says how to ask
    for them."""

    summary: str
    data: BaseModel
    left_out: Mapping[str, int] = field(default_factory=dict)
    narrower: str = "Ask for less at a time."


@dataclass(frozen=True)
class Tool:
    """A tool: what agents read about it, and the function that answers a call with the client of its caller."""

    name: str
    title: str
    description: str
    arguments: type[BaseModel]
    result: type[BaseModel]
    call: Callable[[Log, Any], Awaitable[Answer]]
    writes: bool = False
    """Whether it changes the cluster, so that it is there with ``--allow-writes`` only."""
    destructive: bool = False
    """Whether it changes or ends something that was there, rather than only adding to it."""
    idempotent: bool = True
    """Whether a second call with the same arguments changes nothing more."""


def clock(ms: int) -> str | None:
    """Return milliseconds since 1970 as a time in ISO 8601; None for a negative number: not known. Producers may
    choose a timestamp that is after the year 9999: it is returned as ``N ms after 1970``."""
    if ms < 0:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms after 1970"


def moment(text: str, argument: str) -> datetime:
    """Return the moment that an argument names. Raises ``CallError`` for a text that is no moment, and for a
    moment in the future."""
    from tidelog.cli.explain.describe import parse_moment

    now = datetime.now(UTC)
    found = parse_moment(text, now)
    if found is None or found > now:
        what = "is no moment" if found is None else "has not been yet"
        step = f"Give {argument} as 2026-01-31T12:00:00+00:00, or -5m for five minutes ago."
        raise CallError("BAD_ARGUMENTS", f"{text!r} {what}", step)
    return found
