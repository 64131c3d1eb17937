"""Tickets of producer ids: what they cover, how long their keys are good, and what a gateway takes from whom."""

from __future__ import annotations

import pytest
from tidelog.errors import TidelogError
from tidelog.feature_levels import TICKETS
from tidelog.tickets import refuse_ticket, sign, successor
from tidelog.types import ClusterImage, TicketKey
from tidelog.wire.messages import ProducerTicket, UseProducer
from tidelog_gateway.cluster_view import ClusterView
from tidelog_gateway.rights.producer_tickets import MAX_PRODUCERS, ProducerTickets

FIRST, SECOND, THIRD = (TicketKey(number, f"{number:064x}") for number in (5, 9, 12))
KEYS = (FIRST, SECOND)
ONE, OTHER = 1, 2
ALICE, MALLORY = "alice", "mallory"


def code(ticket: str, producer_id: int = 7, epoch: int = 3, principal: str = ALICE, keys=KEYS) -> str:  # type: ignore[no-untyped-def]
    refusal = refuse_ticket(keys, ticket, producer_id, epoch, principal)
    return "" if refusal is None else refusal.code


# --- a ticket --------------------------------------------------------------------------------------------


def test_a_ticket_lets_its_principal_write_under_its_ids_at_its_epoch() -> None:
    assert code(sign(KEYS, 7, 1, 3, ALICE)) == ""
    many = sign(KEYS, 7, 5, 3, ALICE)
    assert [code(many, id) for id in (6, 7, 11, 12)] == ["INVALID_TICKET", "", "", "INVALID_TICKET"]


@pytest.mark.parametrize(
    "other",
    [
        sign(KEYS, 8, 1, 3, ALICE),
        sign(KEYS, 7, 1, 2, ALICE),
        sign(KEYS, 7, 1, 4, ALICE),
        sign(KEYS, 7, 1, 3, MALLORY),
        sign(KEYS, 7, 1, 3, ""),
        sign((TicketKey(SECOND.key_id, FIRST.secret),), 7, 1, 3, ALICE),
        "",
        "no ticket",
        sign(KEYS, 7, 1, 3, ALICE).upper(),
        sign(KEYS, 7, 1, 3, ALICE) + "00",
        sign(KEYS, 7, 1, 3, ALICE)[:-2],
    ],
)
def test_a_ticket_of_something_else_is_refused(other: str) -> None:
    assert code(other) == "INVALID_TICKET"


def test_a_ticket_with_any_bit_flipped_is_refused() -> None:
    raw = bytes.fromhex(sign(KEYS, 7, 1, 3, ALICE))
    for bit in range(len(raw) * 8):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        assert code(flipped.hex()) in ("INVALID_TICKET", "UNKNOWN_TICKET_KEY"), bit


def test_the_key_before_still_verifies_and_older_ones_do_not() -> None:
    old = sign((FIRST,), 7, 1, 3, ALICE)
    assert [code(old, keys=keys) for keys in ((FIRST,), KEYS, (SECOND, THIRD))] == ["", "", "INVALID_TICKET"]


def test_a_key_that_a_gateway_has_not_heard_of_is_another_matter() -> None:
    new = sign((SECOND, THIRD), 7, 1, 3, ALICE)
    assert [code(new, keys=keys) for keys in ((), KEYS)] == ["UNKNOWN_TICKET_KEY"] * 2


def test_without_keys_there_are_no_tickets() -> None:
    assert sign((), 7, 1, 3, ALICE) == ""


def test_no_secret_is_shown() -> None:
    assert FIRST.secret not in repr(FIRST) and FIRST.secret not in repr(ClusterImage(ticket_keys=KEYS))
    ticket = sign(KEYS, 7, 1, 3, ALICE)
    assert ticket not in repr(UseProducer(7, 3, ticket)) + repr(ProducerTicket(ticket))


def test_the_key_after_a_rescue_is_another_one_and_always_the_same() -> None:
    assert successor(FIRST, 99) == successor(FIRST, 99)
    others = {successor(FIRST, 99).secret, successor(FIRST, 98).secret, successor(SECOND, 99).secret, FIRST.secret}
    assert len(others) == 4 and successor(FIRST, 99).key_id == 99


# --- a gateway -------------------------------------------------------------------------------------------


class Gateway:
    """What one gateway knows of tickets; its metadata say what ``hear`` said last."""

    def __init__(self, *keys: TicketKey, level: int = TICKETS) -> None:
        self.cluster = ClusterView()
        self.tickets = ProducerTickets(self.cluster)
        self.index = 0
        self.hear(*keys, level=level)

    def hear(self, *keys: TicketKey, level: int = TICKETS) -> None:
        self.index += 1
        self.cluster.update(ClusterImage(self.index, "c", level=level, ticket_keys=keys))

    def use(
        self, ticket: str, producer_id: int = 7, epoch: int = 3, *, source: int = ONE, principal: str = ALICE
    ) -> str:
        """The new ticket, or the code of the refusal."""
        answer = self.tickets.use(source, principal, UseProducer(producer_id, epoch, ticket))
        return answer.code if isinstance(answer, TidelogError) else answer.ticket

    def batch(self, producer_id: int = 7, epoch: int = 3, *, source: int = ONE) -> str:
        """The code that a batch is refused with; "": it is taken."""
        refusal = self.tickets.refuse_batch(source, producer_id, epoch)
        return "" if refusal is None else refusal.code


def test_a_batch_is_accepted_only_under_a_ticket_that_its_connection_presented() -> None:
    gateway = Gateway(*KEYS)
    assert gateway.batch() == "INVALID_TICKET"
    gateway.use(sign(KEYS, 7, 1, 3, ALICE))
    assert [gateway.batch(), gateway.batch(7, 2), gateway.batch(7, 4), gateway.batch(8, 3)] == [
        "",
        *["INVALID_TICKET"] * 3,
    ]
    assert gateway.batch(source=OTHER) == "INVALID_TICKET"
    gateway.tickets.on_link_closed(ONE)
    assert gateway.batch() == "INVALID_TICKET"


def test_a_refused_ticket_takes_nothing_away_and_gives_nothing() -> None:
    gateway = Gateway(*KEYS)
    gateway.use(sign(KEYS, 7, 1, 3, ALICE))
    assert gateway.use(sign(KEYS, 7, 1, 3, ALICE), epoch=4) == "INVALID_TICKET"
    assert gateway.use(sign(KEYS, 8, 1, 3, MALLORY), 8) == "INVALID_TICKET"
    assert [gateway.batch(), gateway.batch(7, 4), gateway.batch(8)] == ["", "INVALID_TICKET", "INVALID_TICKET"]


def test_a_later_epoch_takes_the_place_of_the_one_before() -> None:
    gateway = Gateway(*KEYS)
    for epoch in (3, 4):
        gateway.use(sign(KEYS, 7, 1, epoch, ALICE), epoch=epoch)
    assert [gateway.batch(7, 3), gateway.batch(7, 4)] == ["INVALID_TICKET", ""]


def test_a_ticket_is_renewed_by_the_newest_key_for_the_one_id() -> None:
    gateway = Gateway(FIRST)
    old = sign((FIRST,), 7, 5, 3, ALICE)
    gateway.hear(FIRST, SECOND)
    new = gateway.use(old)
    gateway.hear(SECOND, THIRD)
    assert [gateway.use(old, source=OTHER), gateway.use(new, source=OTHER)] == [
        "INVALID_TICKET",
        sign((THIRD,), 7, 1, 3, ALICE),
    ]
    assert gateway.use(new, 8, source=OTHER) == "INVALID_TICKET"
    assert gateway.batch() == "", "the first connection keeps what it holds"


def test_a_ticket_of_a_key_that_is_heard_of_later_counts_then() -> None:
    gateway = Gateway(FIRST)
    assert gateway.use(sign(KEYS, 7, 1, 3, ALICE)) == "UNKNOWN_TICKET_KEY"
    assert gateway.use(sign(KEYS, 8, 1, 3, MALLORY), 8) == "UNKNOWN_TICKET_KEY"
    assert [gateway.batch(), gateway.batch(7, 4), gateway.batch(9)] == [
        "UNKNOWN_TICKET_KEY",
        "UNKNOWN_TICKET_KEY",
        "INVALID_TICKET",
    ]
    gateway.hear(*KEYS)
    assert [gateway.batch(7, 4), gateway.batch(), gateway.batch(8)] == ["INVALID_TICKET", "", "INVALID_TICKET"]


def test_below_the_level_every_id_is_taken_and_a_ticket_that_is_early_counts_when_it_is_raised() -> None:
    gateway = Gateway(level=TICKETS - 1)
    assert gateway.batch() == "" and gateway.use(sign(KEYS, 7, 1, 3, ALICE)) == ""
    assert gateway.batch() == "" and gateway.batch(8) == ""
    gateway.hear(*KEYS)
    assert [gateway.batch(), gateway.batch(8)] == ["", "INVALID_TICKET"]


def test_a_gateway_at_the_level_that_knows_no_key_takes_nothing() -> None:
    gateway = Gateway()
    assert gateway.use(sign(KEYS, 7, 1, 3, ALICE)) == "UNKNOWN_TICKET_KEY"
    assert [gateway.batch(), gateway.batch(8)] == ["UNKNOWN_TICKET_KEY", "INVALID_TICKET"]


def test_a_connection_holds_a_bounded_number_of_ids_and_can_release_them() -> None:
    gateway = Gateway(*KEYS)
    ticket = sign(KEYS, 1, MAX_PRODUCERS + 1, 3, ALICE)
    for id in range(1, MAX_PRODUCERS + 1):
        assert gateway.use(ticket, id) not in ("OVERLOADED", "INVALID_TICKET")
    assert gateway.use(ticket, MAX_PRODUCERS + 1) == "OVERLOADED"
    assert gateway.use(ticket, 1) != "OVERLOADED", "it has that one already"
    assert gateway.use(ticket, MAX_PRODUCERS + 1, source=OTHER) != "OVERLOADED"
    gateway.tickets.release(ONE, 1)
    assert gateway.batch(1) == "INVALID_TICKET"
    assert gateway.use(ticket, MAX_PRODUCERS + 1) != "OVERLOADED"


def test_the_refusal_of_a_batch_explains_the_upgrade_to_a_client_of_an_earlier_release() -> None:
    refusal = Gateway(*KEYS).tickets.refuse_batch(ONE, 7, 0)
    assert refusal is not None and not refusal.unknown_outcome and not refusal.retriable
    assert "nothing was written" in refusal.message and "release 0.1" in refusal.message
    assert "must be upgraded" in refusal.message
