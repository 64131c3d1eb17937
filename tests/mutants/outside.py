"""Rules of tokens from outside, and of the gateway's door, broken."""

from __future__ import annotations

from tidelog.errors import TidelogError
from tidelog.net.origins import Origins
from tidelog.runtime import listen_config as listening
from tidelog_controller.active import refusal_log as refusals
from tidelog_gateway.audit import events as journal
from tidelog_gateway.audit.merged_events import MergedEvents
from tidelog_gateway.audit.writer import Audit
from tidelog_gateway.clients import connections as door
from tidelog_gateway.clients.connections import ClientConnections
from tidelog_gateway.limits.quotas import Quotas
from tidelog_gateway.limits.repeated_lines import RepeatedLines
from tidelog_gateway.rights import oidc
from tidelog_gateway.rights.authorizer import Authorizer
from tidelog_gateway.rights.oidc import Issuer
from tidelog_gateway.rights.own_transactions import OwnTransactions
from tidelog_gateway.shell import GatewayShell
from tidelog_replica.storage.segment import Segment

from mutants.rules import Patch, breaks

SOURCE = "decision 39"
OIDC, DOOR, AUDIT, LISTENING = (
    ("unit.gateway.rights.test_oidc",),
    ("unit.gateway.clients.test_connections",),
    ("unit.gateway.audit.test_events",),
    ("unit.tidelog.runtime.test_listen_config",),
)


@breaks(SOURCE, "A token is for this audience.", tests=OIDC, units_only=True, where=("tidelog_gateway.rights.oidc",))
def take_tokens_for_others(patch: Patch) -> None:
    """The audience is not checked."""
    registry = oidc.jwt.JWTClaimsRegistry

    def without(now, leeway, **options):
        return registry(now, leeway, **{name: one for name, one in options.items() if name != "aud"})

    patch.setattr(oidc.jwt, "JWTClaimsRegistry", without)


@breaks(SOURCE, "A token names its key by its id.", tests=OIDC, units_only=True)
def take_any_key_for_one_that_is_not_known(patch: Patch) -> None:
    """A token with an unknown key id is verified with the first key."""
    find = Issuer._key_of

    def first(self, token):
        try:
            return find(self, token)
        except oidc._Refused:
            return self._keys[0]

    patch.setattr(Issuer, "_key_of", first)


@breaks(SOURCE, "Only ID and access tokens are taken.", tests=OIDC, units_only=True)
def take_tokens_of_any_type(patch: Patch) -> None:
    """Every token that the issuer has signed is accepted as a login."""

    class All:
        def __contains__(self, kind: object) -> bool:
            return True

    patch.setattr(oidc, "TYPES", All())


@breaks(SOURCE, "An email counts only if the issuer has verified it.", tests=OIDC, units_only=True)
def believe_any_email(patch: Patch) -> None:
    """A user becomes the principal of any address that is in the account."""
    judge = Issuer._client_of
    patch.setattr(Issuer, "_client_of", lambda self, claims, now: judge(self, claims | {"email_verified": True}, now))


@breaks(SOURCE, "Keys that cannot be had again are used for a bounded time.", tests=OIDC, units_only=True)
def use_old_keys_for_ever(patch: Patch) -> None:
    """Keys stay in force however long the issuer is away."""

    def fail(self, now):
        self._has_failed = True

    patch.setattr(Issuer, "on_failure", fail)


@breaks(
    SOURCE,
    "Made-up key ids make the gateway fetch the keys only now and then.",
    tests=OIDC,
    units_only=True,
)
def fetch_keys_whenever_one_is_not_known(patch: Patch) -> None:
    """Each token with an unknown key id makes the gateway fetch the keys at once."""
    due = Issuer.due
    patch.setattr(Issuer, "due", lambda self: self._tried_at if self._is_wanted else due(self))


@breaks(SOURCE, "The memory of unknown key ids is bounded.", tests=OIDC, units_only=True)
def remember_all_unknown_keys(patch: Patch) -> None:
    """Every unknown key id is remembered."""
    patch.setattr(oidc, "MAX_UNKNOWN", 1 << 60)


@breaks("security", "A token that expires ends its connections at that moment.", tests=DOOR, units_only=True)
def look_for_expired_tokens_at_intervals(patch: Patch) -> None:
    """A new caller does not hasten the next look-up."""
    open_ = ClientConnections.on_open

    def on_open(self, link):
        self._next_check_ms = 0.0
        open_(self, link)

    patch.setattr(ClientConnections, "on_open", on_open)


@breaks(SOURCE, "A connection ends when its issuer's token expires.", tests=DOOR, units_only=True)
def forget_when_tokens_of_the_issuer_expire(patch: Patch) -> None:
    """Only tokens of the cluster end connections."""
    is_invalid, expiry_ms = Authorizer.is_invalid, Authorizer.expiry_ms
    patch.setattr(
        Authorizer, "is_invalid", lambda self, client, now: bool(client.token_id) and is_invalid(self, client, now)
    )
    patch.setattr(Authorizer, "expiry_ms", lambda self, client: expiry_ms(self, client._replace(expires_ms=-1)))


@breaks("security", "Failed logins are a line for each address and interval.", tests=DOOR, units_only=True)
def log_every_failed_login(patch: Patch) -> None:
    """Each failed login writes a line."""
    patch.setattr(RepeatedLines, "on_line", lambda self, who, now: 0)


@breaks("security", "One address does not have all connections.", tests=DOOR, units_only=True)
def count_ports_as_addresses(patch: Patch) -> None:
    """Each port of an address counts as an address."""
    patch.setattr(door, "_address", lambda remote: remote)


@breaks("security", "One principal does not have all connections.", tests=DOOR, units_only=True)
def give_a_principal_all_connections(patch: Patch) -> None:
    """Only quotas bound the connections of a principal."""
    refuse_connection = Quotas.refuse_connection

    def only_by_quota(self, principal):
        return refuse_connection(self, principal) if self.has_quota(principal) else None

    patch.setattr(Quotas, "refuse_connection", only_by_quota)


@breaks(
    "security",
    "Setting a group's positions, or ending a transaction, from outside is audited.",
    tests=DOOR,
    units_only=True,
)
def leave_changes_of_outsiders_out_of_the_audit(patch: Patch) -> None:
    """Only requests that need the rights of administrators are audited."""
    patch.setattr(ClientConnections, "_is_audited", lambda self, link, message: False)


@breaks("security", "Fencing the transaction of another connection is audited.", tests=DOOR, units_only=True)
def audit_no_begun_transaction(patch: Patch) -> None:
    """The begin of a transaction is never audited."""
    patch.setattr(OwnTransactions, "fences", lambda *_: False)


@breaks("security", "The transactions that a connection begins itself are not audited.", tests=DOOR, units_only=True)
def take_ones_own_transactions_for_those_of_others(patch: Patch) -> None:
    """The gateway does not remember the transactions that a connection has begun."""
    patch.setattr(OwnTransactions, "on_link_opened", lambda *_: None)
    patch.setattr(OwnTransactions, "on_link_closed", lambda *_: None)


@breaks("security", "Refused requests hide none that was done.", tests=AUDIT, units_only=True)
def merge_what_was_done_with_refusals(patch: Patch) -> None:
    """The outcome of a request is not compared."""
    patch.setattr(journal, "REFUSED", journal.DONE)


@breaks("security", "Malformed requests use up the quota.", tests=DOOR, units_only=True)
def judge_texts_before_quotas(patch: Patch) -> None:
    """Malformed requests are refused before they are counted."""
    on_message = ClientConnections.on_message

    def texts_first(self, link, id, message):
        if fault := door.fault_of_texts(message):
            raise TidelogError(fault, code="MALFORMED")
        on_message(self, link, id, message)

    patch.setattr(ClientConnections, "on_message", texts_first)


@breaks("security", "Strangers share as one principal where rules are heeded.", tests=DOOR, units_only=True)
def give_each_stranger_a_share(patch: Patch) -> None:
    """Each connection without a name counts as a principal."""
    on_open = GatewayShell.on_open
    patch.setattr(GatewayShell, "on_open", lambda self, link, principal, **_: on_open(self, link, principal))


@breaks("decision 38", "With a secret no service goes by the name localhost.", tests=LISTENING, units_only=True)
def take_localhost_with_a_secret(patch: Patch) -> None:
    """Any URL is taken."""
    patch.setattr(listening, "_is_localhost", lambda url: False)


@breaks(
    "security",
    "The timeline holds words of strangers printable.",
    tests=("unit.controller.active.test_refusal_log",),
    units_only=True,
)
def tell_words_of_strangers_as_they_are(patch: Patch) -> None:
    """The words are cut, and not escaped."""
    patch.setattr(refusals, "_words", lambda text: text[: refusals.TEXT])


@breaks("security", "Nobody hides a change behind others of his own.", tests=AUDIT, units_only=True)
def merge_all_changes_of_a_principal(patch: Patch) -> None:
    """The subject of a change is not compared."""
    patch.setattr(journal, "_merged_under", lambda who, request: (who["principal"],))


@breaks("security", "The audit writes merged events when their interval ends.", tests=AUDIT, units_only=True)
def forget_what_was_merged(patch: Patch) -> None:
    """Only the first of a group is notified."""
    patch.setattr(MergedEvents, "end_interval", lambda self: [])


@breaks("security", "A request is refused when the audit has no room for its event.", tests=DOOR, units_only=True)
def do_what_cannot_be_told(patch: Patch) -> None:
    """Requests are let in where the audit has no room."""
    patch.setattr(Audit, "refuse_if_full", lambda *_: None)


@breaks(
    "security",
    "A timestamp of the future makes no segment young.",
    tests=("unit.replica.storage.test_retention",),
    units_only=True,
)
def believe_timestamps_of_the_future(patch: Patch) -> None:
    """A segment is as young as its newest record."""
    patch.setattr(Segment, "newest_ms", lambda self: self.max_timestamp)


@breaks(
    "security",
    "Without TLS a name that is not listed proves nothing.",
    tests=("unit.tidelog.net.test_host_names",),
    units_only=True,
)
def show_metrics_under_any_name(patch: Patch) -> None:
    """The header Host is not looked at."""
    patch.setattr(Origins, "knows", lambda self, host: True)
