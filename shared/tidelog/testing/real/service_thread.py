"""A thread with a trio loop of its own, in which the services of a cluster run."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Generic, TypeVar

import trio

T = TypeVar("T")
R = TypeVar("R")


class ServiceThread(Generic[T]):
    """A thread that enters an asynchronous context manager in trio, and leaves it at ``close``. Making it waits until
    the manager is entered, and raises the error of that."""

    def __init__(self, enter: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self.value: T
        """What the context manager yields."""
        self._enter = enter
        self._ready = threading.Event()
        self._token: trio.lowlevel.TrioToken
        self._nursery: trio.Nursery
        self._stop: trio.Event
        self._calls: set[Future[Any]] = set()
        """The calls that have not ended."""
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="tidelog-cluster", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise _alone(self._failure)

    def _run(self) -> None:
        """Run trio until ``close``, and keep the error with which it ends. Calls that have not ended then fail."""
        try:
            trio.run(self._main)
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()
            for call in list(self._calls):
                if not call.done():  # its thread may not have taken its result yet
                    call.set_exception(_Ended())

    async def _main(self) -> None:
        async with self._enter() as self.value, trio.open_nursery() as self._nursery:
            self._token, self._stop = trio.lowlevel.current_trio_token(), trio.Event()
            self._ready.set()
            await self._stop.wait()
            self._nursery.cancel_scope.cancel()

    def run(self, function: Callable[..., Awaitable[R]], *args: object) -> R:
        """Run a coroutine function in the thread, wait for it, and return its result or raise its error. Any thread
        may call this, also one whose own trio loop it holds up meanwhile. If the services have failed, or fail
        meanwhile, raises the error of ``close``."""
        call: Future[R] = Future()
        self._calls.add(call)
        try:
            self._token.run_sync_soon(self._begin, call, function, args)
            return call.result()
        except (trio.RunFinishedError, _Ended):
            self.close()
            raise RuntimeError("the cluster is closed") from None
        finally:
            self._calls.discard(call)

    def _begin(self, call: Future[R], function: Callable[..., Awaitable[R]], args: Sequence[object]) -> None:
        """Start the task of a call. The call fails if the services are ending, so that no task can be started."""

        async def perform() -> None:
            try:
                call.set_result(await function(*args))
            except Exception as error:
                call.set_exception(error)

        try:
            self._nursery.start_soon(perform)
        except RuntimeError:  # the nursery is closed; an error here would replace that of the services
            call.set_exception(_Ended())

    def close(self) -> None:
        """Leave the context manager, and wait until the thread has ended. Raises the error with which the services
        have failed, if any; once. Does nothing if the thread has ended in order."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._stop.set)
        self._thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise _alone(failure)


class _Ended(Exception):
    """The error of a call that had not ended when the thread ended."""


def _alone(error: BaseException) -> BaseException:
    """Return the error that is alone in an exception group, also in groups within it; else the error itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
