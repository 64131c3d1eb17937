"""Requests of clients that the active controller decides, or that need answers of several servers.

Each request runs in a task of its own and is answered when the task ends. None is on the hot path.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

import trio
from tidelog.acl import ANONYMOUS, share_of_principal
from tidelog.errors import TidelogError, Unreachable, refuse
from tidelog.feature_levels import COPY_CHECKS, OWNERS, PRODUCER_SHARES, SETTLING
from tidelog.net.link import burst
from tidelog.request_names import LONGEST_ID, name_of_client
from tidelog.tickets import sign
from tidelog.types import MAX_TASKS, PRODUCER_WINDOW, ClusterImage, share_of
from tidelog.wire.codec import EncodedAnswer, encode_array, encode_part
from tidelog.wire.messages import (
    AccessAnswer,
    AddController,
    AllocateProducerIds,
    AlterAcls,
    AlterLearners,
    AlterQuotas,
    AlterTopic,
    AskedRequest,
    BeginTransaction,
    CancelReassignment,
    CommitOffsets,
    CommitStaged,
    CreateStream,
    CreateTopic,
    DeleteTopic,
    DescribeAccess,
    DescribeFeatures,
    DescribeGroup,
    DescribeMetrics,
    DescribeQuorum,
    DescribeRefusal,
    DescribeStream,
    Digest,
    Done,
    DrainServer,
    FetchOffsets,
    ForgetServer,
    GrowTopic,
    History,
    InitProducer,
    InitTaskProducer,
    JoinGroup,
    ListGroups,
    ListGroupsAnswer,
    ListOffset,
    ListTransactions,
    ListTransactionsAnswer,
    Message,
    Metadata,
    MetricsAnswer,
    OffsetAnswer,
    PauseTopic,
    PlanRebalance,
    Play,
    ProducerId,
    ProducerIds,
    PutToken,
    RaiseLevel,
    ReadCopy,
    ReadStream,
    Reassign,
    Rebalance,
    RefusalAnswer,
    RemoveController,
    RevokeTokens,
    RotateTicketKeys,
    ScrubServer,
    SequencedRequest,
    SetReadOnly,
    SettleTransaction,
    TaskProducer,
    TokenInfo,
    TopicCreated,
    TransactionBegun,
    TransferLeader,
    WriteMarker,
)

from tidelog_gateway.client_faults import contained
from tidelog_gateway.client_link import ClientLink
from tidelog_gateway.limits.heavy_requests import cost_of
from tidelog_gateway.limits.server_limits import Tenant
from tidelog_gateway.refusals import shown_to
from tidelog_gateway.requests.coordinator_client import KINDS as GROUP_KINDS
from tidelog_gateway.requests.coordinator_client import TIMEOUT_S, CoordinatorClient
from tidelog_gateway.requests.metadata_answers import OFFSETS_TIMEOUT_S, MetadataAnswers, MetadataView
from tidelog_gateway.rights.authorizer import AuthorizerSettings, heirs_at
from tidelog_gateway.shared_requests import PendingRequest, Seats, SingleFlight, Steps
from tidelog_gateway.shell import Answered, GatewayShell

Request = TypeVar("Request", bound=Message)

CONTROLLER_TIMEOUT_S = 10.0
SERVER_TIMEOUT_S = 5.0
PRODUCER_ID_BLOCK = MAX_TASKS
"""Producer ids that a gateway takes from the controllers at a time, to give them out one by one."""
ALLOCATE_TRIES = 10
"""Tries to allocate ids of one share. An allocation at the same time can push a block out of its share."""
CONTROL, CONTROL_EACH = 16, 2
"""Requests for changes or for costly answers that are with the controllers at a time: in all, and of one tenant. A
change is written to the disks of the controllers, and sent to every server."""
LISTING, LISTING_EACH = 4, 1
"""Lists of all groups with their positions in a partition that are made at a time: in all, and of one tenant."""
MOST_WAITING = 1000
"""Most cost of the large requests of one tenant that wait for answers: about 100,000 names or parts together."""
MAX_STREAM_WAIT_MS = 30_000
"""Longest wait of a read at the end of a stream, in milliseconds."""
MAX_NAME_LENGTH = 64
"""Characters of a client's name that are passed on."""

CONTROLLED = (
    AddController,
    AlterAcls,
    AlterLearners,
    AlterQuotas,
    AlterTopic,
    CancelReassignment,
    CreateTopic,
    DeleteTopic,
    DrainServer,
    ForgetServer,
    GrowTopic,
    PauseTopic,
    PutToken,
    RaiseLevel,
    Reassign,
    Rebalance,
    RemoveController,
    SetReadOnly,
    TransferLeader,
    RevokeTokens,
    RotateTicketKeys,
)
"""Requests that the active controller decides."""
KINDS = (
    *GROUP_KINDS,
    *CONTROLLED,
    DescribeAccess,
    DescribeFeatures,
    DescribeMetrics,
    DescribeQuorum,
    DescribeRefusal,
    Digest,
    History,
    InitProducer,
    Metadata,
    PlanRebalance,
    Play,
    ReadCopy,
    ScrubServer,
    SettleTransaction,
)
LISTS = (ListGroups, ListTransactions)
SHARED = (DescribeAccess, DescribeFeatures, DescribeMetrics, DescribeQuorum)
"""Requests with the same answer for every client that has the right to them."""
SHARED_BY_TENANT = (History, PlanRebalance)
"""Requests with the same answer for every client, too. There are as many different ones as partitions and plans, so
only requests of one tenant share an answer."""
READING = (Metadata, DescribeGroup, FetchOffsets, ReadStream, DescribeStream, *LISTS, *SHARED, *SHARED_BY_TENANT)
"""Requests that change nothing and may take long: they end with their client's link."""

OWNED = (JoinGroup, CommitOffsets, BeginTransaction, CommitStaged, InitTaskProducer, CreateTopic, CreateStream)
"""Requests that create something that counts for their principal."""


class RequestView(MetadataView, Protocol):
    """The rights of the client that asks, for one request: what its answer may show, and how it is audited."""

    def seen(self, answer: Message) -> Message: ...
    @property
    def tenant(self) -> Tenant: ...
    @property
    def spared(self) -> tuple[str, ...]: ...
    @property
    def enforced(self) -> AuthorizerSettings: ...
    def on_answer(self, request: Message, answer: Message | TidelogError) -> None: ...


class FaultPlayground(Protocol):
    """The nodes of a ``tidelog dev`` cluster, in which clients may cause faults, such as stopping a node."""

    async def play(self, node: str, act: str) -> Message: ...


class ClientRequests:
    """The infrequent requests of all clients, those of ``KINDS``: each runs in a task of its own from its arrival to
    its answer. There is one for each gateway."""

    def __init__(
        self,
        shell: GatewayShell,
        client: str,
        playground: FaultPlayground | None = None,
        metrics: Callable[[], MetricsAnswer] | None = None,
    ) -> None:
        """``client``: a unique and secret name of this process. By this name and a number the controllers recognise a
        request that is sent again, and apply it once. ``metrics``: returns the gateway's metrics; None: they are off.
        """
        self._metrics = metrics
        self._shell = shell
        self._playground = playground
        self._ids: dict[int, range] = {}
        """Allocated producer ids that no client has yet, by share."""
        self._allocating = trio.Lock()
        self._client = client
        self._sequences = itertools.count(1)
        self._coordinators = CoordinatorClient(shell, self._numbered)
        self._metadata = MetadataAnswers(shell)
        self._single_flight = SingleFlight(shell.nursery)
        self._at_controller = Seats(CONTROL, CONTROL_EACH)
        self._encoding = Seats(1, 1)
        """One list of all groups or transactions is encoded at a time."""
        self._listing = Seats(LISTING, LISTING_EACH)
        self._waiting: dict[Tenant, int] = {}
        """Cost of the large requests of each tenant that wait for answers."""
        self._pending: dict[int, dict[PendingRequest, None]] = {}
        """Unanswered requests by client."""

    def on_message(self, link: ClientLink, id: int, message: Message, view: RequestView) -> None:
        """Start a task that answers a client's request over ``link`` and lets its client see only what ``view``
        allows. The principal that asks is written into the request. Raises ``OVERLOADED``, and starts nothing, if too
        many requests of the client wait for answers."""
        if isinstance(message, PutToken | RevokeTokens | AlterQuotas):
            message = replace(message, spared=view.spared)
        if isinstance(message, AskedRequest):
            message = replace(message, asker=asked_by(link, view))
        if isinstance(message, OWNED):
            owners = self._shell.cluster.image.level >= OWNERS
            message = replace(message, principal=view.principal if owners else "")
        done = self._begin_request(link, id, message, view)
        until = trio.current_time() + TIMEOUT_S
        if isinstance(message, ReadStream):
            message = replace(message, max_wait_ms=min(message.max_wait_ms, MAX_STREAM_WAIT_MS))
            until += message.max_wait_ms / 1000
        pending = PendingRequest(view.tenant, until, only_reads=isinstance(message, READING))
        if (seats := self._first_seats(message)) is not None:
            pending.queue(seats)
        self._pending.setdefault(link.source, {})[pending] = None
        self._shell.nursery.start_soon(self._serve, link, pending, message, view, done)

    def _first_seats(self, message: Message) -> Seats | None:
        """Return the seats in whose queue a request waits first, so that the requests of a client keep their order;
        None if it needs no seat at first, or its coordinator is not known."""
        if isinstance(message, CONTROLLED):
            return self._at_controller
        if isinstance(message, GROUP_KINDS) and not isinstance(message, (*LISTS, BeginTransaction, ReadStream)):
            return self._coordinators.seats_for(message)
        return None

    def _begin_request(self, link: ClientLink, id: int, message: Message, view: RequestView) -> Answered:
        """Count a request as waiting, and return the function by which it is answered and counted no more. The cost
        of a large request also counts for its tenant until then. Raises ``OVERLOADED`` if the client or tenant has
        too many waiting."""
        cost = cost_of(message)
        if cost == 1:
            return self._shell.begin_request(link, id, message)
        tenant = view.tenant
        waiting = self._waiting.get(tenant, 0)
        if waiting and waiting + cost > MOST_WAITING:
            raise refuse("OVERLOADED", "requests of this client that name very much wait for answers")
        answered = self._shell.begin_request(link, id, message)
        self._waiting[tenant] = waiting + cost

        def done(answer: Message | TidelogError) -> None:
            self._waiting[tenant] -= cost
            if not self._waiting[tenant]:
                del self._waiting[tenant]
            answered(answer)

        return done

    def on_close(self, link: ClientLink) -> None:
        """Cancel the requests of a client that has disconnected if they only read or still wait for their first seat.
        The others go on, and their answers are dropped."""
        for pending in self._pending.get(link.source, ()):
            if pending.ends_with_link:
                pending.scope.cancel()

    async def _serve(
        self, link: ClientLink, pending: PendingRequest, message: Message, view: RequestView, done: Answered
    ) -> None:
        """Answer one request and audit it. A ``TidelogError`` is the answer; a bug closes the client's link."""
        answer: Message | TidelogError = Unreachable("internal error")
        try:
            with contained(link, message.OP), pending.scope:
                try:
                    answer = view.seen(await self._answer_shared(message, view, pending))
                except TidelogError as error:
                    answer = error
                view.on_answer(message, answer)
            if pending.scope.cancelled_caught:
                answer = Unreachable("the client is gone")
        finally:
            pending.leave()
            others = self._pending[link.source]
            del others[pending]
            if not others:
                del self._pending[link.source]
        with burst():
            done(answer)

    async def _answer_shared(self, message: Message, view: RequestView, pending: PendingRequest) -> Message:
        """Return the answer to a request, which equal requests at the same time share if it is the same for all their
        clients. Raises ``TidelogError``."""
        if isinstance(message, ListGroups) and message.topic_id:
            return await self._list_positions(message, view, pending)
        if isinstance(message, LISTS) and not (getattr(message, "app", "") or getattr(message, "producer_id", 0)):
            return await self._single_flight.get((message.OP, view.tenant), partial(self._list, message, view))
        if isinstance(message, SHARED):
            return await self._single_flight.get(message, partial(self._answer, message, view, pending))
        if isinstance(message, ReadStream) and message.max_wait_ms:
            own = PendingRequest(pending.tenant, pending.until)
            return await self._single_flight.get(message, partial(self._answer, message, view, own))
        if isinstance(message, SHARED_BY_TENANT):
            own = PendingRequest(pending.tenant, pending.until)  # the client that asked first may go
            return await self._single_flight.get((message, pending.tenant), partial(self._answer, message, view, own))
        return await self._answer(message, view, pending)

    async def _list(self, message: Message, view: RequestView) -> Message:
        """Return all groups or transactions that a client may see, encoded. The list is fetched once for all clients
        that wait; one answer is encoded at a time, and tenants are served in turn. Raises ``TidelogError``."""
        found = await self._single_flight.get(message.OP, partial(self._coordinators.answer, message))
        async with self._encoding.seat(view.tenant):
            return await self._encoded_list(view.seen(found))

    async def _list_positions(self, message: ListGroups, view: RequestView, pending: PendingRequest) -> Message:
        """Return all groups with their positions in the partition that the request names, encoded.
        Unlike a list without positions it is not shared, so few are made at a time. Raises ``TidelogError``."""
        with await pending.wait(self._listing):
            found = await self._coordinators.answer(message, pending)
            async with self._encoding.seat(view.tenant):
                return await self._encoded_list(view.seen(found))

    def _numbered(self, message: Request, principal: str | None = None) -> Request:
        """Return a copy of a request with client session and number, by which the controllers apply it only once; a
        request that needs none is returned unchanged. The session belongs to the principal, so that one principal's
        requests do not evict the sessions of others. ``principal`` None: the gateway asks for itself. Raises
        ``MALFORMED`` if the client's id for itself is too long."""
        if not isinstance(message, SequencedRequest):
            return message
        if len(message.client.encode()) > LONGEST_ID:
            raise refuse("MALFORMED", f"the id that a client gives itself has at most {LONGEST_ID} bytes")
        sequence = message.sequence if message.client else 0
        client = self._client
        if principal is not None:
            client = name_of_client(principal, message.client if sequence else self._client)
        return replace(message, client=client, sequence=sequence or next(self._sequences))

    async def _answer(self, message: Message, view: RequestView, pending: PendingRequest) -> Message:
        """Return the answer to a request, from this gateway or from the service that has it. Raises
        ``TidelogError``."""
        controllers = self._shell.controllers
        match message:
            case Metadata():
                return await self._metadata.answer(message, view)
            case DescribeAccess():
                return _access_answer(self._shell.cluster.image, view)
            case Digest(node):
                return await self._ask_server(node, message)
            case ReadCopy(node) | ScrubServer(node):
                return await self._ask_about_copies(node, message)
            case DescribeRefusal(error_id):
                found = self._shell.refusals.find(error_id, view.principal, sees_all=view.of_servers)
                return RefusalAnswer(None if found is None else shown_to(found, view.principal, view.of_topic))
            case DescribeMetrics(""):
                if self._metrics is None:
                    raise refuse("UNSUPPORTED", "this gateway shows no metrics: metrics = false")
                return self._metrics()
            case DescribeMetrics(node) if any(server.node == node for server in self._shell.cluster.image.servers):
                return await self._ask_server(node, message)
            case InitProducer(1):
                own = await self._next_producer_id(view)
                return ProducerId(own, 1, self._sign(own, 1, 0, view), PRODUCER_WINDOW)
            case InitProducer(count):
                if not 1 <= count <= MAX_TASKS:
                    raise refuse("INVALID_CONFIG", f"count is {count}; it must be 1 to {MAX_TASKS}")
                with await pending.wait(self._at_controller):
                    first = (await self._allocate(count, view)).start
                return ProducerId(first, count, self._sign(first, count, 0, view), PRODUCER_WINDOW)
            case SettleTransaction():
                return await self._settle(message, pending)
            case InitTaskProducer():
                task = await self._init_task_producer(message, view, pending)
                ticket = self._sign(task.producer_id, 1, task.producer_epoch, view)
                return replace(task, ticket=ticket, window=PRODUCER_WINDOW)
            case Play(node, act):
                if self._playground is None:
                    raise refuse("UNSUPPORTED", "only with the nodes of 'tidelog dev' faults can be played")
                return await self._playground.play(node, act)
            case CreateTopic():
                return await self._create(message, view, pending)
            case DeleteTopic():
                return await self._delete(message, view, pending)
            case BeginTransaction():
                id = 0 if message.renew else await self._next_producer_id(view)
                message = replace(message, producer_id=id)
                begun = await self._coordinators.answer(message, pending)
                assert isinstance(begun, TransactionBegun)
                ticket = self._sign(begun.producer_id, 1, begun.producer_epoch, view)
                return replace(begun, ticket=ticket, window=PRODUCER_WINDOW)
            case _ if isinstance(message, GROUP_KINDS):
                return await self._coordinators.answer(message, pending)
            case DescribeQuorum() if controllers.missing_disks is not None:
                return controllers.missing_disks
            case DescribeQuorum() | DescribeFeatures():
                return await controllers.call(message, CONTROLLER_TIMEOUT_S)
            case _:
                return await self._ask_controller(message, view, pending)

    async def _ask_controller(self, message: Message, view: RequestView, pending: PendingRequest) -> Message:
        """Wait for a seat, send a request to the active controller and return its answer. Raises its refusal as
        ``TidelogError``. The request gets its number only when it is sent: the controllers refuse a number that comes
        long after higher ones, since they may have forgotten it."""
        with await pending.wait(self._at_controller):
            numbered = self._numbered(message, view.principal)
            return await self._shell.controllers.call(numbered, pending.until - trio.current_time())

    async def _create(self, message: CreateTopic, view: RequestView, pending: PendingRequest) -> Message:
        """Have the controllers create a topic, and return their answer when the topic accepts produced batches, or
        after ``CONTROLLER_TIMEOUT_S`` anyway, since it exists by then. If the outcome of an earlier try is unknown,
        an existing topic of the requested shape counts as the one created. Raises ``TidelogError``."""
        shell = self._shell
        try:
            answer = await self._ask_controller(message, view, pending)
        except TidelogError as error:
            made = shell.cluster.topic_named(message.name)
            if error.code != "TOPIC_EXISTS" or not error.unknown_outcome or made is None:
                raise
            if [len(state.replicas) for state in made.partitions] != [
                message.replication_factor
            ] * message.partitions:
                raise
            answer = TopicCreated(made.topic_id)
        assert isinstance(answer, TopicCreated)
        with trio.move_on_after(CONTROLLER_TIMEOUT_S):
            while not shell.serves(answer.topic_id):
                await shell.wait_change()
        return answer

    async def _delete(self, message: DeleteTopic, view: RequestView, pending: PendingRequest) -> Message:
        """Have the controllers delete a topic and return their answer. If the outcome of an earlier try is unknown, a
        missing topic counts as deleted. Raises ``TidelogError``."""
        try:
            return await self._ask_controller(message, view, pending)
        except TidelogError as error:
            if error.code == "UNKNOWN_TOPIC" and error.unknown_outcome:
                return Done()  # an earlier try did it
            raise

    def _share_of(self, view: RequestView) -> int:
        """Return the share of all producer ids from which the client's principal gets its ids; -1 while the cluster
        has no shares."""
        if self._shell.cluster.image.level < PRODUCER_SHARES:
            return -1
        return share_of_principal(view.principal)

    async def _next_producer_id(self, view: RequestView) -> int:
        """Return a producer id that no client has, of the share of the client's principal. If none is left, the
        controllers allocate a block. Raises ``TidelogError``."""
        share = self._share_of(view)
        async with self._allocating:
            ids = self._ids.get(share) or await self._allocate(PRODUCER_ID_BLOCK, view)
            self._ids[share] = ids[1:]
            return ids[0]

    async def _allocate(self, count: int, view: RequestView) -> range:
        """Have the controllers allocate ``count`` consecutive producer ids of the share of the client's principal,
        and return them. Raises ``OVERLOADED`` if ``ALLOCATE_TRIES`` blocks in a row were not all of the share, and
        the errors of the controllers."""
        share = self._share_of(view)
        for _ in range(ALLOCATE_TRIES):
            request = self._numbered(AllocateProducerIds(count, share=share), view.principal)
            block = await self._shell.controllers.call(request, CONTROLLER_TIMEOUT_S)
            assert isinstance(block, ProducerIds)
            ids = range(block.first, block.first + block.count)
            if share < 0 or share_of(ids[0]) == share == share_of(ids[-1]):
                return ids
        raise refuse("OVERLOADED", f"no producer ids of share {share}: others are given at the same time")

    def _sign(self, first_id: int, count: int, epoch: int, view: RequestView) -> str:
        """Return a signed ticket for ``count`` producer ids from ``first_id`` on at ``epoch``, for the client's
        principal; "" while the cluster has no keys. The caller has checked that the ids are the client's."""
        return sign(self._shell.cluster.image.ticket_keys, first_id, count, epoch, view.principal)

    async def _init_task_producer(
        self, message: InitTaskProducer, view: RequestView, pending: PendingRequest
    ) -> TaskProducer:
        """Return the producer that the coordinator gives to a task of a numbered batch. If the application has no ids
        yet, which is rare, the controllers allocate a block and the coordinator is asked again. Ids that a client
        sends are not passed on. Raises ``TidelogError``."""
        answer = await self._coordinators.answer(replace(message, first_id=0), pending)
        assert isinstance(answer, TaskProducer)
        if answer.producer_id:
            return answer
        ids = await self._allocate(MAX_TASKS, view)
        answer = await self._coordinators.answer(replace(message, first_id=ids.start), pending)
        assert isinstance(answer, TaskProducer)
        return answer

    async def _settle(self, asked: SettleTransaction, pending: PendingRequest) -> Message:
        """Have a partition's leader write the marker that ends a transaction that no coordinator knows, and return
        its answer. Raises ``INVALID_TRANSACTION`` if a coordinator has the transaction, ``UNKNOWN_TRANSACTION`` if it
        is not the open transaction for which readers wait, ``OFFLINE`` if there is no leader, and
        ``UNSUPPORTED_LEVEL`` below feature level ``SETTLING``. The coordinators are asked first, so that a
        transaction that ends meanwhile is not open any more at the leader."""
        cluster, id, epoch = self._shell.cluster, asked.producer_id, asked.producer_epoch
        if cluster.image.level < SETTLING:
            text = f"settling a transaction needs feature level {SETTLING}, the cluster is at {cluster.image.level}"
            raise refuse("UNSUPPORTED_LEVEL", text, level=cluster.image.level)
        listed = await self._coordinators.answer(ListTransactions(), pending)
        assert isinstance(listed, ListTransactionsAnswer)
        known = next((one for one in listed.transactions if one.producer_id == id), None)
        if known is not None:
            text = f"the coordinator of {known.app} has the transaction of producer {id}, and ends it"
            raise refuse("INVALID_TRANSACTION", f"{text}: 'tidelog transactions abort {known.app}'")
        found = await self._ask(ListOffset(asked.topic_id, asked.partition, "latest", isolation="uncommitted"))
        assert isinstance(found, OffsetAnswer)
        if found.stable is None or (found.stable.producer_id, found.stable.producer_epoch) != (id, epoch):
            raise refuse("UNKNOWN_TRANSACTION", f"readers do not wait for producer {id} epoch {epoch} there")
        state = cluster.state(asked.topic_id, asked.partition)
        if state is None or state.leader is None:
            raise refuse("OFFLINE", f"{asked.topic_id}/{asked.partition} has no leader now")
        leader = state.leader
        marker = WriteMarker("", asked.topic_id, asked.partition, id, epoch, asked.commit)
        return await self._call(lambda done: self._shell.peers.start_call(leader, marker, SERVER_TIMEOUT_S, done))

    async def _encoded_list(self, found: Message) -> EncodedAnswer:
        """Return the encoded answer with a list of groups or transactions; other tasks run while it is encoded."""
        assert isinstance(found, ListGroupsAnswer | ListTransactionsAnswer)
        name, infos = (
            ("groups", found.groups) if isinstance(found, ListGroupsAnswer) else ("transactions", found.transactions)
        )
        steps, items = Steps(), []
        for info in infos:
            await steps.advance()
            items.append(encode_part(info))
        return EncodedAnswer(1, encode_array(name, items))

    async def _ask(self, message: ListOffset) -> Message:
        return await self._call(lambda done: self._shell.ask_leader(message, OFFSETS_TIMEOUT_S, done))

    async def _ask_about_copies(self, node: str, message: Message) -> Message:
        """Send a request to read or scrub copies to a replica server and return the answer. Raises
        ``UNSUPPORTED_LEVEL`` below feature level ``COPY_CHECKS``, and the server's error."""
        level = self._shell.cluster.image.level
        if level < COPY_CHECKS:
            text = f"servers read or scrub copies on request from feature level {COPY_CHECKS} on; it is {level}"
            raise refuse("UNSUPPORTED_LEVEL", text, level=level)
        return await self._ask_server(node, message)

    async def _ask_server(self, node: str, message: Message) -> Message:
        """Send a request to a replica server and return its answer. Raises ``TidelogError``, at the latest after
        ``SERVER_TIMEOUT_S``."""
        peers = self._shell.peers
        return await self._call(lambda done: peers.start_call(node, message, SERVER_TIMEOUT_S, done))

    async def _call(self, start: Callable[[Answered], None]) -> Message:
        """Call ``start`` with a callback, wait until the callback gets the answer, and return it. Raises the answer
        if it is a ``TidelogError``."""
        answered = trio.Event()
        answers: list[Message | TidelogError] = []

        def done(answer: Message | TidelogError) -> None:
            answers.append(answer)
            answered.set()

        start(done)
        await answered.wait()
        if isinstance(answers[0], TidelogError):
            raise answers[0]
        return answers[0]


def asked_by(link: ClientLink, view: RequestView) -> str:
    """Return the client's principal and address as one text, as the history of a topic shows them. The name that an
    anonymous client gives itself is in brackets, since it may be the name of a principal."""
    name = view.principal if view.principal != ANONYMOUS else f"{ANONYMOUS} ({link.peer.node[:MAX_NAME_LENGTH]})"
    return f"{name} at {link.remote}"


def _access_answer(image: ClusterImage, view: RequestView) -> AccessAnswer:
    """Return the tokens (without secrets), rules and quotas of the metadata, and what of it this gateway enforces, as
    the answer to ``describe_access``."""
    access = image.access
    tokens = tuple(TokenInfo(t.token_id, t.principal, t.created_ms, t.expires_ms) for t in access.tokens)
    heirs = heirs_at(access, image.level)
    enforced = view.enforced
    return AccessAnswer(
        tokens,
        access.acls,
        access.quotas,
        heirs,
        enforced.authentication,
        enforced.authorization,
        view.principal,
        view.principal in enforced.superusers,
    )
