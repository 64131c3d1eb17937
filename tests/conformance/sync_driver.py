"""Driver of ``tidelog.sync``, the blocking library."""

from __future__ import annotations

import itertools
import json
import os
import sys
from typing import Any

import shapes
import tidelog.sync
from shapes import Json


class Commands:
    """The objects of the library that are open, by name."""

    def __init__(self) -> None:
        self._opened: dict[str, Any] = {}
        self._pending: dict[str, list[Any]] = {}

    def answer(self, command: Json) -> Json:
        """Perform a command and return its answer, or the error of the library, as JSON."""
        try:
            return {"id": command["id"], "ok": getattr(self, command["do"])(command) or {}}
        except shapes.REFUSALS as error:
            return {"id": command["id"], "error": shapes.refused(error)}

    def hello(self, command: Json) -> Json:
        return {"features": shapes.FEATURES}

    def connect(self, command: Json) -> None:
        self._opened[command["log"]] = tidelog.sync.connect(**shapes.connecting(command))

    def close(self, command: Json) -> None:
        self._opened.pop(command["log"]).close()

    def create_topic(self, command: Json) -> Json:
        log = self._opened[command["log"]]
        return shapes.described(log.topics.create(command["topic"], **shapes.creating(command)))

    def delete_topic(self, command: Json) -> None:
        self._opened[command["log"]].topics.delete(command["topic"])

    def topics(self, command: Json) -> Json:
        return {"topics": [topic.name for topic in self._opened[command["log"]].topics.list()]}

    def describe(self, command: Json) -> Json:
        return shapes.described(self._opened[command["log"]].topics.describe(command["topic"], offsets=True))

    def list_offset(self, command: Json) -> Json:
        log = self._opened[command["log"]]
        found = log.partitions.list_offset(command["topic"], command["partition"], shapes.place_of(command["at"]))
        return {"offset": found.offset, "leader_epoch": found.leader_epoch}

    def open_producer(self, command: Json) -> None:
        log = self._opened[command["log"]]
        self._opened[command["producer"]] = log.producer(command["topic"], shapes.producing(command))
        self._pending[command["producer"]] = []

    def send(self, command: Json) -> Json:
        value, more = shapes.sending(command["record"])
        return shapes.acked(self._opened[command["producer"]].send(value, **more))

    def submit(self, command: Json) -> None:
        name = command["producer"]
        for record in command["records"]:
            value, more = shapes.sending(record)
            self._pending[name].append(self._opened[name].submit(value, **more))

    def flush(self, command: Json) -> Json:
        name = command["producer"]
        self._opened[name].flush()
        pending, self._pending[name] = self._pending[name], []
        return {"outcomes": [self._outcome(one) for one in pending]}

    def _outcome(self, pending: Any) -> Json:
        try:
            return {"ack": shapes.acked(pending.wait())}
        except shapes.REFUSALS as error:
            return {"error": shapes.refused(error)}

    def close_producer(self, command: Json) -> None:
        self._opened.pop(command["producer"]).close()

    def open_consumer(self, command: Json) -> None:
        log = self._opened[command["log"]]
        self._opened[command["consumer"]] = log.consume(command["topic"], **shapes.consuming(command)).__enter__()

    def open_member(self, command: Json) -> None:
        log = self._opened[command["log"]]
        self._opened[command["consumer"]] = log.consume(command["topics"], **shapes.joining(command)).__enter__()

    def commit(self, command: Json) -> None:
        self._opened[command["consumer"]].commit()

    def pause(self, command: Json) -> None:
        self._opened[command["consumer"]].pause(*shapes.shares(command))

    def resume(self, command: Json) -> None:
        self._opened[command["consumer"]].resume(*shapes.shares(command))

    def seek(self, command: Json) -> None:
        self._opened[command["consumer"]].seek(*shapes.seeking(command))

    def assignment(self, command: Json) -> Json:
        return {"assignment": self._opened[command["consumer"]].assignment}

    def describe_group(self, command: Json) -> Json:
        return shapes.grouped(self._opened[command["log"]].groups.describe(command["group"]))

    def create_token(self, command: Json) -> Json:
        return {
            "token": self._opened[command["log"]].access.create_token(command["principal"], command.get("lifetime_s"))
        }

    def rotate_token(self, command: Json) -> Json:
        return {"token": self._opened[command["log"]].access.rotate_token(command["token_id"], command["grace_s"])}

    def revoke_token(self, command: Json) -> None:
        self._opened[command["log"]].access.revoke_token(command["token_id"])

    def revoke_tokens_of(self, command: Json) -> None:
        self._opened[command["log"]].access.revoke_tokens_of(command["principal"])

    def rotate_ticket_keys(self, command: Json) -> None:
        self._opened[command["log"]].access.rotate_ticket_keys()

    def alter_acls(self, command: Json) -> None:
        self._opened[command["log"]].access.alter_acls(**shapes.rules(command))

    def alter_quotas(self, command: Json) -> None:
        self._opened[command["log"]].access.alter_quotas(shapes.quotas(command))

    def access(self, command: Json) -> Json:
        return shapes.permitted(self._opened[command["log"]].access.describe())

    def next(self, command: Json) -> Json:
        found = list(itertools.islice(self._opened[command["consumer"]], command["count"]))
        return {"records": [shapes.received(record) for record in found], "end": len(found) < command["count"]}

    def positions(self, command: Json) -> Json:
        return shapes.positioned(self._opened[command["consumer"]].positions)

    def close_consumer(self, command: Json) -> None:
        self._opened.pop(command["consumer"]).close()


commands = Commands()
for line in sys.stdin:
    print(json.dumps(commands.answer(json.loads(line))), flush=True)
sys.stdout.flush()
os._exit(0)  # what is still open is given up
