"""Each request is done once: which client it belongs to, what its content was, and which answers are forgotten.
Attackers choose ids, numbers and requests."""

from __future__ import annotations

from dataclasses import replace

import cbor2
import pytest
from support.controller_network import ControllerNet
from tidelog.errors import TidelogError, refuse
from tidelog.feature_levels import REQUEST_DIGESTS, Levels
from tidelog.request_names import LONGEST_NAME, name_of_client, name_of_gateway, owner_of
from tidelog.types import Acl
from tidelog.wire.messages import (
    AllocateProducerIds,
    AlterAcls,
    AlterQuotas,
    Done,
    Message,
    ProducerIds,
    RevokeTokens,
)
from tidelog_controller.metadata.client_sessions import (
    CLIENTS,
    PER_CLIENT,
    TEXT,
    ClientSessions,
    RequestId,
    digest_of,
)
from tidelog_controller.metadata.commands import TakeProducerIds
from tidelog_controller.metadata.state import MetadataState
from tidelog_controller.metadata.state_machine import Replicated, decode_state, encode_proposal, encode_state, step
from tidelog_controller.raft.log import Entry

ALICE, MALLORY = name_of_client("alice", "1"), name_of_client("mallory", "1")
RULE = Acl("alice", "read", "topic:orders")
BELOW = REQUEST_DIGESTS - 1


def founded(level: int = REQUEST_DIGESTS) -> tuple[ControllerNet, int]:
    """Return the controllers of a cluster at this feature level, and a link to the active one."""
    net = ControllerNet(levels=dict.fromkeys(("c1", "c2", "c3"), Levels(1, level)))
    link = net.link(net.elect())
    net.answer(link, AllocateProducerIds(1))
    return net, link


def code(net: ControllerNet, link: int, request: Message) -> str:
    return net.refusal(link, request).code


# --- names -------------------------------------------------------------------------------------------------


def test_a_clients_name_is_its_principals_own_and_of_bounded_length() -> None:
    assert name_of_client("alice", "1") != name_of_client("mallory", "1")
    assert name_of_client("a", "b/c") != name_of_client("a/b", "c")
    assert owner_of(ALICE) == owner_of(name_of_client("alice", "2")) != owner_of(MALLORY)
    long = name_of_client("p" * 10_000, "x" * 10_000)
    assert len(long) < LONGEST_NAME


def test_no_client_has_the_name_of_a_gateway() -> None:
    own = name_of_gateway("g1", 7)
    assert owner_of(own) == "" and not own.startswith("client:")
    assert all(name_of_client("mallory", own)[:7] == "client:" for own in (own, f"client:{own}"))


def test_the_digest_of_a_request_ignores_the_client_and_empty_fields() -> None:
    one = AlterAcls((RULE,), client="a", sequence=1)
    assert digest_of(one) == digest_of(replace(one, client="b", sequence=2))
    assert digest_of(one) != digest_of(AlterAcls((), (RULE,)))
    assert digest_of(AlterAcls()) != digest_of(AlterQuotas()), "the operation counts"


# --- another request of the same number ----------------------------------------------------------------------


def test_another_request_of_the_same_number_is_refused_and_not_done() -> None:
    net, link = founded()
    assert net.answer(link, AlterAcls(client=ALICE, sequence=1)) == Done()
    assert code(net, link, AlterAcls((RULE,), client=ALICE, sequence=1)) == "REQUEST_CONFLICT"
    assert code(net, link, AllocateProducerIds(5, client=ALICE, sequence=1)) == "REQUEST_CONFLICT"
    assert net.nodes[net.elect()].state.access.acls == ()
    assert net.answer(link, AlterAcls(client=ALICE, sequence=1)) == Done()


def test_two_requests_of_one_number_at_the_same_time() -> None:
    """Both are proposed before either is applied. The second is refused all the same."""
    net, link = founded()
    others = set(net.urls) - {net.where[link]}
    net.cut |= others
    first = net.ask(link, AlterAcls(client=ALICE, sequence=1))
    second = net.ask(link, AllocateProducerIds(5, client=ALICE, sequence=1))
    assert not {(link, first), (link, second)} & net.answers.keys(), "no majority yet"
    net.cut.clear()
    net.run(2.0, until=lambda: (link, second) in net.answers)
    error = net.answers[link, second]
    assert net.answers[link, first] == Done() and isinstance(error, TidelogError)
    assert error.code == "REQUEST_CONFLICT"


def test_the_next_controller_remembers_the_digest_of_a_request() -> None:
    net, link = founded()
    net.answer(link, AlterAcls(client=ALICE, sequence=1))
    net.kill(net.where[link])
    link = net.link(net.elect())
    assert code(net, link, AlterAcls((RULE,), client=ALICE, sequence=1)) == "REQUEST_CONFLICT"
    assert net.answer(link, AlterAcls(client=ALICE, sequence=1)) == Done()


def test_below_the_feature_level_an_answer_of_another_kind_is_given_to_nobody() -> None:
    """The receiver would take it for a broken connection, and end the link that all its clients share."""
    net, link = founded(BELOW)
    assert net.answer(link, AlterAcls(client=ALICE, sequence=1)) == Done()
    assert code(net, link, AllocateProducerIds(5, client=ALICE, sequence=1)) == "REQUEST_CONFLICT"
    net.cut |= set(net.urls) - {net.where[link]}
    net.ask(link, AlterAcls(client=ALICE, sequence=2))
    second = net.ask(link, AllocateProducerIds(5, client=ALICE, sequence=2))
    net.cut.clear()
    net.run(2.0, until=lambda: (link, second) in net.answers)
    error = net.answers[link, second]
    assert isinstance(error, TidelogError) and error.code == "REQUEST_CONFLICT"


def test_below_the_feature_level_log_and_snapshot_have_the_format_of_earlier_releases() -> None:
    net, link = founded(BELOW)
    net.answer(link, AlterAcls(client=ALICE, sequence=1))
    disk = net.disks[net.where[link]]
    assert {len(cbor2.loads(e.data)) for e in disk.entries if e.data and e.data[0] & 0xE0 == 0x80} <= {3}
    document = cbor2.loads(encode_state(net.nodes[net.where[link]].metadata_log.replicated))
    assert document["once"]["clients"][ALICE]["answers"][1].keys() == {"kind", "data"}


def test_answers_remembered_by_earlier_releases_are_still_given() -> None:
    """Without a digest only the kind of the answer can be compared."""
    old = ClientSessions().with_answer(RequestId("g1/ab", 1), Done())
    assert old.find(RequestId("g1/ab", 1, b"x" * 16)) == Done()


def test_snapshots_keep_the_digest() -> None:
    request = RequestId(ALICE, 1, digest_of(AllocateProducerIds(10)))
    state = step(
        Replicated(MetadataState("c")),
        Entry(1, 1, encode_proposal(TakeProducerIds(0, 10, level=REQUEST_DIGESTS), request)),
    ).state
    again = decode_state(encode_state(state))
    assert again == state and again.sessions.find(request) == ProducerIds(1, 10)
    other = again.sessions.find(replace(request, digest=b"x" * 16))
    assert isinstance(other, TidelogError) and other.code == "REQUEST_CONFLICT"


# --- memory --------------------------------------------------------------------------------------------------


def test_names_that_are_too_long_are_refused_whoever_passes_them_on() -> None:
    net, link = founded()
    request = RevokeTokens("", "bob", client="x" * (LONGEST_NAME + 1), sequence=1)
    assert code(net, link, request) == "MALFORMED"
    assert code(net, link, AlterAcls(client="ä" * LONGEST_NAME, sequence=1)) == "MALFORMED"
    assert not any(
        len(name) > LONGEST_NAME for name in net.nodes[net.elect()].metadata_log.replicated.sessions.clients
    )


def test_a_remembered_refusal_is_short() -> None:
    details = {f"field{number}": "x" * 100_000 for number in range(100)}
    refusal = refuse("INVALID_CONFIG", "x" * 100_000, **details)
    once = ClientSessions().with_answer(RequestId(ALICE, 1, b"d" * 16), refusal)
    known = once.find(RequestId(ALICE, 1, b"d" * 16))
    assert isinstance(known, TidelogError) and known.code == "INVALID_CONFIG" and len(known.message) == TEXT
    assert len(once.clients[ALICE].answers[1].data) < 20 * TEXT


@pytest.mark.parametrize("ids", [CLIENTS, 3 * CLIENTS])
def test_nobody_has_the_requests_of_others_forgotten(ids: int) -> None:
    """A principal uses ever new client ids: its own are forgotten, not those of other principals or of the
    gateways."""
    once = ClientSessions()
    gateway = name_of_gateway("g1", 1)
    for name in (ALICE, gateway):
        once = once.with_answer(RequestId(name, 1, b"d" * 16), Done())
    for number in range(ids):
        once = once.with_answer(RequestId(name_of_client("mallory", str(number)), 1, b"d" * 16), Done())
    assert len(once.clients) == CLIENTS
    assert [once.find(RequestId(name, 1, b"d" * 16)) for name in (ALICE, gateway)] == [Done(), Done()]
    last = name_of_client("mallory", str(ids - 1))
    assert once.find(RequestId(last, 1, b"d" * 16)) == Done(), "of its own the oldest goes"


def test_the_whole_table_has_a_bound() -> None:
    """The size of the largest remembered request in a snapshot, times their greatest number."""
    longest = "client:" + "x" * (LONGEST_NAME - 7)
    refusal = refuse("INVALID_CONFIG", "x" * TEXT)
    once = ClientSessions().with_answer(RequestId(longest, 1, b"d" * 16), refusal)
    size = len(encode_state(Replicated(MetadataState("c"), once))) - len(encode_state(Replicated(MetadataState("c"))))
    assert size * CLIENTS * PER_CLIENT < 256 << 20
