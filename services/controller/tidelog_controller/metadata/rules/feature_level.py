"""The feature level (``tidelog.feature_levels``): which process understands which levels, when the level may be
raised, and when a server may be removed for good.

The level is part of the replicated state. The levels that processes understand are not: each process reports its own
when it opens a link, all running ones have a link to the active controller, and one that returns reports again. So
the active controller judges by its links. To be raised, every controller of the group, every replica server that is
registered and every gateway with a link must understand the new level; a controller or server without a link counts
as one that does not, unless the operator leaves it behind: it is refused until it is upgraded. A process that opens a
link between the judgement and the commit is refused with its next request. A level is never lowered: what it brought
may be in use."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tidelog.errors import TidelogError, refuse
from tidelog.feature_levels import FORGET_SERVERS, SECURITY, Levels, refuse_levels
from tidelog.types import NodeId
from tidelog.wire.messages import (
    DescribeFeatures,
    Done,
    FeaturesAnswer,
    ForgetServer,
    Message,
    ProcessLevels,
    RaiseLevel,
)

from tidelog_controller.metadata.changeset import ChangeSet
from tidelog_controller.metadata.commands import Command, RemoveServer, SetLevel
from tidelog_controller.metadata.registry import applies
from tidelog_controller.metadata.rules.access import separate_security
from tidelog_controller.metadata.state import MetadataState

FeatureRequest = DescribeFeatures | RaiseLevel | ForgetServer


@dataclass(frozen=True, slots=True)
class Linked:
    """A service at the other end of a link: its role, its name and the feature levels that it supports."""

    role: str
    node: NodeId
    levels: Levels


class Features:
    """The feature levels that this controller and the services with a link to it support. Kept in memory only, as
    long as the process runs."""

    def __init__(self, node_id: NodeId, levels: Levels) -> None:
        self.own = levels
        self._node_id = node_id
        self._linked: dict[int, Linked] = {}

    def on_link(self, source: int, linked: Linked) -> None:
        """Record which service is at the other end of the link ``source``, which was opened."""
        self._linked[source] = linked

    def on_link_closed(self, source: int) -> None:
        """Forget the service at the other end of the link ``source``, which has closed. Does nothing if the link is
        unknown."""
        self._linked.pop(source, None)

    def is_gateway(self, source: int) -> bool:
        """Return whether a gateway is at the other end of the link ``source``; False for an unknown link."""
        linked = self._linked.get(source)
        return linked is not None and linked.role == "gateway"

    def refuse_unfit(self, source: int, level: int) -> TidelogError | None:
        """Return the error with which requests over the link ``source`` are refused, because the service at its other
        end does not support the feature level ``level`` of the cluster. Return None if it does, or if the peer is a
        client."""
        linked = self._linked.get(source)
        return None if linked is None else refuse_levels(linked.node, linked.levels, max(level, 1))

    def describe(self, state: MetadataState, controllers: Collection[NodeId]) -> FeaturesAnswer:
        """Return the feature level of the cluster, and the levels that each controller, each registered replica
        server and each connected gateway supports. A process without a link is listed with levels 0 to 0."""
        expected = [*(("controller", node) for node in controllers), *(("replica", node) for node in state.servers)]
        known = {
            (one.role, one.node): one.levels for one in self._linked.values()
        }  # the newest link of a name counts
        known["controller", self._node_id] = self.own
        gateways = sorted(key for key in known if key[0] == "gateway")
        processes = []
        for role, node in (*sorted(expected), *gateways):
            levels = known.get((role, node), Levels(0, 0))
            processes.append(ProcessLevels(role, node, levels.oldest, levels.newest))
        return FeaturesAnswer(max(state.level, 1), tuple(processes))

    def plan(
        self, state: MetadataState, request: FeatureRequest, controllers: Collection[NodeId], wall_ms: int
    ) -> Command | Message | TidelogError:
        """Return the command for a request to raise the feature level or to forget a server, or the answer to
        ``DescribeFeatures``. Return ``Done`` if nothing is to be changed, or the error with which the request is
        refused."""
        match request:
            case DescribeFeatures():
                return self.describe(state, controllers)
            case RaiseLevel():
                return self._plan_raise(state, request, controllers, wall_ms)
            case ForgetServer():
                return plan_removal(state, request, wall_ms)

    def _plan_raise(
        self, state: MetadataState, request: RaiseLevel, controllers: Collection[NodeId], wall_ms: int
    ) -> SetLevel | Done | TidelogError:
        """Return the command that raises the feature level. Return ``Done`` if the cluster is at that level already
        or this is a dry run. Return the error ``UNSUPPORTED_LEVEL`` if the level is lower than the present one, or
        with the names of all processes that do not support it or have no link."""
        if request.level < max(state.level, 1):
            return refuse(
                "UNSUPPORTED_LEVEL",
                f"the cluster is at feature level {state.level} and is not lowered to {request.level}: what later"
                " levels brought may be in its metadata",
                level=state.level,
            )
        if request.level == state.level:
            return Done()
        described = self.describe(state, controllers)
        blocking = []
        for one in described.processes:
            if not one.level_max:
                if one.node not in request.left_behind:
                    blocking.append(f"{one.role} {one.node} is not in touch")
            elif request.level not in Levels(one.level_min, one.level_max):
                blocking.append(f"{one.role} {one.node} understands {Levels(one.level_min, one.level_max)}")
        if blocking:
            text = f"the cluster cannot be raised to feature level {request.level}: {'; '.join(blocking)}"
            return refuse("UNSUPPORTED_LEVEL", text, level=max(state.level, 1))
        return Done() if request.dry_run else SetLevel(wall_ms, request.level)


@applies(SetLevel)
def set_level(changes: ChangeSet, command: SetLevel) -> Done:
    """Raise the feature level of the cluster, and record that in the timeline. Does nothing if the cluster is at that
    level or above. Always returns ``Done``."""
    if command.to > changes.level:
        evidence = {"level": str(command.to), "level_before": str(changes.level)}
        changes.record_event("cluster_level_raised", "operator", evidence, None, None)
        if changes.level < SECURITY <= command.to:
            separate_security(changes)
        changes.level = command.to
    return Done()


def plan_removal(state: MetadataState, request: ForgetServer, wall_ms: int) -> RemoveServer | TidelogError:
    """Return the command that removes a replica server from the cluster. Return an error instead:
    ``UNSUPPORTED_LEVEL``, ``UNKNOWN_SERVER``, or ``SERVER_IN_USE`` if the server is live or has replicas."""
    if state.level < FORGET_SERVERS:
        text = f"servers can be forgotten from feature level {FORGET_SERVERS} on; the cluster is at {state.level}"
        return refuse("UNSUPPORTED_LEVEL", f"{text}: raise it ('tidelog features raise')", level=state.level)
    server = state.servers.get(request.server)
    if server is None:
        return refuse("UNKNOWN_SERVER", f"no replica server {request.server} is registered")
    return refuse_removal(state, request.server) or RemoveServer(wall_ms, request.server, server.broker_epoch)


def refuse_removal(state: MetadataState, node: NodeId) -> TidelogError | None:
    """Return the error ``SERVER_IN_USE`` if the server ``node`` cannot be removed, because it is live or has
    replicas; None if it can."""
    if state.is_live(node):
        return refuse("SERVER_IN_USE", f"{node} is live: stop it first")
    held = [
        f"{topic.name}/{number}"
        for topic in state.topics.values()
        for number, p in enumerate(topic.partitions)
        if node in (*p.replicas, *p.learners, *p.target, *p.origin)
    ]
    if held:
        more = f" and {len(held) - 5} more" if len(held) > 5 else ""
        text = f"{node} has copies of {', '.join(held[:5])}{more}: move them first ('tidelog partitions reassign')"
        return refuse("SERVER_IN_USE", text)
    return None


@applies(RemoveServer)
def remove_server(changes: ChangeSet, command: RemoveServer) -> Done | TidelogError:
    """Remove a server and everything known of it from the cluster. Refused with ``UNKNOWN_SERVER`` if it has another
    incarnation or is removed already, and with ``SERVER_IN_USE`` if it is live or has replicas. Returns ``Done``
    otherwise."""
    if not changes.state.is_incarnation(command.node, command.broker_epoch):
        return refuse("UNKNOWN_SERVER", f"{command.node} is in another incarnation, or forgotten already")
    refusal = refuse_removal(changes.state, command.node)
    if refusal is None:
        changes.forget_server(command.node)
    return refusal or Done()
