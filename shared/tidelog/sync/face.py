"""Makes the blocking *face* of an asynchronous class: a class whose methods have equal names and block.

Type checkers cannot follow this. They read stubs (``.pyi``), which ``deploy/generate/stubs.py`` writes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from operator import attrgetter
from typing import Any, TypeVar

from tidelog.sync.portal import Portal

T = TypeVar("T")

CLOSING = "aclose"
"""The coroutine method whose blocking form has another name: ``close``."""


class Face:
    """The base of blocking faces: the portal, and the asynchronous object in the background thread whose methods the
    face calls."""

    def __init__(self, portal: Portal, inner: Any) -> None:
        self._portal = portal
        self._inner = inner

    def _current(self) -> Any:
        """Return the asynchronous object whose method or property is to be used. The other base of blocking classes,
        ``Records``, has a method of this name that first passes on how far the caller has read."""
        return self._inner

    def _run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run a method of the asynchronous object in the background thread, wait for it, and return its result or
        raise its error."""
        return self._portal.run(call)


def blocking(face: type, module: str, base: type = Face) -> type:
    """Return a class with the blocking methods of the asynchronous class ``face``, defined in ``module`` and derived
    from ``base``. Each public coroutine method of ``face`` that ``base`` lacks becomes a blocking method; each public
    property becomes a property."""
    members: dict[str, Any] = {}
    for name, member in vars(face).items():
        if name.startswith("_") or name == CLOSING or hasattr(base, name):
            continue
        if inspect.iscoroutinefunction(member):
            members[name] = _method(member)
        elif isinstance(member, property):
            members[name] = _property(name, member)
    text = (face.__doc__ or "").replace("``async with``", "``with``")
    about = {"__doc__": text, "__module__": module, "_face": face}
    return type(face.__name__, (base,), members | about)


def _method(method: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Return the blocking form of a coroutine method: it runs the method in the background thread and returns its
    result. Arguments that are iterables are consumed in the caller's thread, since they may run code of the
    caller."""
    signature = inspect.signature(method)
    iterables = [p.name for p in signature.parameters.values() if str(p.annotation).startswith("Iterable[")]

    @functools.wraps(method)
    def call(self: Any, *args: Any, **details: Any) -> Any:
        bound = signature.bind(self._current(), *args, **details)
        for name in iterables:
            if bound.arguments.get(name) is not None:
                bound.arguments[name] = tuple(bound.arguments[name])
        return self._run(functools.partial(method, *bound.args, **bound.kwargs))

    return call


def _property(name: str, member: property) -> property:
    read = attrgetter(name)
    return property(lambda self: read(self._current()), doc=member.__doc__)
