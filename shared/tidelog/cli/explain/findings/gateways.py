"""Findings about gateways and their clients: quotas that are used up, and connections that are refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidelog.cli.explain.findings.finding import MOST_NAMED, PROBLEM, WARNING, Finding
from tidelog.cli.explain.gateway_looks import GatewayLook
from tidelog.errors import TidelogError
from tidelog.quantities import counted
from tidelog.wire.messages import RefusedClient

RECENT_MS = 30_000
"""Milliseconds after its last refusal for which a refused client is reported."""
_QUOTA = {
    "bytes_in_s": ("sends more than", "--bytes-in"),
    "bytes_out_s": ("reads more than", "--bytes-out"),
    "requests_s": ("asks more often than", "--requests"),
    "connections": ("opens more connections than", "--connections"),
}
"""By rate of a quota: what the principal does, and the option of 'tidelog quotas set'."""
_TOKENS = {
    "token_revoked": (
        "token-revoked",
        "still shows the token {token} of {principal}, which was revoked",
        "Give that client a new token ('tidelog tokens create {principal}') or end it; if nobody knows it, somebody"
        " has found the token.",
    ),
    "token_expired": (
        "token-expired",
        "shows the token {token} of {principal}, which has expired",
        "'tidelog tokens create {principal}' makes a new one; give it to that client.",
    ),
    "token_unknown": (
        "token-unknown",
        "shows a token that this cluster does not have: it was revoked before the gateway started, or is of another"
        " cluster",
        "'tidelog tokens list' shows those that there are; find out where that client has its token from.",
    ),
}
"""By cause of a refusal: the code of the finding, what the client does, and the next step."""


def examine_gateways(looks: Sequence[GatewayLook]) -> Iterator[Finding]:
    """Yield findings about the clients of each gateway that had to wait, or were refused lately."""
    for look in looks:
        yield from _quotas(look)
        recent = [one for one in look.refused if look.now_ms - one.last_ms <= RECENT_MS]
        yield from _full(look, recent)
        for cause in _TOKENS:
            rows = [one for one in recent if one.cause == cause]
            for token in dict.fromkeys(one.token for one in rows):
                yield _of_token(look, [one for one in rows if one.token == token])


def _quotas(look: GatewayLook) -> Iterator[Finding]:
    """Yield a finding for each principal and rate whose quota is used up."""
    for one in look.used:
        does, option = _QUOTA.get(one.rate, ("exceeds", ""))
        what = (
            f"{one.principal} {does} its quota of {one.rate} allows: {look.name} lets it wait, so it is slow without"
            " an error"
        )
        step = (
            f"'tidelog quotas list' shows the quota; raise it ('tidelog quotas set {one.principal} {option} …'), or"
            f" let {one.principal} do less. Each gateway counts for itself: more gateways allow more."
        )
        waits = f", and the next must wait {one.pause_s:.1f} s" if one.pause_s else ""
        evidence = f"Requests and batches had to wait {counted(one.times, 'time')} within {one.seconds:.0f} s{waits}."
        yield Finding(WARNING, what, step, "quota-used-up", (one.principal, look.name), evidence)


def _full(look: GatewayLook, recent: Sequence[RefusedClient]) -> Iterator[Finding]:
    """Yield a finding if the gateway refused clients since it was full, and one for each address or principal that
    has as many connections as it may have."""
    rows = [one for one in recent if one.cause == "gateway_full"]
    if rows:
        yield _gateway_full(look, f"It refused {_clients(look, rows)}.")
    elif 0 <= look.limit < look.connections:  # with this command, which it has let in all the same
        yield _gateway_full(look, "This command has a connection that is reserved for operators.")
    for cause in ("address_full", "principal_full"):
        rows = [one for one in recent if one.cause == cause]
        for who in dict.fromkeys(one.address if cause == "address_full" else one.principal for one in rows):
            its = [one for one in rows if who in (one.address, one.principal)]
            yield _one_has_all(cause, look, who, f"It refused {_clients(look, its)}.")


def _gateway_full(look: GatewayLook, evidence: str) -> Finding:
    """Return the finding for a gateway that has as many clients as it may have."""
    limit = f" (client_max_connections = {look.limit})" if look.limit >= 0 else ""
    what = f"gateway {look.name} is full: it takes no more clients{limit}"
    step = "Start another gateway and name it to clients, end clients that are not needed, or raise that setting."
    return Finding(PROBLEM, what, step, "gateway-full", (look.name,), f"{evidence}{_holders(look)}")


def _one_has_all(cause: str, look: GatewayLook, who: str, evidence: str) -> Finding:
    """Return the finding for an address or principal that has as many connections as one may have."""
    if cause == "address_full":
        what = f"the address {who} has as many connections to gateway {look.name} as one address may have"
        step = (
            "Find the program there that opens connections and does not close them, or raise address_max_connections."
        )
        return Finding(
            PROBLEM, what, step, "address-connections-used-up", (look.name, who), evidence + _holders(look)
        )
    what = f"{who} has as many connections to gateway {look.name} as one principal may have"
    step = "Find its program that does not close connections, or raise its quota: 'tidelog quotas set'."
    return Finding(PROBLEM, what, step, "principal-connections-used-up", (look.name, who), evidence)


def _holders(look: GatewayLook) -> str:
    """Return in words who has the connections, after a space; "" if that is not known."""
    if not look.principals:
        return ""
    named = ", ".join(f"{principal} {number}" for principal, number in look.principals)
    return f" {look.connections} are connected: {named}."


def _of_token(look: GatewayLook, rows: Sequence[RefusedClient]) -> Finding:
    """Return the finding for clients that show the same token, which is not valid."""
    code, does, step = _TOKENS[rows[0].cause]
    names = {"token": rows[0].token, "principal": rows[0].principal}
    what = f"a client at {', '.join(dict.fromkeys(one.address for one in rows))} {does.format(**names)}"
    about = tuple(filter(None, (look.name, rows[0].principal)))
    evidence = f"Gateway {look.name} refused {_clients(look, rows)}."
    return Finding(WARNING, what, step.format(**names), code, about, evidence)


def _clients(look: GatewayLook, rows: Sequence[RefusedClient]) -> str:
    """Return in words how often which clients were refused, as evidence."""
    times = sum(one.times for one in rows)
    last_s = (look.now_ms - max(one.last_ms for one in rows)) / 1000
    named = ", ".join(dict.fromkeys(f"{one.name or 'a client'} at {one.address}" for one in rows[-MOST_NAMED:]))
    return f"{counted(times, 'connection')} within the last minute, the last {last_s:.0f} s ago: {named}"


def examine_refusal(look: GatewayLook, error: TidelogError) -> Finding | None:
    """Return the finding for a gateway that refuses this very client; None if the error does not say why. ``look``
    has what is known of the gateway's connections."""
    cause = str(error.detail.get("cause", ""))
    evidence = "It refused this command, too."
    if cause == "gateway_full":
        return _gateway_full(look, evidence)
    if cause == "address_full":
        return _one_has_all(cause, look, "of this command", evidence)
    return None
