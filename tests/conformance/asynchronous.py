"""The commands of the suite for libraries of ``async`` functions, whichever loop runs them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import shapes
from shapes import Json

Hold = Callable[[AbstractAsyncContextManager[Any]], Awaitable[tuple[Any, Callable[[], Awaitable[None]]]]]
"""Enters a context manager in a task of its own and returns its value and a function that ends it, which raises what
the end raised."""


class Commands:
    """The objects of a library that are open, by name. ``module`` is the library."""

    def __init__(self, module: Any, hold: Hold) -> None:
        self._module = module
        self._hold = hold
        self._opened: dict[str, Any] = {}
        self._ends: dict[str, Callable[[], Awaitable[None]]] = {}
        self._pending: dict[str, list[Any]] = {}

    async def answer(self, command: Json) -> Json:
        """Perform a command and return its answer, or the error of the library, as JSON."""
        try:
            return {"id": command["id"], "ok": await getattr(self, command["do"])(command) or {}}
        except shapes.REFUSALS as error:
            return {"id": command["id"], "error": shapes.refused(error)}

    async def _open(self, name: str, manager: AbstractAsyncContextManager[Any]) -> None:
        self._opened[name], self._ends[name] = await self._hold(manager)

    async def _close(self, name: str) -> None:
        del self._opened[name]
        await self._ends.pop(name)()

    async def hello(self, command: Json) -> Json:
        return {"features": shapes.FEATURES}

    async def connect(self, command: Json) -> None:
        await self._open(command["log"], self._module.connect(**shapes.connecting(command)))

    async def close(self, command: Json) -> None:
        await self._close(command["log"])

    async def create_topic(self, command: Json) -> Json:
        log = self._opened[command["log"]]
        return shapes.described(await log.topics.create(command["topic"], **shapes.creating(command)))

    async def delete_topic(self, command: Json) -> None:
        await self._opened[command["log"]].topics.delete(command["topic"])

    async def topics(self, command: Json) -> Json:
        return {"topics": [topic.name for topic in await self._opened[command["log"]].topics.list()]}

    async def describe(self, command: Json) -> Json:
        return shapes.described(await self._opened[command["log"]].topics.describe(command["topic"], offsets=True))

    async def list_offset(self, command: Json) -> Json:
        log = self._opened[command["log"]]
        found = await log.partitions.list_offset(
            command["topic"], command["partition"], shapes.place_of(command["at"])
        )
        return {"offset": found.offset, "leader_epoch": found.leader_epoch}

    async def open_producer(self, command: Json) -> None:
        log = self._opened[command["log"]]
        self._pending[command["producer"]] = []
        await self._open(command["producer"], log.producer(command["topic"], shapes.producing(command)))

    async def send(self, command: Json) -> Json:
        value, more = shapes.sending(command["record"])
        return shapes.acked(await self._opened[command["producer"]].send(value, **more))

    async def submit(self, command: Json) -> None:
        name = command["producer"]
        for record in command["records"]:
            value, more = shapes.sending(record)
            self._pending[name].append(await self._opened[name].submit(value, **more))

    async def flush(self, command: Json) -> Json:
        name = command["producer"]
        await self._opened[name].flush()
        pending, self._pending[name] = self._pending[name], []
        return {"outcomes": [await self._outcome(one) for one in pending]}

    async def _outcome(self, pending: Any) -> Json:
        try:
            return {"ack": shapes.acked(await pending.wait())}
        except shapes.REFUSALS as error:
            return {"error": shapes.refused(error)}

    async def close_producer(self, command: Json) -> None:
        await self._close(command["producer"])

    async def open_consumer(self, command: Json) -> None:
        log = self._opened[command["log"]]
        await self._open(command["consumer"], log.consume(command["topic"], **shapes.consuming(command)))

    async def open_member(self, command: Json) -> None:
        log = self._opened[command["log"]]
        await self._open(command["consumer"], log.consume(command["topics"], **shapes.joining(command)))

    async def commit(self, command: Json) -> None:
        await self._opened[command["consumer"]].commit()

    async def pause(self, command: Json) -> None:
        await self._opened[command["consumer"]].pause(*shapes.shares(command))

    async def resume(self, command: Json) -> None:
        await self._opened[command["consumer"]].resume(*shapes.shares(command))

    async def seek(self, command: Json) -> None:
        await self._opened[command["consumer"]].seek(*shapes.seeking(command))

    async def assignment(self, command: Json) -> Json:
        return {"assignment": self._opened[command["consumer"]].assignment}

    async def describe_group(self, command: Json) -> Json:
        return shapes.grouped(await self._opened[command["log"]].groups.describe(command["group"]))

    async def create_token(self, command: Json) -> Json:
        return {
            "token": await self._opened[command["log"]].access.create_token(
                command["principal"], command.get("lifetime_s")
            )
        }

    async def rotate_token(self, command: Json) -> Json:
        return {
            "token": await self._opened[command["log"]].access.rotate_token(command["token_id"], command["grace_s"])
        }

    async def revoke_token(self, command: Json) -> None:
        await self._opened[command["log"]].access.revoke_token(command["token_id"])

    async def revoke_tokens_of(self, command: Json) -> None:
        await self._opened[command["log"]].access.revoke_tokens_of(command["principal"])

    async def rotate_ticket_keys(self, command: Json) -> None:
        await self._opened[command["log"]].access.rotate_ticket_keys()

    async def alter_acls(self, command: Json) -> None:
        await self._opened[command["log"]].access.alter_acls(**shapes.rules(command))

    async def alter_quotas(self, command: Json) -> None:
        await self._opened[command["log"]].access.alter_quotas(shapes.quotas(command))

    async def access(self, command: Json) -> Json:
        return shapes.permitted(await self._opened[command["log"]].access.describe())

    async def next(self, command: Json) -> Json:
        records: list[Json] = []
        consumer = self._opened[command["consumer"]]
        while len(records) < command["count"]:
            try:
                records.append(shapes.received(await consumer.__anext__()))
            except StopAsyncIteration:
                return {"records": records, "end": True}
        return {"records": records, "end": False}

    async def positions(self, command: Json) -> Json:
        return shapes.positioned(self._opened[command["consumer"]].positions)

    async def close_consumer(self, command: Json) -> None:
        await self._close(command["consumer"])
