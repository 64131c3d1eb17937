"""The gateway's door: who must go, and when; who is let in, and how often that is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import trio
import trio.testing
from tidelog.access import NewToken, new_token
from tidelog.errors import TidelogError
from tidelog.link import PROTOCOL_VERSION
from tidelog.types import Access, ClusterImage, Token
from tidelog.websocket import WebSocketTransport
from tidelog.wire.messages import Hello
from tidelog_gateway.audit import Audit
from tidelog_gateway.core.guard import Client, Guard, GuardSettings
from tidelog_gateway.core.settings import RouterSettings, SubscriptionSettings
from tidelog_gateway.door import Door
from tidelog_gateway.leaving import Leaving
from tidelog_gateway.shell import Shell
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

    def close(self, code: int, reason: str) -> None:
        assert code == 1008
        self.ended, self.reason = trio.current_time(), reason


class Stage:
    """A door whose wall clock goes with trio's."""

    def __init__(self, shell: Shell, guard: Guard, **settings: Any) -> None:
        self.shell = shell
        audit, leaving = Audit(shell, None, wall_ms), Leaving(shell)
        bounds = {"client_max_connections": 4000} | settings
        self.door = Door(shell, None, guard, audit, wall_ms, leaving, **bounds)  # type: ignore[arg-type]

    def come(self, token: str = "", remote: str = "10.0.0.9:40000") -> FakeLink | TidelogError:
        hello = Hello(PROTOCOL_VERSION, "client", "app", token=token)
        link = FakeLink(hello, remote)
        refusal = self.door.authenticate(hello, link)  # type: ignore[arg-type]
        if refusal is not None:
            return refusal
        self.door.on_open(link)  # type: ignore[arg-type]
        return link

    def let_in(self, token: str = "", remote: str = "10.0.0.9:40000") -> FakeLink:
        link = self.come(token, remote)
        assert isinstance(link, FakeLink), link
        return link

    def tell(self, *tokens: Token) -> None:
        """The metadata has these tokens."""
        image = self.shell.cluster.image
        self.shell.cluster.update(replace(image, index=image.index + 1, access=Access(tokens)))
        self.shell._changed()


def wall_ms() -> int:
    return round(trio.current_time() * 1000)


def played(act: Callable[[Stage, MockClock], Awaitable[None]], guard: Guard | None = None, **settings: Any) -> None:
    """With a door that runs, and a clock that stands still."""
    clock = MockClock()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            hello = Hello(PROTOCOL_VERSION, "gateway", "g1")
            bounds = RouterSettings(), SubscriptionSettings()
            shell = Shell(WebSocketTransport(), hello, (), *bounds, trio.current_time, nursery)
            shell.cluster.update(ClusterImage(1, "test", ()))
            stage = Stage(shell, guard or Guard(GuardSettings()), **settings)
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


def test_a_token_of_an_issuer_that_expires_ends_its_connections_at_that_moment() -> None:
    class Known:
        def recognize(self, token: str, wall_ms: int) -> Client:
            return Client(f"oidc-{token[0]}", expires_ms=wall_ms + int(token.split(".")[1]))

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

    played(act, Guard(GuardSettings(), Known()))
