"""Administration of the cluster: its servers, controllers and feature level (docs/upgrade.md): ``Log.cluster``."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.client.connection import GatewayConnection
from tidelog.wire.messages import (
    AddController,
    DescribeFeatures,
    DescribeMetrics,
    DescribeQuorum,
    DescribeRefusal,
    Done,
    DrainServer,
    FeaturesAnswer,
    ForgetServer,
    GatewayInfo,
    Metadata,
    MetadataAnswer,
    MetricsAnswer,
    Play,
    PlayAnswer,
    PlayedMessage,
    PlayedNode,
    QuorumAnswer,
    RaiseLevel,
    Refusal,
    RefusalAnswer,
    RemoveController,
    ScrubServer,
    ScrubStatus,
)


class ClusterAdmin:
    """The methods that describe and change the cluster's servers, controllers and feature level; each ``Log`` has
    them as ``log.cluster``."""

    def __init__(self, connection: GatewayConnection) -> None:
        self._connection = connection

    async def status(self, *, offsets: bool = False) -> MetadataAnswer:
        """Return the cluster's id, servers and topics as the gateway knows them. With ``offsets`` the answer also has
        the log start and high watermark of each partition, as the leaders report them."""
        return await self._connection.ask(Metadata(all_topics=True, offsets=offsets), MetadataAnswer)

    async def quorum(self) -> QuorumAnswer:
        """Return the controllers, with the index up to which each has copied the metadata, and the name of the active
        one."""
        return await self._connection.ask(DescribeQuorum(), QuorumAnswer)

    async def metrics(self, node: str = "") -> MetricsAnswer:
        """Return the metrics of one process: its page in Prometheus' text format, its version and its clock. ``node``
        names a replica server or the active controller; "" is the gateway of this client. Raises ``UNKNOWN_SERVER``,
        ``UNREACHABLE``, ``UNSUPPORTED``."""
        return await self._connection.ask(DescribeMetrics(node), MetricsAnswer, again=False)

    async def gateways(self) -> tuple[GatewayInfo, ...]:
        """Return the gateways that clients may go on at, with the URLs that they advertise; empty if none does, or
        the gateway does not know."""
        return (await self._connection.ask(Metadata(), MetadataAnswer)).gateways

    async def refusal(self, error_id: str) -> Refusal | None:
        """Return the error with this id, as the gateway of this client keeps it, with the facts that decided. None if
        the gateway does not keep it (any more), or the client may not see it. Raises ``UNSUPPORTED`` if the gateway
        is of an earlier release."""
        return (await self._connection.ask(DescribeRefusal(error_id), RefusalAnswer)).refusal

    async def add_controller(self, node: str, url: str) -> None:
        """Add a running controller at this URL to the group, as a learner. It becomes a voter when it has caught up
        (see ``quorum``). A controller that has lost its disk is added again in this way. Raises
        ``CHANGE_IN_PROGRESS``, ``QUORUM_AT_RISK``."""
        await self._connection.call(AddController(node, url))

    async def remove_controller(self, node: str) -> None:
        """Remove a controller from the group, so that it no longer votes or copies the metadata. Raises
        ``CHANGE_IN_PROGRESS``, ``QUORUM_AT_RISK``, ``UNKNOWN_CONTROLLER``."""
        await self._connection.call(RemoveController(node), again=False)

    async def features(self) -> FeaturesAnswer:
        """Return the cluster's feature level, and the levels that each process understands. Raises ``UNSUPPORTED`` if
        the active controller or the gateway is of a release without levels; the level is then 1."""
        return await self._connection.ask(DescribeFeatures(), FeaturesAnswer)

    async def raise_level(self, level: int, *, left_behind: Iterable[str] = (), dry_run: bool = False) -> None:
        """Raise the cluster to a feature level, for good. ``dry_run``: only check whether that is possible, and
        change nothing. Processes in ``left_behind`` may be down. Raises ``UNSUPPORTED_LEVEL``, whose message names
        all processes that do not understand the level."""
        await self._connection.ask(RaiseLevel(level, tuple(left_behind), dry_run), Done)

    async def forget_server(self, server: str) -> None:
        """Remove a replica server that is gone for good from the cluster's metadata. Raises ``UNKNOWN_SERVER``,
        ``SERVER_IN_USE`` (the server is live, or has copies), ``UNSUPPORTED_LEVEL``."""
        await self._connection.ask(ForgetServer(server), Done)

    async def drain_server(self, server: str, drain: bool = True) -> None:
        """Hand over the leaderships of a server wherever another server can lead. New partitions get replicas on it
        only if there are too few other live servers. With ``drain`` False the server may lead and get replicas again.
        Returns when the controllers have recorded the change, not when the leaderships have moved. Raises
        ``UNKNOWN_SERVER``."""
        await self._connection.ask(DrainServer(server, drain), Done)

    async def scrub_server(self, node: str, *, begin: bool = True) -> ScrubStatus:
        """Return the progress of a replica server's scrubber, which reads its disk again to find damage. With
        ``begin`` the server first starts a new round, and drops a round that is under way. Raises ``UNREACHABLE``,
        and ``UNSUPPORTED_LEVEL`` below feature level 4."""
        return await self._connection.ask(ScrubServer(node, begin), ScrubStatus)

    async def play(self, node: str = "", act: str = "") -> tuple[PlayedNode, ...]:
        """Inject a fault into a node of a cluster that ``tidelog dev`` runs. ``act``: ``kill``, ``pause``, ``cut`` or
        ``heal``; "" for none. Returns the state of all nodes after that. Raises ``UNSUPPORTED`` in every other
        cluster."""
        return (await self._connection.ask(Play(node, act), PlayAnswer)).nodes

    async def played_messages(self, act: str) -> tuple[PlayedMessage, ...]:
        """Begin or end the recording of messages between the services of a cluster that ``tidelog dev`` runs.
        ``act``: ``record`` begins it and returns an empty tuple; ``stop`` ends it and returns the newest 2,000
        messages in order. Raises ``UNSUPPORTED`` in every other cluster."""
        return (await self._connection.ask(Play("", act), PlayAnswer)).messages
