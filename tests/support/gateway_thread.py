"""A fake cluster in a thread of its own, for tests of blocking code."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Queue

import trio

from support.fake_gateway import FakeCluster


@contextmanager
def served(partitions: int = 1) -> Iterator[tuple[FakeCluster, str]]:
    """Run a fake cluster with a topic ``orders`` in a thread, and yield it with its URL."""
    ready: Queue[tuple[FakeCluster, str, trio.lowlevel.TrioToken, trio.CancelScope]] = Queue()

    async def main() -> None:
        cluster = FakeCluster()
        cluster.add_topic("orders", partitions)
        with trio.CancelScope() as scope:
            async with cluster.gateways() as [url]:
                ready.put((cluster, url, trio.lowlevel.current_trio_token(), scope))
                await trio.sleep_forever()

    thread = threading.Thread(target=trio.run, args=(main,), daemon=True)
    thread.start()
    cluster, url, token, scope = ready.get(timeout=10)
    try:
        yield cluster, url
    finally:
        token.run_sync_soon(scope.cancel)
        thread.join(10)
