"""How controllers with empty stores found a cluster."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence

import pytest
from tidelog.sansio.effects import Send
from tidelog.wire.messages import Meet
from tidelog_controller.raft.bootstrap import Bootstrap
from tidelog_controller.raft.effects import RaftEffect
from tidelog_controller.raft.log import PersistentState
from tidelog_controller.raft.raft import Raft
from tidelog_controller.raft.settings import RaftSettings

URLS = {node: f"ws://{node}" for node in ("c1", "c2", "c3", "c4", "c5")}


def begin(node: str, store: str, now: float = 0.0) -> Bootstrap:
    """Return a controller with an empty store of this name."""
    raft = Raft(
        node,
        RaftSettings(snapshot_threshold=2),
        PersistentState(store=f"{store} of {node}"),
        random.Random(node),
        now,
    )
    return Bootstrap(raft, URLS, waits=False, now=now)


def new() -> dict[str, Bootstrap]:
    """Return five controllers with empty stores."""
    return {node: begin(node, "store") for node in URLS}


def test_the_founder_sends_the_configuration_to_all_others_before_anything_else():
    """A test over real services failed without this: the founder was elected, and the two others stored its entries.
    Both were restarted within half a second, before their next ``Meet``. Then the founder ended, and neither of the
    others knew that it is a voter."""
    controllers = new()
    sent = [(node, effect) for node in URLS for effect in controllers[node].on_tick(0.0)]
    founder = ""
    while not founder:
        sender, effect = sent.pop(0)
        assert isinstance(effect, Send) and isinstance(effect.message, Meet)
        answered = [(effect.to, each) for each in controllers[effect.to].on_meet(sender, effect.message, 0.0)]
        if controllers[effect.to].founded:
            founder, sent = effect.to, answered
        else:
            sent += answered
    others = [node for node in URLS if node != founder]
    assert not any(controllers[node].founded for node in others)
    first = [effect for _, effect in sent if isinstance(effect, Send)][: len(others)]
    for effect in first:
        assert isinstance(effect.message, Meet)
        controllers[effect.to].on_meet(founder, effect.message, 0.0)
    assert [controllers[node].raft.is_voter for node in URLS] == [True] * len(URLS)


def is_founded(effect: Send) -> bool:
    """Return whether a message is the ``Meet`` of a founded controller."""
    return isinstance(effect.message, Meet) and effect.message.founded


def is_last(effect: Send) -> bool:
    """Return whether a message is the ``Meet`` of a controller that knows all stores."""
    return isinstance(effect.message, Meet) and len(effect.message.stores) == len(URLS)


class Group:
    """Controllers and their messages, which arrive at once, except at those in ``down`` and those for which ``lost``
    returns True."""

    def __init__(self) -> None:
        self.controllers = new()
        self.down: set[str] = set()
        self.lost: Callable[[str, Send], bool] = lambda sender, effect: False
        self.now = 0.0

    def run(self, seconds: float) -> None:
        """Let time pass: run the timers of all controllers that are not down, and deliver their messages."""
        end = self.now + seconds
        while self.now < end:
            for node, founding in self.controllers.items():
                if node not in self.down:
                    self._deliver(node, [*founding.on_tick(self.now), *founding.raft.on_tick(self.now)])
            self.now += 0.01

    def _deliver(self, sender: str, effects: Sequence[RaftEffect]) -> None:
        """Deliver these messages, and all that are sent because of them, in the order in which they were sent."""
        sent = deque((sender, effect) for effect in effects if isinstance(effect, Send))
        while sent:
            sender, effect = sent.popleft()
            if effect.to in self.down or self.lost(sender, effect):
                continue
            receiver, message = self.controllers[effect.to], effect.message
            if isinstance(message, Meet):
                answers = receiver.on_meet(sender, message, self.now)
            else:
                answers = receiver.raft.on_message(sender, message, self.now)
            sent.extend((effect.to, answer) for answer in answers if isinstance(answer, Send))

    def replace_disk(self, node: str) -> None:
        """Restart a controller with an empty store."""
        self.controllers[node] = begin(node, "new store", self.now)

    def propose(self, count: int) -> None:
        """Let the leader propose so many commands, and let a second pass."""
        (leader,) = self.leaders()
        for _ in range(count):
            self._deliver(leader, self.controllers[leader].raft.propose(b"x", self.now)[1])
        self.run(1.0)

    def founded(self) -> list[str]:
        """Return the controllers that have a configuration."""
        return [node for node, founding in self.controllers.items() if founding.founded]

    def leaders(self) -> list[str]:
        """Return the running controllers that lead."""
        running = (node for node in self.controllers if node not in self.down)
        return [node for node in running if self.controllers[node].raft.role == "leader"]


def test_a_controller_without_a_configuration_gives_no_vote():
    """The founder would lead alone otherwise. Where its announcement is lost and it then ends for good, none of the
    others knows that it is a voter."""
    group = Group()
    group.lost = lambda sender, effect: isinstance(effect.message, Meet) and bool(group.founded())
    group.run(5.0)
    assert len(group.founded()) == 1
    assert group.leaders() == []


def test_a_lost_disk_does_not_found_the_cluster_again_with_one_that_missed_the_founding():
    """The last controller has met all others, but does not hear from two of them that they know all stores, nor that
    the cluster is founded. Then these two lose their disks, and the others are away: a majority without memory."""
    group = Group()
    late, lost = "c5", ("c3", "c4")
    group.lost = lambda sender, effect: (
        effect.to == late and (is_founded(effect) or (sender in lost and is_last(effect)))
    )
    group.run(5.0)
    assert late not in group.founded() and len(group.leaders()) == 1
    group.lost = lambda sender, effect: False
    group.down = {"c1", "c2"}
    for node in lost:
        group.replace_disk(node)
    group.run(5.0)
    assert group.founded() == ["c1", "c2"]
    assert group.leaders() == []


@pytest.mark.parametrize("compacted", [False, True])
def test_the_survivors_of_the_founder_elect(compacted: bool):
    """Of five controllers only three are founded when the first leader is elected; the others have nothing but its
    entries. Then two of the three end for good. The third may have compacted its log, so that the first configuration
    is in its snapshot alone."""
    group = Group()
    late = ("c4", "c5")
    group.lost = lambda sender, effect: effect.to in late and (is_founded(effect) or is_last(effect))
    group.run(5.0)
    assert len(group.leaders()) == 1
    assert [group.controllers[node].raft.is_voter for node in URLS] == [True, True, True, False, False]
    group.propose(3)
    assert [group.controllers[node].raft.log.last_index for node in late] == [4, 4]
    if compacted:
        for node in ("c1", "c2", "c3"):
            group.controllers[node].raft.on_snapshot(4, b"", group.now)
            assert group.controllers[node].raft.log.base.index > 0
    group.down = {*group.leaders(), "c1" if group.leaders() != ["c1"] else "c2"}
    group.lost = lambda sender, effect: False
    group.run(5.0)
    assert len(group.leaders()) == 1
    assert all(group.controllers[node].raft.is_voter for node in late)
