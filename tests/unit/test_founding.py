"""How controllers with empty stores found a cluster."""

from __future__ import annotations

import random

from tidelog.effects import Send
from tidelog.wire.messages import Meet
from tidelog_controller.core.founding import Founding
from tidelog_controller.core.raft import Raft
from tidelog_controller.core.raft_base import RaftSettings
from tidelog_controller.core.raft_log import Stored

URLS = {"c1": "ws://c1", "c2": "ws://c2", "c3": "ws://c3"}


def new() -> dict[str, Founding]:
    """Three controllers with empty stores."""
    rng = random.Random(1)
    return {
        node: Founding(
            Raft(node, RaftSettings(), Stored(store=f"store of {node}"), rng, 0.0), URLS, waits=False, now=0.0
        )
        for node in URLS
    }


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
    first = [effect for _, effect in sent if isinstance(effect, Send)][:2]
    for effect in first:
        assert isinstance(effect.message, Meet)
        controllers[effect.to].on_meet(founder, effect.message, 0.0)
    assert [controllers[node].raft.is_voter for node in URLS] == [True, True, True]
