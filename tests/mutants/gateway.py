"""Rules of the gateway, broken."""

from __future__ import annotations

import math
from dataclasses import replace

from tidelog.client.core.producer import ProducerCore
from tidelog.net.send_queue import SendQueue
from tidelog.wire.messages import ReadAnswer
from tidelog_gateway.clients import connections as door
from tidelog_gateway.clients.connections import ClientConnections
from tidelog_gateway.consume.server_read_window import ServerReadWindow
from tidelog_gateway.consume.server_reads import ServerReads
from tidelog_gateway.consume.subscriptions import Subscriptions
from tidelog_gateway.consume.tail_cache import BatchRun, SubscriberTailCache
from tidelog_gateway.limits.fair_share import FairShare
from tidelog_gateway.limits.heavy_requests import HeavyRequests
from tidelog_gateway.limits.server_limits import INTERVAL_S, LEAST_PAUSE_S, ServerLimit, _TenantAccount
from tidelog_gateway.produce import router
from tidelog_gateway.produce.router import Router
from tidelog_gateway.requests import metadata_answers as describing
from tidelog_gateway.requests import offset_lookups as lookups
from tidelog_gateway.requests.coordinator_client import CoordinatorClient
from tidelog_gateway.requests.offset_lookups import Lookups
from tidelog_gateway.requests.requests import ClientRequests
from tidelog_gateway.rights import visibility as seeing
from tidelog_gateway.rights.authorizer import Authorizer
from tidelog_gateway.shared_requests import Seats, SingleFlight
from tidelog_replica.partition.pending_reads import PendingReads

from mutants.rules import Patch, breaks


@breaks(
    "KIP-98",
    "Only reads of committed transactions fill the tail that the gateway serves such readers from.",
    tests=("unit.gateway.consume.test_shared_reads",),
)
def keep_uncommitted_reads(patch: Patch) -> None:
    """A read of any isolation level fills the tail."""
    on_answer = Subscriptions.on_answer

    def keep(self, token, answer, now):
        reading = self._reads.get(token)
        if reading is not None and isinstance(answer, ReadAnswer) and len(answer.payload):
            key, run = reading.read_key[0], BatchRun(answer.payload)
            if len(self._by_partition[key]) > 1:
                self.tails.add(key, reading.before(run), run, now)
        return on_answer(self, token, answer, now)

    patch.setattr(Subscriptions, "on_answer", keep)


@breaks(
    "KIP-98",
    "A batch that was in flight at a leader that was replaced may have been written.",
    tests=("unit.gateway.produce.test_router",),
)
def forget_a_superseded_try(patch: Patch) -> None:
    """An error at the end of its time means that it was not written."""
    supersede = Router._supersede

    def forget(self, queued, now):
        doubt = queued.doubt
        supersede(self, queued, now)
        queued.doubt = doubt

    patch.setattr(Router, "_supersede", forget)


@breaks(
    "KIP-354",
    "What the gateway keeps of a partition is served for a bounded time: no message reports a compaction to it.",
    tests=("unit.gateway.consume.test_shared_reads",),
)
def keep_the_tail_for_ever(patch: Patch) -> None:
    """The tail is kept until newer batches need the room."""
    patch.setattr(SubscriberTailCache, "_forget_old", lambda self, now: None)


@breaks(
    "AIMD",
    "The limit of a slow server rises again when the server is quick, and ends.",
    tests=("unit.gateway.limits.test_server_limits",),
)
def limit_for_ever(patch: Patch) -> None:
    """The limit stays as low as it was set."""
    patch.setattr(ServerLimit, "_raise", lambda self, limit, in_flight, now: None)


@breaks(
    "CoDel",
    "A server is slow by the smallest delay of an interval, so one pause is not taken for a queue that stands.",
    tests=("unit.gateway.limits.test_server_limits",),
)
def judge_by_the_largest_delay(patch: Patch) -> None:
    """A server is slow by the largest delay."""
    on_ack = ServerLimit.on_ack

    def take_largest(self, size, delay_s, now):
        largest_s = 0.0 if math.isinf(self._smallest_s) else self._smallest_s
        on_ack(self, size, delay_s, now)
        self._smallest_s = max(largest_s, delay_s)

    patch.setattr(ServerLimit, "on_ack", take_largest)


@breaks(
    "CoDel",
    "A second of a server counts from its first ack, so a pause that begins with it is not all that it holds.",
    tests=("unit.gateway.limits.test_server_limits",),
)
def count_from_the_last_interval(patch: Patch) -> None:
    """The second begins at the end of the second before."""
    patch.setattr(ServerLimit, "is_due", lambda self, now: now >= self._since + INTERVAL_S)


@breaks(
    "CoDel",
    "A server that is slow with a single batch in flight has no queue, and is not limited.",
    tests=("unit.gateway.limits.test_server_limits",),
)
def limit_without_a_queue(patch: Patch) -> None:
    """Such a server is limited."""
    on_empty = ServerLimit.on_empty

    def forget(self, now):
        on_empty(self, now)
        self._empty = self.bytes_s is not None

    patch.setattr(ServerLimit, "on_empty", forget)


@breaks(
    "max-min fairness",
    "Principals share the limit of a slow server, however many connections each has.",
    tests=("unit.gateway.limits.test_server_limits",),
)
def share_by_connection(patch: Patch) -> None:
    """Each connection has a share of its own."""
    tenant = Router._tenant
    patch.setattr(Router, "_tenant", lambda self, source: (f"{tenant(self, source)[0]} {source}", 0))


@breaks(
    "max-min fairness",
    "All connections without an authenticated name together are one principal where the limit of a server is shared.",
    tests=("unit.gateway.limits.test_server_limits",),
)
def share_by_connection_without_a_name(patch: Patch) -> None:
    """Each of these connections is a principal of its own."""
    tenant = Router._tenant

    def alone(self, source):
        principal, connection = tenant(self, source)
        return (f"{principal} {connection}" if connection else principal), 0

    patch.setattr(Router, "_tenant", alone)


@breaks(
    "max-min fairness",
    "A principal below its fair share of a slow server does not wait.",
    tests=("unit.gateway.limits.test_server_limits",),
)
def share_without_buckets(patch: Patch) -> None:
    """All principals wait while one of them has used up its share."""

    def pause_s(self, tenant, now):
        return max((account.pause_s(now) for account in self._accounts.values()), default=0.0)

    def hold(self, tenant, now):
        return max((account.hold(now) for account in self._accounts.values()), default=now)

    patch.setattr(ServerLimit, "pause_s", pause_s)
    patch.setattr(ServerLimit, "hold", hold)
    patch.setattr(ServerLimit, "on_wait", lambda self, tenant: None)


@breaks(
    "decision 31",
    "Batches of a principal that waits for its share of a slow server are sent in the order in which they came.",
    tests=("unit.gateway.limits.test_server_limits",),
)
def let_newcomers_pass(patch: Patch) -> None:
    """A batch that comes while others wait takes what has been saved for them."""

    def hold(self, now):
        pause_s = self.bucket.pause_s(now)
        return now + max(pause_s, LEAST_PAUSE_S) if pause_s else now

    patch.setattr(_TenantAccount, "hold", hold)


@breaks(
    "KIP-219",
    "A producer sends nothing for a partition while an ack has asked it to pause.",
    tests=("unit.gateway.limits.test_server_limits",),
)
def ignore_throttling(patch: Patch) -> None:
    """The producer sends on."""
    patch.setattr(ProducerCore, "_throttle", lambda self, queue, pause_s, now: None)


@breaks(
    "decision 37",
    "A member of a group needs the right to read each topic that it subscribes to.",
    tests=("unit.gateway.rights.test_named_fields",),
    units_only=True,
)
def take_members_of_any_topic(patch: Patch) -> None:
    """The right to the group is enough."""
    patch.setattr(Authorizer, "_refuse_topics", lambda self, principal, operation, names: None)


@breaks(
    "decision 37",
    "Positions are committed and returned only for topics that the principal has a right to.",
    tests=("unit.gateway.rights.test_named_fields",),
    units_only=True,
)
def take_positions_of_any_topic(patch: Patch) -> None:
    """The right to the group is enough."""
    patch.setattr(ClientConnections, "_refuse_positions", lambda self, principal, message: None)


@breaks(
    "decision 37",
    "An answer leaves out topics that the principal has no right to see.",
    tests=("unit.gateway.rights.test_named_fields",),
    units_only=True,
)
def tell_of_every_topic(patch: Patch) -> None:
    """The answer names all topics that the coordinator named."""
    patch.setattr(seeing, "_is_allowed", lambda share, viewer, allows: True)


@breaks(
    "max-min fairness",
    "The bytes that may be on their way from a replica server are bounded.",
    tests=("unit.gateway.consume.test_server_read_window", "unit.gateway.consume.test_server_reads"),
)
def read_without_a_window(patch: Patch) -> None:
    """Every read goes at once."""
    patch.setattr(FairShare, "try_hold", _take_anyhow)


def _take_anyhow(self, tenant, amount=1):
    self._held[tenant] = self._held.get(tenant, 0) + amount
    self.total += amount
    return True


@breaks(
    "dynamic thresholds",
    "No principal has more of a shared bound than it leaves free.",
    tests=("unit.gateway.consume.test_server_read_window",),
    units_only=True,
)
def share_until_all_is_taken(patch: Patch) -> None:
    """The first caller may have everything."""
    patch.setattr(
        FairShare,
        "try_hold",
        lambda self, tenant, amount=1: (
            (not self.total or self.total + amount <= self.most) and _take_anyhow(self, tenant, amount)
        ),
    )


@breaks(
    "max-min fairness",
    "Principals take turns to read, however many connections each has.",
    tests=("unit.gateway.consume.test_server_read_window",),
    units_only=True,
)
def take_turns_by_connection(patch: Patch) -> None:
    """Connections take turns."""
    enqueue = ServerReadWindow.enqueue
    patch.setattr(
        ServerReadWindow,
        "enqueue",
        lambda self, token, node, tenant, source, *more: enqueue(
            self, token, node, (f"{tenant[0]} {source}", 0), source, *more
        ),
    )


@breaks(
    "max-min fairness",
    "The connections of a principal take turns to read.",
    tests=("unit.gateway.consume.test_server_read_window",),
    units_only=True,
)
def serve_one_connection_first(patch: Patch) -> None:
    """The connection that asked first is served first."""
    enqueue = ServerReadWindow.enqueue
    patch.setattr(
        ServerReadWindow,
        "enqueue",
        lambda self, token, node, tenant, source, *more: enqueue(self, token, node, tenant, 0, *more),
    )


@breaks(
    "max-min fairness",
    "A large read of a client that has nothing on its way is not overtaken by small ones.",
    tests=("unit.gateway.consume.test_server_read_window",),
    units_only=True,
)
def overtake_large_reads(patch: Patch) -> None:
    """Any read that fits into the window is sent at once."""
    patch.setattr(FairShare, "held", lambda self, tenant: 1)


@breaks(
    "dynamic thresholds",
    "What the long polls at a replica server may bring is bounded, however many there are.",
    tests=("unit.gateway.consume.test_server_read_window",),
    units_only=True,
)
def bring_news_without_a_bound(patch: Patch) -> None:
    """Each may bring as much as the first."""
    begin_wait = ServerReadWindow.begin_wait

    def begin(self, node, tenant):
        self._server(node).wait_bytes_left = self._settings.wait_bytes
        return begin_wait(self, node, tenant)

    patch.setattr(ServerReadWindow, "begin_wait", begin)


@breaks(
    "dynamic thresholds",
    "All clients that wait for the same thing cost the server one long poll.",
    tests=("unit.gateway.consume.test_polls", "unit.gateway.consume.test_shared_reads"),
    units_only=True,
)
def wait_alone(patch: Patch) -> None:
    """Each client that waits costs a long poll of its own."""
    take_part = Subscriptions._take_part

    def alone(self, one, read_key, node, max_bytes, now):
        self._shared.pop(read_key, None)
        return take_part(self, one, read_key, node, max_bytes, now)

    patch.setattr(Subscriptions, "_take_part", alone)


@breaks(
    "KIP-392",
    "A request that waits at the leader of an earlier epoch is answered when there is another leader.",
    tests=("unit.gateway.consume.test_polls",),
    units_only=True,
)
def wait_for_the_old_leader(patch: Patch) -> None:
    """A client's read waits on."""
    on_metadata = Subscriptions.on_metadata

    def forget(self, changed, now):
        polls, self._polls_by_partition = self._polls_by_partition, {}
        effects = on_metadata(self, changed, now)
        self._polls_by_partition = polls
        return effects

    patch.setattr(Subscriptions, "on_metadata", forget)


@breaks(
    "dynamic thresholds",
    "A wait that its client leaves is left to the next, so coming and going piles up none.",
    tests=("unit.gateway.consume.test_polls",),
    units_only=True,
)
def give_up_waits(patch: Patch) -> None:
    """Each client that comes starts a new long poll."""
    withdraw = Subscriptions._withdraw

    def give_up(self, one):
        reading = one.reading
        withdraw(self, one)
        if reading is not None and not reading.waiting and self._shared.get(reading.read_key) is reading:
            del self._shared[reading.read_key]

    patch.setattr(Subscriptions, "_withdraw", give_up)


@breaks(
    "TCP",
    "A client that asks for more than its link carries is slowed down before too much is queued for it.",
    tests=("unit.tidelog.net.test_flow_control",),
    units_only=True,
)
def hang_up_on_who_asks_much(patch: Patch) -> None:
    """He is dropped when the outbox is full."""
    patch.setattr(SendQueue, "is_filling", False)


@breaks(
    "KIP-74",
    "An answer with a hard limit never has more than that.",
    tests=("unit.replica.partition.test_pending_reads",),
    units_only=True,
)
def ignore_the_hard_limit(patch: Patch) -> None:
    """A batch comes in any case."""
    read = PendingReads.read
    patch.setattr(
        PendingReads,
        "read",
        lambda self, source, id, asked, now: read(self, source, id, replace(asked, hard_limit=False), now),
    )


@breaks(
    "KIP-219",
    "A name counts once, however often a request gives it.",
    tests=("unit.gateway.test_request_costs",),
    units_only=True,
)
def take_a_name_as_often_as_it_is_given(patch: Patch) -> None:
    """A name counts as often as the request contains it."""
    named = describing.NamedTopics
    patch.setattr(describing, "names_of", lambda asked: named() if asked.all_topics else named(asked.topics))


@breaks(
    "KIP-207",
    "An answer is never older than its question: a request that comes while one is worked out shares the next.",
    tests=("unit.gateway.test_shared_requests",),
    units_only=True,
)
def share_an_answer_that_was_begun_before(patch: Patch) -> None:
    """A request that comes meanwhile gets the answer that is under way."""

    async def run(self, question):
        shared = self._next[question]
        with shared.scope:
            shared.answer = await shared.work()
        shared.done.set()
        del self._next[question], self._working[question]

    patch.setattr(SingleFlight, "_run", run)


@breaks(
    "KIP-207",
    "An offset that is returned was looked up after the request came.",
    tests=("unit.gateway.test_shared_requests",),
    units_only=True,
)
def join_a_look_up_under_way(patch: Patch) -> None:
    """A later request gets the result of a look-up that is under way."""
    want = Lookups.want

    def join(self, one, key, server):
        if key in self._sent:
            one.left += 1
            self._sent[key].wants.append(one)
        else:
            want(self, one, key, server)

    patch.setattr(Lookups, "want", join)


@breaks(
    "KIP-219",
    "A server has a bounded number of look-ups under way.",
    tests=("unit.gateway.test_shared_requests",),
    units_only=True,
)
def look_up_without_end(patch: Patch) -> None:
    """All are sent at once."""
    patch.setattr(lookups, "PER_SERVER", 1 << 30)


@breaks(
    "KIP-219",
    "A refused look-up means nothing for the server's other partitions.",
    tests=("unit.gateway.test_shared_requests",),
    units_only=True,
)
def take_a_refusal_for_silence(patch: Patch) -> None:
    """Whatever the error, the server is not asked again."""
    on_answer = Lookups.on_answer
    patch.setattr(
        Lookups,
        "on_answer",
        lambda self, lookup, offsets, *, silent=False: on_answer(self, lookup, offsets, silent=offsets is None),
    )


@breaks(
    "decision 35",
    "The end of a connection is done to its end, whatever fails.",
    tests=("unit.gateway.clients.test_connections",),
    units_only=True,
)
def leave_off_where_a_step_fails(patch: Patch) -> None:
    """The steps after a failed step are left out."""
    patch.setattr(door, "do_all", lambda *steps: [step() for step in steps])


@breaks(
    "KIP-219",
    "Principals that wait for a seat come in turn.",
    tests=("unit.gateway.test_shared_requests",),
    units_only=True,
)
def seat_who_came_first(patch: Patch) -> None:
    """The first request goes first, however many requests its principal has."""
    call = Seats._assign

    def first(self):
        before = dict(self._waiting)
        call(self)
        self._waiting = {name: self._waiting[name] for name in before if name in self._waiting}

    patch.setattr(Seats, "_assign", first)


@breaks(
    "KIP-219",
    "Batches of one message that unfold to very much are looked at one by one, and others are served in between.",
    tests=("unit.gateway.test_request_costs",),
    units_only=True,
)
def unfold_all_at_once(patch: Patch) -> None:
    """All batches of a message are checked at once."""
    patch.setattr(router, "UNFOLDED_AT_ONCE", 1 << 60)


@breaks(
    "decision 35",
    "Nothing is sent before what came before it in its partition has been looked at.",
    tests=("unit.gateway.test_request_costs",),
    units_only=True,
)
def send_what_was_not_looked_at(patch: Patch) -> None:
    """Batches that still wait to be checked are sent."""
    send = Router._send_queue

    def go(self, queue, *what, **how):
        for queued in queue.waiting:
            queued.is_unchecked = False
        send(self, queue, *what, **how)

    patch.setattr(Router, "_send_queue", go)


@breaks(
    "decision 35",
    "What waits for its turn ends with its link.",
    tests=("unit.gateway.requests.test_bounded_requests",),
    units_only=True,
)
def go_on_for_those_who_are_gone(patch: Patch) -> None:
    """Work that waits for its turn stays in the queue after its link ended."""
    patch.setattr(ClientRequests, "on_close", lambda self, link: None)


@breaks(
    "decision 35",
    "A server that is silent holds up no large requests to coordinators elsewhere.",
    tests=("unit.gateway.requests.test_bounded_requests",),
    units_only=True,
)
def have_all_servers_share_the_seats(patch: Patch) -> None:
    """The limit holds for the coordinators of all servers together."""
    seats_at = CoordinatorClient._seats_at
    patch.setattr(CoordinatorClient, "_seats_at", lambda self, server, message: seats_at(self, "", message))


@breaks(
    "decision 36",
    "A read that several connections share goes on when the first of them closes.",
    tests=("unit.gateway.consume.test_server_reads",),
    units_only=True,
)
def end_a_shared_read_with_its_first_reader(patch: Patch) -> None:
    """The other connections that wait for the read are forgotten."""
    join = ServerReads.join

    def forget(self, name, reader):
        asked = self._shared.get(name)
        if asked is None or reader.tenant not in asked.tokens:
            join(self, name, reader)

    patch.setattr(ServerReads, "join", forget)


@breaks(
    "decision 36",
    "A read holds no more of the window than a share, whatever batches its topic allows.",
    tests=("unit.gateway.consume.test_server_reads",),
    units_only=True,
)
def hold_what_the_topic_allows(patch: Patch) -> None:
    """A read reserves the size of the largest batch."""
    patch.setattr(ServerReadWindow, "share", 1 << 40)


@breaks(
    "decision 36",
    "A batch that is larger than the hard limit is read by itself, as long as a client waits for it.",
    tests=("unit.gateway.consume.test_server_reads",),
    units_only=True,
)
def ask_whole_for_those_who_are_gone(patch: Patch) -> None:
    """A read goes on after the clients that wanted it are gone."""
    on_link_closed = ServerReads.on_link_closed

    def keep(self, reader):
        sent, self._sent = self._sent, {}
        on_link_closed(self, reader)
        self._sent = sent | self._sent

    patch.setattr(ServerReads, "on_link_closed", keep)


@breaks(
    "decision 35",
    "What a batch keeps in memory is what counts for it.",
    tests=("unit.gateway.test_request_costs",),
    units_only=True,
)
def keep_whole_messages(patch: Patch) -> None:
    """A small batch keeps the whole message that it arrived in."""
    patch.setattr(router, "KEPT", 1 << 60)


@breaks(
    "KIP-219",
    "The log names each principal that asks for much, once a minute.",
    tests=("unit.gateway.test_request_costs",),
    units_only=True,
)
def name_nobody_in_the_log(patch: Patch) -> None:
    """No principal is logged."""
    patch.setattr(HeavyRequests, "count", lambda self, *what: None)
