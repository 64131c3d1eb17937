"""A copy that is lost: nothing of it may change before nobody can count on it any more. Tests ``node.py`` and
``storage/log.py``."""

from __future__ import annotations

from support.replica_network import KEY, code

from unit.replica.maintenance.test_log_repairer import VALUES, break_header, files, filled, happened, segments


def test_a_replica_outside_the_isr_reports_its_loss_too_because_it_may_be_about_to_join():
    net = filled()
    net.stop("r3")
    net.push(isr=("r1", "r2"))
    break_header(net, "r3", segments(net, "r3")[1])
    before, state = files(net, "r3"), net.state()
    net.hold = lambda name, call: type(call.message).__name__ in ("HandOver", "AlterIsr")
    net.start("r3")
    net.advance(5)
    assert files(net, "r3") == before
    net.push(isr=("r1", "r2", "r3"))  # an addition that was under way
    net.deliver(*net.held[0])
    net.run()
    assert files(net, "r3") == before and "r3" in net.state().isr, "the partition had moved on"
    net.hold = lambda name, call: False
    net.advance(20)
    assert net.hand_overs[-1].parts[0].epoch == state.epoch + 1
    assert happened(net, "segment_repaired") == ["r3"] and net.values("r3") == VALUES


def test_a_fetch_that_was_on_its_way_when_the_log_was_damaged_brings_nobody_into_the_isr():
    net = filled()
    net.hold = lambda name, call: name == "r3" and type(call.message).__name__ == "Fetch"
    net.push(isr=("r1", "r2"))
    net.run()
    net.advance(5)
    (stale,) = [call for _, call in net.held]
    assert stale.message.parts[0].durable == len(VALUES)
    net.hold = lambda name, call: name == "r3"
    net.push(isr=("r1", "r2"))  # its log is damaged, the controller knows: one more epoch
    net.run()
    net.deliver("r3", stale)
    net.run()
    net.advance(5)
    assert net.state().isr == ("r1", "r2")
    net.hold = lambda name, call: False
    for name, call in net.held[1:]:
        net.deliver(name, call)
    net.run()
    net.advance(5)
    assert set(net.state().isr) == {"r1", "r2", "r3"}


def test_a_leader_without_successors_goes_on_in_a_leader_epoch_in_which_it_has_not_led():
    net = filled(1)
    damaged, epoch = segments(net, "r1")[1], net.state().leader_epoch
    break_header(net, "r1", damaged)
    net.partition("r1").log.segments.forget_tail()
    net.partition("r1").log.segments[1]._index = None
    net.partition("r1").log.segments[1].release()
    net.push(unclean_epoch=epoch)  # it led after an unclean election before
    net.run()
    assert code(net.answers[net.read("r1", int(damaged[:20]))]) == "OFFLINE"
    net.advance(5)
    assert KEY not in net.nodes["r1"].partitions, "nothing of it is served in the old epoch any more"
    net.push(leader="r1", isr=("r1",), leader_epoch=net.state().leader_epoch + 1, unclean_epoch=epoch + 2)
    net.run()
    assert net.partition("r1").leading.core.leader_epoch > epoch
    assert net.values("r1") == VALUES[: int(damaged[:20])]
