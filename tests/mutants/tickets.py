"""Rules of the tickets of producer ids, broken."""

from __future__ import annotations

from tidelog import tickets
from tidelog.feature_levels import TICKETS
from tidelog_controller import controller
from tidelog_controller.metadata.rules import recovery, ticket_keys
from tidelog_controller.metadata.rules.feature_level import Features
from tidelog_gateway.rights import producer_tickets
from tidelog_gateway.rights.producer_tickets import ProducerTickets

from mutants.rules import Patch, breaks

SOURCE = "decision 22"
GATEWAY, KEYS = (
    ("unit.gateway.rights.test_producer_tickets", "unit.gateway.produce.test_router"),
    ("unit.controller.metadata.rules.test_ticket_keys",),
)


@breaks(SOURCE, "A ticket is verified before its id is written under.", tests=GATEWAY)
def take_any_ticket(patch: Patch) -> None:
    """Every ticket is valid."""
    patch.setattr(producer_tickets, "refuse_ticket", lambda *_: None)


@breaks(SOURCE, "No batch is forwarded under an id that its connection does not hold.", tests=GATEWAY)
def take_batches_without_a_ticket(patch: Patch) -> None:
    """Whether a ticket was presented is not asked."""
    patch.setattr(ProducerTickets, "refuse_batch", lambda *_: None)


@breaks(SOURCE, "Every batch is checked, not only the first.", tests=GATEWAY)
def check_the_first_batch_alone(patch: Patch) -> None:
    """A connection that has sent a batch under an id that it holds may send any."""
    check = ProducerTickets.refuse_batch
    passed = set()

    def check_once(self, source, producer_id, epoch):
        if (id(self), source) in passed:
            return None
        refusal = check(self, source, producer_id, epoch)
        if refusal is None:
            passed.add((id(self), source))
        return refusal

    patch.setattr(ProducerTickets, "refuse_batch", check_once)


@breaks(SOURCE, "A ticket covers the epoch.", tests=GATEWAY)
def leave_the_epoch_out_of_tickets(patch: Patch) -> None:
    """A ticket is good for every epoch of its ids."""
    mac = tickets._mac
    patch.setattr(tickets, "_mac", lambda key, ids, epoch, principal: mac(key, ids, 0, principal))


@breaks(SOURCE, "A ticket covers the principal.", tests=GATEWAY)
def leave_the_principal_out_of_tickets(patch: Patch) -> None:
    """A ticket is good for any client that presents it."""
    mac = tickets._mac
    patch.setattr(tickets, "_mac", lambda key, ids, epoch, principal: mac(key, ids, epoch, ""))


@breaks(SOURCE, "A ticket that could not be verified yet is verified before a batch is taken.", tests=GATEWAY)
def believe_a_ticket_that_was_put_by(patch: Patch) -> None:
    """A ticket of a key that the gateway has not heard of is taken to be good."""
    use = ProducerTickets.use

    def believe(self, source, principal, request):
        answer = use(self, source, principal, request)
        held = self._held[source]
        if held.put_by.pop(request.producer_id, None) is not None:
            held.epochs[request.producer_id] = request.producer_epoch
        return answer

    patch.setattr(ProducerTickets, "use", believe)


@breaks(SOURCE, "What a connection has presented ends with it.", tests=GATEWAY)
def keep_the_ids_of_a_connection_that_ended(patch: Patch) -> None:
    """The presented ids stay valid."""
    patch.setattr(ProducerTickets, "on_link_closed", lambda *_: None)


@breaks(SOURCE, "The keys of tickets are sent to gateways only.", tests=KEYS)
def tell_everybody_the_keys(patch: Patch) -> None:
    """The keys are sent to every watcher of the metadata."""
    patch.setattr(Features, "is_gateway", lambda *_: True)


@breaks(SOURCE, "A second rotation ends the tickets of a key.", tests=KEYS)
def keep_every_key(patch: Patch) -> None:
    """All earlier keys verify."""
    patch.setattr(ticket_keys, "KEYS", 1000)


@breaks(SOURCE, "A rescue makes a key whose id is beyond those that were lost.", tests=KEYS)
def keep_the_keys_of_a_survivor(patch: Patch) -> None:
    """The keys stay as the survivor knows them."""
    patch.setattr(recovery, "keys_after_rescue", lambda keys, _: keys)


@breaks(SOURCE, "The cluster has a key as soon as it is at the feature level.", tests=KEYS)
def make_the_first_key_late(patch: Patch) -> None:
    """The key is made by the command after the one that raises the level."""
    with_first_key = ticket_keys.with_first_key

    def make_late(state, command, dice):
        return with_first_key(state, command, dice) if state.level >= TICKETS else command

    patch.setattr(controller, "with_first_key", make_late)
