"""Rules of the bounds per principal, broken."""

from __future__ import annotations

from tidelog_controller.metadata.rules import topics
from tidelog_gateway.consume.subscriptions import Subscriptions
from tidelog_gateway.limits.fair_share import FairShare
from tidelog_gateway.produce import router
from tidelog_gateway.produce.router import Router
from tidelog_gateway.requests import coordinator_client as coordination
from tidelog_gateway.requests import requests
from tidelog_gateway.shared_requests import PendingRequest
from tidelog_replica.coordinators.groups.coordinator import GroupCoordinator
from tidelog_replica.coordinators.groups.group import Group
from tidelog_replica.coordinators.transactions.coordinator import Applications, TransactionCoordinator

from mutants.rules import Patch, breaks

SOURCE = "decision 37"
REQUESTS = "decision 35"
MANY = 1 << 30
TESTS = ("unit.gateway.test_principal_bounds",)


@breaks(
    SOURCE,
    "A principal's groups are freed when they have neither members nor positions.",
    tests=TESTS,
    units_only=True,
)
def count_groups_for_ever(patch: Patch) -> None:
    """Groups count for as long as the coordinator runs."""
    touch = GroupCoordinator._touch

    def keep(self, group):
        begun = dict(self._begun._held)
        touch(self, group)
        self._begun._held = {**self._begun._held, **begun}

    patch.setattr(GroupCoordinator, "_touch", keep)


@breaks(SOURCE, "Whose a group and a member is outlives the coordinator.", tests=TESTS, units_only=True)
def forget_owners_at_a_failover(patch: Patch) -> None:
    """The next coordinator knows no owners."""
    take = Group.take_entries

    def forget(self):
        principal, self.principal = self.principal, ""
        entries = take(self)
        self.principal = principal
        return entries

    patch.setattr(Group, "take_entries", forget)


@breaks(SOURCE, "An open transaction counts until it is over, and no longer.", tests=TESTS, units_only=True)
def count_transactions_until_their_end_is_written(patch: Patch) -> None:
    """A transaction counts until its end is written."""
    finish, discount = TransactionCoordinator._finish, TransactionCoordinator._discount

    def late(self, slot, wall_ms):
        discount(self, slot)
        finish(self, slot, wall_ms)

    patch.setattr(TransactionCoordinator, "_discount", lambda self, slot: None)
    patch.setattr(TransactionCoordinator, "_finish", late)


@breaks(SOURCE, "A principal has so many applications at most.", tests=TESTS, units_only=True)
def take_any_number_of_applications(patch: Patch) -> None:
    """The number of applications is not bounded."""
    patch.setattr(TransactionCoordinator, "_check_room", lambda self, app, principal: None)


@breaks(SOURCE, "An application that is forgotten counts for no principal.", tests=TESTS, units_only=True)
def count_forgotten_applications(patch: Patch) -> None:
    """A forgotten application still counts."""
    patch.setattr(Applications, "release", lambda self, app: None)


@breaks(
    SOURCE,
    "Topics that were planned at the same time are counted when they are applied.",
    tests=TESTS,
    units_only=True,
)
def count_topics_only_when_planned(patch: Patch) -> None:
    """The log has no say."""
    patch.setattr(topics, "refuse_new_topic", lambda state, command: None)


@breaks(SOURCE, "The gateway says whose request it is.", tests=TESTS, units_only=True)
def believe_clients_who_they_are(patch: Patch) -> None:
    """The client states the principal."""
    patch.setattr(requests, "OWNED", ())


@breaks(
    SOURCE,
    "Subscriptions count for the principal, over all its connections, until they end.",
    tests=TESTS,
    units_only=True,
)
def count_subscriptions_for_ever(patch: Patch) -> None:
    """Subscriptions count until the gateway ends."""
    close = Subscriptions._close

    def keep(self, one):
        counts = dict(self._counts)
        close(self, one)
        self._counts = counts

    patch.setattr(Subscriptions, "_close", keep)


@breaks(
    REQUESTS,
    "A principal has few requests at a time with the coordinators of a server, large or small.",
    tests=("unit.gateway.requests.test_seats", "unit.gateway.requests.test_bounded_requests"),
    units_only=True,
)
def ask_coordinators_for_all_at_once(patch: Patch) -> None:
    """All requests are sent as soon as they arrive."""
    for bound in ("LARGE", "LARGE_EACH", "SMALL", "SMALL_EACH", "TRANSACTIONS_AT_ONCE", "TRANSACTIONS_EACH"):
        patch.setattr(coordination, bound, MANY)


@breaks(
    REQUESTS,
    "A request that waits to be tried again holds up no other of its principal.",
    tests=("unit.gateway.requests.test_seats",),
    units_only=True,
)
def keep_a_seat_between_tries(patch: Patch) -> None:
    """A request keeps its seat until it is answered."""
    wait = PendingRequest.wait

    class Kept:
        def leave(self):
            pass

    async def keep(self, seats):
        self._seat = await wait(self, seats)
        return Kept()

    patch.setattr(PendingRequest, "wait", keep)


@breaks(
    REQUESTS,
    "A principal has few changes at a time with the controllers.",
    tests=("unit.gateway.requests.test_seats",),
    units_only=True,
)
def ask_controllers_for_all_at_once(patch: Patch) -> None:
    """All changes are sent as soon as they arrive."""
    for bound in ("CONTROL", "CONTROL_EACH"):
        patch.setattr(requests, bound, MANY)


@breaks(
    REQUESTS,
    "A principal leaves bytes of a gateway to the batches of others.",
    tests=("unit.gateway.produce.test_router",),
    units_only=True,
)
def let_one_principal_fill_a_gateway(patch: Patch) -> None:
    """The first caller gets everything."""

    class First(FairShare):
        def fits(self, tenant, amount=1):
            return self.total + amount <= self.most

    patch.setattr(router, "FairShare", First)


@breaks(
    REQUESTS,
    "The bytes of a principal count over all its connections.",
    tests=("unit.gateway.produce.test_router",),
    units_only=True,
)
def count_bytes_by_connection(patch: Patch) -> None:
    """Each connection has a quota of its own."""
    patch.setattr(Router, "_owner", lambda self, source: ("", source))
