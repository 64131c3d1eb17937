"""Makes blocking classes of asynchronous ones.

Type checkers cannot follow this. They read stubs (``.pyi``), which ``make pages`` writes (``deploy/stubs.py``).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from tidelog.sync.portal import Portal


def blocking(face: type, module: str) -> type:
    """Return the blocking face of a class: each public coroutine method of it becomes a method that runs in the
    background thread and returns its result. It is made of a portal and an object of ``face``. ``module``: where the
    new class stands."""

    def __init__(self: Any, portal: Portal, inner: Any) -> None:
        self._portal = portal
        self._inner = inner

    members: dict[str, Any] = {
        name: _blocking(member)
        for name, member in vars(face).items()
        if inspect.iscoroutinefunction(member) and not name.startswith("_")
    }
    about = {"__init__": __init__, "__doc__": face.__doc__, "__module__": module}
    return type(face.__name__, (), members | about)


def _blocking(method: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """The caller's iterables are used up in the caller's thread, where they may run code of the caller."""
    signature = inspect.signature(method)
    iterables = [p.name for p in signature.parameters.values() if str(p.annotation).startswith("Iterable[")]

    @functools.wraps(method)
    def call(self: Any, *args: Any, **details: Any) -> Any:
        bound = signature.bind(self._inner, *args, **details)
        for name in iterables:
            if bound.arguments.get(name) is not None:
                bound.arguments[name] = tuple(bound.arguments[name])
        return self._portal.run(functools.partial(method, *bound.args, **bound.kwargs))

    return call
