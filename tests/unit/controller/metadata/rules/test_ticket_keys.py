"""The keys of producer tickets in the metadata: when the cluster gets them, which peers receive them, rotation, and a
rescue."""

from __future__ import annotations

from dataclasses import replace

import cbor2
import pytest
from support.applied_commands import Log
from support.controller_network import ControllerNet
from tidelog.feature_levels import TICKETS, Levels
from tidelog.tickets import refuse_ticket, sign
from tidelog.types import TicketKey
from tidelog.wire.messages import (
    AllocateProducerIds,
    Done,
    MetadataUpdate,
    ProducerIds,
    RaiseLevel,
    RotateTicketKeys,
    Watch,
)
from tidelog_controller.metadata import commands
from tidelog_controller.metadata.cluster_events import events_of
from tidelog_controller.metadata.rules.recovery import recovered
from tidelog_controller.metadata.state import MetadataState
from tidelog_controller.metadata.state_machine import Replicated, decode_state, encode_state

SECRETS = tuple(f"{number:064x}" for number in (11, 12, 13))


def founded(newest: int = TICKETS) -> ControllerNet:
    """Return three controllers of a new cluster that begins at this feature level, after its first command."""
    net = ControllerNet(levels=dict.fromkeys(("c1", "c2", "c3"), Levels(1, newest)))
    assert isinstance(net.answer(net.link(net.elect()), AllocateProducerIds(1)), ProducerIds)
    return net


def upgraded() -> ControllerNet:
    """Return controllers of a cluster at the level before ``TICKETS``, whose release supports that level by now."""
    net = founded(TICKETS - 1)
    net.levels.clear()
    for node in net.urls:
        net.kill(node)
        net.start(node)
    active = net.elect()
    for node in net.urls:
        if node != active:
            net.greet(active, "controller", node)
    return net


def keys(net: ControllerNet) -> tuple[TicketKey, ...]:
    return net.nodes[net.elect()].state.ticket_keys


def with_keys(count: int) -> Log:
    """Return a log whose cluster has got so many keys."""
    log = Log()
    log.write(commands.TakeProducerIds(0, 1, level=TICKETS, ticket_key=SECRETS[0]))
    for secret in SECRETS[1:count]:
        log.write(commands.AddTicketKey(0, secret))
    return log


# --- the first -------------------------------------------------------------------------------------------


def test_a_new_cluster_has_one_with_its_first_command() -> None:
    net = founded()
    (key,) = keys(net)
    assert key.key_id == 2 and len(bytes.fromhex(key.secret)) == 32
    net.answer(net.link(net.elect()), AllocateProducerIds(1))
    assert keys(net) == (key,)
    net.run(1.0)
    assert {controller.state.ticket_keys for controller in net.nodes.values()} == {(key,)}


def test_two_clusters_have_different_ones() -> None:
    nets = [ControllerNet(1, seed=seed) for seed in (1, 2)]
    for net in nets:
        net.answer(net.link(net.elect()), AllocateProducerIds(1))
    assert len({keys(net)[0].secret for net in nets}) == 2


def test_below_the_level_there_is_none_and_it_comes_with_the_command_that_raises_it() -> None:
    net = upgraded()
    gateway = net.greet(net.elect(), "gateway", "g1")
    net.ask(gateway, Watch())
    net.answer(net.link(net.elect()), AllocateProducerIds(1))
    assert keys(net) == net.images[gateway].ticket_keys == ()
    assert net.refusal(net.link(net.elect()), RotateTicketKeys()).code == "UNSUPPORTED_LEVEL"
    assert net.answer(net.link(net.elect()), RaiseLevel(TICKETS)) == Done()
    (key,) = keys(net)
    assert key.key_id == net.images[gateway].index
    assert (net.images[gateway].level, net.images[gateway].ticket_keys) == (TICKETS, (key,))


def test_a_key_that_a_command_brings_too_many_or_too_early_is_left_out() -> None:
    log = with_keys(1)
    log.write(commands.TakeProducerIds(0, 1, ticket_key=SECRETS[1]))
    assert log.state.ticket_keys == (TicketKey(1, SECRETS[0]),)
    early = Log()
    early.write(commands.TakeProducerIds(0, 1, level=TICKETS - 1, ticket_key=SECRETS[0]))
    assert early.state.ticket_keys == ()


def test_snapshots_keep_them_and_say_nothing_of_them_where_there_are_none() -> None:
    state = Replicated(with_keys(2).state)
    assert decode_state(encode_state(state)) == state
    none = encode_state(Replicated(MetadataState("test")))
    assert "ticket_keys" not in cbor2.loads(none)


# --- who is told -----------------------------------------------------------------------------------------


def test_only_gateways_get_the_ticket_keys() -> None:
    """In whole images, and in deltas."""
    net = founded()
    active = net.elect()
    gateway, server, stranger = (
        net.greet(active, "gateway", "g1"),
        net.greet(active, "replica", "r1"),
        net.link(active),
    )
    for link in (gateway, server, stranger):
        net.ask(link, Watch())
    assert net.images[gateway].ticket_keys == keys(net)
    assert net.answer(net.link(active), RotateTicketKeys()) == Done()
    assert net.images[gateway].ticket_keys == keys(net) and len(keys(net)) == 2
    for link in (server, stranger):
        assert net.images[link].index == net.images[gateway].index and net.images[link].ticket_keys == ()
        told = b"".join(bytes(m.payload) for m in net.order[link] if isinstance(m, MetadataUpdate))  # type: ignore[arg-type]
        assert not any(key.secret.encode() in told for key in keys(net))


def test_secrets_are_in_no_log_no_event_and_no_timeline() -> None:
    log = with_keys(1)
    before = log.state
    applied = log.write(commands.AddTicketKey(0, SECRETS[1]))
    told = repr((events_of(before, applied), log.state, log.commands, applied))
    assert "ticket_keys_rotated" in told
    assert not any(secret in told for secret in SECRETS)


# --- another one -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_newest_two_are_kept_oldest_first(count: int) -> None:
    expected = [TicketKey(number + 1, SECRETS[number]) for number in range(count)][-2:]
    assert with_keys(count).state.ticket_keys == tuple(expected)


def test_a_rotation_that_is_asked_for_again_is_done_once() -> None:
    net = founded()
    wish = RotateTicketKeys(client="g1/abc", sequence=7)
    for _ in range(2):
        assert net.answer(net.link(net.elect()), wish) == Done()
    assert len(keys(net)) == 2 and keys(net)[0].key_id == 2
    first = keys(net)
    assert net.answer(net.link(net.elect()), replace(wish, sequence=8)) == Done()
    assert keys(net)[0] == first[1] and keys(net)[1].key_id > first[1].key_id


def test_after_a_rescue_a_lost_key_counts_as_gone_and_the_survivors_own_key_is_good() -> None:
    survivor = with_keys(2).state
    lost = with_keys(3).state
    after = recovered(survivor, 1 << 40, 0).ticket_keys
    assert [key.key_id for key in after] == [2, 1 << 40] and after[0] == survivor.ticket_keys[1]
    tickets = {
        sign(known, 7, 1, 0, "a"): code for known, code in ((survivor.ticket_keys, ""), (lost.ticket_keys, "no"))
    }
    for ticket, code in tickets.items():
        refusal = refuse_ticket(after, ticket, 7, 0, "a")
        assert ("" if refusal is None else "no") == code
        assert refusal is None or refusal.code == "INVALID_TICKET"
    assert recovered(MetadataState("test"), 1 << 40, 0).ticket_keys == ()
