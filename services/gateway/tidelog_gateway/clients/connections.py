"""Accepts clients, checks each of their messages, and disconnects them when their rights end.

``rights/authorizer.py`` decides about identity and rights, ``limits/quota_enforcer.py`` about quotas. Refusals are
answered here; accepted messages are passed on to ``requests`` or to the shell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import structlog
import trio
from tidelog.errors import TidelogError, refuse
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
    GroupHeartbeat,
    Hello,
    InitTaskProducer,
    LeaveGroup,
    ListGroups,
    MemberWork,
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
from tidelog_gateway.client_link import AcceptedEnd, ClientLink
from tidelog_gateway.clients.client_figures import ClientFigures
from tidelog_gateway.clients.drain import Drain
from tidelog_gateway.clients.refused_clients import (
    ADDRESS_FULL,
    CAUSE,
    ENDING,
    GATEWAY_FULL,
    MALFORMED,
    PRINCIPAL_FULL,
    UNAUTHENTICATED,
)
from tidelog_gateway.cluster_view import ClusterView
from tidelog_gateway.limits.quota_enforcer import FREE, QuotaEnforcer
from tidelog_gateway.limits.repeated_lines import INTERVAL_S, RepeatedLines
from tidelog_gateway.limits.server_limits import Tenant
from tidelog_gateway.refusals import Asker, asker_of
from tidelog_gateway.requests.requests import KINDS, ClientRequests
from tidelog_gateway.rights.authorizer import Authorizer, AuthorizerSettings, ClientIdentity
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
    """What one client may see and do, for the time of one request: it decides which names an answer may show, audits
    the request, and charges the client for its answer."""

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
        """Return whether the client may describe the topic with this name, and so may know that it exists."""
        return self.authorizer.may(self.principal, "describe", f"topic:{name}")

    def of_group(self, name: str) -> bool:
        """Return whether the client may describe the group with this name, and so may know its positions."""
        return self.authorizer.may(self.principal, "describe", f"group:{name}")

    def reads(self, name: str) -> bool:
        """Return whether the client may read the topic with this name."""
        return self.authorizer.may(self.principal, "read", f"topic:{name}")

    def name_of(self, topic_id: str) -> str:
        """Return the name of the topic with this id; "" if the gateway knows no such topic."""
        topic = self.cluster.topic(topic_id)
        return "" if topic is None else topic.name

    @property
    def of_servers(self) -> bool:
        """Return whether the client may describe the cluster, and so may know the servers and their addresses."""
        return self.authorizer.may(self.principal, "describe", "cluster")

    @property
    def spared(self) -> tuple[str, ...]:
        """Return the principals whose tokens and quotas the client may not change: the superusers, unless the client
        is one. An empty tuple if rules are not enforced."""
        return self.authorizer.spared(self.principal)

    @property
    def enforced(self) -> AuthorizerSettings:
        """Return which of authentication and authorization this gateway enforces."""
        return self.authorizer.settings

    def seen(self, answer: Message) -> Message:
        """Return an answer without the topics, positions and principals that the client may not know of. If rules are
        not enforced, return the answer unchanged."""
        return seen(answer, self) if self.authorizer.settings.authorization else answer

    def _is_audited(self, request: Message, answer: Message | TidelogError) -> bool:
        """Return whether the request is audited, now that its answer is known: a ``BeginTransaction`` only if it
        fenced a transaction of another connection."""
        if isinstance(request, BeginTransaction) and isinstance(answer, TransactionBegun):
            return self.transactions.fences(self.source, request, answer)
        return self.is_audited

    def on_answer(self, request: Message, answer: Message | TidelogError) -> None:
        """Queue the audit event of a request that was answered, if its kind is audited, and charge the bytes of a
        ``CopyRead`` answer to the client's principal. ``answer``: the answer, or the error with which the request
        failed."""
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
    """The links of all clients of a gateway, each with its identity, from authentication to disconnection. Every
    message of a client is checked here and then passed on. There is one for each gateway; the server runs its
    ``run``."""

    def __init__(
        self,
        shell: GatewayShell,
        requests: ClientRequests,
        authorizer: Authorizer,
        audit: Audit,
        wall_ms: Callable[[], int],
        drain: Drain,
        settings: ConnectionSettings,
        figures: ClientFigures | None = None,
    ) -> None:
        """``figures``: the quotas and refused clients, which the metrics show; None: none show them."""
        figures = figures or ClientFigures.of(settings)
        self._refused, self._reserve = figures.refused, figures.reserve
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
        self._clients: dict[ClientLink, ClientIdentity] = {}
        self._addresses: Counter[str] = Counter()
        """Number of connections from each address."""
        self._failures, self._refusals = RepeatedLines(), RepeatedLines()
        self._quota_enforcer = QuotaEnforcer(
            shell.clock,
            lambda link, credit: shell.on_message(link, None, credit),
            figures.quotas,
        )
        self._authenticated = ClientIdentity("")
        """The client that was authenticated last: ``on_open`` follows in the same turn."""
        self._needs_reserve = False
        """Whether that client gets one of the connections that are reserved for operators."""
        self._next_check_ms = 0.0
        """When ``run`` checks the clients next, in milliseconds of the wall clock."""
        self._recheck = trio.Event()
        self._log = structlog.get_logger()

    def authenticate(self, hello: Hello, connection: AcceptedEnd) -> TidelogError | None:
        """Decide whether a connecting client is accepted, as ``_authenticate`` does; a refusal gets an id."""
        refusal = self._authenticate(hello, connection)
        if refusal is None:
            return None
        asker = Asker("", connection.remote, hello.node)
        return self._shell.refusals.name_error(asker, hello.OP, None, refusal)

    def _authenticate(self, hello: Hello, connection: AcceptedEnd) -> TidelogError | None:
        """Decide whether a connecting client is accepted. Return None if it is, and remember its identity for
        ``on_open``; otherwise return the error with which it is refused. The connections of gateway and address are
        counted before the token or certificate is checked, since that is cheap. A bound holds up no operator for whom
        a reserved connection is left. A refusal is logged, at most once a minute for each address, and a failed
        authentication is audited."""
        fault = fault_of_texts(hello)
        over = self._refuse_beyond_bounds(_address(connection.remote))
        refusal = None if hello.operator and self._reserve.has_room else over
        refusal = refusal or self._refuse_ending()
        refusal = refusal or (refuse("MALFORMED", fault, cause=MALFORMED) if fault else None)
        if refusal is not None:
            return self._on_refused(hello, connection, refusal, self._refusals)
        client = self._authorizer.recognize(hello.token, connection.identities, self._wall_ms())
        if isinstance(client, TidelogError):
            who = {"remote": connection.remote, "name": hello.node[:64]}
            self._audit.on_failure("unauthenticated", who, hello.OP, client)
            client.detail.setdefault(CAUSE, UNAUTHENTICATED)
            return self._on_refused(hello, connection, client, self._failures)
        if over is None and (over := self._quota_enforcer.refuse_connection(client.principal)) is not None:
            over.detail.update(cause=PRINCIPAL_FULL, principal=client.principal)
        if over is not None and not self._may_use_reserve(hello, client):
            return self._on_refused(hello, connection, over, self._refusals)
        self._authenticated, self._needs_reserve = client, over is not None
        return None

    def _may_use_reserve(self, hello: Hello, client: ClientIdentity) -> bool:
        """Return whether a client gets a connection that is reserved for operators: it says that it is one, is one by
        its principal, and a reserved connection is left."""
        return hello.operator and self._reserve.has_room and self._authorizer.is_operator(client.principal)

    def _on_refused(
        self, hello: Hello, connection: AcceptedEnd, refusal: TidelogError, repeated: RepeatedLines
    ) -> TidelogError:
        """Count a refused connection by its cause, log it, and return the refusal. A client learns whether gateway or
        address is full. Why its token is not valid, and whose it was, is for the operator."""
        event = "authentication_failed" if repeated is self._failures else "client_refused"
        self._log_refusal(event, repeated, connection.remote, refusal)
        name = "" if refusal.code == "MALFORMED" else hello.node[:64]
        cause = str(refusal.detail[CAUSE])
        self._refused.add(cause, _address(connection.remote), name, refusal.detail, self._wall_ms())
        if refusal.code == "UNAUTHENTICATED":
            refusal.detail.clear()
        elif refusal.code != "OVERLOADED":
            del refusal.detail[CAUSE]
        return refusal

    def _log_refusal(self, event: str, repeated: RepeatedLines, remote: str, refusal: TidelogError) -> None:
        """Log a refused connection with its reason. If one of the same address was logged in this interval, only
        count it."""
        suppressed = repeated.on_line(_address(remote), self._shell.clock())
        if suppressed is not None:
            self._log.warning(event, remote=remote, reason=refusal.message, suppressed=suppressed)

    async def _log_suppressed(self) -> None:
        """Every ``INTERVAL_S``, until cancelled, log how many refusals were left out of the log, for each address
        whose interval has ended since: the interval begins with a refusal that was logged. Failed authentications and
        other refusals are counted apart."""
        while True:
            await trio.sleep(INTERVAL_S)
            now = self._shell.clock()
            for remote, suppressed in self._failures.expired(now):
                self._log.warning("authentication_failed", remote=remote, suppressed=suppressed)
            for remote, suppressed in self._refusals.expired(now):
                self._log.warning("client_refused", remote=remote, suppressed=suppressed)

    def _refuse_beyond_bounds(self, address: str) -> TidelogError | None:
        """Return ``OVERLOADED`` if the gateway or the address has as many connections as it may have; None if another
        is allowed."""
        most, share = self._settings.client_max_connections, self._settings.address_max_connections
        if len(self._shell.links) >= most:
            text = f"client_max_connections = {most} are connected: use another gateway"
            return refuse("OVERLOADED", text, cause=GATEWAY_FULL)
        if self._addresses[address] >= share:
            text = f"address_max_connections = {share} of that address are connected"
            return refuse("OVERLOADED", text, cause=ADDRESS_FULL)
        return None

    def _refuse_ending(self) -> TidelogError | None:
        """Return ``OVERLOADED`` if the gateway is draining, otherwise None."""
        ending = self._drain.refuse_new()
        if ending is not None:
            ending.detail[CAUSE] = ENDING
        return ending

    def on_open(self, link: ClientLink) -> None:
        """Register the link of the client that ``authenticate`` has accepted in the same turn of the event loop, with
        the quotas, the transactions and the shell. The login is audited if ``audit_logins`` is set. If the client's
        token expires before the next check, ``run`` checks earlier."""
        assert isinstance(link.peer, Hello)
        client = self._authenticated
        self._clients[link] = client
        self._addresses[_address(link.remote)] += 1
        if self._needs_reserve:
            self._reserve.links.add(link)
        if self._settings.audit_logins:
            who = {"principal": client.principal, "remote": link.remote, "name": link.peer.node[:64]}
            self._audit.on_login(who)
        self._quota_enforcer.on_open(link, client.principal)
        self._transactions.on_link_opened(link.source)
        rules = self._authorizer.settings.authorization  # without them all may be strangers
        self._shell.on_open(link, client.principal, strangers_are_one=rules)
        if 0 <= self._authorizer.expiry_ms(client) < self._next_check_ms:
            self._recheck.set()

    def principal_of(self, link: ClientLink) -> str:
        """Return the principal of a registered client. Raises ``KeyError`` for a link that has closed."""
        return self._clients[link].principal

    def on_close(self, link: ClientLink) -> None:
        """Forget a client whose link has closed, here and in the quotas, the transactions, the shell and the
        requests. If one of these fails, the others are called all the same, and its exception is raised afterwards.
        """
        del self._clients[link]
        _subtract_one(self._addresses, _address(link.remote))
        parts = (self._quota_enforcer, self._shell, self._requests)
        do_all(
            partial(self._transactions.on_link_closed, link.source),
            *(partial(part.on_close, link) for part in parts),
            partial(self._reserve.on_close, link, self._is_beyond_bounds),
        )

    def _is_beyond_bounds(self, link: ClientLink) -> bool:
        """Return whether there are more connections than a bound allows to gateway, address or principal of this
        client."""
        return (
            len(self._shell.links) > self._settings.client_max_connections
            or self._addresses[_address(link.remote)] > self._settings.address_max_connections
            or self._quota_enforcer.is_over(self._clients[link].principal)
        )

    def on_message(self, link: ClientLink, id: int | None, message: Message) -> None:
        """Check a client's message against its quota, its texts and the client's rights, and pass it on to the shell
        or the requests; tickets of producers are answered here. Raises the refusal as ``TidelogError`` with an id,
        but refuses the batches of a ``Produce`` one by one with acks. A one-way message with malformed texts closes
        the link."""
        count(self._shell.counts.requests, message.OP)
        try:
            self._check_and_pass_on(link, id, message)
        except TidelogError as error:
            asker = asker_of(link, self._clients[link].principal)
            raise self._shell.refusals.name_error(asker, message.OP, message, error) from None

    def _check_and_pass_on(self, link: ClientLink, id: int | None, message: Message) -> None:
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
            if isinstance(message, GroupHeartbeat):
                message = self._with_quota(link, message)
            view = ClientView(
                self._authorizer, self._audit, self._shell.cluster, principal, link.remote, charge, *own
            )
            self._shell.on_request(link, message)
            self._requests.on_message(link, id, message, view)
        else:
            self._shell.on_message(link, id, message)

    def _with_quota(self, link: ClientLink, heartbeat: GroupHeartbeat) -> GroupHeartbeat:
        """Return a heartbeat that tells for how long what its client may receive is held back. A client cannot set
        that itself."""
        held_ms = self._quota_enforcer.held_ms(link)
        work = heartbeat.work
        if work is None:
            return replace(heartbeat, work=MemberWork(quota_ms=held_ms)) if held_ms else heartbeat
        return replace(heartbeat, work=replace(work, quota_ms=held_ms)) if held_ms != work.quota_ms else heartbeat

    def _is_audited(self, link: ClientLink, message: Message) -> bool:
        """Return whether a request that needs few rights is audited, since it may affect others: it sets a group's
        positions from outside, removes a member, ends another connection's transaction, or fences its producer."""
        if isinstance(message, EndTransaction | PrepareTransaction):
            return not self._transactions.has(link.source, message)
        return isinstance(message, AFFECTS_OTHERS) or (isinstance(message, CommitOffsets) and not message.member)

    def _check(self, link: ClientLink, principal: str, message: Message) -> None:
        """Return if the client has the right to what its message asks for. Otherwise queue an audit event and raise
        the refusal: ``FORBIDDEN``, ``UNKNOWN_TOPIC`` or ``NOT_REPLICA``."""
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

    def _on_denied(self, link: ClientLink, principal: str, op: str, refusal: TidelogError) -> None:
        self._audit.on_failure("denied", {"principal": principal, "remote": link.remote}, op, refusal)

    def _refuse_topic(self, principal: str, op: str, topic_id: str, partition: int) -> TidelogError | None:
        topic = self._shell.cluster.topic(topic_id)
        return self._authorizer.refuse_topic(
            principal, op, topic_id, partition, None if topic is None else topic.name
        )

    def _refuse_positions(self, principal: str, message: Message) -> TidelogError | None:
        """Return the refusal of a request that commits or fetches positions of groups, if the principal has no right
        to one of their topics. None if it has the right to all of them, and for every other request."""
        positions: set[tuple[str, int]] = set()
        if isinstance(message, CommitOffsets):
            positions = {(at.topic_id, at.partition) for at in message.positions}
        elif isinstance(message, FetchOffsets):
            positions = {(share.topic_id, min(share.partitions, default=0)) for share in message.parts}
        elif isinstance(message, ListGroups) and message.topic_id:
            positions = {(message.topic_id, message.topic_partition)}
        refusals = (self._refuse_topic(principal, message.OP, *position) for position in sorted(positions))
        return next(filter(None, refusals), None)

    def _refuse_server(self, principal: str, message: Digest | ReadCopy) -> TidelogError | None:
        """Return ``NOT_REPLICA`` for a request to read or compare the copy of a server that has no copy of the
        partition. None if the server has one, the partition is unknown, or the principal may describe the cluster."""
        state = self._shell.cluster.state(message.topic_id, message.partition)
        servers = () if state is None else (*state.replicas, *state.learners, *state.target)
        if state is None or message.node in servers or self._authorizer.may(principal, "describe", "cluster"):
            return None
        text = f"{message.node} has no copy of {message.topic_id}/{message.partition}"
        return refuse("NOT_REPLICA", text)

    def _accepted_parts(
        self, link: ClientLink, principal: str, message: Produce, wait: TidelogError | None
    ) -> Produce:
        """Return a ``Produce`` without its refused batches: those that the client has no right to, and all of them if
        ``wait`` is an error (quota used up, or draining). An ack with the error is sent for each refused batch at
        once, and the first refusal by rights is audited. Returns the message itself if no batch is refused."""
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
        asker = asker_of(link, principal)
        assert not isinstance(message.payload, list)
        payload = memoryview(message.payload)
        for part, refusal in zip(message.parts, refusals, strict=True):
            if refusal is None:
                parts.append(part)
                kept.append(payload[position : position + part.size])
            else:
                named = self._shell.refusals.name_info(asker, message.OP, part, refusal.to_info())
                acks.append(ProduceAck(part.id, error=named))
            position += part.size
        link.post(Produced(tuple(acks)))
        return Produce(tuple(parts), b"".join(kept))

    # --- disconnecting -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Apply changed tokens, rules and quotas, and close the links of clients whose token was revoked or has
        expired, or that may no longer read a topic to which they have subscribed. Checks after each change and
        whenever a token expires, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._quota_enforcer.run)
            nursery.start_soon(self._watch_changes)
            nursery.start_soon(self._log_suppressed)
            while True:
                self._disconnect_invalid()
                await self._wait()

    async def _watch_changes(self) -> None:
        """Have ``run`` check all clients after each change of the metadata, until cancelled."""
        while True:
            await self._shell.wait_change()
            self._recheck.set()

    def _disconnect_invalid(self) -> None:
        """Apply changed tokens, rules and quotas. Close the link of each client whose token is no longer valid or,
        after a change, that may no longer read a topic to which it has subscribed."""
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

    def _disconnect(self, link: ClientLink, client: ClientIdentity, reason: str) -> None:
        self._log.info("client_sent_away", remote=link.remote, principal=client.principal, reason=reason)
        link.close(POLICY_VIOLATION, reason)

    async def _wait(self) -> None:
        """Wait until the metadata changes, a client connects whose token expires before the next check, or the next
        check is due: when a token expires, and after ``CHECK_S`` seconds at the latest."""
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
