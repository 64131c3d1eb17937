"""Answers the calls of tools: checks the arguments, connects to the cluster with the rights of the caller, and turns
each failure into an error with a next step.

Each call has a connection of its own. So a call never has the rights of another caller, a token that was revoked
counts no more, and a gateway that was started again is no failure.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

import mcp_types as types
import trio
from pydantic import ValidationError

from tidelog.cli.mcp.answers import error_result, result_of
from tidelog.cli.mcp.tool import Answer, CallError, Tool, error_of
from tidelog.errors import TidelogError

if TYPE_CHECKING:
    from tidelog.client.log import Log

CALL_S = 60.0
"""Longest time that a call may take, in seconds."""
MAX_CALLS = 8
"""Most calls of one caller that are answered at a time; others wait."""


class ToolCalls:
    """The tools that a server has, and the calls of its clients. ``connect`` returns a connection with the token of a
    caller; None: with the identity of the server's own options."""

    def __init__(
        self, tools: Sequence[Tool], connect: Callable[[str | None], AbstractAsyncContextManager[Log]], writes: bool
    ) -> None:
        self.tools = tuple(tool for tool in tools if writes or not tool.writes)
        self._known = {tool.name: tool for tool in tools}
        self._connect = connect
        self._writes = writes
        self._limits: dict[str | None, trio.CapacityLimiter] = {}
        """By token, the limit of the callers that have calls."""

    async def call(
        self, name: str, arguments: Mapping[str, Any], token: str | None, refuse: Callable[[Any], CallError | None]
    ) -> types.CallToolResult:
        """Answer one call. ``refuse`` returns why the transport does not allow these arguments, or None. An error is
        an answer, too."""
        try:
            return result_of(await self._answer(name, arguments, token, refuse))
        except CallError as error:
            return error_result(error)

    async def _answer(
        self, name: str, arguments: Mapping[str, Any], token: str | None, refuse: Callable[[Any], CallError | None]
    ) -> Answer:
        """Return the answer of a tool. Raises ``CallError`` for every failure that the caller can do something
        about."""
        tool = self._known.get(name)
        if tool is None:
            raise CallError("UNKNOWN_TOOL", name, "List the tools, and call one of them.")
        if tool.writes and not self._writes:
            step = "Whoever runs this server can start it with 'tidelog mcp --allow-writes'."
            raise CallError("READ_ONLY_SERVER", f"{name} changes the cluster", step)
        try:
            given = tool.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            raise _bad_arguments(error) from None
        if refused := refuse(given):
            raise refused
        try:
            with trio.fail_after(CALL_S):
                async with self._turn(token), self._connect(token) as log:
                    return await tool.call(log, given)
        except trio.TooSlowError:
            step = "Ask for less, or try again."
            if tool.writes:
                step = "It may be done nevertheless: read what is there before you call it again."
            raise CallError("TOO_SLOW", f"no answer within {CALL_S:.0f} s", step) from None
        except (TidelogError, ExceptionGroup) as error:
            first = _first(error)
            raise error_of(first) if isinstance(first, TidelogError) else first from None

    @asynccontextmanager
    async def _turn(self, token: str | None) -> AsyncIterator[None]:
        """Return a context manager that waits until the caller with this token has less than ``MAX_CALLS`` calls."""
        limit = self._limits.setdefault(token, trio.CapacityLimiter(MAX_CALLS))
        try:
            async with limit:
                yield
        finally:
            if not (limit.borrowed_tokens or limit.statistics().tasks_waiting):
                self._limits.pop(token, None)


def _first(error: Exception) -> Exception:
    """Return the first error in a group of errors; an error that is no group is returned itself."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _bad_arguments(error: ValidationError) -> CallError:
    """Return the error for arguments that a tool does not take. Its message names each, and what is wrong with it."""
    faults = [f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}" for one in error.errors()[:10]]
    return CallError("BAD_ARGUMENTS", "; ".join(faults), "Call it with the arguments of its input schema.")
