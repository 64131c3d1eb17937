"""The gateway's door: who must go, and when; who is let in, and how often that is told."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest
import trio
import trio.testing
from tidelog.acl import NewToken, new_token
from tidelog.errors import TidelogError, refuse
from tidelog.feature_levels import TICKETS
from tidelog.net.link import PROTOCOL_VERSION
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.tickets import sign
from tidelog.types import Access, ClusterImage, Quota, TicketKey, Token
from tidelog.wire.messages import (
    AbortStaged,
    BeginTransaction,
    CommitOffsets,
    CommitStaged,
    DeleteGroup,
    Done,
    EndTransaction,
    GroupPosition,
    Hello,
    InitTaskProducer,
    LeaveGroup,
    Message,
    PrepareTransaction,
    TransactionBegun,
    UseProducer,
)
from tidelog_gateway.audit.events import AuditEvents
from tidelog_gateway.audit.merged_events import MOST_KEYS
from tidelog_gateway.audit.writer import Audit
from tidelog_gateway.clients.client_figures import ClientFigures
from tidelog_gateway.clients.connections import ClientConnections, ClientView
from tidelog_gateway.clients.drain import Drain
from tidelog_gateway.limits.repeated_lines import INTERVAL_S, MOST, RepeatedLines
from tidelog_gateway.rights.authorizer import Authorizer, AuthorizerSettings, ClientIdentity
from tidelog_gateway.rights.own_transactions import MOST as OWN
from tidelog_gateway.settings import ConnectionSettings, RouterSettings, SubscriptionSettings
from tidelog_gateway.shell import GatewayShell
from trio.testing import MockClock

SOURCES = count(1)


@dataclass(eq=False)
class FakeLink:
    """The part of a link that the door sees. ``ended`` is when it was closed."""

    peer: Hello
    remote: str = "10.0.0.9:40000"
    identities: None = None
    sent_bytes: int = 0
    source: int = field(default_factory=lambda: next(SOURCES))
    ended: float | None = None
    reason: str = ""

    @property
    def closed(self) -> bool:
        return self.ended is not None

    def answer(self, id: int, message: Message | TidelogError) -> None:
        assert isinstance(message, Message), message

    def close(self, code: int, reason: str) -> None:
        assert code == 1008
        self.ended, self.reason = trio.current_time(), reason


class Stage:
    """A door whose wall clock goes with trio's."""

    def __init__(self, shell: GatewayShell, guard: Authorizer, **settings: Any) -> None:
        self.shell = shell
        self.closed: list[FakeLink] = []
        self.journal = AuditEvents("g1/ab", "g1", 10, trio.current_time())
        audit, leaving = Audit(shell, self.journal, wall_ms), Drain(shell)
        chosen = ConnectionSettings(**settings)
        self.figures = ClientFigures.of(chosen)
        self.door = ClientConnections(shell, None, guard, audit, wall_ms, leaving, chosen, self.figures)  # type: ignore[arg-type]
        self.door._requests = self  # type: ignore[assignment]
        self.answer: Message | TidelogError = Done()
        """To all requests."""

    def on_message(self, link: FakeLink, id: int, message: Message, view: ClientView) -> None:
        view.on_answer(message, self.answer)

    def on_close(self, link: FakeLink) -> None:
        """As ``Requests``: nothing waits here."""
        self.closed.append(link)

    def told(self) -> list[dict[str, Any]]:
        """What the audit got."""
        return [json.loads(record.value or b"") for record in self.journal.next_batch()]

    def come(
        self, token: str = "", remote: str = "10.0.0.9:40000", *, operator: bool = False
    ) -> FakeLink | TidelogError:
        hello = Hello(PROTOCOL_VERSION, "client", "app", token=token, operator=operator)
        link = FakeLink(hello, remote)
        refusal = self.door.authenticate(hello, link)  # type: ignore[arg-type]
        if refusal is not None:
            return refusal
        self.door.on_open(link)  # type: ignore[arg-type]
        return link

    def let_in(self, token: str = "", remote: str = "10.0.0.9:40000", *, operator: bool = False) -> FakeLink:
        link = self.come(token, remote, operator=operator)
        assert isinstance(link, FakeLink), link
        return link

    def send(self, link: FakeLink, *messages: Message) -> None:
        for message in messages:
            self.door.on_message(link, 1, message)  # type: ignore[arg-type]

    def try_to_send(self, link: FakeLink, message: Message) -> str:
        """The code of the refusal; "" for none."""
        try:
            self.send(link, message)
        except TidelogError as error:
            return error.code
        return ""

    def tell(self, *tokens: Token) -> None:
        """The metadata has these tokens."""
        image = self.shell.cluster.image
        self.shell.cluster.update(replace(image, index=image.index + 1, access=Access(tokens)))
        self.shell._changed()


def wall_ms() -> int:
    return round(trio.current_time() * 1000)


def played(
    act: Callable[[Stage, MockClock], Awaitable[None]], guard: Authorizer | None = None, **settings: Any
) -> None:
    """With a door that runs, and a clock that stands still."""
    clock = MockClock()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            hello = Hello(PROTOCOL_VERSION, "gateway", "g1")
            bounds = RouterSettings(), SubscriptionSettings()
            shell = GatewayShell(WebSocketTransport(), hello, (), *bounds, trio.current_time, nursery)
            shell.cluster.update(ClusterImage(1, "test", ()))
            stage = Stage(shell, guard or Authorizer(AuthorizerSettings()), **settings)
            nursery.start_soon(stage.door.run)
            await trio.testing.wait_all_tasks_blocked()
            await act(stage, clock)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)


def of_alice(made: NewToken, expires_ms: int = -1) -> Token:
    return Token(made.token_id, "alice", made.digest, 0, expires_ms)


# --- who must go ---------------------------------------------------------------------------------------------


async def pass_s(clock: MockClock, seconds: float) -> None:
    """So much time, and what is due."""
    clock.jump(seconds)
    await trio.testing.wait_all_tasks_blocked()


def test_a_token_that_expires_ends_its_connections_at_that_moment() -> None:
    """Also one that is much younger than the last look: nobody goes on for the rest of the pause."""
    made = new_token()

    async def act(stage: Stage, clock: MockClock) -> None:
        stage.tell(of_alice(made, wall_ms() + 2100))
        await pass_s(clock, 0.1)
        link = stage.let_in(made.text)
        await pass_s(clock, 1.9)
        assert not link.closed
        await pass_s(clock, 0.11)
        assert link.closed and "expired" in link.reason

    played(act)


def test_a_token_that_is_revoked_ends_its_connections_at_once() -> None:
    made = new_token()

    async def act(stage: Stage, clock: MockClock) -> None:
        stage.tell(of_alice(made))
        await pass_s(clock, 0.1)
        link = stage.let_in(made.text)
        stage.tell()
        await pass_s(clock, 0.0)
        assert link.closed

    played(act)


def test_a_client_that_goes_on_with_a_revoked_or_expired_token_is_named() -> None:
    revoked, expired, unknown = new_token(), new_token(), new_token()

    async def act(stage: Stage, clock: MockClock) -> None:
        stage.tell(of_alice(revoked), of_alice(expired, wall_ms() + 1000))
        await pass_s(clock, 2.0)
        stage.tell(of_alice(expired, 1000))
        await pass_s(clock, 0.0)
        for made in (revoked, revoked, expired, unknown):
            refusal = stage.come(made.text)
            assert isinstance(refusal, TidelogError) and not refusal.detail, "the cause is for the operator"
        rows = stage.figures.refused.recent(wall_ms())
        assert [(row.cause, row.token, row.principal, row.times) for row in rows] == [
            ("token_revoked", revoked.token_id, "alice", 2),
            ("token_expired", expired.token_id, "alice", 1),
            ("token_unknown", "", "", 1),
        ]

    played(act)


def test_who_has_only_the_id_of_a_revoked_token_learns_nothing() -> None:
    made = new_token()

    async def act(stage: Stage, clock: MockClock) -> None:
        stage.tell(of_alice(made))
        await pass_s(clock, 0.1)
        stage.tell()
        await pass_s(clock, 0.0)
        refusal = stage.come(made.text[:-1] + ("a" if made.text[-1] != "a" else "b"))
        assert isinstance(refusal, TidelogError) and not refusal.detail
        assert [row.cause for row in stage.figures.refused.recent(wall_ms())] == ["token_unknown"]

    played(act)


def test_each_bound_on_connections_is_a_cause_of_its_own() -> None:
    async def act(stage: Stage, clock: MockClock) -> None:
        stage.let_in()
        own = stage.come()
        stage.let_in(remote="10.0.0.8:1")
        others = stage.come(remote="10.0.0.7:1")
        assert isinstance(own, TidelogError) and isinstance(others, TidelogError)
        assert (own.detail["cause"], others.detail["cause"]) == ("address_full", "gateway_full")
        rows = stage.figures.refused.recent(wall_ms())
        assert [(row.cause, row.address) for row in rows] == [
            ("address_full", "10.0.0.9"),
            ("gateway_full", "10.0.0.7"),
        ]
        assert stage.figures.quotas.largest(1) == [("anonymous", 2)]

    played(act, client_max_connections=2, address_max_connections=1)


def test_a_token_of_an_issuer_that_expires_ends_its_connections_at_that_moment() -> None:
    class Known:
        def recognize(self, token: str, wall_ms: int) -> ClientIdentity:
            return ClientIdentity(f"oidc-{token[0]}", expires_ms=wall_ms + int(token.split(".")[1]))

    async def act(stage: Stage, clock: MockClock) -> None:
        late, soon, last = stage.let_in("a.7000.x"), stage.let_in("b.3000.x"), stage.let_in("c.60000.x")
        await pass_s(clock, 2.99)
        assert not soon.closed
        await pass_s(clock, 0.02)
        assert soon.closed and not late.closed
        await pass_s(clock, 4.0)
        assert late.closed and not last.closed
        for _ in range(6):
            await pass_s(clock, 9.0)
        assert last.closed

    played(act, Authorizer(AuthorizerSettings(), Known()))


# --- what is told of those who do not come in ----------------------------------------------------------------


def test_failed_logins_are_a_line_for_each_address_and_interval_with_a_count() -> None:

    async def act(stage: Stage, clock: MockClock) -> None:
        lines = written(stage)
        for port in range(5000):
            stage.come("tide_0123456789abcdef_x", f"10.0.0.1:{port}")
        stage.come("tide_0123456789abcdef_x", "10.0.0.2:1")
        assert [(line["remote"], line["suppressed"]) for line in lines] == [("10.0.0.1:0", 0), ("10.0.0.2:1", 0)]
        await pass_s(clock, INTERVAL_S + 1)
        assert [(line["remote"], line["suppressed"]) for line in lines[2:]] == [("10.0.0.1", 4999)]
        stage.come("tide_0123456789abcdef_x", "10.0.0.1:1")
        assert len(lines) == 4 and {line["event"] for line in lines} == {"authentication_failed"}

    played(act)


def test_many_addresses_are_logged_as_one() -> None:
    one = RepeatedLines()
    assert sum(one.on_line(f"10.0.{n >> 8}.{n & 255}", 0.0) == 0 for n in range(5 * MOST)) == MOST + 1
    assert len(one._known) == MOST + 1
    assert one.expired(INTERVAL_S - 0.1) == []
    assert one.expired(INTERVAL_S) == [("others", 4 * MOST - 1)] and not one._known


def written(stage: Stage) -> list[dict[str, Any]]:
    """The warnings of the door from now on."""
    lines: list[dict[str, Any]] = []

    class Log:
        def warning(self, event: str, **told: Any) -> None:
            lines.append({"event": event, **told})

    stage.door._log = Log()
    return lines


# --- shares --------------------------------------------------------------------------------------------------


def test_one_address_leaves_room_for_others() -> None:
    async def act(stage: Stage, clock: MockClock) -> None:
        links = [stage.let_in(remote=f"10.0.0.1:{port}") for port in range(3)]
        for _ in range(2):
            refused = stage.come(remote="10.0.0.1:9")
            assert isinstance(refused, TidelogError) and refused.code == "OVERLOADED"
            assert "address_max_connections = 3" in refused.message
            stage.let_in(remote="10.0.0.2:1")
            stage.let_in(remote="fd00::1:1")
            stage.door.on_close(links.pop())  # type: ignore[arg-type]
            links.append(stage.let_in(remote="10.0.0.1:9"))
        for link in list(stage.door._clients):
            stage.door.on_close(link)
        assert not stage.door._addresses

    played(act, address_max_connections=3)


def test_one_principal_leaves_room_for_others_unless_its_quota_says_how_many() -> None:
    made = new_token()

    async def act(stage: Stage, clock: MockClock) -> None:
        stage.tell(of_alice(made))
        await pass_s(clock, 0.1)
        for n in range(2):
            stage.let_in(made.text, f"10.0.0.{n}:1")
        refused = stage.come(made.text, "10.0.0.9:1")
        assert isinstance(refused, TidelogError) and refused.retriable
        assert "principal_max_connections" in refused.message and "alice" in refused.message
        stage.let_in(remote="10.0.0.9:1")
        image = stage.shell.cluster.image
        access = Access((of_alice(made),), (), (Quota("alice", connections=3),))
        stage.shell.cluster.update(replace(image, index=image.index + 1, access=access))
        stage.shell._changed()
        await pass_s(clock, 0.1)
        stage.let_in(made.text)
        refused = stage.come(made.text)
        assert isinstance(refused, TidelogError) and "its quota is 3" in refused.message

    played(act, principal_max_connections=2)


def test_strangers_are_one_principal_where_rules_are_heeded() -> None:
    """Otherwise a stranger would get the share of a principal with each connection."""

    async def tenants(stage: Stage, count: int) -> None:
        links = [stage.let_in(remote=f"10.0.0.{n}:1") for n in range(5)]
        assert len({stage.shell._tenants[link.source] for link in links}) == count

    async def one(stage: Stage, clock: MockClock) -> None:
        await tenants(stage, 1)

    async def each(stage: Stage, clock: MockClock) -> None:
        await tenants(stage, 5)

    played(one, Authorizer(AuthorizerSettings(authorization=True)))
    played(each)


def test_malformed_requests_use_up_the_quota() -> None:
    async def act(stage: Stage, clock: MockClock) -> None:
        link, image = stage.let_in(), stage.shell.cluster.image
        access = Access(quotas=(Quota("anonymous", requests_s=10),))
        stage.shell.cluster.update(replace(image, index=image.index + 1, access=access))
        stage.shell._changed()
        await pass_s(clock, 0.1)
        forged = DeleteGroup("billing\x1b[2K")
        codes = [stage.try_to_send(link, forged) for _ in range(100)]
        assert codes == ["MALFORMED"] * 10 + ["QUOTA_EXCEEDED"] * 90
        assert stage.try_to_send(link, DeleteGroup("billing")) == "QUOTA_EXCEEDED"
        await pass_s(clock, 1.0)
        assert stage.try_to_send(link, DeleteGroup("billing")) == ""

    played(act)


@pytest.mark.parametrize("step", ["_quota_enforcer.on_close", "_shell.on_close", "_shell.router.on_link_closed"])
def test_a_fault_in_one_step_of_a_connections_end_leaves_nothing_of_it(step: str) -> None:
    """Otherwise connections that end so would be counted for ever, and nobody of that address could come in."""

    def fail(*_: object) -> None:
        raise RuntimeError("a bug of ours")

    async def act(stage: Stage, clock: MockClock) -> None:
        link = stage.let_in()
        *owners, name = step.split(".")
        owner: Any = stage.door
        for each in owners:
            owner = getattr(owner, each)
        whole = getattr(owner, name)
        setattr(owner, name, fail)
        with pytest.raises(RuntimeError):
            stage.door.on_close(link)  # type: ignore[arg-type]
        setattr(owner, name, whole)
        shell = stage.shell
        assert stage.closed == [link] and not stage.door._addresses and not stage.door._clients
        left = [shell.links, shell._requests, shell._tenants] if step != "_shell.on_close" else []
        assert not any(left)
        if step != "_quota_enforcer.on_close":
            assert not stage.door._quota_enforcer._principals

    played(act)


# --- what is audited -----------------------------------------------------------------------------------------


def test_logins_are_audited_where_that_is_configured() -> None:
    async def act(stage: Stage, clock: MockClock) -> None:
        stage.let_in()
        wanted = {"event": "login", "principal": "anonymous", "remote": "10.0.0.9:40000", "name": "app"}
        told = stage.told()
        assert ([wanted] if stage.door._settings.audit_logins else []) == [
            {name: event[name] for name in wanted} for event in told
        ]

    played(act, audit_logins=True)
    played(act)


RESET = CommitOffsets("billing", (GroupPosition("t", 0, 7),))
END = EndTransaction("shop", 7, 0, False)


def test_positions_set_from_outside_a_group_are_audited() -> None:
    async def act(stage: Stage, clock: MockClock) -> None:
        link = stage.let_in()
        stage.send(link, RESET, replace(RESET, member="m1", generation=1))
        [told] = stage.told()
        assert (told["event"], told["op"], told["outcome"]) == ("change", "commit_offsets", "done")
        assert told["request"]["group"] == "billing" and told["principal"] == "anonymous"
        stage.send(link, replace(RESET, transaction="shop"))
        [told] = stage.told()
        assert told["request"]["transaction"] == "shop", "also as a part of a transaction of its own"

    played(act)


def test_a_transaction_that_another_ends_is_audited_and_ones_own_is_not() -> None:
    keys = (TicketKey(1, "ab" * 32),)

    async def act(stage: Stage, clock: MockClock) -> None:
        image = stage.shell.cluster.image
        stage.shell.cluster.update(replace(image, level=TICKETS, ticket_keys=keys))
        owner, other = stage.let_in(), stage.let_in()
        ticket = sign(keys, 7, 1, 0, "anonymous")
        stage.send(owner, UseProducer(7, 0, ticket), END, replace(END, commit=True))
        assert stage.told() == []
        stage.send(other, END)
        assert [event["op"] for event in stage.told()] == ["end_transaction"]

    played(act)


def test_fencing_the_transaction_of_another_is_audited() -> None:
    async def act(stage: Stage, clock: MockClock) -> None:
        owner, other = stage.let_in(), stage.let_in()

        def begin(link: FakeLink, epoch: int) -> list[str]:
            stage.answer = TransactionBegun(7, epoch)
            stage.send(link, BeginTransaction("shop", f"owner-{epoch}"))
            stage.journal.on_interval(0)
            return [event["op"] for event in stage.told()]

        assert begin(owner, 0) == begin(owner, 1) == begin(owner, 1) == []
        assert begin(other, 2) == ["begin_transaction"]
        assert begin(other, 3) == []
        assert begin(owner, 4) == ["begin_transaction"]
        stage.journal.on_interval(0)
        stage.answer = refuse("TRANSACTION_ENDING", "the other one is aborted, and not at its end yet")
        stage.send(other, BeginTransaction("shop", "x"))
        assert [event["outcome"] for event in stage.told()] == ["TRANSACTION_ENDING"]
        stage.answer = TransactionBegun(9, 0)
        stage.send(other, *(BeginTransaction("batch", "x", staged=f"s{n}") for n in range(2 * OWN)))
        assert stage.told() == []
        assert max(map(len, stage.door._transactions._begun.values())) == OWN
        stage.door.on_close(other)  # type: ignore[arg-type]
        stage.door.on_close(owner)  # type: ignore[arg-type]
        assert not stage.door._transactions._begun

    played(act)


def test_ending_or_fencing_transactions_that_others_staged_is_audited() -> None:
    keys = (TicketKey(1, "ab" * 32),)

    async def act(stage: Stage, clock: MockClock) -> None:
        image = stage.shell.cluster.image
        stage.shell.cluster.update(replace(image, level=TICKETS, ticket_keys=keys))
        link = stage.let_in()
        for request in (
            AbortStaged("shop", ("s1",)),
            CommitStaged("shop", 7, ("s1",), alone=True),
            InitTaskProducer("shop", "checkpoint", 8, 0),
            PrepareTransaction("shop", 7, 0),
            END,
        ):
            stage.send(link, request)
            assert [event["op"] for event in stage.told()] == [request.OP]
        stage.answer = TransactionBegun(7, 0)
        stage.send(link, BeginTransaction("shop", "x", staged="s1"), PrepareTransaction("shop", 7, 0), END)
        assert stage.told() == [], "its own, though no ticket was presented yet"

    played(act)


def test_a_flood_of_audit_events_hides_no_other_event() -> None:
    one = AuditEvents("g1/ab", "g1", 20, 0.0)
    mallory = {"principal": "mallory", "remote": "10.0.0.9:40000"}
    for _ in range(10_000):
        one.on_minor_change(mallory, RESET, Done(), 0)
        one.on_login(mallory, 0)
    one.on_minor_change(mallory, replace(RESET, group="orders"), Done(), 0)
    one.on_minor_change({"principal": "alice"}, RESET, Done(), 0)
    one.on_failure("denied", {"principal": "bob"}, "produce", "no", 0.0, 0)
    one.on_change({"principal": "admin"}, DeleteGroup("billing"), Done(), 0.0, 0)
    told = [json.loads(record.value or b"") for record in one.next_batch()]
    assert [event["principal"] for event in told] == ["admin", *["mallory"] * 3, "alice", "bob"]


def test_a_change_that_cannot_be_audited_is_refused() -> None:
    async def act(stage: Stage, clock: MockClock) -> None:
        link = stage.let_in()
        outcomes = [stage.try_to_send(link, replace(RESET, group=f"g{n}")) for n in range(MOST_KEYS)]
        told = 0
        while more := len(stage.told()):
            told += more
        assert 0 < told < MOST_KEYS
        assert outcomes == [""] * told + ["QUOTA_EXCEEDED"] * (MOST_KEYS - told)
        assert stage.try_to_send(link, LeaveGroup("billing", "m1")) == "QUOTA_EXCEEDED"
        assert stage.try_to_send(link, replace(RESET, group="billing", member="m1")) == ""
        assert stage.told() == []

    played(act)
