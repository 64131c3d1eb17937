"""Between the clients' links and what serves them: who comes in, who must go, and what each may do and have.

``core.guard`` decides the first three, ``metering`` the last. What is refused is answered here; the rest goes on, to
``requests`` or the shell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog
import trio
from tidelog.counting import count
from tidelog.errors import TidelogError, refuse
from tidelog.link import Link
from tidelog.tls import shown_over
from tidelog.transport import Connection
from tidelog.wire.messages import (
    CopyRead,
    Credit,
    Done,
    Hello,
    Message,
    Produce,
    ProduceAck,
    Produced,
    ReleaseProducer,
    UseProducer,
)

from tidelog_gateway.audit import Audit
from tidelog_gateway.core.guard import Client, Guard
from tidelog_gateway.core.permissions import ADMIN, BY_ID
from tidelog_gateway.leaving import Leaving
from tidelog_gateway.metering import FREE, Metering
from tidelog_gateway.requests import KINDS, Requests
from tidelog_gateway.shell import Shell

LOOK_S = 10.0
"""Longest pause between two looks whether a token has expired: the wall clock may be set."""
POLICY_VIOLATION = 1008


@dataclass(frozen=True, slots=True)
class View:
    """What one client may see, and where it is told what it did."""

    guard: Guard
    audit: Audit
    principal: str
    remote: str
    charge: Callable[[str, int], None]
    """Counts bytes as sent to a principal."""

    def of_topic(self, name: str) -> bool:
        """It may know of the topic."""
        return self.guard.may(self.principal, "describe", f"topic:{name}")

    @property
    def of_servers(self) -> bool:
        """It may know the servers and their addresses."""
        return self.guard.may(self.principal, "describe", "cluster")

    def tell(self, request: Message, answer: Message | TidelogError) -> None:
        """A request of it was answered."""
        if request.OP in ADMIN:
            self.audit.on_change({"principal": self.principal, "remote": self.remote}, request, answer)
        if isinstance(answer, CopyRead):
            self.charge(self.principal, answer.bytes)


class Door:
    """The owner runs ``run``."""

    def __init__(
        self,
        shell: Shell,
        requests: Requests,
        guard: Guard,
        audit: Audit,
        wall_ms: Callable[[], int],
        leaving: Leaving,
        client_max_connections: int,
    ) -> None:
        self._shell = shell
        self._leaving = leaving
        self._client_max_connections = client_max_connections
        self._requests = requests
        self._guard = guard
        self._audit = audit
        self._wall_ms = wall_ms
        self._clients: dict[Link, Client] = {}
        self._metering = Metering(shell.clock, lambda link, credit: shell.on_message(link, None, credit))
        self._log = structlog.get_logger()

    def authenticate(self, hello: Hello, connection: Connection) -> TidelogError | None:
        """Why somebody is not let in. The room is looked at first: it costs nothing."""
        refusal = self._why_no_room()
        if refusal is not None:
            self._log.warning("client_refused", remote=connection.remote, reason=refusal.message)
            return refusal
        client = self._guard.recognize(hello.token, shown_over(connection), self._wall_ms())
        if isinstance(client, TidelogError):
            self._log.warning("authentication_failed", remote=connection.remote, reason=client.message)
            who = {"remote": connection.remote, "name": hello.node[:64]}
            self._audit.on_failure("unauthenticated", who, hello.OP, client)
            return client
        return self._metering.why_no_connection(client.principal)

    def _why_no_room(self) -> TidelogError | None:
        most = self._client_max_connections
        if self._shell.connections >= most:
            return refuse("OVERLOADED", f"client_max_connections = {most} are connected: use another gateway")
        return self._leaving.why_not()

    def on_open(self, link: Link) -> None:
        """A client came in."""
        assert isinstance(link.peer, Hello)
        client = self._guard.recognize(link.peer.token, link.identities, self._wall_ms())
        assert isinstance(client, Client), "nothing has happened since it was asked before"
        self._clients[link] = client
        self._metering.on_open(link, client.principal)
        self._shell.on_open(link, client.principal)

    def on_close(self, link: Link) -> None:
        """A client went."""
        del self._clients[link]
        self._metering.on_close(link)
        self._shell.on_close(link)
        self._requests.on_close(link)

    def on_message(self, link: Link, id: int | None, message: Message) -> None:
        """A client sent something."""
        count(self._shell.requests, message.OP)
        principal = self._clients[link].principal
        wait = self._metering.judge(link, message, len(self._shell.cluster.image.topics))
        if wait is None and not isinstance(message, FREE):
            wait = self._leaving.why_not()
        if isinstance(message, Produce):
            message = self._accepted_parts(link, principal, message, wait)
        elif wait is not None:
            raise wait
        elif isinstance(message, Credit):
            if self._metering.holds(link, message):
                return
        elif self._guard.settings.authorization:
            self._check(link, principal, message)
        if isinstance(message, UseProducer) and id is not None:
            link.answer(id, self._shell.router.tickets.use(link.source, principal, message))
        elif isinstance(message, ReleaseProducer) and id is not None:
            self._shell.router.tickets.release(link.source, message.producer_id)
            link.answer(id, Done())
        elif isinstance(message, KINDS) and id is not None:
            view = View(self._guard, self._audit, principal, link.remote, self._metering.charge)
            self._shell.on_request(link, message)
            self._requests.on_message(link, id, message, view)
        else:
            self._shell.on_message(link, id, message)

    def _check(self, link: Link, principal: str, message: Message) -> None:
        """Raises why it is refused."""
        if message.OP in BY_ID:
            topic_id, partition = getattr(message, "topic_id", ""), getattr(message, "partition", 0)
            refusal = self._judge_topic(principal, message.OP, topic_id, partition)
        else:
            refusal = self._guard.judge(principal, message)
        if refusal is not None:
            self._on_denied(link, principal, message.OP, refusal)
            raise refusal

    def _on_denied(self, link: Link, principal: str, op: str, refusal: TidelogError) -> None:
        self._audit.on_failure("denied", {"principal": principal, "remote": link.remote}, op, refusal)

    def _judge_topic(self, principal: str, op: str, topic_id: str, partition: int) -> TidelogError | None:
        topic = self._shell.cluster.topic(topic_id)
        return self._guard.judge_topic(principal, op, topic_id, partition, None if topic is None else topic.name)

    def _accepted_parts(self, link: Link, principal: str, message: Produce, wait: TidelogError | None) -> Produce:
        """Without the parts that are forbidden, or all of which have to wait: those are refused one by one."""
        refusals: list[TidelogError | None] = [wait] * len(message.parts)
        if self._guard.settings.authorization:
            judged = [
                self._judge_topic(principal, message.OP, p.topic_id, p.partition)
                or self._guard.judge_app(principal, p.transaction)
                for p in message.parts
            ]
            refusals = [refusal or wait for refusal in judged]
            denied = next(filter(None, judged), None)
            if denied is not None:
                self._on_denied(link, principal, message.OP, denied)
        if not any(refusals):
            return message
        acks, parts, kept, position = [], [], [], 0
        assert not isinstance(message.payload, list)
        payload = memoryview(message.payload)
        for part, refusal in zip(message.parts, refusals, strict=True):
            if refusal is None:
                parts.append(part)
                kept.append(payload[position : position + part.size])
            else:
                acks.append(ProduceAck(part.id, error=refusal.to_info()))
            position += part.size
        link.post(Produced(tuple(acks)))
        return Produce(tuple(parts), b"".join(kept))

    # --- who must go -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Close the links of those whose token ends, or who may not read any more what they read, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._metering.run)
            while True:
                self._look()
                await self._wait()

    def _look(self) -> None:
        access = self._shell.cluster.image.access
        changed = access is not self._guard.access
        if changed:
            self._guard.update(access)
            self._metering.update(access.quotas)
        now_ms = self._wall_ms()
        for link, client in self._clients.items():
            if link.closed:
                continue
            if self._guard.is_over(client, now_ms):
                self._send_away(link, client, f"token {client.token_id} was revoked or has expired")
            elif changed and not all(
                self._may_read(client, topic) for topic in self._shell.subscriptions.topics_of(link.source)
            ):
                self._send_away(link, client, f"{client.principal} may not read any more what it reads")

    def _may_read(self, client: Client, topic_id: str) -> bool:
        topic = self._shell.cluster.topic(topic_id)
        return topic is None or self._guard.may(client.principal, "read", f"topic:{topic.name}")

    def _send_away(self, link: Link, client: Client, reason: str) -> None:
        self._log.info("client_sent_away", remote=link.remote, principal=client.principal, reason=reason)
        link.close(POLICY_VIOLATION, reason)

    async def _wait(self) -> None:
        """Until the metadata changes, or it is time to look at the wall clock."""
        expiry_ms = self._guard.next_expiry_ms(client for link, client in self._clients.items() if not link.closed)
        pause_s = LOOK_S if expiry_ms is None else min(LOOK_S, max(0.0, (expiry_ms - self._wall_ms()) / 1000))
        with trio.move_on_after(pause_s):
            await self._shell.wait_change()
