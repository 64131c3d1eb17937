"""The functions that apply commands, by kind. Each module of ``metadata/rules`` registers its own by ``applies``."""

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
"""By kind of command: the function that applies it."""


def applies(kind: type[C]) -> Callable[[Rule[C, Answer]], Rule[C, Answer]]:
    """Register the decorated function as the one that applies commands of this kind."""

    def register(rule: Rule[C, Answer]) -> Rule[C, Answer]:
        assert kind not in RULES, kind
        RULES[kind] = rule
        return rule

    return register
