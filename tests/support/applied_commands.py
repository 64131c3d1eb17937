"""A metadata log that is applied as it is written, for the tests of its rules."""

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


class Log:
    """Every command goes through the bytes of its entry. One topic, ``id``, one partition."""

    def __init__(self) -> None:
        self.state = MetadataState("test")
        self.commands: list[Command] = []

    def write(self, command: Command) -> Applied:
        """Append and apply."""
        applied = apply(self.state, decode_command(encode_command(command)), len(self.commands) + 1)
        self.commands.append(command)
        self.state = applied.state
        return applied

    # --- servers -----------------------------------------------------------------------------------------

    def register(self, *nodes: str, lives: tuple[str, ...] = (), clean: bool = False) -> Applied:
        """Each begins a life."""
        for node in nodes:
            applied = self.write(RegisterServer(0, node, f"ws://{node}", lives, clean))
        return applied

    def power_up(self, node: str, *, clean: bool = False, wiped: bool = False) -> Applied:
        """The server is started again and knows its last life, unless it was wiped."""
        last = self.state.servers[node].life
        life = f"{node}-{len(self.commands)}"
        return self.register(node, lives=(life,) if wiped else (last, life), clean=clean)

    def epoch_of(self, node: str) -> int:
        """The server's broker epoch."""
        return self.state.servers[node].broker_epoch

    def fence(self, *nodes: str) -> Applied:
        """Their sessions end, one after the other."""
        for node in nodes:
            applied = self.write(FenceServer(0, node, self.epoch_of(node)))
        return applied

    def unfence(self, node: str) -> Applied:
        """It is heard of again."""
        return self.write(UnfenceServer(0, node, self.epoch_of(node)))

    # --- the topic ---------------------------------------------------------------------------------------

    def topic(self, *replicas: str, **config: object) -> None:
        """Create the topic of the test."""
        self.write(AddTopic(7, "id", "orders", TopicConfig(**config), (replicas,)))  # type: ignore[arg-type]

    def configure(self, **values: int | str | bool) -> Applied:
        """Change its settings."""
        return self.write(ChangeTopic(0, "id", values))

    def proposal(self, *isr: str, sender: str | None = None) -> ChangeIsr:
        """A leader's proposal of this ISR."""
        p = self.partition
        node = sender or p.leader or ""
        members = tuple(IsrMember(n, self.epoch_of(n)) for n in isr)
        return ChangeIsr(
            0, node, self.epoch_of(node), "id", 0, p.leader_epoch, p.epoch, members, "lag", {"who": "r3"}
        )

    def shrink(self, *isr: str) -> None:
        """The leader gets this ISR."""
        assert not isinstance(self.write(self.proposal(*isr)).answer, TidelogError)

    def report(self) -> ReplaceLeaders:
        """The leader was reported by enough."""
        p = self.partition
        return ReplaceLeaders(0, p.leader or "", (LostLeader("id", 0, p.leader_epoch, p.epoch, {"reports": "2"}),))

    def hand_over(self, node: str, *, lost: bool = False, age: int = 0) -> Applied:
        """``node`` asks to be taken out; ``age``: in that many epochs before the present one."""
        p = self.partition
        parts = (SuspectPart("id", 0, p.epoch - age, p.leader_epoch),)
        return self.write(LeaveParts(0, node, self.epoch_of(node), "shutdown", parts, lost))

    def seal(self, leader: str, *others: str, leader_epoch: int | None = None) -> ElectSealed:
        """``leader`` reaches furthest of those that have sealed."""
        epoch = self.partition.leader_epoch if leader_epoch is None else leader_epoch
        members = tuple(IsrMember(n, self.epoch_of(n)) for n in (leader, *others))
        return ElectSealed(0, (SealedPart("id", 0, epoch, leader, members, {"seals": str(len(members))}),))

    # --- what it is --------------------------------------------------------------------------------------

    @property
    def partition(self) -> PartitionState:
        """The one there is."""
        partition = self.state.partition("id", 0)
        assert partition is not None
        return partition

    @property
    def last(self) -> HistoryEntry:
        """The newest entry of its history."""
        return self.state.history["id"][0][-1]


def code(applied: Applied) -> str:
    """The refusal's code, or ``done``."""
    return applied.answer.code if isinstance(applied.answer, TidelogError) else "done"


def who(partition: PartitionState) -> tuple[str, str, str]:
    """Leader, ISR and ELR, short: ``("r1", "r1 r2", "r3")``."""
    return partition.leader or "-", " ".join(partition.isr), " ".join(partition.elr)


def live(*nodes: str) -> Callable[[str], bool]:
    """Return the predicate for ``elect``: these nodes are live."""
    return lambda node: node in nodes
