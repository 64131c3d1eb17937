"""The blocking face of what a client can do about topics, servers, moves, rules and replicas: ``tidelog.sync.Log``
has all of it. What each means, and raises, is said where ``tidelog.Log`` has it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from tidelog.client.admin.copy_comparison import ignore
from tidelog.client.admin.replica_comparison import Comparison
from tidelog.client.consumer import Where
from tidelog.sync.portal import Portal
from tidelog.types import Acl, Position, Quota
from tidelog.wire.messages import (
    AccessAnswer,
    CopyRead,
    DigestAnswer,
    FeaturesAnswer,
    HistoryEntry,
    PartitionInfo,
    PartitionWeight,
    PlannedMove,
    ScrubStatus,
    TopicInfo,
)


class Administering:
    """The part of ``tidelog.sync.Log`` for administration; every call blocks."""

    _portal: Portal

    # --- topics ----------------------------------------------------------------------------------------------

    def configure_topic(self, name: str, config: Mapping[str, object]) -> None:
        """Change settings of a topic; those that are not named stay."""
        self._portal.run(self._portal.log.configure_topic, name, config)

    def grow_topic(self, name: str, partitions: int) -> None:
        """Give a topic more partitions, so many in all."""
        self._portal.run(self._portal.log.grow_topic, name, partitions)

    def set_read_only(self, topic: str, partitions: Iterable[int] = (), *, read_only: bool = True) -> None:
        """Have these partitions (none: all) take no records, or take them again."""
        self._portal.run(partial(self._portal.log.set_read_only, topic, tuple(partitions), read_only=read_only))

    def pause(self, topic: str, partitions: Iterable[int] = ()) -> None:
        """Have the servers close these partitions (none: all), which keep what they hold."""
        self._portal.run(self._portal.log.pause, topic, tuple(partitions))

    def resume(self, topic: str, partitions: Iterable[int] = ()) -> None:
        """End a pause: leaders are elected anew."""
        self._portal.run(self._portal.log.resume, topic, tuple(partitions))

    def histories(self, topic: TopicInfo, partitions: Iterable[int]) -> dict[int, tuple[HistoryEntry, ...]]:
        """``history`` of many partitions at a time."""
        return self._portal.run(self._portal.log.histories, topic, tuple(partitions))

    # --- moves -----------------------------------------------------------------------------------------------

    def transfer(self, topic: str, partition: int, server: str = "") -> PartitionInfo:
        """Have a server that is in sync lead a partition; none: the preferred replica. Returns when it does."""
        return self._portal.run(self._portal.log.transfer, topic, partition, server)

    def set_learners(self, topic: str, partition: int, learners: Iterable[str]) -> None:
        """Which servers copy a partition's log without being replicas of it; none ends that."""
        self._portal.run(self._portal.log.set_learners, topic, partition, tuple(learners))

    def reassign(self, topic: str, partition: int, replicas: Iterable[str]) -> None:
        """Begin to have these servers as the replicas of a partition, the preferred leader first."""
        self._portal.run(self._portal.log.reassign, topic, partition, tuple(replicas))

    def cancel_reassignment(self, topic: str, partition: int) -> None:
        """Go back to the replicas that there were; one that waits for its turn is dropped."""
        self._portal.run(self._portal.log.cancel_reassignment, topic, partition)

    def plan_rebalance(
        self, *, empty_drained: bool = False, weights: Iterable[PartitionWeight] = (), unit: str = ""
    ) -> tuple[PlannedMove, ...]:
        """Reassignments that would spread the replicas over racks and servers; none is begun."""
        plan = partial(self._portal.log.plan_rebalance, empty_drained=empty_drained, weights=weights, unit=unit)
        return self._portal.run(plan)

    def rebalance(
        self, *, empty_drained: bool = False, weights: Iterable[PartitionWeight] = (), unit: str = ""
    ) -> None:
        """Do what ``plan_rebalance`` says, a few reassignments per server at a time."""
        begin = partial(self._portal.log.rebalance, empty_drained=empty_drained, weights=weights, unit=unit)
        self._portal.run(begin)

    def cancel_rebalance(self) -> None:
        """Drop all that waits for its turn; what has begun goes on."""
        self._portal.run(self._portal.log.cancel_rebalance)

    def waiting_moves(self) -> tuple[PlannedMove, ...]:
        """Reassignments of rebalances that wait for their turn, in that order."""
        return self._portal.run(self._portal.log.waiting_moves)

    def drain(self, server: str, drain: bool = True) -> None:
        """Have a server lead nothing where another can, and get no new replicas; or take part again."""
        self._portal.run(self._portal.log.drain, server, drain)

    # --- upgrades --------------------------------------------------------------------------------------------

    def features(self) -> FeaturesAnswer:
        """The cluster's feature level, and which levels each process understands."""
        return self._portal.run(self._portal.log.features)

    def raise_level(self, level: int, *, left_behind: Iterable[str] = (), dry_run: bool = False) -> None:
        """Raise the cluster to a feature level, for good; ``dry_run``: only ask whether that can be."""
        self._portal.run(partial(self._portal.log.raise_level, level, left_behind=left_behind, dry_run=dry_run))

    def forget_server(self, server: str) -> None:
        """Have a replica server that is gone for good be none of the cluster any more."""
        self._portal.run(self._portal.log.forget_server, server)

    # --- rules -----------------------------------------------------------------------------------------------

    def create_token(self, principal: str, lifetime_s: float | None = None) -> str:
        """A new bearer token of a principal, kept nowhere; ``lifetime_s`` None: it never expires."""
        return self._portal.run(self._portal.log.create_token, principal, lifetime_s)

    def rotate_token(self, token_id: str, grace_s: float = 0.0, lifetime_s: float | None = None) -> str:
        """A new token of the same principal; the former ends ``grace_s`` later."""
        return self._portal.run(self._portal.log.rotate_token, token_id, grace_s, lifetime_s)

    def revoke_token(self, token_id: str) -> None:
        """It ends now, and so do the connections that were opened with it."""
        self._portal.run(self._portal.log.revoke_token, token_id)

    def revoke_tokens_of(self, principal: str) -> None:
        """Revoke all tokens of a principal."""
        self._portal.run(self._portal.log.revoke_tokens_of, principal)

    def rotate_ticket_keys(self) -> None:
        """Have the cluster sign the tickets of producer ids with a new key; those of the key before stay valid."""
        self._portal.run(self._portal.log.rotate_ticket_keys)

    def alter_acls(self, add: Iterable[Acl] = (), remove: Iterable[Acl] = ()) -> None:
        """These rules are there from now on, and those are not."""
        self._portal.run(self._portal.log.alter_acls, tuple(add), tuple(remove))

    def drop_inherited_security(self) -> None:
        """Nobody decides about tokens and rules any more but superusers and whom a rule allows ``security``."""
        self._portal.run(self._portal.log.drop_inherited_security)

    def alter_quotas(self, quotas: Iterable[Quota]) -> None:
        """What these principals may have."""
        self._portal.run(self._portal.log.alter_quotas, tuple(quotas))

    def access(self) -> AccessAnswer:
        """Tokens (without what would help to use them), rules and quotas."""
        return self._portal.run(self._portal.log.access)

    # --- logs ------------------------------------------------------------------------------------------------

    def find_positions(
        self, topic: str, where: Where, partitions: Iterable[int] | None = None
    ) -> dict[int, Position]:
        """A place in each partition of a topic, or of these."""
        chosen = None if partitions is None else tuple(partitions)
        return self._portal.run(self._portal.log.find_positions, topic, where, chosen)

    def digest(self, topic_id: str, partition: int, node: str, offsets: Iterable[int] = ()) -> DigestAnswer:
        """Bounds of the log of one replica, and its hash chain at each of up to 64 offsets."""
        return self._portal.run(self._portal.log.digest, topic_id, partition, node, tuple(offsets))

    def read_copy(self, topic_id: str, partition: int, node: str, offset: int) -> CopyRead:
        """Have a replica server read about 1 MiB of its copy from its disk."""
        return self._portal.run(self._portal.log.read_copy, topic_id, partition, node, offset)

    def compare_copies(
        self,
        topic: TopicInfo,
        partition: int,
        live: Collection[str],
        max_bytes_per_s: float = 0,
        on_records: Callable[[int], None] = ignore,
    ) -> Comparison:
        """Whether the disks of a partition's replicas and learners, those of them that are ``live``, hold the same
        batches. ``max_bytes_per_s``: how fast each copy is read; 0: no limit. ``on_records`` is called in the
        library's thread."""
        return self._portal.run(self._portal.log.compare_copies, topic, partition, live, max_bytes_per_s, on_records)

    def scrub_server(self, node: str, *, begin: bool = True) -> ScrubStatus:
        """How far the scrubber of a replica server is. With ``begin`` it first starts a new round."""
        return self._portal.run(partial(self._portal.log.scrub_server, node, begin=begin))

    def compare_replicas(self, topic: TopicInfo, partition: int, live: Collection[str]) -> Comparison:
        """Whether the logs of a partition's replicas and learners, those of them that are ``live``, are the same."""
        return self._portal.run(self._portal.log.compare_replicas, topic, partition, live)
