"""Which principals decide about tokens and rules: an operation of its own, its inheritance over an upgrade, and
superusers. Tests ``metadata/rules/access.py`` and ``shared/tidelog/acl.py``."""

from __future__ import annotations

import random

import pytest
from support.controller_network import ControllerNet
from tidelog.acl import decide, heirs_of
from tidelog.errors import TidelogError
from tidelog.feature_levels import SECURITY, Levels
from tidelog.types import Access, Acl, Quota, Token
from tidelog.wire.messages import (
    AllocateProducerIds,
    AlterAcls,
    AlterQuotas,
    DescribeAccess,
    Done,
    DrainServer,
    Message,
    PutToken,
    RaiseLevel,
    RevokeTokens,
    RotateTicketKeys,
)
from tidelog_controller.metadata.application import apply
from tidelog_controller.metadata.commands import ChangeAccess
from tidelog_controller.metadata.rules.access import plan_access
from tidelog_controller.metadata.state import MetadataState
from tidelog_controller.metadata.state_machine import decode_state, encode_state
from tidelog_gateway.rights.authorizer import Authorizer, AuthorizerSettings, heirs_at

NODES = ("c1", "c2", "c3")
OPERATE, DECIDE = Acl("olga", "cluster", "cluster"), Acl("sam", "security", "cluster")
BELOW = SECURITY - 1
DIGEST = "ab" * 32
DICE = random.Random(1)


def at_level(level: int, *acls: Acl) -> tuple[ControllerNet, int]:
    """Return the controllers of a cluster that begins at this feature level with these rules, and a link to the
    active one."""
    net = ControllerNet(levels=dict.fromkeys(NODES, Levels(1, level)))
    link = net.link(net.elect())
    net.answer(link, AllocateProducerIds(1))
    if acls:
        net.answer(link, AlterAcls(acls))
    return net, link


def upgraded(*acls: Acl) -> tuple[ControllerNet, int]:
    """Return controllers that began below the level and were raised to it, and a link to the active one."""
    net, _ = at_level(BELOW, *acls)
    net.levels.clear()
    for node in NODES:
        net.kill(node)
        net.start(node)
    active = net.elect()
    for node in NODES:
        if node != active:
            net.greet(active, "controller", node)
    link = net.link(active)
    assert net.answer(link, RaiseLevel(SECURITY)) == Done()
    return net, link


def access(net: ControllerNet) -> Access:
    net.run(1.0)
    (found,) = {repr(controller.state.access) for controller in net.nodes.values()}
    now = net.nodes[net.elect()].state.access
    assert repr(now) == found, "all controllers hold the same"
    return now


# --- what rules decide -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("acls", "heirs", "allowed"),
    [
        ((OPERATE,), (), False),
        ((OPERATE,), ("olga",), True),
        ((OPERATE,), ("sam",), False),
        ((), ("olga",), False),
        ((Acl("olga", "security", "cluster"),), (), True),
        ((Acl("olga", "*", "cluster"),), (), True),
        ((Acl("*", "cluster", "cluster"),), ("*",), True),
        ((Acl("*", "cluster", "cluster"),), ("olga",), False),
        ((OPERATE, Acl("olga", "cluster", "cluster", deny=True)), ("olga",), False),
        ((OPERATE, Acl("olga", "security", "cluster", deny=True)), ("olga",), False),
        ((OPERATE, Acl("*", "*", "cluster", deny=True)), ("olga",), False),
        ((Acl("olga", "describe", "cluster"),), ("olga",), False),
        ((Acl("olga", "*", "topic:*"),), ("olga",), False),
    ],
)
def test_the_rules_decide_which_principals_may_change_rights(
    acls: tuple[Acl, ...], heirs: tuple[str, ...], allowed: bool
) -> None:
    assert decide(acls, "olga", "security", "cluster", heirs) is allowed
    assert decide(reversed(acls), "olga", "security", "cluster", heirs) is allowed


def test_a_principal_that_changes_rights_does_not_operate_the_cluster() -> None:
    assert not decide((DECIDE,), "sam", "cluster", "cluster", ("sam",))
    assert decide((DECIDE,), "sam", "describe", "cluster")


# --- gateways --------------------------------------------------------------------------------------------------

TO_DECIDE: tuple[Message, ...] = (
    PutToken("0" * 16, DIGEST, "bob"),
    RevokeTokens("0" * 16),
    AlterAcls(),
    RotateTicketKeys(),
)


def guard(*acls: Acl, level: int = SECURITY, heirs: tuple[str, ...] = ()) -> Authorizer:
    made = Authorizer(AuthorizerSettings(authorization=True, superusers=("admin",)))
    made.update(Access(acls=acls, heirs=heirs), level)
    return made


@pytest.mark.parametrize("request_", TO_DECIDE, ids=lambda message: message.OP)
def test_it_takes_security_to_decide_about_rights(request_: Message) -> None:
    strict = guard(OPERATE, DECIDE)
    refused = strict.refuse_request("olga", request_)
    assert refused is not None and "'tidelog acls add olga security cluster'" in refused.message
    assert strict.refuse_request("sam", request_) is None and strict.refuse_request("admin", request_) is None
    assert (
        strict.refuse_request("olga", DrainServer("r1")) is None
        and strict.refuse_request("sam", DrainServer("r1")) is not None
    )


def test_both_may_look_at_rights_and_nobody_else() -> None:
    strict = guard(OPERATE, DECIDE, Acl("dora", "describe", "cluster"))
    assert [strict.refuse_request(who, DescribeAccess()) is None for who in ("olga", "sam", "dora")] == [
        True,
        True,
        False,
    ]


def test_below_the_level_operators_may_change_rights_as_with_earlier_gateways() -> None:
    assert guard(OPERATE, level=BELOW).may("olga", "security", "cluster")
    assert not guard(OPERATE).may("olga", "security", "cluster")
    assert guard(OPERATE, heirs=("olga",)).may("olga", "security", "cluster")
    assert heirs_at(Access(acls=(OPERATE,)), BELOW) == ("olga",) and heirs_at(Access(acls=(OPERATE,)), SECURITY) == ()


def test_superusers_are_spared_by_all_others() -> None:
    assert guard().spared("sam") == ("admin",) and guard().spared("admin") == ()
    assert Authorizer(AuthorizerSettings(superusers=("admin",))).spared("sam") == (), (
        "rules are not heeded there at all"
    )


# --- the controllers -------------------------------------------------------------------------------------------


def test_a_change_about_superusers_is_refused_whatever_the_request_says() -> None:
    tokens = (Token("1" * 16, "admin", DIGEST), Token("2" * 16, "bob", DIGEST))
    state = MetadataState("c", access=Access(tokens), level=SECURITY)
    spared = ("admin", "root")
    for wish in (
        PutToken("3" * 16, DIGEST, "root", spared=spared),
        PutToken("3" * 16, DIGEST, "bob", replaces="1" * 16, spared=spared),
        RevokeTokens("1" * 16, spared=spared),
        RevokeTokens("2" * 16, "admin", spared=spared),
        AlterQuotas((Quota("bob", requests_s=5), Quota("admin", requests_s=5)), spared=spared),
    ):
        refused = plan_access(state, wish, DICE, 0)
        assert isinstance(refused, TidelogError) and refused.code == "FORBIDDEN", wish
    for wish in (
        PutToken("3" * 16, DIGEST, "bob", spared=spared),
        RevokeTokens("2" * 16, spared=spared),
        AlterQuotas((Quota("bob", requests_s=5),), spared=spared),
        RevokeTokens("1" * 16),
    ):
        assert isinstance(plan_access(state, wish, DICE, 0), ChangeAccess), wish


def test_a_new_cluster_has_no_heirs() -> None:
    net, link = at_level(SECURITY, OPERATE)
    assert access(net).heirs == ()
    net.answer(link, AlterAcls(drop_inherited=True))
    assert access(net) == Access(acls=(OPERATE,))


def test_only_operators_at_the_time_the_level_is_raised_become_heirs() -> None:
    denied = Acl("mallory", "cluster", "cluster", deny=True)
    net, link = upgraded(OPERATE, denied, DECIDE, Acl("dora", "describe", "cluster"), Acl("*", "read", "topic:*"))
    assert access(net).heirs == ("olga",)
    net.answer(link, AlterAcls((Acl("otto", "cluster", "cluster"),)))
    assert access(net).heirs == ("olga",)
    assert not decide(access(net).acls, "otto", "security", "cluster", access(net).heirs)


def test_inherited_rights_end_by_one_request_and_with_the_right_that_they_came_from() -> None:
    other = Acl("otto", "cluster", "cluster")
    net, link = upgraded(OPERATE, other)
    net.answer(link, AlterAcls(remove=(OPERATE,)))
    net.answer(link, AlterAcls((OPERATE,)))
    assert access(net).heirs == ("otto",)
    net.answer(link, AlterAcls(drop_inherited=True))
    assert access(net).heirs == () and set(access(net).acls) == {OPERATE, other}


def test_nothing_is_ended_before_there_is_the_operation() -> None:
    net, link = at_level(BELOW, OPERATE)
    assert net.refusal(link, AlterAcls(drop_inherited=True)).code == "UNSUPPORTED_LEVEL"
    state = net.nodes[net.elect()].state
    assert state.access.heirs == ()


def test_heirs_are_in_snapshots_and_in_the_images_for_gateways() -> None:
    net, _ = upgraded(OPERATE)
    controller = net.nodes[net.elect()]
    assert decode_state(encode_state(controller.metadata_log.replicated)) == controller.metadata_log.replicated
    assert controller.state.image().access.heirs == ("olga",)
    below, _ = at_level(BELOW, OPERATE)
    old = below.nodes[below.elect()].metadata_log.replicated
    assert b"heirs" not in encode_state(old), "an earlier release could not read it"


def test_heirs_are_the_principals_that_a_rule_allows_to_administer() -> None:
    acls = (
        OPERATE,
        OPERATE,
        Acl("*", "cluster", "cluster"),
        Acl("x", "*", "cluster"),
        Acl("y", "cluster", "topic:a"),
    )
    assert heirs_of(acls) == ("olga", "*")
    state = apply(MetadataState("c", level=SECURITY), ChangeAccess(0, acls=(OPERATE,)), 1).state
    assert state.access.heirs == ()
