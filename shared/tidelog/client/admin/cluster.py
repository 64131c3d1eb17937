"""Administration of the cluster: its servers, controllers and feature level (docs/upgrade.md): ``Log.cluster``."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.client.connection import GatewayConnection
from tidelog.wire.messages import (
    AddController,
    DescribeFeatures,
    DescribeMetrics,
    DescribeQuorum,
    Done,
    DrainServer,
    FeaturesAnswer,
    ForgetServer,
    Metadata,
    MetadataAnswer,
    MetricsAnswer,
    Play,
    PlayAnswer,
    PlayedMessage,
    PlayedNode,
    QuorumAnswer,
    RaiseLevel,
    RemoveController,
    ScrubServer,
    ScrubStatus,
)


class ClusterAdmin:
    """Describe the cluster, and change its servers, controllers and feature level: ``log.cluster``."""

    def __init__(self, connection: GatewayConnection) -> None:
        self._connection = connection

    async def status(self, *, offsets: bool = False) -> MetadataAnswer:
        """Cluster, servers and topics as the gateway knows them; ``offsets``: with what the leaders tell of each
        partition."""
        return await self._connection.ask(Metadata(all_topics=True, offsets=offsets), MetadataAnswer)

    async def quorum(self) -> QuorumAnswer:
        """The controllers, and which is the active one."""
        return await self._connection.ask(DescribeQuorum(), QuorumAnswer)

    async def metrics(self, node: str = "") -> MetricsAnswer:
        """What a replica server counts, the active controller, or (no name) this gateway: its page in Prometheus'
        text format, its version and its clock. Raises ``UNKNOWN_SERVER``, ``UNREACHABLE``, ``UNSUPPORTED``."""
        return await self._connection.ask(DescribeMetrics(node), MetricsAnswer, again=False)

    async def add_controller(self, node: str, url: str) -> None:
        """Take a running controller into the group, as a learner; it votes when it has caught up (``quorum`` tells).
        One that has lost its disk begins again. Raises ``CHANGE_IN_PROGRESS``, ``QUORUM_AT_RISK``."""
        await self._connection.call(AddController(node, url))

    async def remove_controller(self, node: str) -> None:
        """Take a controller out of the group. Raises ``CHANGE_IN_PROGRESS``, ``QUORUM_AT_RISK``,
        ``UNKNOWN_CONTROLLER``."""
        await self._connection.call(RemoveController(node), again=False)

    async def features(self) -> FeaturesAnswer:
        """The cluster's feature level, and which levels each process understands. Raises ``UNSUPPORTED`` where the
        active controller or the gateway is of a release without levels: the level is 1."""
        return await self._connection.ask(DescribeFeatures(), FeaturesAnswer)

    async def raise_level(self, level: int, *, left_behind: Iterable[str] = (), dry_run: bool = False) -> None:
        """Raise the cluster to a feature level, for good; ``dry_run``: only ask whether that can be. Processes in
        ``left_behind`` may be down. Raises ``UNSUPPORTED_LEVEL``, which names all who do not understand it."""
        await self._connection.ask(RaiseLevel(level, tuple(left_behind), dry_run), Done)

    async def forget_server(self, server: str) -> None:
        """Have a replica server that is gone for good be none of the cluster any more. Raises ``UNKNOWN_SERVER``,
        ``SERVER_IN_USE`` (it is live, or has copies), ``UNSUPPORTED_LEVEL``."""
        await self._connection.ask(ForgetServer(server), Done)

    async def drain_server(self, server: str, drain: bool = True) -> None:
        """Have a server lead nothing where another can, and get no new replicas; without ``drain``: have it take part
        again. Raises ``UNKNOWN_SERVER``."""
        await self._connection.ask(DrainServer(server, drain), Done)

    async def scrub_server(self, node: str, *, begin: bool = True) -> ScrubStatus:
        """How far the scrubber of a replica server is. With ``begin`` it first starts a new round, and gives up one
        that is under way. Raises ``UNREACHABLE``, and ``UNSUPPORTED_LEVEL`` below feature level 4."""
        return await self._connection.ask(ScrubServer(node, begin), ScrubStatus)

    async def play(self, node: str = "", act: str = "") -> tuple[PlayedNode, ...]:
        """Have something happen to a node of a cluster that ``tidelog dev`` runs: ``kill``, ``pause``, ``cut`` or
        ``heal``; "": nothing. The nodes as they are now. Raises ``UNSUPPORTED`` everywhere else."""
        return (await self._connection.ask(Play(node, act), PlayAnswer)).nodes

    async def played_messages(self, act: str) -> tuple[PlayedMessage, ...]:
        """Of a cluster that ``tidelog dev`` runs: ``record``: hear from now on what its services say to each other;
        ``stop``: no more, and what it was, in order, the newest 2,000. Raises ``UNSUPPORTED`` everywhere else."""
        return (await self._connection.ask(Play("", act), PlayAnswer)).messages
