"""A metadata log that is applied as it is written, for the tests of the rules of the metadata."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.errors import TidelogError
from tidelog.types import PartitionState, TopicConfig
from tidelog.wire.messages import HistoryEntry, IsrMember, SuspectPart
from tidelog_controller.metadata.application import Applied, MetadataState, apply
from tidelog_controller.metadata.commands import (
    AddTopic,
    ChangeIsr,
    ChangeTopic,
    Command,
    ElectSealed,
    FenceServer,
    LeaveParts,
    LostLeader,
    RegisterServer,
    ReplaceLeaders,
    SealedPart,
    UnfenceServer,
    decode_command,
    encode_command,
)

SERVERS = ("r1", "r2", "r3")


class Log:
    """The metadata with every command that was written; each command passes through the bytes of its entry. It has
    one topic, ``id``, with one partition."""

    def __init__(self) -> None:
        self.state = MetadataState("test")
        self.commands: list[Command] = []

    def write(self, command: Command) -> Applied:
        """Append a command, apply it to ``state``, and return the outcome."""
        applied = apply(self.state, decode_command(encode_command(command)), len(self.commands) + 1)
        self.commands.append(command)
        self.state = applied.state
        return applied

    # --- servers -----------------------------------------------------------------------------------------

    def register(self, *nodes: str, lives: tuple[str, ...] = (), clean: bool = False) -> Applied:
        """Register servers, each with a new incarnation, and return the outcome of the last command."""
        for node in nodes:
            applied = self.write(RegisterServer(0, node, f"ws://{node}", lives, clean))
        return applied

    def power_up(self, node: str, *, clean: bool = False, wiped: bool = False) -> Applied:
        """Restart a server and register it with a new incarnation; it names its last one unless it was wiped."""
        last = self.state.servers[node].life
        life = f"{node}-{len(self.commands)}"
        return self.register(node, lives=(life,) if wiped else (last, life), clean=clean)

    def epoch_of(self, node: str) -> int:
        """Return the broker epoch of a server."""
        return self.state.servers[node].broker_epoch

    def fence(self, *nodes: str) -> Applied:
        """Fence servers, as if their sessions had ended one after the other; returns the outcome of the last
        command."""
        for node in nodes:
            applied = self.write(FenceServer(0, node, self.epoch_of(node)))
        return applied

    def unfence(self, node: str) -> Applied:
        """Unfence a server, as if it had sent a heartbeat."""
        return self.write(UnfenceServer(0, node, self.epoch_of(node)))

    # --- the topic ---------------------------------------------------------------------------------------

    def topic(self, *replicas: str, **config: object) -> None:
        """Create the topic ``id`` with one partition on these replicas."""
        self.write(AddTopic(7, "id", "orders", TopicConfig(**config), (replicas,)))  # type: ignore[arg-type]

    def configure(self, **values: int | str | bool) -> Applied:
        """Change settings of the topic."""
        return self.write(ChangeTopic(0, "id", values))

    def proposal(self, *isr: str, sender: str | None = None) -> ChangeIsr:
        """Return the command for a leader's proposal of this ISR; it is not written."""
        p = self.partition
        node = sender or p.leader or ""
        members = tuple(IsrMember(n, self.epoch_of(n)) for n in isr)
        return ChangeIsr(
            0, node, self.epoch_of(node), "id", 0, p.leader_epoch, p.epoch, members, "lag", {"who": "r3"}
        )

    def shrink(self, *isr: str) -> None:
        """Write a leader's proposal of this ISR; it must be accepted."""
        assert not isinstance(self.write(self.proposal(*isr)).answer, TidelogError)

    def report(self) -> ReplaceLeaders:
        """Return the command that replaces the leader because enough followers reported it; it is not written."""
        p = self.partition
        return ReplaceLeaders(0, p.leader or "", (LostLeader("id", 0, p.leader_epoch, p.epoch, {"reports": "2"}),))

    def hand_over(self, node: str, *, lost: bool = False, age: int = 0) -> Applied:
        """Write the request of a server to be taken out of the ISR; ``age``: made so many partition epochs ago;
        ``lost``: because its data is lost."""
        p = self.partition
        parts = (SuspectPart("id", 0, p.epoch - age, p.leader_epoch),)
        return self.write(LeaveParts(0, node, self.epoch_of(node), "shutdown", parts, lost))

    def seal(self, leader: str, *others: str, leader_epoch: int | None = None) -> ElectSealed:
        """Return the command that elects ``leader`` after it and the others have sealed; it is not written."""
        epoch = self.partition.leader_epoch if leader_epoch is None else leader_epoch
        members = tuple(IsrMember(n, self.epoch_of(n)) for n in (leader, *others))
        return ElectSealed(0, (SealedPart("id", 0, epoch, leader, members, {"seals": str(len(members))}),))

    # --- what it is --------------------------------------------------------------------------------------

    @property
    def partition(self) -> PartitionState:
        """The state of the only partition."""
        partition = self.state.partition("id", 0)
        assert partition is not None
        return partition

    @property
    def last(self) -> HistoryEntry:
        """The newest entry of the partition's history."""
        return self.state.history["id"][0][-1]


def code(applied: Applied) -> str:
    """Return the error code of an outcome; ``done`` if it is none."""
    return applied.answer.code if isinstance(applied.answer, TidelogError) else "done"


def who(partition: PartitionState) -> tuple[str, str, str]:
    """Return leader, ISR and ELR as texts: ``("r1", "r1 r2", "r3")``; "-" for no leader."""
    return partition.leader or "-", " ".join(partition.isr), " ".join(partition.elr)


def live(*nodes: str) -> Callable[[str], bool]:
    """Return the predicate for ``elect`` that these servers are live."""
    return lambda node: node in nodes


def cluster(**config: object) -> Log:
    """Return three servers with named incarnations, and one partition led by r1, all in sync, with
    ``min_insync_replicas`` 2."""
    log = Log()
    for node in SERVERS:
        log.register(node, lives=(f"{node}-0",))
    log.topic(*SERVERS, **{"min_insync_replicas": 2, **config})
    return log


def alone(**config: object) -> Log:
    """Return a cluster with r1 alone in the ISR, and an empty ELR."""
    log = cluster(**{"min_insync_replicas": 1, **config})
    log.shrink("r1")
    return log
