"""Rules that keep what administrators do apart from what clients with few rights do, broken."""

from __future__ import annotations

from tidelog import acl as access
from tidelog.acl import heirs_of
from tidelog_controller import controller, metadata_log
from tidelog_controller.metadata import client_sessions as once
from tidelog_controller.metadata.client_sessions import ClientSessions
from tidelog_controller.metadata.rules import access as rights
from tidelog_controller.metadata.rules import feature_level as features
from tidelog_gateway.audit import events as journal
from tidelog_gateway.rights import authorizer as guard

from mutants.rules import Patch, breaks

SOURCE = "decision 34"
ONCE, AUDIT, RIGHTS = (
    ("unit.controller.metadata.test_client_sessions",),
    ("unit.gateway.audit.test_events",),
    ("unit.controller.metadata.rules.test_security_operation",),
)


@breaks(
    SOURCE, "Another request of the same number does not get the answer of the first.", tests=ONCE, units_only=True
)
def answer_by_the_number_alone(patch: Patch) -> None:
    """The content of a request is not compared."""
    patch.setattr(controller, "digest_of", lambda _: b"")


@breaks(SOURCE, "No request gets an answer of another kind than its own.", tests=ONCE, units_only=True)
def give_any_kind_of_answer(patch: Patch) -> None:
    """The kind of the answer is not checked."""
    patch.setattr(controller, "fitting", lambda answer, _: answer)
    patch.setattr(metadata_log, "fitting", lambda answer, _: answer)


@breaks(SOURCE, "No principal has the requests of other principals forgotten.", tests=ONCE, units_only=True)
def forget_whoever_was_silent_longest(patch: Patch) -> None:
    """The principal of a client is not considered."""
    patch.setattr(once, "_first_to_go", lambda clients: next(iter(clients)))


@breaks(SOURCE, "The name of a request is bounded, whichever server passes it on.", tests=ONCE, units_only=True)
def take_names_of_any_length(patch: Patch) -> None:
    """The name is stored at any length."""
    patch.setattr(controller, "LONGEST_NAME", 1 << 30)


@breaks(SOURCE, "A remembered refusal is short.", tests=ONCE, units_only=True)
def remember_whole_refusals(patch: Patch) -> None:
    """Texts of any length are kept."""
    patch.setattr(once, "TEXT", 1 << 30)


@breaks(SOURCE, "What was remembered without a digest is as earlier releases read it.", tests=ONCE, units_only=True)
def write_digests_at_every_level(patch: Patch) -> None:
    """The feature level is not asked."""
    patch.setattr(controller, "REQUEST_DIGESTS", 0)


@breaks(
    SOURCE,
    "A number that was forgotten is not done again.",
    tests=("unit.controller.metadata.test_state_machine",),
    units_only=True,
)
def forget_which_numbers_were_forgotten(patch: Patch) -> None:
    """A number that is not in the table is new."""
    find = ClientSessions.find

    def find_only_answers(self, request):
        client = self.clients.get(request.client)
        return find(self, request) if client is not None and request.sequence in client.answers else None

    patch.setattr(ClientSessions, "find", find_only_answers)


@breaks(SOURCE, "One principal leaves room for the refusals of others in the audit.", tests=AUDIT, units_only=True)
def let_one_principal_fill_the_audit(patch: Patch) -> None:
    """One principal may fill the whole audit."""
    patch.setattr(journal, "PART", 1)


@breaks(SOURCE, "A principal does not hide the changes of others behind its own.", tests=AUDIT, units_only=True)
def let_the_changes_of_one_take_all_room(patch: Patch) -> None:
    """The changes of all principals share one bound."""
    patch.setattr(journal, "MOST_OF_ONE", journal.MOST)


@breaks(SOURCE, "Deciding about tokens and rules needs a right of its own.", tests=RIGHTS, units_only=True)
def let_administrators_decide_about_rights(patch: Patch) -> None:
    """Any principal that may administer the cluster inherits that."""
    patch.setattr(guard, "heirs_at", lambda access, _: heirs_of(access.acls))


@breaks(
    SOURCE,
    "An upgrade takes no right from principals that decide about tokens and rules.",
    tests=RIGHTS,
    units_only=True,
)
def take_the_right_away_with_the_upgrade(patch: Patch) -> None:
    """No principal inherits the right."""
    patch.setattr(features, "separate_security", lambda _: None)


@breaks(
    SOURCE,
    "A principal that gets the right to administer the cluster later inherits nothing.",
    tests=RIGHTS,
    units_only=True,
)
def let_newcomers_inherit(patch: Patch) -> None:
    """Of two that are allowed it, both do, if one does."""
    patch.setattr(
        access, "_is_inherited", lambda acl, heirs: bool(heirs) and acl.operation == acl.resource == "cluster"
    )


@breaks(SOURCE, "Tokens and quotas of superusers are for superusers.", tests=RIGHTS, units_only=True)
def spare_nobody(patch: Patch) -> None:
    """The principal that a token or quota is about is not considered."""
    patch.setattr(rights, "_refuse_spared", lambda *_: None)


@breaks(SOURCE, "What is inherited ends with the right that it came from.", tests=RIGHTS, units_only=True)
def keep_heirs_for_ever(patch: Patch) -> None:
    """Every principal counts as an heir of the right."""

    class Everybody(tuple):
        def __contains__(self, _: object) -> bool:
            return True

    patch.setattr(rights, "heirs_of", lambda acls: Everybody(heirs_of(acls)))


@breaks(
    SOURCE, "The audit records removed group members also during a flood of refusals.", tests=AUDIT, units_only=True
)
def keep_leaves_with_refusals(patch: Patch) -> None:
    """Leaves count as refusals."""

    def on_left(self, who, request, time_ms):
        self.on_failure("left_group", who, request.OP, request.group, 0.0, time_ms)

    patch.setattr(journal.AuditEvents, "on_left", on_left)
