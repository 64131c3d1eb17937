"""Replica servers: registration, fencing and unfencing.

A data directory that does not know the server's present incarnation belongs to another server, or was wiped. As long
as the present incarnation has a session, it is another server's: two processes have one id, and the first keeps it.
So a wiped server waits until the session that it had ends, which its closed link has made short.

A server whose registration was committed, but whose answer was lost, registers again in the same incarnation. It has
lost nothing since the first registration, whatever it may have lost before.

A server that registers may have lost data. It is *safe* for a partition when two things hold. Its data directory is
*continuous*: it knows the name of the server's last incarnation (otherwise it was wiped, or restored from an old
copy). And nothing that it had acknowledged is gone: it ended in order or the operating system has run on (*clean*),
or the topic's flush policy is ``fsync``. A server that registers leaves every ISR that has another member. One that
is safe may go to the ELR, or stay alone and lead on. One that is not safe leaves both, even if no member is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tidelog.errors import TidelogError, refuse
from tidelog.types import NodeId, PartitionState, ServerState, TopicConfig
from tidelog.wire.messages import Done, Register, Registered

from tidelog_controller.metadata.changeset import ChangeSet
from tidelog_controller.metadata.commands import FenceServer, RegisterServer, UnfenceServer
from tidelog_controller.metadata.registry import applies
from tidelog_controller.metadata.rules.leader_election import elect, passed_over, ranks_by_server, without
from tidelog_controller.metadata.state import MetadataState

EARLIER_LIVES = 32
"""Number of names of earlier incarnations that are remembered per server."""


def plan_registration(
    state: MetadataState, message: Register, wall_ms: int, is_live: Callable[[NodeId], bool]
) -> RegisterServer | TidelogError:
    """Return the command that begins a new incarnation of a replica server. ``is_live`` tells whether the session of
    a server goes on. Return an error instead: ``WRONG_CLUSTER``, ``MALFORMED``, or ``NODE_IN_USE`` if another process
    with a data directory of its own has a session under this name."""
    node = message.node
    if message.cluster not in ("", state.cluster):
        text = f"the data of {node} belongs to cluster {message.cluster}, this is {state.cluster}"
        return refuse("WRONG_CLUSTER", text)
    if not node or not message.url:
        return refuse("MALFORMED", "a replica server registers with its node id and its url")
    known = state.servers.get(node)
    if (
        known is not None
        and known.life not in ("", *message.lives, *message.older_lives, *message.uncertain_lives)
        and is_live(node)
    ):
        text = f"another process is {node}, at {known.url}, with a data directory of its own: choose another id"
        return refuse("NODE_IN_USE", f"{text}; or, if this one was wiped, wait for the end of the other's session")
    lives = (*message.uncertain_lives, *message.older_lives, *message.lives)
    certain = known is None or known.life not in message.uncertain_lives
    again = known is not None and known.life != "" and message.lives[-1:] == (known.life,)
    clean = (message.clean and certain) or again
    return RegisterServer(wall_ms, node, message.url, lives, clean, message.rack)


def went_back(state: MetadataState, node: NodeId, index: int) -> TidelogError:
    """Return the error ``METADATA_WENT_BACK``, since the server ``node`` has seen entry ``index`` of metadata that
    this active controller does not have. The active controller has everything that is committed; so the stores of the
    controllers were restored from old copies, or the cluster was founded anew."""
    text = (
        f"the metadata have gone back: {node} has seen index {index}, the controllers are at {state.index}; stop"
        f" them and let the one that knows most go on alone: 'tidelog controllers rescue --beyond {index}'"
    )
    return refuse("METADATA_WENT_BACK", text, index=index)


@applies(RegisterServer)
def register(changes: ChangeSet, command: RegisterServer) -> Registered | TidelogError:
    """Begin an incarnation of a server, with the index of the command as its broker epoch. Return that epoch with the
    id of the cluster. The server is not fenced. It leaves every ISR that has another member, and also ISR and ELR of
    partitions for which it may have lost data. Refused with ``FENCED_BROKER_EPOCH`` if the incarnation is an earlier
    one: the message was delayed while the server restarted. If it counted, the data directory of the present
    incarnation would look like one that was restored from an old copy."""
    index, node, life = changes.index, command.node, command.lives[-1] if command.lives else ""
    known = changes.state.servers.get(node)
    if life and life in changes.state.earlier_lives.get(node, ()):
        return refuse("FENCED_BROKER_EPOCH", f"{node} has begun another incarnation since")
    continuous = known is None or known.life in ("", *command.lives)
    former = (*changes.state.earlier_lives.get(node, ()), known.life if known is not None else "", *command.lives)
    earlier = tuple(dict.fromkeys(name for name in former if name not in ("", life)))[-EARLIER_LIVES:]
    draining = known is not None and known.draining
    server = ServerState(node, command.url, index, fenced=False, life=life, rack=command.rack, draining=draining)
    evidence = {"node": node, "broker_epoch": str(index), "restart": "clean" if command.clean else "unclean"}
    if not continuous:
        evidence["data"] = "wiped, or restored from an old copy"
    event = "server_joined" if known is None else "server_registered"
    changes.put_server(server, event, "registered", evidence, earlier)
    for key, partition, config in changes.copies_of(node):
        renew = partition.leader == node
        if continuous and (command.clean or config.flush == "fsync"):
            isr, lost, wiped = remaining_isr(partition, config, node), None, False
        else:
            isr, lost, wiped = partition.isr, node, not continuous
        new = elect(
            partition,
            config,
            isr,
            changes.is_live,
            drains=changes.drains,
            renew=renew,
            lost=lost,
            wiped=wiped,
            doubtful=without(partition.doubtful, node),
        )
        changes.change(key, new, "registered", evidence)
    return Registered(index, index, 0, changes.state.cluster)


@applies(FenceServer)
def fence(changes: ChangeSet, command: FenceServer) -> Done | TidelogError:
    """Fence a server because its session ended: it leaves every ISR that has another member, and other leaders are
    elected for the partitions that it led. Refused with ``FENCED_BROKER_EPOCH`` if the server has begun another
    incarnation. Does nothing if it is fenced already. Returns ``Done`` otherwise."""
    node = command.node
    server = changes.state.servers.get(node)
    if server is None or server.broker_epoch != command.broker_epoch:
        return refuse("FENCED_BROKER_EPOCH", f"{node} has begun another incarnation")
    if server.fenced:
        return Done()
    evidence = {"node": node, "broker_epoch": str(command.broker_epoch), **command.evidence}
    ranks = ranks_by_server(command.ranks)
    changes.put_server(replace(server, fenced=True), "server_fenced", "session_expired", evidence)
    for key, partition, config in changes.copies_of(node):
        isr = remaining_isr(partition, config, node)
        new = elect(partition, config, isr, changes.is_live, drains=changes.drains, ranks=ranks)
        changes.change(key, new, "session_expired", evidence | passed_over(partition, new, command.ranks))
    return Done()


@applies(UnfenceServer)
def unfence(changes: ChangeSet, command: UnfenceServer) -> Done | TidelogError:
    """End the fence of a server whose heartbeats arrive again: it may be elected, and at once leads those partitions
    without a leader for which it qualifies. Refused with ``FENCED_BROKER_EPOCH`` if the server has begun another
    incarnation. Does nothing if it is not fenced. Returns ``Done`` otherwise."""
    server = changes.state.servers.get(command.node)
    if server is None or server.broker_epoch != command.broker_epoch:
        return refuse("FENCED_BROKER_EPOCH", f"{command.node} has begun another incarnation")
    if not server.fenced:
        return Done()
    evidence = {"node": command.node, "broker_epoch": str(command.broker_epoch)}
    changes.put_server(replace(server, fenced=False), "server_unfenced", "session_resumed", evidence)
    for key, partition, config in changes.copies_of(command.node):
        changes.change(
            key,
            elect(partition, config, partition.isr, changes.is_live, drains=changes.drains),
            "session_resumed",
            evidence,
        )
    return Done()


def remaining_isr(partition: PartitionState, config: TopicConfig, node: NodeId) -> tuple[NodeId, ...]:
    """Return the ISR of a partition without the server ``node``, whose incarnation ends or begins. The last member
    stays. With commit rule ``quorum``, and while the partition is sealed, all members stay, because what they
    acknowledged then counts beyond an incarnation."""
    if config.commit_rule == "quorum" or partition.sealing:
        return partition.isr
    return without(partition.isr, node) or partition.isr
