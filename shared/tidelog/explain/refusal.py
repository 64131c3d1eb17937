"""Why a request was refused: which facts decided, by the id that the error shows.

A gateway keeps the last refusals of each principal in memory. The id names the gateway, so if the client is connected
to another one, that gateway is asked.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.errors import CODES, TidelogError
from tidelog.explain.explanation import Explanation, iso, moment, span
from tidelog.quantities import counted

if TYPE_CHECKING:
    from tidelog.client.log import Log
    from tidelog.wire.messages import Refusal

HIDDEN = "Its message and facts are not shown: that takes the right to describe the topic that it is about."
"""Sentence about a refusal of another principal whose topic the client may not describe."""
Connect = Callable[[str], "AbstractAsyncContextManager[Log]"]
"""Function that opens a client of the gateway with a URL."""


@dataclass(frozen=True, slots=True)
class RefusalEvidence:
    """What the gateways kept of a refusal. ``gateway``: the one that the id
    names; ``trouble``: why that one could not be asked, "" if it could."""

    error_id: str
    gateway: str
    refusal: Refusal | None = None
    trouble: str = ""


async def why_refusal(log: Log, error_id: str, connect: Connect | None = None) -> Explanation:
    """Explain the refusal with this id. ``connect``: see ``Connect``; None: only the gateway of this client is
    asked."""
    return explain_refusal(await ask_refusal(log, error_id, connect))


async def ask_refusal(log: Log, error_id: str, connect: Connect | None = None) -> RefusalEvidence:
    """Ask the gateway of this client for a refusal and, if it has none of that id, the gateway that the id names."""
    gateway = error_id.rsplit("-", 2)[0]
    found = await log.cluster.refusal(error_id)
    if found is not None or connect is None:
        return RefusalEvidence(error_id, gateway, found)
    url = next((one.url for one in await log.cluster.gateways() if one.node == gateway), "")
    if not url:
        return RefusalEvidence(error_id, gateway)
    try:
        async with connect(url) as other:
            return RefusalEvidence(error_id, gateway, await other.cluster.refusal(error_id))
    except TidelogError as error:
        return RefusalEvidence(error_id, gateway, trouble=str(error))


def explain_refusal(evidence: RefusalEvidence) -> Explanation:
    """Return the explanation of a refusal from what the gateways kept of it."""
    one = evidence.refusal
    if one is None:
        unknown = [f"Gateway {evidence.gateway} could not be asked: {evidence.trouble}"] if evidence.trouble else []
        text = f"No refusal {evidence.error_id} is kept that you may see"
        why = (
            f"{text}: gateway {evidence.gateway} keeps the last 64 of each principal, until it ends, and shows them"
            " to that principal and to those who may describe the cluster."
        )
        return Explanation("refusal", evidence.error_id, (why,), {}, tuple(unknown))
    who = one.principal or "a client without credentials"
    program = f" ({one.program})" if one.program else ""
    head = f"At {moment(one.time_ms)} gateway {evidence.gateway} refused {one.op or 'a request'} of {who}{program}"
    meaning = CODES[one.code].text if one.code in CODES else "not known to this release"
    sentences = [
        f"{head}, from {one.remote}: {one.code}.",
        f"{one.code} means: {meaning}.",
        f"The message: {one.message}" if one.message else HIDDEN,
        *_deciding(one),
    ]
    return Explanation("refusal", evidence.error_id, tuple(sentences), _facts(one), (), _steps(one))


def _deciding(one: Refusal) -> list[str]:
    """Return sentences about the facts that decided."""
    detail, facts = one.detail, one.facts
    place = f"{facts['topic']}/{facts['partition']}" if {"topic", "partition"} <= facts.keys() else ""
    words = []
    match one.code:
        case "FORBIDDEN" if "operation" in detail:
            rule = f"'allow {detail.get('principal')} {detail['operation']} {detail.get('resource')}'"
            words.append(f"The rule that is missing: {rule}.")
        case "QUOTA_EXCEEDED" if "pause_ms" in detail:
            rate = detail.get("rate", "connections")
            words.append(f"The quota of {rate} was used up, and {span(int(detail['pause_ms']))} had to pass.")
        case "NOT_ENOUGH_REPLICAS":
            in_sync = facts.get("isr", "").split()
            words.append(
                f"{place or 'The partition'} had {counted(len(in_sync), 'replica')} in sync ({', '.join(in_sync)})"
                f" and needed {facts.get('min_insync_replicas', 'more')} (min_insync_replicas)."
                if in_sync
                else f"In sync were {detail.get('in_sync', 'too few')} replicas."
            )
        case "BATCH_TOO_LARGE" if "max_batch_bytes" in facts:
            words.append(f"The topic takes batches of at most {facts['max_batch_bytes']} bytes (max_batch_bytes).")
        case "LIMIT_EXCEEDED" if "bound" in detail:
            words.append(f"The bound of {detail['bound']} is set by {detail.get('setting', 'a setting')}.")
        case "OVERLOADED" | "UNAUTHENTICATED" | "MALFORMED":
            pass
    if place and one.code not in ("FORBIDDEN", "QUOTA_EXCEEDED", "BATCH_TOO_LARGE"):
        leader = facts.get("leader") or "nobody"
        words.append(
            f"The gateway then knew {leader} as leader of {place}, in leader epoch {facts.get('leader_epoch')}, with"
            f" {facts.get('isr') or 'nobody'} in sync."
        )
    return words


def _steps(one: Refusal) -> tuple[str, ...]:
    """Return what to do about a refusal."""
    detail, facts = one.detail, one.facts
    place = f"{facts['topic']}/{facts['partition']}" if {"topic", "partition"} <= facts.keys() else "TOPIC/PARTITION"
    match one.code:
        case "FORBIDDEN" if "operation" in detail:
            right = shlex.join((detail.get("principal", ""), detail["operation"], detail.get("resource", "")))
            return (f"'tidelog acls add {right}' allows it, if nothing denies it.",)
        case "QUOTA_EXCEEDED":
            return ("'tidelog quotas list' shows the quotas; 'tidelog quotas set' raises one.",)
        case "NOT_ENOUGH_REPLICAS" | "NOT_LEADER" | "OFFLINE" | "REQUEST_TIMED_OUT":
            return (f"'tidelog why {place}' shows how the partition came to that.",)
        case "UNAUTHENTICATED":
            return ("'tidelog tokens list' shows which tokens there are; docs/security.md, Who is who.",)
    if one.code in CODES and CODES[one.code].retriable:
        return ("The same request may succeed later: the clients repeat it until their time-out.",)
    return ()


def _facts(one: Refusal) -> dict[str, Any]:
    """Return the evidence as values that JSON has."""
    return {
        "error_id": one.error_id,
        "time": iso(one.time_ms),
        "op": one.op,
        "code": one.code,
        "message": one.message,
        "principal": one.principal,
        "remote": one.remote,
        "program": one.program,
        "detail": dict(one.detail),
        "facts": dict(one.facts),
    }
