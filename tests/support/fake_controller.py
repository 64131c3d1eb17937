"""A controller for ``replica_network``: it does what the test tells it (``lead``, ``push``), what a proposal asks
for, and what a server says of its own damage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidelog.errors import TidelogError, refuse
from tidelog.types import ClusterImage, PartitionState, ServerState, TopicConfig, TopicPartition, TopicState
from tidelog.wire.messages import (
    AlterIsr,
    AlterIsrAnswer,
    ConfirmLeader,
    Done,
    HandOver,
    Heartbeat,
    Message,
    MetadataUpdate,
    Register,
    Registered,
    ReportLeader,
    ReportLoss,
    Seal,
    Watch,
)
from tidelog.wire.metadata_image import encode_delta, encode_image

KEY = TopicPartition("t1", 0)


class ToyController:
    """The metadata, and what servers have said."""

    def __init__(self, names: list[str], config: TopicConfig) -> None:
        self.names = names
        self.config = config
        self.refuse_isr: TidelogError | None = None
        self.grants_hand_overs = False
        """Also of servers that hold everything."""
        self.refuse_loss: TidelogError | None = None
        self.index = 0
        self.level = 1
        """Feature level of the cluster."""
        self.servers: dict[str, ServerState] = {}
        self.topics: dict[str, TopicState] = {}
        self.watchers: list[str] = []
        self.reports: list[ReportLeader] = []
        self.hand_overs: list[HandOver] = []
        self.seals: list[Seal] = []
        self.losses: list[ReportLoss] = []
        self.proposals: list[AlterIsr] = []

    def run(self, limit: int = 20_000) -> None:
        """Until nothing is on its way."""
        raise NotImplementedError

    def _tell(self, name: str, update: MetadataUpdate) -> None:
        raise NotImplementedError

    def control(self, name: str, message: Message) -> Message | TidelogError:
        """Answer a server."""
        match message:
            case Register():
                self.index += 1
                life = self.index
                self.servers[name] = ServerState(name, message.url, life, fenced=False)
                self.broadcast()
                return Registered(life, life, 3000, "c")
            case Heartbeat():
                if message.broker_epoch != self.servers[name].broker_epoch:
                    return refuse("FENCED_BROKER_EPOCH", "a later life registered")
                return Done()
            case Watch():
                if name not in self.watchers:
                    self.watchers.append(name)
                self._tell(name, self.image())
                return Done()
            case ReportLeader():
                self.reports.append(message)
                return Done()
            case ConfirmLeader():
                state = self.state(message.partition)
                if (state.leader, state.leader_epoch) != (name, message.leader_epoch):
                    return refuse("FENCED_LEADER_EPOCH", f"{state.leader} leads in {state.leader_epoch}")
                return Done()
            case HandOver():
                self.hand_overs.append(message)
                if message.lost and any(part.epoch != self.state(part.partition).epoch for part in message.parts):
                    return refuse("STALE_EPOCH", "the partition has moved on")
                if message.lost or self.grants_hand_overs:
                    self._hand_over(name, message)
                return Done()
            case Seal():
                self.seals.append(message)
                return Done()
            case ReportLoss():
                self.losses.append(message)
                return self.refuse_loss or Done()
            case AlterIsr():
                self.proposals.append(message)
                return self.refuse_isr or self._alter_isr(message)
        raise AssertionError(message)

    def _hand_over(self, name: str, message: HandOver) -> None:
        """What the server held is lost: another member leads, if there is one."""
        for part in message.parts:
            state = self.state(part.partition)
            isr = tuple(node for node in state.isr if node != name)
            leader = state.leader if state.leader != name else next(iter(isr), None)
            epoch = state.leader_epoch + (leader != state.leader)
            self.push(part.partition, isr=isr, leader=leader, leader_epoch=epoch)

    def _alter_isr(self, message: AlterIsr) -> Message | TidelogError:
        state = self.state(message.partition)
        if message.epoch != state.epoch:
            return refuse("STALE_EPOCH", f"the epoch is {state.epoch}")
        self.push(message.partition, isr=tuple(member.node for member in message.isr))
        state = self.state(message.partition)
        return AlterIsrAnswer(state.epoch, state.isr)

    def image(self) -> MetadataUpdate:
        """The whole metadata."""
        image = ClusterImage(
            self.index, "c", tuple(self.servers.values()), tuple(self.topics.values()), level=self.level
        )
        return MetadataUpdate(self.index, True, encode_image(image))

    def state(self, partition: int = 0) -> PartitionState:
        """What the controller says of a partition of the topic."""
        return self.topics[KEY.topic_id].partitions[partition]

    def create(self, partitions: int = 1, leader: str = "r1") -> None:
        """Create the topic, everybody in sync."""
        replicas = (leader, *(name for name in self.names if name != leader))
        state = PartitionState(replicas, replicas, leader, 0, 0)
        self.topics[KEY.topic_id] = TopicState(KEY.topic_id, "events", self.config, (state,) * partitions)
        self.broadcast()
        self.run()

    def push(self, partition: int = 0, **changes: Any) -> None:
        """Change a partition's state by a new epoch, and tell all who watch."""
        topic = self.topics[KEY.topic_id]
        partitions = list(topic.partitions)
        partitions[partition] = replace(partitions[partition], epoch=partitions[partition].epoch + 1, **changes)
        self.topics[KEY.topic_id] = replace(topic, partitions=tuple(partitions))
        self.broadcast()

    def reconfigure(self, **changes: Any) -> None:
        """Change settings of the topic."""
        topic = self.topics[KEY.topic_id]
        self.topics[KEY.topic_id] = replace(topic, config=replace(topic.config, **changes))
        self.broadcast()
        self.run()

    def lead(self, leader: str, isr: str, partition: int = 0) -> None:
        """Elect a leader."""
        epoch = self.state(partition).leader_epoch + 1
        self.push(partition, leader=leader, isr=tuple(isr.split()), leader_epoch=epoch)
        self.run()

    def broadcast(self) -> None:
        """Tell all who watch how things are."""
        self.index += 1
        delta = encode_delta(tuple(self.servers.values()), tuple(self.topics.values()), ())
        for name in self.watchers:
            self._tell(name, MetadataUpdate(self.index, False, delta))

    def delete(self) -> None:
        """Delete the topic."""
        del self.topics[KEY.topic_id]
        self.index += 1
        for name in self.watchers:
            self._tell(name, MetadataUpdate(self.index, False, encode_delta((), (), (KEY.topic_id,))))
        self.run()
