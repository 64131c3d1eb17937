"""Rules of a server's lives at the controller, broken."""

from __future__ import annotations

from dataclasses import replace

from tidelog_controller import controller
from tidelog_controller.metadata.commands import RegisterServer
from tidelog_replica.assignment.assignment import Assignment
from tidelog_replica.registration.session import BrokerSession
from tidelog_replica.requests import RequestHandler

from mutants.rules import Patch, breaks


def act_at(patch: Patch, *, registered: bool) -> None:
    """Metadata of any age is acted on; ``registered``: as if this life were, whether it is or not."""
    act = Assignment.act

    def at_once(self, now):
        session = self._session
        known = session.registered, session.index
        session.registered, session.index = session.registered or registered, -1
        try:
            act(self, now)
        finally:
            session.registered, session.index = known

    patch.setattr(Assignment, "act", at_once)


@breaks("rule 1", "Until its registration is answered a server takes no part and serves nobody.")
def serve_before_the_registration(patch: Patch) -> None:
    """A server asks for metadata as soon as it knows a controller, acts on the answer, and serves any client."""
    act_at(patch, registered=True)
    on_controller_up = BrokerSession.on_controller_up

    def ask_at_once(self, now):
        if not self.registered:
            self._watch()
        on_controller_up(self, now)

    patch.setattr(BrokerSession, "on_controller_up", ask_at_once)
    find = RequestHandler._find

    def serve_anybody(self, *arguments):
        known, self._session.registered = self._session.registered, True
        try:
            return find(self, *arguments)
        finally:
            self._session.registered = known

    patch.setattr(RequestHandler, "_find", serve_anybody)


@breaks("rule 1", "What the controller decided before a life was registered was said to a former one.")
def act_on_what_a_former_life_was_told(patch: Patch) -> None:
    """Metadata older than the registration is acted on."""
    act_at(patch, registered=False)


@breaks(
    "rule 1",
    "A life that registers again has lost nothing since it registered first.",
    tests=("unit.controller.test_controller_requests",),
    units_only=True,
)
def count_a_repeated_registration_as_a_loss(patch: Patch) -> None:
    """Only the content of the message counts."""
    plan = controller.plan_registration

    def as_it_says(state, message, wall_ms, is_live):
        command = plan(state, message, wall_ms, is_live)
        return replace(command, clean=message.clean) if isinstance(command, RegisterServer) else command

    patch.setattr(controller, "plan_registration", as_it_says)
