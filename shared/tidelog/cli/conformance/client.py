"""The client program under test: a process that reads commands as lines of JSON and answers each with one line.
``docs/conformance.md`` describes the lines."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

COMMAND_TIMEOUT_S = 60.0
"""Seconds after which a command counts as hanging. The process is then killed."""
MOST_SHOWN = 300
"""Most characters of a line that an error shows."""

Json = dict[str, Any]


class Failed(Exception):
    """A case has failed. The text says what was expected and what happened."""


class Refused(Exception):
    """An error of the library, as its program reports it."""

    def __init__(self, error: Json) -> None:
        super().__init__(f"[{error['code']}] {error.get('message', '')}")
        self.code: str = error["code"]
        self.retriable: bool = error.get("retriable", False)
        self.unknown_outcome: bool = error.get("unknown_outcome", False)
        self.detail: Json = error.get("detail", {})
        self.failed: int = error.get("failed", 0)


class Client:
    """A running client program. ``features`` are the optional parts of the protocol that its library has."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start the program. Raises ``Failed`` if it cannot be started, or does not answer ``hello``."""
        self._next_id = 0
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
            )
        except OSError as error:
            raise Failed(f"{command[0]} cannot be started: {error.strerror}") from None
        try:
            self.features = frozenset(self.do("hello")["features"])
        except (Failed, Refused, KeyError, TypeError) as error:
            self.kill()
            raise Failed(f"the answer to hello is not {{'features': […]}}: {error}") from None

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def do(self, what: str, **fields: Any) -> Json:
        """Send a command and return its answer; fields that are None are left out. Raises ``Refused`` for an error
        of the library, and ``Failed`` if the program ends, hangs, or answers something else than the protocol
        allows."""
        self._next_id += 1
        given = {name: value for name, value in fields.items() if value is not None}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"id": self._next_id, "do": what, **given}) + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise Failed(f"the client has ended before {what}") from None
        return self._answer(what)

    def stop(self) -> None:
        """End the input of the program. Raises ``Failed`` if its exit code is not 0, or if it does not end."""
        try:
            self._process.communicate(timeout=COMMAND_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failed(
                f"the client did not end within {COMMAND_TIMEOUT_S:g} s after the end of its input"
            ) from None
        if self._process.returncode:
            raise Failed(f"the client ended with exit code {self._process.returncode} after the end of its input")

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.communicate()

    def _answer(self, what: str) -> Json:
        """Read the answer to the last command, which is ``what``."""
        assert self._process.stdout is not None
        watchdog = threading.Timer(COMMAND_TIMEOUT_S, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise Failed(f"the client ended, or took more than {COMMAND_TIMEOUT_S:g} s, at {what}")
        try:
            answer = json.loads(line)
            id, ok, error = answer["id"], answer.get("ok"), answer.get("error")
        except (ValueError, TypeError, KeyError, AttributeError):
            raise Failed(f"the answer to {what} is no line of the protocol: {line[:MOST_SHOWN]!r}") from None
        if id != self._next_id:
            raise Failed(f"the answer to command {self._next_id} ({what}) names command {id}")
        if error is not None:
            if not isinstance(error, dict) or "code" not in error:
                raise Failed(f"the error of {what} has no code: {line[:MOST_SHOWN]!r}")
            raise Refused(error)
        if not isinstance(ok, dict):
            raise Failed(f"the answer to {what} has neither ok nor error: {line[:MOST_SHOWN]!r}")
        return ok
