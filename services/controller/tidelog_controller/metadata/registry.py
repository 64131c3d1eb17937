"""The functions that apply commands, by class of command. Each module of ``metadata/rules`` registers its own with
``applies``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tidelog.errors import TidelogError
from tidelog.wire.messages import Message

from tidelog_controller.metadata.changeset import ChangeSet
from tidelog_controller.metadata.commands import Command

C = TypeVar("C", bound=Command)
Answer = TypeVar("Answer", bound=Message | TidelogError)
Rule = Callable[[ChangeSet, C], Answer]

RULES: dict[type[Command], Rule[Any, Any]] = {}
"""The function that applies a command, by the class of the command. It adds its changes to the change set and returns
the answer."""


def applies(kind: type[C]) -> Callable[[Rule[C, Answer]], Rule[C, Answer]]:
    """Return a decorator that registers a function in ``RULES`` as the one that applies commands of the class
    ``kind``, and leaves the function as it is. Registering a second function for a class fails an assertion."""

    def register(rule: Rule[C, Answer]) -> Rule[C, Answer]:
        assert kind not in RULES, kind
        RULES[kind] = rule
        return rule

    return register
