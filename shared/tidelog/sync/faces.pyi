"""The blocking faces of consumers and of administration. Generated from the code by `make pages`."""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from tidelog.client.admin.groups import GroupProgress
from tidelog.client.admin.old_names import keep_old_call
from tidelog.client.admin.partitions import ignore
from tidelog.client.admin.replica_comparison import Comparison
from tidelog.client.group_consumer import Share, Start
from tidelog.client.lookups import Where
from tidelog.sync.face import Face
from tidelog.sync.member_records import MemberRecords
from tidelog.sync.records import Records
from tidelog.types import Acl, Position, Quota
from tidelog.wire.messages import (
    AccessAnswer,
    CopyRead,
    DescribeGroupAnswer,
    DigestAnswer,
    FeaturesAnswer,
    GatewayInfo,
    GroupInfo,
    GroupPosition,
    HistoryEntry,
    ListTransactionsAnswer,
    MetadataAnswer,
    MetricsAnswer,
    OffsetAnswer,
    PartitionInfo,
    PartitionWeight,
    PlannedMove,
    PlayedMessage,
    PlayedNode,
    QuorumAnswer,
    Refusal,
    ScrubStatus,
    TopicInfo,
    TransactionInfo,
)

class Consumer(Records[Any]):
    """An asynchronous iterator over the records of a topic, in order per partition; ``next_records`` returns a whole
    batch at a time. Made by ``Log.consume``. The start positions are looked up at the first record, or by ``async
    with``.

    It reads ahead within its credit. When the gateway is lost it goes on at the next one, without loss or repetition;
    after ``request_timeout_s`` without a gateway it raises ``Unreachable``. An offset that is no longer in the log is
    an error, never a silent jump. An iteration may simply be abandoned: a consumer without references is
    unsubscribed.
    """

    @property
    def positions(self) -> dict[int, Position]:
        """Per partition the position after the last record that was returned, with that record's leader epoch; empty
        if the consumer is not open. A later ``consume(start=positions)`` goes on from there."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes of batches that have arrived and were not returned to the application."""

    @property
    def remaining(self) -> int:
        """The number of offsets between what was returned and the requested ends; 0 without an end, or if the
        consumer is not open."""

    @property
    def paused(self) -> list[int]:
        """The partitions of which no records are returned until ``resume``."""

    def pause(self, *partitions: int) -> None:
        """Return no records of these partitions (by default: of any) until ``resume``. The other partitions go on.
        Batches that have arrived stay, and more arrive until the credit is used up. The rest of the present batch is
        returned after the pause. Raises ``UNKNOWN_TOPIC`` for a partition that is not read."""

    def resume(self, *partitions: int) -> None:
        """Return records of these partitions again (by default: of all), and wake a task that waits for records.
        Raises ``UNKNOWN_TOPIC`` for a partition that is not read."""

    def seek(self, where: Where, *partitions: int) -> None:
        """Continue reading at the place ``where`` in these partitions. By default these are the partitions that
        ``where`` names, if it is a mapping, else all. Records that were read ahead are dropped; the ends stay. A
        partition that has ended with an error goes on: use ``seek`` after ``OFFSET_OUT_OF_RANGE``, ``LOG_TRUNCATED``
        and ``UnreadableBatch`` (with its ``next_offset``). Raises ``UNKNOWN_TOPIC`` for a partition that is not
        read."""

class BackwardConsumer(Records[Any]):
    """An asynchronous iterator over the records of a topic, the newest first in each partition. The iteration ends at
    the lower bound that was requested, or at the log's start, and never waits for new records. Made by
    ``Log.consume(reverse=True)``.

    All partitions are read at the same time, each time at most ``partition_bytes`` of each, or one batch if that is
    larger.
    """

    @property
    def positions(self) -> dict[int, Position]:
        """Per partition the offset of the last record that was returned, as a ``Position``; empty if the consumer is
        not open. A later backward read that starts there continues below that record."""

class GroupConsumer(MemberRecords):
    """An asynchronous iterator over the records of the partitions that this member of a consumer group owns.
    Partitions come and go; those that stay are not disturbed. Made by ``Log.consume(group=…)``; best used with
    ``with``.

    Reading of a partition begins at the group's committed position. In a partition without one it begins at
    ``start``, which is committed at once. A record is *finished* when the application asks for the next one. Finished
    positions are committed every ``auto_commit_s`` (``core/group_member.py`` decides when), before a partition is
    given up, and at the end. So each record is processed at least once. A partition that must be given up stays with
    this member until the application asks for the next record or has committed the present one.

    The iterator raises ``OFFSET_OUT_OF_RANGE`` and ``LOG_TRUNCATED`` if the committed position is not in the log: no
    position is reset automatically (``seek`` and ``tidelog groups reset`` do that). It also raises
    ``FENCED_INSTANCE``, ``GROUP_FULL`` and ``INVALID_GROUP``. After ``UnreadableBatch`` the position of the group
    stays before that batch until ``seek``; with ``on_unreadable="skip"`` it moves on behind the batch.
    """

    @property
    def assignment(self) -> list[tuple[str, int]]:
        """The partitions that are owned and not being given up, as (topic, partition)."""

    @property
    def generation(self) -> int:
        """The generation of the group in which this member owns its partitions; -1 before it has joined."""

    @property
    def positions(self) -> dict[tuple[str, int], Position]:
        """The position after the last record that was returned, by (topic, partition). ``commit`` commits these
        positions. Empty if no partition is read."""

    @property
    def paused(self) -> list[tuple[str, int]]:
        """The partitions that are paused, as (topic, partition)."""

    def commit(self) -> None:
        """Commit the position after the last record that was returned, for every partition, and wait until the
        positions are stored. This finishes the last record, so a partition that must be given up is given up then.
        Raises ``UNKNOWN_MEMBER``, ``FENCED_GENERATION`` or ``FENCED_INSTANCE`` if other members own the partitions by
        now and process the records again."""

    def pause(self, *partitions: Share) -> None:
        """Return no records of these (topic, partition) until they are resumed or move to another member; by default,
        of all that are owned now. The other partitions go on. The rest of the present batch is returned after the
        pause. Raises ``UNKNOWN_TOPIC`` for a partition that is not owned."""

    def resume(self, *partitions: Share) -> None:
        """Return records of these (topic, partition) again, those that arrived during the pause first; by default, of
        all that are owned. Raises ``UNKNOWN_TOPIC`` for a partition that is not owned."""

    def seek(self, where: Start | Mapping[Share, int | Position], *partitions: Share) -> None:
        """Continue reading at the place ``where`` in these (topic, partition). By default these are all partitions
        that are owned, or, if ``where`` is a mapping like ``positions``, those that it names. Records that were read
        ahead are dropped, and the new positions are committed next. Use it also to go on after
        ``OFFSET_OUT_OF_RANGE``, ``LOG_TRUNCATED`` and ``UnreadableBatch`` (with its ``next_offset``). Raises
        ``UNKNOWN_TOPIC`` for a partition that is not owned."""

@keep_old_call("topics")
class TopicAdmin(Face):
    """The methods that create, describe, change and delete topics; each ``Log`` has them as ``log.topics``."""

    def create(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = 1,
        config: Mapping[str, object] | None = None,
        exist_ok: bool = False,
    ) -> TopicInfo:
        """Create a topic, wait until all its partitions have leaders, and return its metadata. ``config``: fields of
        ``TopicConfig``.

        With ``exist_ok``, if a topic of that name exists, return its metadata and change nothing, also if it has
        other partitions, replicas or settings than those that are given: compare them where it matters. Programs that
        start at the same time may all call this.

        Raises ``TOPIC_EXISTS`` without ``exist_ok``, ``INVALID_TOPIC``, ``INVALID_CONFIG`` or
        ``INVALID_REPLICATION_FACTOR`` if the topic was not created, and ``TimedOut`` if it was created and a
        partition has no leader yet."""

    def delete(self, name: str) -> None:
        """Delete a topic and all its records. Raises ``UNKNOWN_TOPIC``."""

    def alter(self, name: str, config: Mapping[str, object]) -> None:
        """Change these settings of a topic (fields of ``TopicConfig``); its other settings stay. Raises
        ``UNKNOWN_TOPIC``, and ``INVALID_CONFIG``, also for a setting that is fixed when a topic is created."""

    def grow(self, name: str, partitions: int) -> None:
        """Add partitions to a topic until it has ``partitions`` in total. Raises ``UNKNOWN_TOPIC``,
        ``INVALID_CONFIG`` (topics do not shrink), ``INVALID_REPLICATION_FACTOR``."""

    def list(self) -> tuple[TopicInfo, ...]:
        """Return the metadata of every topic, as the gateway knows them."""

    def describe(self, topic: str, *, offsets: bool = False) -> TopicInfo:
        """Return the metadata of one topic; with ``offsets`` also the log start and high watermark of each partition,
        requested from the leaders. Raises ``UNKNOWN_TOPIC``."""

    def find(
        self, topic_ids: Iterable[str], *, offsets: bool = False, consistency: str = "linearizable"
    ) -> tuple[TopicInfo, ...]:
        """Return the metadata of the topics with these ids; those that are deleted or hidden are left out. With
        ``offsets`` also the log start and high watermark of each partition. With ``consistency`` "linearizable" each
        leader proves that these are not older than the request. With "eventual" they are what the leaders know, which
        takes one request to each server, so it is much faster for many partitions."""

class PartitionAdmin(Face):
    """The methods that move, pause and compare partitions and find offsets in them; each ``Log`` has them as
    ``log.partitions``."""

    def transfer(self, topic: str, partition: int, server: str = "") -> PartitionInfo:
        """Make an in-sync server the leader of a partition, wait until it leads, and return the partition's metadata.
        Without ``server`` the preferred replica becomes the leader. Raises ``UNKNOWN_TOPIC``, ``UNKNOWN_SERVER``,
        ``NOT_REPLICA``, ``NOT_IN_SYNC``, ``OFFLINE``; ``TimedOut`` if the server did not get to the end of the log in
        time, so that the former leader stays."""

    def reassign(self, topic: str, partition: int, replicas: Iterable[str]) -> None:
        """Begin to move a partition to these replicas, the preferred leader first, and return without waiting for the
        move. The metadata (``TopicAdmin.describe``) name them as ``target`` until the move is done. Raises
        ``UNKNOWN_TOPIC``, ``UNKNOWN_SERVER``, ``INVALID_REPLICAS``."""

    def cancel_reassignment(self, topic: str, partition: int) -> None:
        """Cancel the reassignment of a partition: it returns to the replicas that it had before. A queued
        reassignment is dropped. Raises ``UNKNOWN_TOPIC``, ``NO_REASSIGNMENT``."""

    def plan_rebalance(
        self, *, empty_drained: bool = False, weights: Iterable[PartitionWeight] = (), unit: str = ""
    ) -> tuple[PlannedMove, ...]:
        """Return reassignments that would spread the replicas evenly over racks and servers, without beginning any.
        ``empty_drained``: also move replicas away from servers that are being drained. ``weights``: weight of a
        replica of each partition, in ``unit`` (``B`` or ``B/s``); a partition that is not named weighs 0. Without
        ``unit`` each replica weighs 1. Raises ``UNSUPPORTED`` if the controllers are of a release that counts
        replicas only."""

    def rebalance(
        self, *, empty_drained: bool = False, weights: Iterable[PartitionWeight] = (), unit: str = ""
    ) -> None:
        """Queue the reassignments that ``plan_rebalance`` returns for these arguments, and return when all are
        queued; a few per server are carried out at a time. They stay queued until they are done or cancelled, even if
        this client ends."""

    def cancel_rebalance(self) -> None:
        """Drop all queued reassignments; reassignments that have begun go on."""

    def waiting_moves(self) -> tuple[PlannedMove, ...]:
        """Return the reassignments that rebalances have queued and that have not begun, in their order."""

    def set_learners(self, topic: str, partition: int, learners: Iterable[str]) -> None:
        """Replace the set of servers that copy a partition's log without being replicas of it; an empty list removes
        all. Raises ``UNKNOWN_TOPIC``, ``INVALID_CONFIG`` (a learner must be a live server and no replica)."""

    def set_read_only(self, topic: str, partitions: Iterable[int] = (), *, read_only: bool = True) -> None:
        """Make these partitions (none named: all of the topic) refuse records, or accept records again; reads go on.
        Produces are refused with ``TOPIC_READ_ONLY`` once the leader has received the change, which is at once if it
        is in touch with the controllers. Raises ``UNKNOWN_TOPIC``, ``FORBIDDEN`` for the cluster's own topics."""

    def pause(self, topic: str, partitions: Iterable[int] = ()) -> None:
        """Close these partitions (none named: all of the topic) on their servers, which keep the data. Produces and
        reads are refused with ``TOPIC_PAUSED``; the outcome of a produce under way may be unknown. Raises
        ``UNKNOWN_TOPIC``, ``FORBIDDEN`` for the cluster's own topics."""

    def resume(self, topic: str, partitions: Iterable[int] = ()) -> None:
        """End the pause of these partitions (none named: all of the topic), so that leaders are elected again. Raises
        ``UNKNOWN_TOPIC``, ``FORBIDDEN`` for the cluster's own topics."""

    def history(self, topic: str, partition: int) -> tuple[HistoryEntry, ...]:
        """Return the changes of a partition's leader, ISR and replicas that the controllers remember, oldest first,
        each with its cause. Raises ``UNKNOWN_TOPIC``."""

    def histories(self, topic: TopicInfo, partitions: Iterable[int]) -> dict[int, tuple[HistoryEntry, ...]]:
        """Request the ``history`` of each of these partitions of a topic, concurrently, and return the changes by
        partition."""

    def list_offset(self, topic: str, partition: int, at: str | datetime = "latest") -> OffsetAnswer:
        """Return the offset of a place in one partition, as its leader reports it. The place is ``earliest``,
        ``latest``, or a time: the first record at or after it, or ``latest`` if there is none. Raises
        ``UNKNOWN_TOPIC``, and ``ConfigError`` for another place."""

    def list_offsets(
        self, topic: TopicInfo, at: str | datetime, partitions: Iterable[int], isolation: str = "committed"
    ) -> dict[int, OffsetAnswer]:
        """Request from the leaders the offset of a place in each of these partitions, and return the answers by
        partition. The place is ``earliest``, ``latest``, or a time: the first record at or after it. ``latest`` is
        the high watermark with isolation ``uncommitted``, otherwise the last stable offset. Raises ``ConfigError``
        for another place."""

    def find_positions(
        self, topic: str, where: Where, partitions: Iterable[int] | None = None
    ) -> dict[int, Position]:
        """Return the position of a place in each of these partitions of a topic (by default in all), by partition. A
        place is ``earliest``, ``latest``, a time, an offset, or a mapping from partition to offset or ``Position``.
        Raises ``UNKNOWN_TOPIC``, and ``ConfigError`` for another place."""

    def digest(self, topic_id: str, partition: int, node: str, offsets: Iterable[int] = ()) -> DigestAnswer:
        """Return the bounds of the log that replica server ``node`` has of a partition, and its hash chain at each of
        up to 64 offsets. Only that server can answer, so if it is away the request is repeated for
        ``DIGEST_PATIENCE_S``. Raises ``OFFLINE``, ``NOT_LEADER`` (the server has no such partition),
        ``UNREACHABLE``."""

    def read_copy(self, topic_id: str, partition: int, node: str, offset: int) -> CopyRead:
        """Have a replica server read about 1 MiB of its copy of a partition from its disk, and return the
        fingerprints of the batches from ``offset`` on. The bytes read count for the quota of bytes out; while that
        quota is used up, the call waits. Raises ``OFFLINE`` (for example because the copy is damaged), ``NOT_LEADER``
        (the server has no copy of the partition), ``FORBIDDEN`` (without the right to read the topic),
        ``OFFSET_OUT_OF_RANGE``, ``UNREACHABLE``, and ``UNSUPPORTED_LEVEL`` below feature level 4."""

    def compare_replicas(self, topic: TopicInfo, partition: int, live: Collection[str]) -> Comparison:
        """Compare the hash chains of a partition's replicas and learners below the smallest of their high watermarks,
        and return a ``Comparison``. Only copies on the servers ``live`` are compared. The servers answer from memory;
        ``compare_copies`` reads the disks. Raises ``TidelogError`` if a server stops answering during the
        comparison."""

    def compare_copies(
        self,
        topic: TopicInfo,
        partition: int,
        live: Collection[str],
        max_bytes_per_s: float = 0,
        on_records: Callable[[int], None] = ignore,
    ) -> Comparison:
        """Compare the batches that a partition's replicas and learners have on their disks, below the smallest of
        their high watermarks, and return a ``Comparison``. Only copies on the servers ``live`` are compared; a copy
        that cannot be read is named in the result. ``max_bytes_per_s``: how fast each copy is read; 0: no limit.
        ``on_records`` is called with the number of further records compared."""

@keep_old_call("groups")
class GroupAdmin(Face):
    """The methods that describe, reset and delete consumer groups, for clients that are not members; each ``Log`` has
    them as ``log.groups``."""

    def list(self) -> tuple[GroupInfo, ...]:
        """Return every consumer group, ordered by name."""

    def describe(self, group: str) -> DescribeGroupAnswer:
        """Return a group's members, their partitions, and its committed positions. Raises ``UNKNOWN_GROUP``."""

    def progress(self, group: str) -> tuple[GroupProgress, ...]:
        """Return the position and lag of a group in every partition that has a position or an owner, ordered by topic
        and partition. The ends of the partitions are those that their leaders know, up to the last stable offset.
        Raises ``UNKNOWN_GROUP``."""

    def fetch_offsets(self, group: str, topic: str) -> dict[int, Position]:
        """Return the group's committed positions in a topic, by partition; partitions without a position are left
        out. Raises ``UNKNOWN_TOPIC``."""

    def positions(self, topic: TopicInfo, partition: int) -> dict[str, GroupPosition | None]:
        """Return the committed positions of all groups in a partition, by group, with the times of their commits;
        groups without a position there are left out. None: the position is not known, since the client may not
        describe the group, or the gateway or the group's coordinator is of an earlier release."""

    def reset(self, group: str, topic: str, positions: Mapping[int, Position | int], *, metadata: str = "") -> None:
        """Set the committed positions of a group in these partitions of a topic, each with the text ``metadata``; its
        other positions stay. Raises ``GROUP_NOT_EMPTY`` while the group has members, ``UNKNOWN_TOPIC``,
        ``INVALID_GROUP``."""

    def delete(self, group: str) -> None:
        """Delete a group and its positions. Raises ``UNKNOWN_GROUP``, and ``GROUP_NOT_EMPTY`` while it has
        members."""

@keep_old_call("transactions")
class TransactionAdmin(Face):
    """The methods that list, abort and settle the transactions of any application; each ``Log`` has them as
    ``log.transactions``."""

    def list(self) -> tuple[TransactionInfo, ...]:
        """Return every transaction that has not ended, ordered by application (transactional id)."""

    def describe(self, app: str) -> ListTransactionsAnswer:
        """Return the last transaction of an application, the transactions that it has staged, and the newest batches
        that it has committed. All are empty if the application is not known, or has been forgotten."""

    def of_producer(self, producer_id: int) -> tuple[TransactionInfo, ...]:
        """Return the transactions of a producer id that the coordinators keep, also ended ones. Requires the right to
        describe the cluster."""

    def abort(self, app: str) -> bool:
        """Abort the open transaction of an application, and return True; its process gets ``TRANSACTION_ABORTED`` at
        its next batch or commit. Returns False if no transaction is open or it was committed meanwhile. Staged
        transactions are not touched; ``Log.abort`` drops them."""

    def settle(self, topic: str, partition: int, producer_id: int, epoch: int, *, commit: bool) -> None:
        """End a hanging transaction in one partition, so that readers of committed records no longer wait for it. A
        transaction hangs if it is open in the partition's log and no coordinator has it. With ``commit`` its records
        in the partition become visible, else they never do. Raises ``INVALID_TRANSACTION`` if a coordinator has the
        transaction, ``UNKNOWN_TRANSACTION`` if readers do not wait for it. Requires the right to administer the
        cluster."""

@keep_old_call("access")
class AccessAdmin(Face):
    """The methods that create and revoke tokens and change access rules and quotas; each ``Log`` has them as
    ``log.access``."""

    def create_token(self, principal: str, lifetime_s: float | None = None) -> str:
        """Create a bearer token of a principal and return its text. The text is stored nowhere, since the cluster
        keeps only its SHA-256. The token expires after ``lifetime_s`` seconds, or never if that is None. Raises
        ``INVALID_CONFIG``."""

    def rotate_token(self, token_id: str, grace_s: float = 0.0, lifetime_s: float | None = None) -> str:
        """Create a new token for the principal of an existing one, and return the new token's text. The old token
        expires ``grace_s`` seconds later. The new one expires after ``lifetime_s`` seconds, or never if that is None.
        Raises ``UNKNOWN_TOKEN``."""

    def revoke_token(self, token_id: str) -> None:
        """Revoke the token with this id at once, and close the connections that were opened with it. Raises
        ``UNKNOWN_TOKEN``."""

    def revoke_tokens_of(self, principal: str) -> None:
        """Revoke all tokens of a principal at once, and close the connections that were opened with them."""

    def rotate_ticket_keys(self) -> None:
        """Make the cluster sign the tickets of producer ids with a new key. Tickets of the previous key stay valid
        until the next rotation. Raises ``UNSUPPORTED_LEVEL`` below feature level 4."""

    def alter_acls(self, add: Iterable[Acl] = (), remove: Iterable[Acl] = ()) -> None:
        """Add the access rules ``add`` and remove the rules ``remove``. Raises ``INVALID_CONFIG``."""

    def drop_inherited_security(self) -> None:
        """From now on allow only superusers, and principals with the right ``security``, to change tokens and rules.
        Raises ``UNSUPPORTED_LEVEL`` below feature level 5."""

    def alter_quotas(self, quotas: Iterable[Quota]) -> None:
        """Set the quota of each principal that ``quotas`` names. Raises ``INVALID_CONFIG``."""

    def describe(self) -> AccessAnswer:
        """Return all tokens (without their secret parts), access rules and quotas."""

class ClusterAdmin(Face):
    """The methods that describe and change the cluster's servers, controllers and feature level; each ``Log`` has
    them as ``log.cluster``."""

    def status(self, *, offsets: bool = False) -> MetadataAnswer:
        """Return the cluster's id, servers and topics as the gateway knows them. With ``offsets`` the answer also has
        the log start and high watermark of each partition, as the leaders report them."""

    def quorum(self) -> QuorumAnswer:
        """Return the controllers, with the index up to which each has copied the metadata, and the name of the active
        one."""

    def metrics(self, node: str = "") -> MetricsAnswer:
        """Return the metrics of one process: its page in Prometheus' text format, its version and its clock. ``node``
        names a replica server or the active controller; "" is the gateway of this client. Raises ``UNKNOWN_SERVER``,
        ``UNREACHABLE``, ``UNSUPPORTED``."""

    def gateways(self) -> tuple[GatewayInfo, ...]:
        """Return the gateways that clients may go on at, with the URLs that they advertise; empty if none does, or
        the gateway does not know."""

    def refusal(self, error_id: str) -> Refusal | None:
        """Return the error with this id, as the gateway of this client keeps it, with the facts that decided. None if
        the gateway does not keep it (any more), or the client may not see it. Raises ``UNSUPPORTED`` if the gateway
        is of an earlier release."""

    def add_controller(self, node: str, url: str) -> None:
        """Add a running controller at this URL to the group, as a learner. It becomes a voter when it has caught up
        (see ``quorum``). A controller that has lost its disk is added again in this way. Raises
        ``CHANGE_IN_PROGRESS``, ``QUORUM_AT_RISK``."""

    def remove_controller(self, node: str) -> None:
        """Remove a controller from the group, so that it no longer votes or copies the metadata. Raises
        ``CHANGE_IN_PROGRESS``, ``QUORUM_AT_RISK``, ``UNKNOWN_CONTROLLER``."""

    def features(self) -> FeaturesAnswer:
        """Return the cluster's feature level, and the levels that each process understands. Raises ``UNSUPPORTED`` if
        the active controller or the gateway is of a release without levels; the level is then 1."""

    def raise_level(self, level: int, *, left_behind: Iterable[str] = (), dry_run: bool = False) -> None:
        """Raise the cluster to a feature level, for good. ``dry_run``: only check whether that is possible, and
        change nothing. Processes in ``left_behind`` may be down. Raises ``UNSUPPORTED_LEVEL``, whose message names
        all processes that do not understand the level."""

    def forget_server(self, server: str) -> None:
        """Remove a replica server that is gone for good from the cluster's metadata. Raises ``UNKNOWN_SERVER``,
        ``SERVER_IN_USE`` (the server is live, or has copies), ``UNSUPPORTED_LEVEL``."""

    def drain_server(self, server: str, drain: bool = True) -> None:
        """Hand over the leaderships of a server wherever another server can lead. New partitions get replicas on it
        only if there are too few other live servers. With ``drain`` False the server may lead and get replicas again.
        Returns when the controllers have recorded the change, not when the leaderships have moved. Raises
        ``UNKNOWN_SERVER``."""

    def scrub_server(self, node: str, *, begin: bool = True) -> ScrubStatus:
        """Return the progress of a replica server's scrubber, which reads its disk again to find damage. With
        ``begin`` the server first starts a new round, and drops a round that is under way. Raises ``UNREACHABLE``,
        and ``UNSUPPORTED_LEVEL`` below feature level 4."""

    def play(self, node: str = "", act: str = "") -> tuple[PlayedNode, ...]:
        """Inject a fault into a node of a cluster that ``tidelog dev`` runs. ``act``: ``kill``, ``pause``, ``cut`` or
        ``heal``; "" for none. Returns the state of all nodes after that. Raises ``UNSUPPORTED`` in every other
        cluster."""

    def played_messages(self, act: str) -> tuple[PlayedMessage, ...]:
        """Begin or end the recording of messages between the services of a cluster that ``tidelog dev`` runs.
        ``act``: ``record`` begins it and returns an empty tuple; ``stop`` ends it and returns the newest 2,000
        messages in order. Raises ``UNSUPPORTED`` in every other cluster."""
