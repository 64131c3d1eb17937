"""Between the clients' links and what serves them: who comes in, who must go, and what each may do and have.

``core.guard`` decides the first three, ``metering`` the last. What is refused is answered here; the rest goes on, to
``requests`` or the shell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import structlog
import trio
from tidelog.errors import TidelogError, refuse
from tidelog.net.link import Link
from tidelog.net.transport import Connection
from tidelog.sansio.counters import count
from tidelog.wire.messages import (
    AbortStaged,
    BeginTransaction,
    CommitOffsets,
    CommitStaged,
    CopyRead,
    Credit,
    Digest,
    Done,
    EndTransaction,
    FetchOffsets,
    Hello,
    InitTaskProducer,
    LeaveGroup,
    Message,
    PrepareTransaction,
    Produce,
    ProduceAck,
    Produced,
    ReadCopy,
    ReleaseProducer,
    TransactionBegun,
    UseProducer,
)

from tidelog_gateway.audit.writer import Audit
from tidelog_gateway.client_faults import do_all
from tidelog_gateway.clients.drain import Drain
from tidelog_gateway.clients.quota_enforcer import FREE, QuotaEnforcer
from tidelog_gateway.cluster_view import ClusterView
from tidelog_gateway.limits.repeated_lines import INTERVAL_S, Repeated
from tidelog_gateway.limits.server_limits import Tenant
from tidelog_gateway.requests.requests import KINDS, ClientRequests
from tidelog_gateway.rights.authorizer import Authorizer, Client
from tidelog_gateway.rights.own_transactions import OwnTransactions
from tidelog_gateway.rights.permissions import ADMIN, BY_ID
from tidelog_gateway.rights.text_check import fault_of_texts
from tidelog_gateway.rights.visibility import seen
from tidelog_gateway.settings import DoorSettings
from tidelog_gateway.shell import GatewayShell

LOOK_S = 10.0
"""Longest pause between two looks whether a token has expired: the wall clock may be set."""
POLICY_VIOLATION = 1008
OF_OTHERS = (LeaveGroup, BeginTransaction, CommitStaged, AbortStaged, InitTaskProducer)
"""Requests that take few rights, and may put members of others out or end or fence their transactions. A transaction
that was begun and fenced none of another connection is not audited."""


@dataclass(frozen=True, slots=True)
class View:
    """What one client may see, and where it is told what it did."""

    guard: Authorizer
    audit: Audit
    cluster: ClusterView
    principal: str
    remote: str
    charge: Callable[[str, int], None]
    """Counts bytes as sent to a principal."""
    transactions: OwnTransactions
    source: int
    """Number of its connection."""
    tenant: Tenant = "", 0
    """Under which it shares what others need, too."""
    is_audited: bool = False
    """The request needs few rights, and may change or end what others have."""

    def of_topic(self, name: str) -> bool:
        """It may know of the topic."""
        return self.guard.may(self.principal, "describe", f"topic:{name}")

    def reads(self, name: str) -> bool:
        """It may read the topic."""
        return self.guard.may(self.principal, "read", f"topic:{name}")

    def name_of(self, topic_id: str) -> str:
        """Name of the topic; "": the gateway knows none of that id."""
        topic = self.cluster.topic(topic_id)
        return "" if topic is None else topic.name

    @property
    def of_servers(self) -> bool:
        """It may know the servers and their addresses."""
        return self.guard.may(self.principal, "describe", "cluster")

    @property
    def spared(self) -> tuple[str, ...]:
        """Whose tokens and quotas it may not change."""
        return self.guard.spared(self.principal)

    def seen(self, answer: Message) -> Message:
        """What it may see of an answer."""
        return seen(answer, self) if self.guard.settings.authorization else answer

    def _is_audited(self, request: Message, answer: Message | TidelogError) -> bool:
        if isinstance(request, BeginTransaction) and isinstance(answer, TransactionBegun):
            return self.transactions.fences(self.source, request, answer)
        return self.is_audited

    def tell(self, request: Message, answer: Message | TidelogError) -> None:
        """A request of it was answered."""
        who = {"principal": self.principal, "remote": self.remote}
        if request.OP in ADMIN:
            self.audit.on_change(who, request, answer)
        elif isinstance(request, LeaveGroup):
            if not isinstance(answer, TidelogError):
                self.audit.on_left(who, request)
        elif self._is_audited(request, answer):
            self.audit.on_minor_change(who, request, answer)
        if isinstance(answer, CopyRead):
            self.charge(self.principal, answer.bytes)


class ClientConnections:
    """The owner runs ``run``."""

    def __init__(
        self,
        shell: GatewayShell,
        requests: ClientRequests,
        guard: Authorizer,
        audit: Audit,
        wall_ms: Callable[[], int],
        leaving: Drain,
        settings: DoorSettings,
    ) -> None:
        self._shell = shell
        self._transactions = OwnTransactions(shell.router.tickets)
        self._leaving = leaving
        self._settings = settings
        self._requests = requests
        self._guard = guard
        self._audit = audit
        self._wall_ms = wall_ms
        self._level = 0
        """Feature level when the guard was told of it."""
        self._clients: dict[Link, Client] = {}
        self._addresses: Counter[str] = Counter()
        """Connections of each."""
        self._failures, self._refusals = Repeated(), Repeated()
        self._metering = QuotaEnforcer(
            shell.clock,
            lambda link, credit: shell.on_message(link, None, credit),
            settings.principal_max_connections,
        )
        self._coming = Client("")
        """Who was recognized last: ``on_open`` follows in the same turn."""
        self._next_look_ms = 0.0
        """When ``run`` looks next who must go, by the wall clock."""
        self._look_again = trio.Event()
        self._log = structlog.get_logger()

    def authenticate(self, hello: Hello, connection: Connection) -> TidelogError | None:
        """Why somebody is not let in. The room is looked at first: it costs nothing."""
        address = _address(connection.remote)
        refusal = self._why_no_room(address)
        if refusal is not None:
            self._say("client_refused", self._refusals, connection.remote, refusal)
            return refusal
        fault = fault_of_texts(hello)
        if fault:
            refusal = refuse("MALFORMED", fault)
            self._say("client_refused", self._refusals, connection.remote, refusal)
            return refusal
        client = self._guard.recognize(hello.token, connection.identities, self._wall_ms())
        if isinstance(client, TidelogError):
            self._say("authentication_failed", self._failures, connection.remote, client)
            who = {"remote": connection.remote, "name": hello.node[:64]}
            self._audit.on_failure("unauthenticated", who, hello.OP, client)
            return client
        refusal = self._metering.why_no_connection(client.principal)
        if refusal is not None:
            self._say("client_refused", self._refusals, connection.remote, refusal)
            return refusal
        self._coming = client
        return None

    def _say(self, event: str, repeated: Repeated, remote: str, refusal: TidelogError) -> None:
        suppressed = repeated.on_line(_address(remote), self._shell.clock())
        if suppressed is not None:
            self._log.warning(event, remote=remote, reason=refusal.message, suppressed=suppressed)

    async def _say_what_was_suppressed(self) -> None:
        """Log how many refusals of each kind were not logged, once in each interval, until cancelled."""
        while True:
            await trio.sleep(INTERVAL_S)
            now = self._shell.clock()
            for remote, suppressed in self._failures.ended(now):
                self._log.warning("authentication_failed", remote=remote, suppressed=suppressed)
            for remote, suppressed in self._refusals.ended(now):
                self._log.warning("client_refused", remote=remote, suppressed=suppressed)

    def _why_no_room(self, address: str) -> TidelogError | None:
        most, share = self._settings.client_max_connections, self._settings.address_max_connections
        if self._shell.connections >= most:
            return refuse("OVERLOADED", f"client_max_connections = {most} are connected: use another gateway")
        if self._addresses[address] >= share:
            return refuse("OVERLOADED", f"address_max_connections = {share} of that address are connected")
        return self._leaving.why_not()

    def on_open(self, link: Link) -> None:
        """A client came in."""
        assert isinstance(link.peer, Hello)
        client = self._coming
        self._clients[link] = client
        self._addresses[_address(link.remote)] += 1
        if self._settings.audit_logins:
            who = {"principal": client.principal, "remote": link.remote, "name": link.peer.node[:64]}
            self._audit.on_login(who)
        self._metering.on_open(link, client.principal)
        self._transactions.on_link_opened(link.source)
        rules = self._guard.settings.authorization  # without them all may be strangers
        self._shell.on_open(link, client.principal, strangers_are_one=rules)
        if 0 <= self._guard.expiry_ms(client) < self._next_look_ms:
            self._look_again.set()

    def on_close(self, link: Link) -> None:
        """A client went."""
        del self._clients[link]
        _take_one(self._addresses, _address(link.remote))
        parts = (self._metering, self._shell, self._requests)
        do_all(
            partial(self._transactions.on_link_closed, link.source), *(partial(part.on_close, link) for part in parts)
        )

    def on_message(self, link: Link, id: int | None, message: Message) -> None:
        """A client sent something."""
        count(self._shell.requests, message.OP)
        principal = self._clients[link].principal
        wait = self._metering.judge(link, message, len(self._shell.cluster.image.topics))
        if wait is not None and not isinstance(message, Produce):
            raise wait
        fault = fault_of_texts(message)  # not before: who sends such requests has used up its quota, too
        if fault:
            if id is None:
                link.close(POLICY_VIOLATION, fault)
                return
            raise refuse("MALFORMED", fault)
        if isinstance(message, Produce):
            message = self._accepted_parts(link, principal, message, wait or self._leaving.why_not())
            self._shell.on_message(link, id, message)
            return
        if not isinstance(message, FREE):
            wait = self._leaving.why_not()
        if wait is not None:
            raise wait
        if isinstance(message, Credit):
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
            is_audited = self._is_audited(link, message)
            refusal = self._audit.why_not({"principal": principal}, message) if is_audited else None
            if refusal is not None:
                raise refusal
            own = self._transactions, link.source, self._shell.tenant_of(link.source), is_audited
            charge = self._metering.charge
            view = View(self._guard, self._audit, self._shell.cluster, principal, link.remote, charge, *own)
            self._shell.on_request(link, message)
            self._requests.on_message(link, id, message, view)
        else:
            self._shell.on_message(link, id, message)

    def _is_audited(self, link: Link, message: Message) -> bool:
        """It needs few rights, and may set a group's positions from outside, put a member out of it, or end a
        transaction that is not of this connection, or fence its producer."""
        if isinstance(message, EndTransaction | PrepareTransaction):
            return not self._transactions.has(link.source, message)
        return isinstance(message, OF_OTHERS) or (isinstance(message, CommitOffsets) and not message.member)

    def _check(self, link: Link, principal: str, message: Message) -> None:
        """Raises why it is refused."""
        if message.OP in BY_ID:
            topic_id, partition = getattr(message, "topic_id", ""), getattr(message, "partition", 0)
            refusal = self._judge_topic(principal, message.OP, topic_id, partition)
            if refusal is None and isinstance(message, Digest | ReadCopy):
                refusal = self._judge_server(principal, message)
        else:
            refusal = self._guard.judge(principal, message) or self._judge_places(principal, message)
        if refusal is not None:
            self._on_denied(link, principal, message.OP, refusal)
            raise refusal

    def _on_denied(self, link: Link, principal: str, op: str, refusal: TidelogError) -> None:
        self._audit.on_failure("denied", {"principal": principal, "remote": link.remote}, op, refusal)

    def _judge_topic(self, principal: str, op: str, topic_id: str, partition: int) -> TidelogError | None:
        topic = self._shell.cluster.topic(topic_id)
        return self._guard.judge_topic(principal, op, topic_id, partition, None if topic is None else topic.name)

    def _judge_places(self, principal: str, message: Message) -> TidelogError | None:
        """Why the positions of a group that a request names are refused."""
        places: set[tuple[str, int]] = set()
        if isinstance(message, CommitOffsets):
            places = {(at.topic_id, at.partition) for at in message.positions}
        elif isinstance(message, FetchOffsets):
            places = {(share.topic_id, min(share.partitions, default=0)) for share in message.parts}
        refusals = (self._judge_topic(principal, message.OP, *place) for place in sorted(places))
        return next(filter(None, refusals), None)

    def _judge_server(self, principal: str, message: Digest | ReadCopy) -> TidelogError | None:
        """Why a request about a server's copy is refused: a server without one is none of the topic's."""
        state = self._shell.cluster.state(message.topic_id, message.partition)
        servers = () if state is None else (*state.replicas, *state.learners, *state.target)
        if state is None or message.node in servers or self._guard.may(principal, "describe", "cluster"):
            return None
        text = f"{message.node} has no copy of {message.topic_id}/{message.partition}"
        return refuse("NOT_REPLICA", text)

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
            nursery.start_soon(self._hear_changes)
            nursery.start_soon(self._say_what_was_suppressed)
            while True:
                self._look()
                await self._wait()

    async def _hear_changes(self) -> None:
        while True:
            await self._shell.wait_change()
            self._look_again.set()

    def _look(self) -> None:
        access, level = self._shell.cluster.image.access, self._shell.cluster.image.level
        changed = access is not self._guard.access or level != self._level
        if changed:
            self._level = level
            self._guard.update(access, level)
            self._metering.update(access.quotas)
        now_ms = self._wall_ms()
        for link, client in self._clients.items():
            if link.closed:
                continue
            if self._guard.is_over(client, now_ms):
                self._send_away(
                    link, client, f"token {client.token_id or 'of the issuer'} was revoked or has expired"
                )
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
        """Until the metadata changes, somebody comes whose token ends sooner, or it is time to look at the wall
        clock."""
        expiry_ms = self._guard.next_expiry_ms(client for link, client in self._clients.items() if not link.closed)
        now_ms = self._wall_ms()
        latest_ms = now_ms + LOOK_S * 1000
        self._next_look_ms = latest_ms if expiry_ms is None else min(latest_ms, max(now_ms, expiry_ms))
        with trio.move_on_after((self._next_look_ms - now_ms) / 1000):
            await self._look_again.wait()
        self._look_again = trio.Event()


def _address(remote: str) -> str:
    """Without the port."""
    return remote.rpartition(":")[0] or remote


def _take_one(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
