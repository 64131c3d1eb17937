"""Feature levels: no process says what a level brings before the cluster is raised to it. It is raised when every
process understands it, never lowered, and kept by snapshots; a process that does not understand it is refused. Also
what level 2 brings. Tests ``controller.py`` and ``metadata/rules/feature_level.py``."""

from __future__ import annotations

from dataclasses import replace

import cbor2
import pytest
from support.applied_commands import Log, code
from support.controller_network import ControllerNet
from tidelog.errors import ConfigError, TidelogError
from tidelog.feature_levels import ALL, CHANGES, NEWEST, OLDEST, Levels, refuse_levels
from tidelog.sansio.effects import Event
from tidelog.types import ClusterImage
from tidelog.wire.messages import (
    DescribeFeatures,
    DescribeQuorum,
    Done,
    FeaturesAnswer,
    ForgetServer,
    MetadataUpdate,
    ProcessLevels,
    RaiseLevel,
    Register,
    Registered,
    Watch,
)
from tidelog.wire.metadata_image import apply_update, encode_image
from tidelog_controller.metadata import commands
from tidelog_controller.metadata.application import apply
from tidelog_controller.metadata.commands import decode_command, encode_command
from tidelog_controller.metadata.rules.feature_level import Linked
from tidelog_controller.metadata.state import MetadataState
from tidelog_controller.metadata.state_machine import Replicated, decode_state, encode_state
from tidelog_controller.raft.log import Snapshot

OLD = Levels(1, 1)
SNAPSHOT_OF_LEVEL_1 = {
    *("format", "once", "cluster", "index", "servers", "topics", "names", "history", "next_producer_id"),
    *("earlier_lives", "timeline", "queue", "access"),
}
"""What the last release without levels reads; it refuses a snapshot with anything else."""


def founded(levels: Levels = ALL) -> ControllerNet:
    """Return three controllers of a new cluster whose release supports these levels, all linked to the active one,
    and a replica server."""
    net = ControllerNet(levels=dict.fromkeys(("c1", "c2", "c3"), levels))
    active = net.elect()
    for node in net.urls:
        if node != active:
            net.greet(active, "controller", node, levels)
    join(net, "r1", levels)
    return net


def join(net: ControllerNet, node: str, levels: Levels = ALL) -> int:
    """Open a link of a replica server to the active controller, register the server, and return the link."""
    link = net.greet(net.elect(), "replica", node, levels)
    assert isinstance(net.answer(link, Register(node, f"ws://{node}", lives=(f"life of {node}",))), Registered)
    return link


def upgraded() -> ControllerNet:
    """Return a cluster that began at level 1, whose controllers were restarted one after the other with a release
    that supports more."""
    net = founded(OLD)
    net.levels.clear()
    for node in list(net.urls):
        net.kill(node)
        net.start(node)
        net.run(2.0)
    active = net.elect()
    for node in net.urls:
        if node != active:
            net.greet(active, "controller", node)
    return net


def level(net: ControllerNet) -> int:
    answer = net.answer(net.link(net.elect()), DescribeFeatures())
    assert isinstance(answer, FeaturesAnswer)
    return answer.level


def refused(net: ControllerNet, wish: RaiseLevel | ForgetServer) -> TidelogError:
    return net.refusal(net.link(net.elect()), wish)


# --- where a cluster begins, and what it says there ------------------------------------------------------


def test_a_new_cluster_begins_at_the_newest_level_that_its_first_controller_understands() -> None:
    assert level(founded()) == NEWEST
    assert level(founded(OLD)) == OLDEST


def test_every_feature_level_is_described() -> None:
    assert list(CHANGES) == list(range(1, NEWEST + 1)) and Levels(OLDEST, NEWEST) == ALL


def test_a_log_that_an_earlier_release_began_is_at_level_1() -> None:
    log = Log()
    log.register("r1")  # without a word of levels
    assert log.state.level == 1


def test_only_the_first_command_of_all_says_where_the_cluster_begins() -> None:
    log = Log()
    log.write(commands.TakeProducerIds(0, 1, level=1))
    log.write(commands.TakeProducerIds(0, 1, level=2))
    assert log.state.level == 1


def test_at_level_1_snapshot_and_entries_are_as_an_earlier_release_reads_them() -> None:
    log = Log()
    log.register("r1", "r2", "r3")
    log.topic("r1", "r2", "r3")
    assert set(cbor2.loads(encode_state(Replicated(log.state)))) == SNAPSHOT_OF_LEVEL_1
    entry = cbor2.loads(encode_command(log.commands[0]))
    assert set(entry) <= {"kind", "time_ms", "asker", "node", "url", "lives", "clean", "rack"}


def test_a_field_as_it_is_by_default_is_left_out_of_an_entry_and_comes_back() -> None:
    command = commands.RegisterServer(5, "r1", "ws://r1")
    assert set(cbor2.loads(encode_command(command))) == {"kind", "time_ms", "node", "url"}
    assert decode_command(encode_command(command)) == command


def test_a_field_of_a_later_release_is_not_passed_over() -> None:
    entry = cbor2.dumps({"kind": "take_producer_ids", "time_ms": 0, "count": 1, "mood": "good"})
    with pytest.raises(ValueError, match="mood: a later release wrote it"):
        decode_command(entry)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_snapshot_keeps_the_level(at: int) -> None:
    log = Log()
    if at:
        log.write(commands.TakeProducerIds(0, 1, level=at))
    state = Replicated(log.state)
    assert decode_state(encode_state(state)) == state and state.metadata.level == at


# --- raising it ------------------------------------------------------------------------------------------


def test_it_is_raised_when_all_understand_it() -> None:
    net = upgraded()
    join(net, "r1")
    net.greet(net.elect(), "gateway", "g1")
    assert level(net) == 1
    assert net.answer(net.link(net.elect()), RaiseLevel(2, dry_run=True)) == Done() and level(net) == 1
    assert net.answer(net.link(net.elect()), RaiseLevel(2)) == Done() and level(net) == 2
    assert [event for _, event in net.events if event.name == "feature_level"] == [
        Event("feature_level", {"level": 2, "before": 1})
    ]
    told = net.nodes[net.elect()].state.timeline.pending[-1]
    assert (told.kind, told.evidence) == ("cluster_level_raised", {"level": "2", "level_before": "1"})


def test_all_processes_that_do_not_support_a_level_are_named_at_once_and_nothing_changes() -> None:
    net = upgraded()
    join(net, "r2", OLD)
    net.greet(net.elect(), "gateway", "g1", OLD)
    error = refused(net, RaiseLevel(2))
    assert error.code == "UNSUPPORTED_LEVEL" and level(net) == 1
    for words in ("replica r1 is not in touch", "replica r2 understands 1", "gateway g1 understands 1"):
        assert words in error.message


def test_a_server_that_is_down_may_be_left_behind_by_name_but_a_linked_one_may_not() -> None:
    net = upgraded()
    link = join(net, "r2", OLD)
    assert "r1" not in refused(net, RaiseLevel(2, left_behind=("r1", "r2"))).message
    net.close(link)
    assert net.answer(net.link(net.elect()), RaiseLevel(2, left_behind=("r1", "r2"))) == Done()
    assert level(net) == 2


def test_a_controller_that_is_away_is_in_the_way() -> None:
    net = upgraded()
    join(net, "r1")
    away = next(node for node in net.urls if node != net.elect())
    for source in [s for s, one in net.nodes[net.elect()].features._linked.items() if one.node == away]:
        net.close(source)
    assert f"controller {away} is not in touch" in refused(net, RaiseLevel(2)).message


def test_a_level_that_the_active_controller_does_not_know_is_refused() -> None:
    error = refused(founded(), RaiseLevel(NEWEST + 1))
    assert f"understands {OLDEST} to {NEWEST}" in error.message


def test_it_is_never_lowered_and_raising_it_again_changes_nothing() -> None:
    net = founded()
    assert "is not lowered to 1" in refused(net, RaiseLevel(1)).message
    assert net.answer(net.link(net.elect()), RaiseLevel(NEWEST)) == Done()


def test_the_newest_link_of_a_name_counts_and_a_process_without_a_link_is_unknown() -> None:
    net = founded()
    net.greet(net.elect(), "gateway", "g1", OLD)
    net.greet(net.elect(), "gateway", "g1")
    net.elect()
    answer = net.answer(net.link(net.elect()), DescribeFeatures())
    assert isinstance(answer, FeaturesAnswer)
    assert ProcessLevels("gateway", "g1", OLDEST, NEWEST) in answer.processes
    assert [(one.role, one.node) for one in answer.processes] == [
        *(("controller", node) for node in ("c1", "c2", "c3")),
        *(("replica", "r1"), ("gateway", "g1")),
    ]


# --- who does not understand it --------------------------------------------------------------------------


def test_the_refusal_names_the_process_that_is_too_old_or_too_new_and_the_next_step() -> None:
    assert refuse_levels("r1", ALL, 2) is None
    too_old, too_new = refuse_levels("r1", OLD, 2), refuse_levels("r1", Levels(2, 3), 1)
    assert too_old is not None and too_new is not None
    assert too_old.message == "the cluster is at feature level 2, r1 understands 1: upgrade it"
    assert "understands 2 to 3: raise the cluster's level first" in too_new.message
    assert not too_old.retriable


def test_a_process_that_came_while_the_level_rose_is_refused_and_gets_no_metadata() -> None:
    net = upgraded()
    join(net, "r1")
    active = net.elect()
    late = net.link(active)  # its hello is judged by level 1
    net.answer(late, Watch())
    net.answer(net.link(active), RaiseLevel(2))
    net.nodes[active].features.on_link(late, Linked("replica", "r9", OLD))
    assert net.refusal(late, Register("r9", "ws://r9", lives=("life",))).code == "UNSUPPORTED_LEVEL"
    assert net.refusal(late, DescribeQuorum()).code == "UNSUPPORTED_LEVEL"
    heard = len(net.order[late])
    join(net, "r5")
    assert len(net.order[late]) == heard


def test_a_controller_that_does_not_understand_the_level_ends_with_words_now_and_when_it_starts_again() -> None:
    net = ControllerNet(levels={"c3": OLD})
    with pytest.raises(ConfigError, match="c3 understands 1: upgrade it"):
        join(net, "r1")
    state = Replicated(apply(MetadataState("test"), commands.TakeProducerIds(0, 1, level=2), 1).state)
    snapshot = Snapshot(1, 1, net.disks["c3"].base.members, encode_state(state))
    net.disks["c3"] = replace(net.disks["c3"], snapshot=snapshot)
    with pytest.raises(ConfigError, match="c3 understands 1: upgrade it"):
        net.start("c3")


# --- level 2: servers are forgotten ----------------------------------------------------------------------


def test_a_server_that_is_gone_and_holds_nothing_is_forgotten_and_watchers_hear_of_it() -> None:
    net = founded()
    active = net.elect()
    link = join(net, "r2")
    net.answer(link, Watch())
    wish = ForgetServer("r1")
    assert (refused(net, wish).code, refused(net, wish).retriable) == ("SERVER_IN_USE", False)
    net.run(5.0)  # nobody heartbeats
    assert net.answer(net.link(active), wish) == Done()
    state = net.nodes[active].state
    assert list(state.servers) == ["r2"] and "r1" not in state.earlier_lives
    assert [server.node for server in net.images[link].servers] == ["r2"]
    assert refused(net, wish).code == "UNKNOWN_SERVER"


def test_a_server_that_was_forgotten_and_comes_back_is_a_new_one() -> None:
    log = Log()
    log.register("r1", "r2")
    log.fence("r1")
    log.write(commands.RemoveServer(0, "r1", log.epoch_of("r1")))
    log.register("r1", lives=("another",))
    assert log.state.timeline.pending[-1].kind == "server_joined" and log.state.is_live("r1")


def test_a_server_with_a_copy_is_not_forgotten() -> None:
    log = Log()
    log.register("r1", "r2", "r3")
    log.topic("r1", "r2")
    log.fence("r2", "r3")
    assert code(log.write(commands.RemoveServer(0, "r2", log.epoch_of("r2")))) == "SERVER_IN_USE"
    assert code(log.write(commands.RemoveServer(0, "r3", log.epoch_of("r3")))) == "done"


def test_a_server_that_began_another_life_meanwhile_is_not_forgotten() -> None:
    log = Log()
    log.register("r1")
    log.fence("r1")
    late = commands.RemoveServer(0, "r1", log.epoch_of("r1"))
    log.power_up("r1")
    log.fence("r1")
    assert code(log.write(late)) == "UNKNOWN_SERVER" and "r1" in log.state.servers


def test_at_level_1_no_server_is_forgotten() -> None:
    net = upgraded()
    net.run(5.0)
    error = refused(net, ForgetServer("r1"))
    assert error.code == "UNSUPPORTED_LEVEL" and "from feature level 2 on; the cluster is at 1" in error.message


def test_an_image_contains_the_level_and_one_of_level_1_has_no_new_fields() -> None:
    old, new = ClusterImage(3, "test"), ClusterImage(3, "test", level=2)
    assert set(cbor2.loads(encode_image(old))) == {"cluster", "servers", "topics", "access"}
    for image in (old, new):
        assert apply_update(ClusterImage(), MetadataUpdate(3, True, encode_image(image))) == image
