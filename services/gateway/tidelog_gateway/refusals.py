"""The last refusals of a gateway: each error that a client gets has an id, under which the evidence is kept.

An id is the name of the gateway, the time at which the gateway was started, and 64 random bits:
``g1-692b1c40-9f86d081884c7d65``. So a client cannot guess the ids of others; clients without a name share a
principal. A client shows the id with the error, and ``tidelog why ID`` asks for what is kept: when, who, which
request, and the facts that decided. The facts are the details of the error and what the gateway knew of the partition
at that moment.

Nothing is written, and a request that is not refused costs nothing. Of each principal the last ``EACH`` refusals are
kept, of the ``PRINCIPALS`` principals that were refused last. So no client can push out the refusals of another by
refusals of its own. Clients without a name of their own count together.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, deque
from collections.abc import Callable

from tidelog.errors import TidelogError, from_info
from tidelog.types import PartitionState, TopicState
from tidelog.wire.messages import ErrorInfo, Hello, Message, ProducePart, Refusal

from tidelog_gateway.client_link import ClientLink
from tidelog_gateway.cluster_view import ClusterView

NamesError = Callable[[int, str, ProducePart | Message | None, ErrorInfo], ErrorInfo]
"""Function by which a core has an error named: it gets the client's number, the op, the request or batch and the
error, and returns the error with its id."""


def keep_error(source: int, op: str, request: ProducePart | Message | None, error: ErrorInfo) -> ErrorInfo:
    """Return the error unchanged: a core of its own, as in tests, names no errors."""
    return error


EACH = 64
"""Refusals that are kept of one principal."""
PRINCIPALS = 64
"""Principals whose refusals are kept."""
ID_BITS = 64
"""Random bits of an id."""
MAX_TEXT = 500
"""Characters of a text that are kept."""
NAMES = ("name", "topic_id", "partition", "offset", "group", "member", "app", "transaction", "path", "node", "at")
"""Fields of requests that are kept with a refusal: what the request was about."""


@dataclasses.dataclass(frozen=True, slots=True)
class Asker:
    """The client that a refusal went to."""

    principal: str
    remote: str
    program: str


def asker_of(link: ClientLink, principal: str) -> Asker:
    """Return the client at the other end of a link, as a refusal names it."""
    program = link.peer.node if isinstance(link.peer, Hello) else ""
    return Asker(principal, link.remote, program)


class Refusals:
    """The refusals of one gateway that are kept in memory. ``wall_ms`` returns the wall clock in milliseconds since
    1970, ``random_bits`` a number of so many random bits."""

    def __init__(
        self, node: str, cluster: ClusterView, wall_ms: Callable[[], int], random_bits: Callable[[int], int]
    ) -> None:
        self._cluster = cluster
        self._wall_ms = wall_ms
        self._prefix = f"{node}-{wall_ms() // 1000 & 0xFFFFFFFF:08x}"
        self._random_bits = random_bits
        self._kept: OrderedDict[str, deque[Refusal]] = OrderedDict()
        """The refusals of each principal, the principal that was refused last at the end."""

    def name_error(
        self, asker: Asker, op: str, request: Message | ProducePart | None, error: TidelogError
    ) -> TidelogError:
        """Keep the refusal of a request, and return the error with its id: another object, since many clients may get
        the same error. An error that has an id already is returned as it is."""
        if error.id:
            return error
        info = self.name_info(asker, op, request, error.to_info())
        named = from_info(info)
        named.detail = dict(error.detail)
        return named

    def name_info(self, asker: Asker, op: str, request: Message | ProducePart | None, info: ErrorInfo) -> ErrorInfo:
        """Keep the refusal of a request or batch, and return the error with its id, as it travels."""
        if info.id:
            return info
        id = f"{self._prefix}-{self._random_bits(ID_BITS):016x}"
        facts = {**_named(request), **self._partition_facts(request)}
        refusal = Refusal(
            id,
            self._wall_ms(),
            op,
            info.code,
            info.message[:MAX_TEXT],
            asker.principal,
            asker.remote,
            asker.program[:MAX_TEXT],
            {key: text[:MAX_TEXT] for key, text in info.detail.items()},
            {key: text[:MAX_TEXT] for key, text in facts.items()},
        )
        kept = self._kept.setdefault(asker.principal, deque(maxlen=EACH))
        self._kept.move_to_end(asker.principal)
        kept.append(refusal)
        if len(self._kept) > PRINCIPALS:
            self._kept.popitem(last=False)
        return dataclasses.replace(info, id=id)

    def find(self, id: str, principal: str, *, sees_all: bool) -> Refusal | None:
        """Return the refusal with this id if it went to this principal, or if the principal ``sees_all``; None if it
        did not, or is not kept."""
        places = self._kept.values() if sees_all else (self._kept.get(principal, ()),)
        return next((one for kept in places for one in kept if one.error_id == id), None)

    def _partition_facts(self, request: Message | ProducePart | None) -> dict[str, str]:
        """Return what the gateway knows now of the topic or partition that a request names, as texts by name."""
        topic_id, number = getattr(request, "topic_id", ""), getattr(request, "partition", -1)
        topic = self._cluster.topic(topic_id) if topic_id else None
        if topic is None:
            return {}
        state = self._cluster.state(topic_id, number)
        return {"topic": topic.name, **_limits(topic), **(_state(state) if state is not None else {})}


def shown_to(refusal: Refusal, principal: str, sees_topic: Callable[[str], bool]) -> Refusal:
    """Return a refusal as ``principal`` may see it. If it may not describe the topic that the refusal is about, it
    gets the refusal without what the gateway knew of the topic: then the refusal itself does not tell that there is
    such a topic. If the refusal went to another principal, message, detail and all facts are left out, too, since
    they may quote what is in the topic."""
    if all(map(sees_topic, _topics_of(refusal))):
        return refusal
    if refusal.principal != principal:
        return dataclasses.replace(refusal, message="", detail={}, facts={})
    facts = {name: text for name, text in refusal.facts.items() if name in NAMES}
    return dataclasses.replace(refusal, facts=facts)


def _topics_of(refusal: Refusal) -> tuple[str, ...]:
    """Return the names of the topics that a refusal is about, "" for one that the gateway did not know."""
    facts = refusal.facts
    kind, _, resource = refusal.detail.get("resource", "").partition(":")
    names = [facts["name"]] if "name" in facts else []
    names += [facts.get("topic", "")] if "topic" in facts or "topic_id" in facts else []
    return (*names, resource) if kind == "topic" else tuple(names)


def _named(request: Message | ProducePart | None) -> dict[str, str]:
    """Return the fields of a request that say what it was about, as texts by name; empty ones are left out."""
    found = {}
    for name in NAMES:
        value = getattr(request, name, None)
        if isinstance(value, str | int) and value not in ("", -1):
            found[name] = str(value)
    return found


def _limits(topic: TopicState) -> dict[str, str]:
    """Return those settings of a topic by which batches are refused, as texts by name."""
    config = topic.config
    names = ("min_insync_replicas", "max_batch_bytes", "commit_rule")
    return {name: str(getattr(config, name)) for name in names}


def _state(state: PartitionState) -> dict[str, str]:
    """Return leader, epoch and in-sync set of a partition, as texts by name."""
    facts = {
        "leader": state.leader or "",
        "leader_epoch": str(state.leader_epoch),
        "isr": " ".join(state.isr),
        "replicas": " ".join(state.replicas),
    }
    if state.read_only:
        facts["read_only"] = "true"
    if state.paused:
        facts["paused"] = "true"
    return facts
