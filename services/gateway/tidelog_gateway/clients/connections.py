"""Accepts clients, checks each of their messages, and disconnects them when their rights end.

``rights/authorizer.py`` decides about identity and rights, ``limits/quota_enforcer.py`` about quotas. Refusals are
answered here; accepted messages are passed on to ``requests`` or to the shell.
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
from tidelog_gateway.cluster_view import ClusterView
from tidelog_gateway.limits.quota_enforcer import FREE, QuotaEnforcer
from tidelog_gateway.limits.repeated_lines import INTERVAL_S, RepeatedLines
from tidelog_gateway.limits.server_limits import Tenant
from tidelog_gateway.requests.requests import KINDS, ClientRequests
from tidelog_gateway.rights.authorizer import Authorizer, ClientIdentity
from tidelog_gateway.rights.own_transactions import OwnTransactions
from tidelog_gateway.rights.permissions import ADMIN, BY_ID
from tidelog_gateway.rights.text_check import fault_of_texts
from tidelog_gateway.rights.visibility import seen
from tidelog_gateway.settings import ConnectionSettings
from tidelog_gateway.shell import GatewayShell

CHECK_S = 10.0
"""Longest pause between two checks for expired tokens: the wall clock may be set."""
POLICY_VIOLATION = 1008
AFFECTS_OTHERS = (LeaveGroup, BeginTransaction, CommitStaged, AbortStaged, InitTaskProducer)
"""Requests that need few rights, and may remove members of others from a group or end or fence their transactions. A
``BeginTransaction`` that fenced no transaction of another connection is not audited."""


@dataclass(frozen=True, slots=True)
class ClientView:
    """The rights of one client during one request: which names it may see in answers, and how its request is audited
    and charged."""

    authorizer: Authorizer
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
    """The tenant that its requests count for in shared bounds."""
    is_audited: bool = False
    """Whether the request is audited though it needs few rights, since it may change or end what others have."""

    def of_topic(self, name: str) -> bool:
        """Return whether the client may know of the topic, that is, describe it."""
        return self.authorizer.may(self.principal, "describe", f"topic:{name}")

    def reads(self, name: str) -> bool:
        """Return whether the client may read the topic."""
        return self.authorizer.may(self.principal, "read", f"topic:{name}")

    def name_of(self, topic_id: str) -> str:
        """Return the name of the topic; "" if the gateway knows no topic of that id."""
        topic = self.cluster.topic(topic_id)
        return "" if topic is None else topic.name

    @property
    def of_servers(self) -> bool:
        """Return whether the client may know the servers and their addresses, that is, describe the cluster."""
        return self.authorizer.may(self.principal, "describe", "cluster")

    @property
    def spared(self) -> tuple[str, ...]:
        """Return the principals whose tokens and quotas the client may not change."""
        return self.authorizer.spared(self.principal)

    def seen(self, answer: Message) -> Message:
        """Return an answer without the names that the client may not know; unchanged if rules are not enforced."""
        return seen(answer, self) if self.authorizer.settings.authorization else answer

    def _is_audited(self, request: Message, answer: Message | TidelogError) -> bool:
        if isinstance(request, BeginTransaction) and isinstance(answer, TransactionBegun):
            return self.transactions.fences(self.source, request, answer)
        return self.is_audited

    def on_answer(self, request: Message, answer: Message | TidelogError) -> None:
        """Audit a request of the client with its answer, if its kind is audited, and charge the client for bytes of a
        copy that a server has read for it."""
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
    """The links of all clients of a gateway, with the identity of each. It authenticates clients, checks each message
    and passes it on. The server runs ``run``."""

    def __init__(
        self,
        shell: GatewayShell,
        requests: ClientRequests,
        authorizer: Authorizer,
        audit: Audit,
        wall_ms: Callable[[], int],
        drain: Drain,
        settings: ConnectionSettings,
    ) -> None:
        self._shell = shell
        self._transactions = OwnTransactions(shell.router.tickets)
        self._drain = drain
        self._settings = settings
        self._requests = requests
        self._authorizer = authorizer
        self._audit = audit
        self._wall_ms = wall_ms
        self._level = 0
        """Feature level with which the authorizer was updated last."""
        self._clients: dict[Link, ClientIdentity] = {}
        self._addresses: Counter[str] = Counter()
        """Number of connections from each address."""
        self._failures, self._refusals = RepeatedLines(), RepeatedLines()
        self._quota_enforcer = QuotaEnforcer(
            shell.clock,
            lambda link, credit: shell.on_message(link, None, credit),
            settings.principal_max_connections,
        )
        self._authenticated = ClientIdentity("")
        """The client that was authenticated last: ``on_open`` follows in the same turn."""
        self._next_check_ms = 0.0
        """When ``run`` checks the clients next, in milliseconds of the wall clock."""
        self._recheck = trio.Event()
        self._log = structlog.get_logger()

    def authenticate(self, hello: Hello, connection: Connection) -> TidelogError | None:
        """Return the error with which a connecting client is refused, which is logged; None if the client is
        accepted. The bounds on connections are checked before the token or certificate, since that is cheap."""
        address = _address(connection.remote)
        refusal = self._refuse_connection(address)
        if refusal is not None:
            self._log_refusal("client_refused", self._refusals, connection.remote, refusal)
            return refusal
        fault = fault_of_texts(hello)
        if fault:
            refusal = refuse("MALFORMED", fault)
            self._log_refusal("client_refused", self._refusals, connection.remote, refusal)
            return refusal
        client = self._authorizer.recognize(hello.token, connection.identities, self._wall_ms())
        if isinstance(client, TidelogError):
            self._log_refusal("authentication_failed", self._failures, connection.remote, client)
            who = {"remote": connection.remote, "name": hello.node[:64]}
            self._audit.on_failure("unauthenticated", who, hello.OP, client)
            return client
        refusal = self._quota_enforcer.refuse_connection(client.principal)
        if refusal is not None:
            self._log_refusal("client_refused", self._refusals, connection.remote, refusal)
            return refusal
        self._authenticated = client
        return None

    def _log_refusal(self, event: str, repeated: RepeatedLines, remote: str, refusal: TidelogError) -> None:
        suppressed = repeated.on_line(_address(remote), self._shell.clock())
        if suppressed is not None:
            self._log.warning(event, remote=remote, reason=refusal.message, suppressed=suppressed)

    async def _log_suppressed(self) -> None:
        """Log, once in each interval and until cancelled, how many refusals of each address were not logged."""
        while True:
            await trio.sleep(INTERVAL_S)
            now = self._shell.clock()
            for remote, suppressed in self._failures.expired(now):
                self._log.warning("authentication_failed", remote=remote, suppressed=suppressed)
            for remote, suppressed in self._refusals.expired(now):
                self._log.warning("client_refused", remote=remote, suppressed=suppressed)

    def _refuse_connection(self, address: str) -> TidelogError | None:
        most, share = self._settings.client_max_connections, self._settings.address_max_connections
        if len(self._shell.links) >= most:
            return refuse("OVERLOADED", f"client_max_connections = {most} are connected: use another gateway")
        if self._addresses[address] >= share:
            return refuse("OVERLOADED", f"address_max_connections = {share} of that address are connected")
        return self._drain.refuse_new()

    def on_open(self, link: Link) -> None:
        """Register an accepted client with the audit, the quotas and the shell. It is the one that ``authenticate``
        accepted in the same turn of the event loop."""
        assert isinstance(link.peer, Hello)
        client = self._authenticated
        self._clients[link] = client
        self._addresses[_address(link.remote)] += 1
        if self._settings.audit_logins:
            who = {"principal": client.principal, "remote": link.remote, "name": link.peer.node[:64]}
            self._audit.on_login(who)
        self._quota_enforcer.on_open(link, client.principal)
        self._transactions.on_link_opened(link.source)
        rules = self._authorizer.settings.authorization  # without them all may be strangers
        self._shell.on_open(link, client.principal, strangers_are_one=rules)
        if 0 <= self._authorizer.expiry_ms(client) < self._next_check_ms:
            self._recheck.set()

    def on_close(self, link: Link) -> None:
        """Forget a client that has disconnected, here and in the quotas, the shell and the requests. One part that
        fails does not keep the others from it."""
        del self._clients[link]
        _subtract_one(self._addresses, _address(link.remote))
        parts = (self._quota_enforcer, self._shell, self._requests)
        do_all(
            partial(self._transactions.on_link_closed, link.source), *(partial(part.on_close, link) for part in parts)
        )

    def on_message(self, link: Link, id: int | None, message: Message) -> None:
        """Check a client's message against quota, texts and rights, and pass it to the shell or the requests. Raises
        the refusal as ``TidelogError``; each batch of a ``Produce`` is refused by an ack instead. A one-way message
        with bad texts closes the link."""
        count(self._shell.counts.requests, message.OP)
        principal = self._clients[link].principal
        wait = self._quota_enforcer.refuse_over_quota(link, message, len(self._shell.cluster.image.topics))
        if wait is not None and not isinstance(message, Produce):
            raise wait
        fault = fault_of_texts(message)  # after the quota: such requests count, too
        if fault:
            if id is None:
                link.close(POLICY_VIOLATION, fault)
                return
            raise refuse("MALFORMED", fault)
        if isinstance(message, Produce):
            message = self._accepted_parts(link, principal, message, wait or self._drain.refuse_new())
            self._shell.on_message(link, id, message)
            return
        if not isinstance(message, FREE):
            wait = self._drain.refuse_new()
        if wait is not None:
            raise wait
        if isinstance(message, Credit):
            if self._quota_enforcer.holds_back(link, message):
                return
        elif self._authorizer.settings.authorization:
            self._check(link, principal, message)
        if isinstance(message, UseProducer) and id is not None:
            link.answer(id, self._shell.router.tickets.use(link.source, principal, message))
        elif isinstance(message, ReleaseProducer) and id is not None:
            self._shell.router.tickets.release(link.source, message.producer_id)
            link.answer(id, Done())
        elif isinstance(message, KINDS) and id is not None:
            is_audited = self._is_audited(link, message)
            refusal = self._audit.refuse_if_full({"principal": principal}, message) if is_audited else None
            if refusal is not None:
                raise refusal
            own = self._transactions, link.source, self._shell.tenant_of(link.source), is_audited
            charge = self._quota_enforcer.charge
            view = ClientView(
                self._authorizer, self._audit, self._shell.cluster, principal, link.remote, charge, *own
            )
            self._shell.on_request(link, message)
            self._requests.on_message(link, id, message, view)
        else:
            self._shell.on_message(link, id, message)

    def _is_audited(self, link: Link, message: Message) -> bool:
        """Return whether a request that needs few rights is audited: it may set a group's positions from outside,
        remove a member, end another connection's transaction, or fence its producer."""
        if isinstance(message, EndTransaction | PrepareTransaction):
            return not self._transactions.has(link.source, message)
        return isinstance(message, AFFECTS_OTHERS) or (isinstance(message, CommitOffsets) and not message.member)

    def _check(self, link: Link, principal: str, message: Message) -> None:
        """Raise the refusal of a message that the client has no right to, and audit the refusal."""
        if message.OP in BY_ID:
            topic_id, partition = getattr(message, "topic_id", ""), getattr(message, "partition", 0)
            refusal = self._refuse_topic(principal, message.OP, topic_id, partition)
            if refusal is None and isinstance(message, Digest | ReadCopy):
                refusal = self._refuse_server(principal, message)
        else:
            refusal = self._authorizer.refuse_request(principal, message) or self._refuse_positions(
                principal, message
            )
        if refusal is not None:
            self._on_denied(link, principal, message.OP, refusal)
            raise refusal

    def _on_denied(self, link: Link, principal: str, op: str, refusal: TidelogError) -> None:
        self._audit.on_failure("denied", {"principal": principal, "remote": link.remote}, op, refusal)

    def _refuse_topic(self, principal: str, op: str, topic_id: str, partition: int) -> TidelogError | None:
        topic = self._shell.cluster.topic(topic_id)
        return self._authorizer.refuse_topic(
            principal, op, topic_id, partition, None if topic is None else topic.name
        )

    def _refuse_positions(self, principal: str, message: Message) -> TidelogError | None:
        """Return the refusal of a request that names a group's positions in topics that the principal has no right
        to; None if it may see all of them."""
        positions: set[tuple[str, int]] = set()
        if isinstance(message, CommitOffsets):
            positions = {(at.topic_id, at.partition) for at in message.positions}
        elif isinstance(message, FetchOffsets):
            positions = {(share.topic_id, min(share.partitions, default=0)) for share in message.parts}
        refusals = (self._refuse_topic(principal, message.OP, *position) for position in sorted(positions))
        return next(filter(None, refusals), None)

    def _refuse_server(self, principal: str, message: Digest | ReadCopy) -> TidelogError | None:
        """Return ``NOT_REPLICA`` for a request about the copy of a server that has none; None if the server has one,
        the partition is unknown, or the principal may describe the cluster."""
        state = self._shell.cluster.state(message.topic_id, message.partition)
        servers = () if state is None else (*state.replicas, *state.learners, *state.target)
        if state is None or message.node in servers or self._authorizer.may(principal, "describe", "cluster"):
            return None
        text = f"{message.node} has no copy of {message.topic_id}/{message.partition}"
        return refuse("NOT_REPLICA", text)

    def _accepted_parts(self, link: Link, principal: str, message: Produce, wait: TidelogError | None) -> Produce:
        """Return the message without its forbidden batches, or without all batches if ``wait`` is an error. Each
        batch left out is refused by an ack, which is sent at once; the first refusal by rights is audited."""
        refusals: list[TidelogError | None] = [wait] * len(message.parts)
        if self._authorizer.settings.authorization:
            denials = [
                self._refuse_topic(principal, message.OP, p.topic_id, p.partition)
                or self._authorizer.refuse_application(principal, p.transaction)
                for p in message.parts
            ]
            refusals = [refusal or wait for refusal in denials]
            denied = next(filter(None, denials), None)
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

    # --- disconnecting -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Close the links of clients whose token was revoked or has expired, or that may no longer read the topics to
        which they have subscribed, until cancelled. Applies changed rules and quotas, too."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._quota_enforcer.run)
            nursery.start_soon(self._watch_changes)
            nursery.start_soon(self._log_suppressed)
            while True:
                self._disconnect_invalid()
                await self._wait()

    async def _watch_changes(self) -> None:
        while True:
            await self._shell.wait_change()
            self._recheck.set()

    def _disconnect_invalid(self) -> None:
        access, level = self._shell.cluster.image.access, self._shell.cluster.image.level
        changed = access is not self._authorizer.access or level != self._level
        if changed:
            self._level = level
            self._authorizer.update(access, level)
            self._quota_enforcer.update(access.quotas)
        now_ms = self._wall_ms()
        for link, client in self._clients.items():
            if link.closed:
                continue
            if self._authorizer.is_invalid(client, now_ms):
                self._disconnect(
                    link, client, f"token {client.token_id or 'of the issuer'} was revoked or has expired"
                )
            elif changed and not all(
                self._may_read(client, topic) for topic in self._shell.subscriptions.topics_of(link.source)
            ):
                self._disconnect(link, client, f"{client.principal} may not read any more what it reads")

    def _may_read(self, client: ClientIdentity, topic_id: str) -> bool:
        topic = self._shell.cluster.topic(topic_id)
        return topic is None or self._authorizer.may(client.principal, "read", f"topic:{topic.name}")

    def _disconnect(self, link: Link, client: ClientIdentity, reason: str) -> None:
        self._log.info("client_sent_away", remote=link.remote, principal=client.principal, reason=reason)
        link.close(POLICY_VIOLATION, reason)

    async def _wait(self) -> None:
        """Wait until the metadata changes, a client connects whose token expires sooner, or the next check is due."""
        expiry_ms = self._authorizer.next_expiry_ms(
            client for link, client in self._clients.items() if not link.closed
        )
        now_ms = self._wall_ms()
        latest_ms = now_ms + CHECK_S * 1000
        self._next_check_ms = latest_ms if expiry_ms is None else min(latest_ms, max(now_ms, expiry_ms))
        with trio.move_on_after((self._next_check_ms - now_ms) / 1000):
            await self._recheck.wait()
        self._recheck = trio.Event()


def _address(remote: str) -> str:
    """Return a remote address without its port; unchanged if it has none."""
    return remote.rpartition(":")[0] or remote


def _subtract_one(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
