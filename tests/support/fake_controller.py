"""The controller of ``replica_network``. A test changes its metadata (``lead``, ``push``); it also accepts ISR
proposals, and takes a server out of the ISR that reports lost data."""

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
    """The metadata of one topic, and the requests that servers have sent."""

    def __init__(self, names: list[str], config: TopicConfig) -> None:
        self.names = names
        self.config = config
        self.refuse_isr: TidelogError | None = None
        self.grants_hand_overs = False
        """Whether a server that holds everything may hand over, too."""
        self.refuse_loss: TidelogError | None = None
        self.index = 0
        self.level = 1
        """The feature level of the cluster."""
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
        """Handle a request of a server and return the answer or an error."""
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
        """Take a server out of the ISR of the partitions that it named; another member leads, if any."""
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
        """Return an update with the whole metadata."""
        image = ClusterImage(
            self.index, "c", tuple(self.servers.values()), tuple(self.topics.values()), level=self.level
        )
        return MetadataUpdate(self.index, True, encode_image(image))

    def state(self, partition: int = 0) -> PartitionState:
        """Return the state of a partition of the topic."""
        return self.topics[KEY.topic_id].partitions[partition]

    def create(self, partitions: int = 1, leader: str = "r1") -> None:
        """Create the topic with all servers in sync, and deliver everything that follows."""
        replicas = (leader, *(name for name in self.names if name != leader))
        state = PartitionState(replicas, replicas, leader, 0, 0)
        self.topics[KEY.topic_id] = TopicState(KEY.topic_id, "events", self.config, (state,) * partitions)
        self.broadcast()
        self.run()

    def push(self, partition: int = 0, **changes: Any) -> None:
        """Change the state of a partition, in a new partition epoch, and send it to all watchers."""
        topic = self.topics[KEY.topic_id]
        partitions = list(topic.partitions)
        partitions[partition] = replace(partitions[partition], epoch=partitions[partition].epoch + 1, **changes)
        self.topics[KEY.topic_id] = replace(topic, partitions=tuple(partitions))
        self.broadcast()

    def reconfigure(self, **changes: Any) -> None:
        """Change settings of the topic, and deliver everything that follows."""
        topic = self.topics[KEY.topic_id]
        self.topics[KEY.topic_id] = replace(topic, config=replace(topic.config, **changes))
        self.broadcast()
        self.run()

    def lead(self, leader: str, isr: str, partition: int = 0) -> None:
        """Elect a leader in a new leader epoch with this ISR, and deliver everything that follows."""
        epoch = self.state(partition).leader_epoch + 1
        self.push(partition, leader=leader, isr=tuple(isr.split()), leader_epoch=epoch)
        self.run()

    def broadcast(self) -> None:
        """Send the present metadata to all watchers, with a new index."""
        self.index += 1
        delta = encode_delta(tuple(self.servers.values()), tuple(self.topics.values()), ())
        for name in self.watchers:
            self._tell(name, MetadataUpdate(self.index, False, delta))

    def delete(self) -> None:
        """Delete the topic, and deliver everything that follows."""
        del self.topics[KEY.topic_id]
        self.index += 1
        for name in self.watchers:
            self._tell(name, MetadataUpdate(self.index, False, encode_delta((), (), (KEY.topic_id,))))
        self.run()
