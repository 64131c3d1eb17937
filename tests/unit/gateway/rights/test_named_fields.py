"""Every field of the client plane that holds text is covered by a rule, or names nothing; the rules are heeded."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from tidelog.errors import TidelogError
from tidelog.types import Access, Acl, ClusterImage, PartitionState, ServerState, TopicState
from tidelog.wire import codec
from tidelog.wire.codec import OPS
from tidelog.wire.fields import hints, optional_of
from tidelog.wire.messages import (
    Delivery,
    Digest,
    GroupInfo,
    GroupPosition,
    Hello,
    ListGroupsAnswer,
    ListTransactions,
    Message,
    Metadata,
    MetadataAnswer,
    Produce,
    Produced,
    ReadCopy,
    TransactionEnded,
)
from tidelog_gateway.clients.connections import ClientConnections, ClientView
from tidelog_gateway.cluster_view import ClusterView
from tidelog_gateway.refusals import Refusals
from tidelog_gateway.requests.metadata_answers import MetadataAnswers
from tidelog_gateway.rights.authorizer import Authorizer, AuthorizerSettings, ClientIdentity
from tidelog_gateway.rights.named_fields import FIELD_RULES
from tidelog_gateway.server import CLIENT_OPS
from tidelog_gateway.settings import ConnectionSettings

from unit.tidelog.wire.test_cddl import example

TOPIC, TOPIC_ID, SERVER = "secret", "id-secret", "server-9"
KINDS = {"topic": "topic:*", "group": "group:*", "app": "app:*", "stream": "stream:*", "cluster": "cluster"}
COPIES = (Digest, ReadCopy)
BY_REQUEST = {kind.ANSWER.__name__: kind for op in CLIENT_OPS if (kind := OPS[op]).ANSWER is not None}
"""The request of an answer; of those with one answer any will do."""
PUSHED = (Produced, Delivery)
REFUSALS = ("FORBIDDEN", "UNKNOWN_TOPIC", "NOT_REPLICA")


def kinds() -> Iterator[type]:
    """All classes of messages that pass between a client and a gateway."""
    found = dict.fromkeys([Hello, Hello.ANSWER, *PUSHED])
    for op in sorted(CLIENT_OPS):
        found |= dict.fromkeys([OPS[op], OPS[op].ANSWER])
    return filter(None, found)


def texts(cls: type, path: str) -> Iterator[str]:
    """The fields that hold text, those of parts included."""
    for name, hint in hints(cls).items():
        hint = optional_of(hint) or hint
        while typing.get_origin(hint) is tuple:
            hint = typing.get_args(hint)[0]
        if hint is str or hint == dict[str, str]:
            yield f"{path}.{name}"
        elif dataclasses.is_dataclass(hint):
            assert isinstance(hint, type)
            yield from texts(hint, f"{path}.{name}")


FIELDS = [field for kind in kinds() for field in texts(kind, kind.__name__)]
RIGHTS = {field: row.right for row in FIELD_RULES if row.right for field in row.fields}


def test_every_field_that_holds_text_has_one_row_and_every_row_is_about_such_fields() -> None:
    listed = [field for row in FIELD_RULES for field in row.fields]
    assert len(set(listed)) == len(listed), "in one row only"
    assert sorted(set(FIELDS) - set(listed)) == [], "no rule covers these: say in named_fields.py which does"
    assert sorted(set(listed) - set(FIELDS)) == [], "there are no such fields"


def test_a_field_rule_with_a_name_has_a_right() -> None:
    for row in FIELD_RULES:
        assert row.names in ("topic", "group", "application", "stream", "principal", "server", "")
        assert bool(row.names) == bool(row.right), "what names nothing takes nothing"
        assert row.names or row.why
        assert not row.right or row.right.split(" ")[1] in KINDS


# --- the checks ----------------------------------------------------------------------------------------------


def filled(value: Any, words: dict[str, str]) -> Any:
    """Return the value with these words in the fields of these names, and topic and server where those are named."""
    if isinstance(value, tuple):
        return tuple(filled(one, words) for one in value)
    if not dataclasses.is_dataclass(value):
        return value
    made = {}
    for field in dataclasses.fields(value):
        held = getattr(value, field.name)
        word = words.get(field.name)
        if word is None:
            made[field.name] = 0 if field.name in ("partition", "partitions") else filled(held, words)
            if field.name == "partitions" and isinstance(held, tuple):
                made[field.name] = (0,) if not held or isinstance(held[0], int) else filled(held, words)
        elif isinstance(held, tuple):
            made[field.name] = (word,)
        else:
            made[field.name] = {"asked_by": word} if isinstance(held, dict) else word
    return dataclasses.replace(value, **made)


WORDS = {"topic_id": TOPIC_ID, "topics": TOPIC, "topic": TOPIC, "evidence": "alice at 10.0.0.1:1"}
WORDS |= {"gateway_urls": "ws://g1"}
"""Examples name a topic that there is."""


def message(kind: type, field: str) -> Any:
    """One that names something there."""
    words = dict(WORDS)
    if kind.__name__ in ("MetadataAnswer", "Produce"):
        words.pop("topics")
    if kind in COPIES:
        words["node"] = SERVER if field.endswith(".node") else "r1"
    made = filled(example(kind, full=True), words)
    if isinstance(made, Produce):
        parts = tuple(dataclasses.replace(p, size=1, acks=2) for p in made.parts)
        if field.endswith("topic_id"):
            parts = tuple(dataclasses.replace(p, transaction="") for p in parts)
        made = dataclasses.replace(made, parts=parts, payload=b"x" * len(parts))
    if field == "CommitOffsets.positions.topic_id":
        made = dataclasses.replace(made, transaction="")
    return made


def values(value: Any, path: list[str]) -> Iterator[Any]:
    """What stands in a field."""
    if isinstance(value, tuple):
        for one in value:
            yield from values(one, path)
    elif path and value is not None:
        yield from values(getattr(value, path[0]), path[1:])
    elif value and value != {"a": "b"}:
        yield value


class End:
    """The gateway's end of a client's link; notes the codes of acks that refuse."""

    remote, sent_bytes, source = "", 0, 1
    peer = Hello(1, "client", "app")

    def __init__(self, refused: list[str]) -> None:
        self._refused = refused

    def post(self, message: Produced) -> None:
        self._refused += [ack.error.code for ack in message.acks if ack.error is not None]

    def answer(self, id: int, answer: object) -> None:
        pass


class Gateway:
    """The real door before requests that only note what comes through."""

    def __init__(self, *rights: str) -> None:
        state = PartitionState(("r1",), ("r1",), "r1", 1, 1)
        topics = (TopicState(TOPIC_ID, TOPIC, partitions=(state,)),)
        self.cluster = ClusterView()
        self.cluster.update(ClusterImage(1, "c", (ServerState("r1", "ws://r1", 1, False),), topics))
        self.guard = Authorizer(AuthorizerSettings(authorization=True))
        self.guard.update(Access(acls=tuple(Acl("alice", *right.split(" ")) for right in rights)))
        audit: Any = SimpleNamespace(refuse_if_full=lambda *_: None, on_failure=lambda *_: None)
        self.came: list[Message] = []
        self.refused: list[str] = []
        leaving: Any = SimpleNamespace(refuse_new=lambda: None)
        tickets = SimpleNamespace(use=lambda *_: None, release=lambda *_: None, refuse_batch=lambda *_: None)
        shell: Any = SimpleNamespace(
            clock=lambda: 0.0,
            cluster=self.cluster,
            refusals=Refusals("g1", self.cluster, lambda: 0, lambda bits: 7),
            counts=SimpleNamespace(requests={}),
            router=SimpleNamespace(tickets=tickets),
            on_open=lambda *_: None,
            tenant_of=lambda source: ("alice", 0),
            on_request=lambda *_: None,
            on_message=lambda link, id, message: self.came.append(message),
        )
        requests: Any = SimpleNamespace(on_message=lambda link, id, message, view: self.came.append(message))
        self.door = ClientConnections(shell, requests, self.guard, audit, lambda: 0, leaving, ConnectionSettings())
        self.link: Any = End(self.refused)
        self.door._clients[self.link] = ClientIdentity("alice")
        self.door._quota_enforcer.on_open(self.link, "alice")
        own = self.door._transactions
        self.view = ClientView(self.guard, audit, self.cluster, "alice", "", lambda *_: None, own, 1)

    def takes(self, asked: Message) -> bool:
        """Whether the request goes through."""
        try:
            self.door.on_message(self.link, 1, asked)
        except TidelogError as error:
            assert error.code in REFUSALS, error
            return False
        return not self.refused

    def told(self, answer: Any) -> Any:
        """What the client sees of it."""
        if type(answer).__name__ != "MetadataAnswer":
            return self.view.seen(answer)
        answer = trio.run(self._describe)
        head, payload = codec.encode(answer, re=1)
        data = head + b"".join(codec.payload_buffers(payload))
        return codec.decode(data, answers=lambda _: MetadataAnswer).message

    async def _describe(self) -> Any:
        async with trio.open_nursery() as nursery:
            shell: Any = SimpleNamespace(cluster=self.cluster, nursery=nursery)
            return await MetadataAnswers(shell).answer(Metadata(all_topics=True), self.view)


def everything_but(missing: str = "") -> list[str]:
    """All rights but those on one kind of resource."""
    return [f"* {resource}" for kind, resource in KINDS.items() if kind != missing]


def shows(gateway: Gateway, field: str) -> bool:
    """Whether what the field names is taken, or told."""
    name, *path = field.split(".")
    kind = {kind.__name__: kind for kind in kinds()}[name]
    asked = kind if kind.OP else BY_REQUEST[name]
    request = ListTransactions(TOPIC) if asked is ListTransactions else message(asked, field)
    if not gateway.takes(request):
        return False
    if kind.OP:
        return True
    answer = message(kind, field)
    before = set(map(str, values(answer, path)))
    if name == "MetadataAnswer":
        found = {"topics": gateway.told(answer).topics, "servers": gateway.told(answer).servers}
        return bool(found[path[0]])
    assert before, field
    return bool(before & set(map(str, values(gateway.told(answer), path))))


@pytest.mark.parametrize("field", RIGHTS)
def test_a_named_field_is_neither_accepted_nor_shown_without_the_right(field: str) -> None:
    operation, kind = RIGHTS[field].split(" ")
    assert shows(Gateway(*everything_but()), field), "with every right it is"
    assert not shows(Gateway(*everything_but(kind)), field), f"without {RIGHTS[field]}"
    if operation != "describe":
        assert not shows(Gateway(*everything_but(kind), f"describe {KINDS[kind]}"), field), "with describe only"


def test_positions_of_a_group_are_shown_only_to_those_who_may_describe_the_group() -> None:
    at = GroupPosition("id-secret", 0, 7, metadata="words of the member")
    listed = ListGroupsAnswer((GroupInfo("g", "empty", positions=(at,)), GroupInfo("h", "empty", positions=())))
    assert Gateway(*everything_but("topic"), "describe topic:*").told(listed) == listed
    hidden = Gateway(*everything_but("group"), "describe group:h").told(listed)
    assert [(info.group, info.positions) for info in hidden.groups] == [("g", None), ("h", ())]


def test_a_commit_that_waits_in_a_hidden_topic_does_not_look_visible() -> None:
    pending = message(TransactionEnded, "").pending
    (told,) = set(Gateway(*everything_but("topic")).told(TransactionEnded(True, pending)).pending)
    assert (told.topic_id, told.topic, told.partitions) == ("", "", pending[0].partitions)
