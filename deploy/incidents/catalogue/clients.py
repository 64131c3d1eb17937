"""Incidents of clients at a gateway: quotas, connections and tokens."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress

import trio
from incidents.incident import ClusterPlan, Incident
from incidents.stage import READERS, Stage
from tidelog.acl import id_of
from tidelog.client.log import Log
from tidelog.errors import TidelogError

AGAIN_S = 0.5
"""Seconds until a program that was refused tries again."""
CONNECT_S = 5.0
"""Seconds that a program tries to connect."""
MOST = 24
"""Connections that a gateway, or an address, may have where one of these bounds is reached: the load needs a few."""


async def _make_principal(stage: Stage, name: str, lifetime_s: float | None = None) -> str:
    """Draw a principal, make a token for it, keep both in the facts, and return the token."""
    principal = stage.facts[f"{name}.principal"] = f"{stage.random.choice(READERS)}-{name}"
    token = await stage.log.access.create_token(principal, lifetime_s)
    stage.facts[f"{name}.token"] = token
    return token


# --- quotas ------------------------------------------------------------------------------------------------------


async def use_up_quota(stage: Stage) -> None:
    """Let a program write more than the quota of its principal allows."""
    token = await _make_principal(stage, "quota")
    principal = stage.facts["quota.principal"]
    rate = stage.random.randint(2, 6) << 10
    done = await stage.tidelog("quotas", "set", principal, "--bytes-in", str(rate))
    if done.returncode:
        raise RuntimeError(done.stderr.decode())
    began = trio.Event()

    async def write() -> None:
        while True:
            with suppress(TidelogError):
                async with stage.connect(token=token) as log, log.producer(stage.other_topic) as producer:
                    while True:
                        await producer.send(b"x" * rate)
                        began.set()
            await trio.sleep(AGAIN_S)

    stage.begin("quota", write)
    await began.wait()


async def lift_quota(stage: Stage) -> None:
    """Lift the quota, and end the program."""
    await stage.tidelog("quotas", "set", stage.facts["quota.principal"], "--bytes-in", "none")
    await stage.end("quota")


# --- connections -------------------------------------------------------------------------------------------------


async def open_many(stage: Stage) -> None:
    """Let a program open connections and close none. It goes on when it is refused."""
    refused = trio.Event()

    async def leak() -> None:
        async with AsyncExitStack() as stack:
            while True:
                try:
                    log = stage.connect(connect_timeout_s=CONNECT_S, name="leaking", discover=False)
                    await stack.enter_async_context(log)
                except TidelogError:
                    refused.set()
                    await trio.sleep(AGAIN_S)

    stage.begin("leak", leak)
    await refused.wait()


async def close_all(stage: Stage) -> None:
    """End the program, and with it its connections."""
    await stage.end("leak")


# --- tokens ------------------------------------------------------------------------------------------------------


async def _connect_with(stage: Stage, token: str, accepted: trio.Event, refused: trio.Event) -> None:
    """Connect with a token, and again whenever the connection ends, as a program that is restarted does."""
    while True:
        try:
            async with stage.connect(token=token, connect_timeout_s=CONNECT_S) as log:
                accepted.set()
                await _work(log)
        except* TidelogError:
            refused.set()
        await trio.sleep(AGAIN_S)


async def _work(log: Log) -> None:
    """Ask for something again and again, until that fails."""
    while True:
        await log.topics.list()
        await trio.sleep(AGAIN_S)


async def _refused_program(stage: Stage, name: str, token: str) -> tuple[trio.Event, trio.Event]:
    """Start a program with a token. Return the events of its first acceptance and its first refusal."""
    accepted, refused = trio.Event(), trio.Event()
    stage.begin(name, lambda: _connect_with(stage, token, accepted, refused))
    await accepted.wait()
    return accepted, refused


async def revoke(stage: Stage) -> None:
    """Revoke the token of a program that goes on with it."""
    token = await _make_principal(stage, "revoked")
    _, refused = await _refused_program(stage, "revoked", token)
    await stage.log.access.revoke_token(id_of(token))
    await refused.wait()


async def end_revoked(stage: Stage) -> None:
    """End the program."""
    await stage.end("revoked")


async def let_expire(stage: Stage) -> None:
    """Give a program a token that expires while it works."""
    token = await _make_principal(stage, "expired", stage.random.uniform(3.0, 6.0))
    _, refused = await _refused_program(stage, "expired", token)
    await refused.wait()


async def end_expired(stage: Stage) -> None:
    """End the program."""
    await stage.end("expired")


FULL = "Programs cannot connect any more: OVERLOADED."
UNAUTHENTICATED = "A program that has worked for days cannot connect: UNAUTHENTICATED."
INCIDENTS = (
    Incident(
        name="quota",
        symptom="Sends take a second and more, though every process runs and every partition has a leader.",
        cause="quota-used-up",
        plant=use_up_quota,
        mend=lift_quota,
        twin="server-slow",
        strikes=frozenset({"clients"}),
        metric="tidelog_gateway_quota_refusals_total",
        alert="TidelogQuotaUsedUp",
    ),
    Incident(
        name="gateway-full",
        symptom=FULL,
        cause="gateway-full",
        plant=open_many,
        mend=close_all,
        twin="address-full",
        plan=ClusterPlan(settings={"gateway": f"client_max_connections = {MOST}"}),
        strikes=frozenset({"gateway", "clients"}),
        metric="tidelog_gateway_refused_connections_total",
        alert="TidelogConnectionsRefused",
    ),
    Incident(
        name="address-full",
        symptom=FULL,
        cause="address-connections-used-up",
        plant=open_many,
        mend=close_all,
        plan=ClusterPlan(settings={"gateway": f"address_max_connections = {MOST}"}),
        strikes=frozenset({"gateway", "clients"}),
        metric="tidelog_gateway_refused_connections_total",
        alert="TidelogConnectionsRefused",
    ),
    Incident(
        name="token-revoked",
        symptom=UNAUTHENTICATED,
        cause="token-revoked",
        plant=revoke,
        mend=end_revoked,
        twin="token-expired",
        strikes=frozenset({"tokens"}),
        metric="tidelog_gateway_refused_connections_total",
        alert="TidelogTokensRefused",
    ),
    Incident(
        name="token-expired",
        symptom=UNAUTHENTICATED,
        cause="token-expired",
        plant=let_expire,
        mend=end_expired,
        strikes=frozenset({"tokens"}),
        metric="tidelog_gateway_refused_connections_total",
        alert="TidelogTokensRefused",
    ),
)
