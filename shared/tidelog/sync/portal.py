"""The thread that runs trio for a program without it: the foundation of ``tidelog.sync``."""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Generic, TypeVar

import trio

from tidelog.client.log import Log
from tidelog.errors import Closed

T = TypeVar("T")


class Portal:
    """A background thread in which trio runs one client, and the means by which other threads call into it. Making it
    connects; it raises the errors of ``connect``. The thread ends with ``close``."""

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Log]]) -> None:
        self.pid = os.getpid()
        self.log: Log
        self.nursery: trio.Nursery
        self._connect = connect
        self._ready = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: trio.Event
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="tidelog", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        """Run trio until ``close``. An error is kept, and raised to the thread that made the portal or calls into
        it."""
        try:
            trio.run(self._main)
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        """Connect, report that the portal is ready, and wait for ``close``; then cancel all tasks and close the
        connection."""
        async with self._connect() as self.log, trio.open_nursery() as self.nursery:
            self._stop = trio.Event()
            self._token = trio.lowlevel.current_trio_token()
            self._ready.set()
            await self._stop.wait()
            self.nursery.cancel_scope.cancel()

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the one that opened the connection, and so lacks its thread."""
        return os.getpid() != self.pid

    def _check(self) -> trio.lowlevel.TrioToken:
        """Return the token by which other threads reach trio. Raises ``Closed`` in a fork."""
        if self.is_foreign:
            raise Closed(f"this connection belongs to process {self.pid}: connect again after a fork")
        assert self._token is not None
        return self._token

    def run(self, call: Callable[..., Awaitable[T]], *args: object) -> T:
        """Run the coroutine function ``call`` in the background thread, wait for it, and return its result or raise
        its error. Raises ``Closed`` if the connection is closed, before or during the call, or belongs to another
        process."""
        token = self._check()
        try:
            return trio.from_thread.run(call, *args, trio_token=token)
        except trio.RunFinishedError:
            raise Closed("the connection is closed") from self._failure
        except trio.Cancelled:
            raise Closed("the connection was closed meanwhile") from None

    def soon(self, call: Callable[[], object]) -> None:
        """Schedule a plain function to run in the background thread, and return at once. Raises ``Closed`` if the
        connection is closed or belongs to another process."""
        try:
            self._check().run_sync_soon(call)
        except trio.RunFinishedError:
            raise Closed("the connection is closed") from self._failure

    @contextmanager
    def entered(self, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Run a block within the asynchronous context manager ``manager``, which a task in the background thread
        enters and leaves; yields the manager's value. Raises the manager's errors on entry and exit. If the block
        fails, the manager is left with an exception and the block's error is raised."""
        held = _EnteredManager(manager)
        value = self.run(self.nursery.start, held.run)
        try:
            yield value
        except BaseException:
            self.run(held.leave, True)
            raise
        self.run(held.leave, False)

    def close(self) -> None:
        """Close the connection, end the background thread, and wait for its end. Does nothing if the thread has
        ended, or in a fork."""
        if not self.is_foreign and self._thread.is_alive():
            self.soon(self._stop.set)
            self._thread.join()


class _BlockFailed(Exception):
    """The exception that is raised inside a manager when the block in the other thread has failed."""


class _EnteredManager(Generic[T]):
    """An asynchronous context manager that one task of the background thread enters and leaves for a block in another
    thread."""

    def __init__(self, manager: AbstractAsyncContextManager[T]) -> None:
        self._manager = manager
        self._leave = trio.Event()
        self._left = trio.Event()
        self._failed = False
        self._error: Exception | None = None

    async def run(self, task_status: trio.TaskStatus[T]) -> None:
        """Enter the manager, report its value as started, wait for ``leave``, and leave the manager, with
        ``_BlockFailed`` if the block has failed. Raises an error on entry; an error on exit is kept, and ``leave``
        raises it."""
        begun = False
        try:
            async with self._manager as value:
                task_status.started(value)
                begun = True
                await self._leave.wait()
                if self._failed:
                    raise _BlockFailed
        except _BlockFailed:
            return
        except Exception as error:
            if not begun:
                raise
            self._error = error
        finally:
            self._left.set()

    async def leave(self, failed: bool) -> None:
        """Make ``run`` leave the manager, and wait for that. Raises the manager's error, unless the block has
        failed."""
        self._failed = failed
        self._leave.set()
        await self._left.wait()
        if self._error is not None and not failed:
            raise self._error
