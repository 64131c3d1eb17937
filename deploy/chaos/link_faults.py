"""Links that lose everything, something, or their connections; one way or both, for everybody or for some."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import trio
from chaos import abilities, links
from chaos.cluster import OwnHosts
from chaos.faults import NET, Begin, fault
from chaos.hosts import CLIENTS
from chaos.stage import Stage

HOSTS = (abilities.HOSTS,)
LONG = (2.0, 8.0)
"""From shorter to longer than a session."""
WAYS = {"": "both ways", "-out": "in what it sends", "-in": "in what it is sent"}


def hosts(stage: Stage) -> OwnHosts:
    """The cluster; such faults need one with hosts."""
    assert isinstance(stage.cluster, OwnHosts)
    return stage.cluster


def peers(stage: Stage, target: str, whom: str) -> list[str]:
    """The others that are meant."""
    named = {"followers": "replica", "controllers": "controller", "gateways": "gateway"}
    if whom == "all":
        return [*stage.others(target), CLIENTS]
    if whom == "clients":
        return [CLIENTS]
    return [node for node in stage.nodes(named[whom]) if node != target]


def _cut(whom: str, way: str) -> Begin:
    async def begin(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
        others = peers(stage, target, whom)
        ways = [] if way == "-in" else [([target], others)]
        ways += [] if way == "-out" else [(others, [target])]
        for senders, receivers in ways:
            await stage.do(hosts(stage).cut, senders, receivers)
        yield
        for senders, receivers in ways:
            await stage.do(hosts(stage).mend, senders, receivers)

    return begin


for _strikes, _groups in {
    "leader": ("followers", "controllers", "gateways", "all"),
    "follower": ("all",),
    "active": ("controllers", "all"),
    "gateway": ("clients", "controllers"),
}.items():
    for _whom in _groups:
        for _way, _words in WAYS.items():
            fault(
                f"cut-{_strikes}-{_whom}{_way}",
                f"the host of the {_strikes} and those of {'all others' if _whom == 'all' else 'the ' + _whom} lose "
                f"what they send each other, {_words}",
                _strikes,
                needs=HOSTS,
                hold=LONG,
                part=NET,
            )(_cut(_whom, _way))


@fault(
    "cut-partial",
    "the hosts of two replica servers lose what they send each other; everybody else reaches both",
    "replica",
    needs=HOSTS,
    hold=LONG,
    part=NET,
)
async def _partial(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    other = random.choice(peers(stage, target, "followers"))
    await stage.do(hosts(stage).cut, [target, other], [target, other])
    yield
    await stage.do(hosts(stage).mend, [target, other], [target, other])


@fault(
    "cut-halves",
    "one controller, one replica server and one gateway are on one side of a broken network, all others on the other",
    "replica",
    needs=HOSTS,
    hold=LONG,
    part=NET,
)
async def _halves(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    island = [target, random.choice(stage.nodes("controller")), random.choice(stage.nodes("gateway"))]
    mainland = [node for node in stage.everyone() if node not in island]
    await stage.do(hosts(stage).cut, island, mainland)
    await stage.do(hosts(stage).cut, mainland, island)
    yield
    await stage.do(hosts(stage).mend, island, mainland)
    await stage.do(hosts(stage).mend, mainland, island)


@fault(
    "flapping-link",
    "the host of the leader is cut off and reached again, five times, a few tenths of a second each",
    "leader",
    needs=HOSTS,
    hold=(0.0, 0.0),
    part=NET,
)
async def _flapping(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    others = stage.others(target)
    for _ in range(5):
        await stage.do(hosts(stage).cut, [target], others)
        await trio.sleep(random.uniform(0.1, 0.8))
        await stage.do(hosts(stage).mend, [target], others)
        await trio.sleep(random.uniform(0.1, 0.8))
    yield


def _lossy(part: float) -> Begin:
    async def begin(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
        await stage.do(links.lose, hosts(stage), target, part)
        yield
        await stage.do(links.lose_nothing, hosts(stage), target)

    return begin


for _part in (0.05, 0.3):
    fault(
        f"loss-{_part:.0%}".removesuffix("%"),
        f"{_part:.0%} of the packets that the leader's host sends are lost",
        "leader",
        needs=HOSTS,
        hold=LONG,
        part=NET,
    )(_lossy(_part))


@fault(
    "resets",
    "all connections of a replica server's host are reset, again and again, for some seconds",
    "replica",
    needs=(abilities.SOCKETS,),
    hold=(0.0, 0.0),
    part=NET,
)
async def _resets(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    for _ in range(random.randint(1, 6)):
        await stage.do(links.reset, hosts(stage), target)
        await trio.sleep(random.uniform(0.1, 1.0))
    yield


def _shaped(*how: str) -> Begin:
    async def begin(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
        await stage.do(links.shape, hosts(stage), target, *how)
        yield
        await stage.do(links.unshape, hosts(stage), target)

    return begin


fault(
    "narrow-link",
    "the leader's host sends no more than 400 kbit/s, and what waits longer than 0.4 s is lost",
    "leader",
    needs=HOSTS,
    hold=LONG,
    part=NET,
)(_shaped("tbf", "rate", "400kbit", "burst", "8kb", "latency", "400ms"))

fault(
    "delay",
    "what the leader's host sends arrives 100 ms later, give or take 50, and out of order",
    "leader",
    needs=(abilities.NETEM,),
    hold=LONG,
    part=NET,
)(_shaped("netem", "delay", "100ms", "50ms", "duplicate", "2%"))


@fault(
    "membership-while-isolated",
    "a controller is cut off and taken out of the group meanwhile; it comes back, and is added again",
    "controller",
    needs=HOSTS,
    hold=(1.0, 3.0),
    part=NET,
)
async def _membership(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    others = [*stage.others(target), CLIENTS]
    await stage.do(hosts(stage).cut, [target], others)
    await stage.do(hosts(stage).cut, others, [target])
    try:
        await stage.asked(lambda: stage.log.remove_controller(target), lambda votes: target not in votes)
        yield
    finally:
        with trio.CancelScope(shield=True):
            await stage.do(hosts(stage).mend, [target], others)
            await stage.do(hosts(stage).mend, others, [target])
    url = stage.cluster.get(target).url
    await stage.asked(lambda: stage.log.add_controller(target, url), lambda votes: votes.get(target, False))
