"""Faults of links that lose everything, something, or their connections; in one direction or both, with all hosts or
with some."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import trio
from chaos.cluster import capabilities, links
from chaos.cluster.cluster import OwnHosts
from chaos.cluster.network_namespaces import CLIENTS
from chaos.cluster.proxies import ProxyLinks
from chaos.cluster.supervisor import Stage
from chaos.faults.registry import NET, Begin, fault

LONG = (2.0, 8.0)
"""Shortest and longest time of a fault in seconds: from less to more than a session."""
WAYS = {"": "both ways", "-out": "in what it sends", "-in": "in what it is sent"}
"""Suffix of a fault's name -> the directions that it cuts, in words."""


def hosts(stage: Stage) -> OwnHosts:
    """Return the cluster as one whose processes have hosts of their own, which faults of packets need."""
    assert isinstance(stage.cluster, OwnHosts)
    return stage.cluster


def peers(stage: Stage, target: str, whom: str) -> list[str]:
    """Return the other processes that a fault means by ``whom``: ``followers`` (the other replica servers),
    ``controllers``, ``gateways``, ``clients`` or ``all``."""
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
            await stage.do(stage.cluster.links.cut, senders, receivers)
        yield
        for senders, receivers in ways:
            await stage.do(stage.cluster.links.mend, senders, receivers)

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
                hold=LONG,
                part=NET,
            )(_cut(_whom, _way))


@fault(
    "cut-partial",
    "the hosts of two replica servers lose what they send each other; everybody else reaches both",
    "replica",
    hold=LONG,
    part=NET,
)
async def _partial(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    other = random.choice(peers(stage, target, "followers"))
    await stage.do(stage.cluster.links.cut, [target, other], [target, other])
    yield
    await stage.do(stage.cluster.links.mend, [target, other], [target, other])


@fault(
    "cut-halves",
    "one controller, one replica server and one gateway are on one side of a broken network, all others on the other",
    "replica",
    hold=LONG,
    part=NET,
)
async def _halves(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    island = [target, random.choice(stage.nodes("controller")), random.choice(stage.nodes("gateway"))]
    mainland = [node for node in stage.everyone() if node not in island]
    await stage.do(stage.cluster.links.cut, island, mainland)
    await stage.do(stage.cluster.links.cut, mainland, island)
    yield
    await stage.do(stage.cluster.links.mend, island, mainland)
    await stage.do(stage.cluster.links.mend, mainland, island)


@fault(
    "flapping-link",
    "the host of the leader is cut off and reached again, five times, a few tenths of a second each",
    "leader",
    hold=(0.0, 0.0),
    part=NET,
)
async def _flapping(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    others = stage.others(target)
    for _ in range(5):
        await stage.do(stage.cluster.links.cut, [target], others)
        await trio.sleep(random.uniform(0.1, 0.8))
        await stage.do(stage.cluster.links.mend, [target], others)
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
        needs=(capabilities.HOSTS,),
        hold=LONG,
        part=NET,
    )(_lossy(_part))


@fault(
    "resets",
    "all connections of a replica server's host are reset, again and again, for some seconds",
    "replica",
    needs=(capabilities.SOCKETS,),
    hold=(0.0, 0.0),
    part=NET,
)
async def _resets(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    for _ in range(random.randint(1, 6)):
        await stage.do(stage.cluster.links.reset, target)
        await trio.sleep(random.uniform(0.1, 1.0))
    yield


@fault(
    "refused",
    "connections between the leader's host and all others are reset, and none can be made",
    "leader",
    needs=(capabilities.PROXIES,),
    hold=LONG,
    part=NET,
)
async def _refused(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    proxies, others = stage.cluster.links, [*stage.others(target), CLIENTS]
    assert isinstance(proxies, ProxyLinks)
    ways = [([target], others), (others, [target])]
    for senders, receivers in ways:
        await stage.do(proxies.refuse, senders, receivers)
    yield
    for senders, receivers in ways:
        await stage.do(proxies.admit, senders, receivers)


@fault("narrow-link", "the leader's host sends no more than 400 kbit/s", "leader", hold=LONG, part=NET)
async def _narrow(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    await stage.do(stage.cluster.links.narrow, target)
    yield
    await stage.do(stage.cluster.links.smooth, target)


@fault(
    "delay",
    "what the leader's host sends arrives 100 ms later, give or take 50",
    "leader",
    needs=(capabilities.DELAY,),
    hold=LONG,
    part=NET,
)
async def _delay(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    await stage.do(stage.cluster.links.delay, target)
    yield
    await stage.do(stage.cluster.links.smooth, target)


@fault(
    "membership-while-isolated",
    "a controller is cut off and taken out of the group meanwhile; it comes back, and is added again",
    "controller",
    hold=(1.0, 3.0),
    part=NET,
    spoils=True,  # with another controller that does not vote there would be no majority to take this one out
)
async def _membership(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    others = [*stage.others(target), CLIENTS]
    await stage.do(stage.cluster.links.cut, [target], others)
    await stage.do(stage.cluster.links.cut, others, [target])
    try:
        await stage.repeat_until(
            lambda: stage.log.cluster.remove_controller(target), lambda votes: target not in votes
        )
        yield
    finally:
        with trio.CancelScope(shield=True):
            await stage.do(stage.cluster.links.mend, [target], others)
            await stage.do(stage.cluster.links.mend, others, [target])
    url = stage.cluster.get(target).url
    await stage.repeat_until(
        lambda: stage.log.cluster.add_controller(target, url), lambda votes: votes.get(target, False)
    )
