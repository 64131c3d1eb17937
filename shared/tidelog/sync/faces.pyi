"""The blocking faces of consumers and of administration. Generated from the code by `make pages`."""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from tidelog.client.admin.copy_comparison import ignore
from tidelog.client.admin.groups import GroupProgress
from tidelog.client.admin.replica_comparison import Comparison
from tidelog.client.group_consumer import Share, Start
from tidelog.client.lookups import Where
from tidelog.sync.face import Face
from tidelog.sync.records import MemberRecords, Records
from tidelog.types import Acl, Position, Quota
from tidelog.wire.messages import (
    AccessAnswer,
    CopyRead,
    DescribeGroupAnswer,
    DigestAnswer,
    FeaturesAnswer,
    GroupInfo,
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
    ScrubStatus,
    TopicInfo,
    TransactionInfo,
)

class Consumer(Records[Any]):
    """Iterate over it for records, in order per partition; ``next_records`` returns a whole batch at a time. The
    start positions are looked up at the first record, or by ``with``. Made by ``Log.consume``.

    It reads ahead within its credit. When the gateway is lost it goes on at the next one, without loss or repetition;
    after ``request_timeout_s`` without a gateway it raises ``Unreachable``. An offset that is no longer in the log is
    an error, never a silent jump. An iteration may simply be abandoned: a consumer without references is
    unsubscribed.
    """

    @property
    def positions(self) -> dict[int, Position]:
        """Per partition the leader epoch of the last record that was handed out, and the offset after it. A later
        ``consume(start=positions)`` goes on from there."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes that have arrived and were not handed out."""

    @property
    def paused(self) -> list[int]:
        """The paused partitions: none of their records is handed out."""

    def pause(self, *partitions: int) -> None:
        """Hand out no records of these partitions (by default: of any) until they are resumed. The others go on, and
        what has arrived stays, within the credit. Raises ``UNKNOWN_TOPIC`` for a partition that is not read."""

    def resume(self, *partitions: int) -> None:
        """Hand out records of these partitions again (by default: of all)."""

    def seek(self, where: Where, *partitions: int) -> None:
        """Go on at this place in these partitions; by default, in those that ``where`` names, or in all. Records that
        were read ahead are dropped. Use it also to go on after ``OFFSET_OUT_OF_RANGE``, ``LOG_TRUNCATED`` and
        ``UnreadableBatch`` (with its ``next_offset``). The ends stay."""

class BackwardConsumer(Records[Any]):
    """Iterate over it for records, the newest first in each partition. The iteration ends at its bound and never
    waits for new records. Made by ``Log.consume(reverse=True)``.

    All partitions are read at the same time, each time at most ``partition_bytes`` of each, or one batch.
    """

    @property
    def positions(self) -> dict[int, Position]:
        """Per partition the offset of the last record that was handed out. A later backward read continues below
        it."""

class GroupConsumer(MemberRecords):
    """Iterate over it for records of the partitions that this member of the group owns. Partitions come and go; those
    that stay are not disturbed. Made by ``Log.consume(group=…)``; best used with ``with``.

    A partition begins at the group's committed position. A partition without one begins at ``start``, which is
    committed at once. A record is *finished* when the application asks for the next one. Finished positions are
    committed every ``auto_commit_s``, before a partition is given up, and at the end. So each record is processed at
    least once. A partition is given up when the application asks for the next record, or has committed the present
    one: until then the partition stays with this member.

    The iterator raises ``OFFSET_OUT_OF_RANGE`` and ``LOG_TRUNCATED`` if the committed position is not in the log:
    nothing is reset by itself (``seek`` and ``tidelog groups reset`` do that). It also raises ``FENCED_INSTANCE``,
    ``GROUP_FULL`` and ``INVALID_GROUP``. After ``UnreadableBatch`` the position of the group stays before that batch
    until ``seek``; with ``on_unreadable="skip"`` it moves on behind the batch.
    """

    @property
    def assignment(self) -> list[tuple[str, int]]:
        """(topic, partition) of every partition that is owned and not being given up."""

    @property
    def generation(self) -> int:
        """The member's generation; -1 before it has joined."""

    @property
    def positions(self) -> dict[tuple[str, int], Position]:
        """Per (topic, partition) the end of what was handed out, which is what ``commit`` commits."""

    @property
    def paused(self) -> list[tuple[str, int]]:
        """(topic, partition) of every owned partition that is paused."""

    def commit(self) -> None:
        """Commit everything that was handed out, the last record included. This finishes the last record, so a
        partition that is to be given up may go. Raises ``UNKNOWN_MEMBER``, ``FENCED_GENERATION`` or
        ``FENCED_INSTANCE`` if other members own the partitions by now and process the records again."""

    def pause(self, *partitions: Share) -> None:
        """Hand out no records of these (topic, partition) until they are resumed or move to another member; by
        default, of all that are owned now. The others go on. Raises ``UNKNOWN_TOPIC`` for a partition that is not
        owned."""

    def resume(self, *partitions: Share) -> None:
        """Hand out records of these partitions again; by default, of all."""

    def seek(self, where: Start | Mapping[Share, int | Position], *partitions: Share) -> None:
        """Go on at this place in these partitions; by default, in all that are owned, or as a mapping like
        ``positions`` names them. The new positions are committed next. Use it also to go on after
        ``OFFSET_OUT_OF_RANGE``, ``LOG_TRUNCATED`` and ``UnreadableBatch`` (with its ``next_offset``)."""

class TopicAdmin(Face):
    """Create, describe, change and delete topics: ``log.topics``."""

    def create(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = 1,
        config: Mapping[str, object] | None = None,
    ) -> TopicInfo:
        """Create a topic, and wait until its partitions have leaders. ``config``: fields of ``TopicConfig``. Raises
        ``BrokerError``: ``TOPIC_EXISTS``, ``INVALID_TOPIC``, ``INVALID_CONFIG``, ``INVALID_REPLICATION_FACTOR``."""

    def delete(self, name: str) -> None:
        """Delete a topic and all its records. Raises ``UNKNOWN_TOPIC``."""

    def alter(self, name: str, config: Mapping[str, object]) -> None:
        """Change settings of a topic (fields of ``TopicConfig``); settings that are not named stay. Raises
        ``UNKNOWN_TOPIC``, ``INVALID_CONFIG`` (also for a setting that is fixed when a topic is created)."""

    def grow(self, name: str, partitions: int) -> None:
        """Increase the number of a topic's partitions to this total. Raises ``UNKNOWN_TOPIC``, ``INVALID_CONFIG``
        (topics do not shrink), ``INVALID_REPLICATION_FACTOR``."""

    def list(self) -> tuple[TopicInfo, ...]:
        """Describe every topic."""

    def describe(self, topic: str, *, offsets: bool = False) -> TopicInfo:
        """Describe one topic; with ``offsets`` also log start and high watermark of each partition, requested from
        the leaders. Raises ``UNKNOWN_TOPIC``."""

class PartitionAdmin(Face):
    """Move, pause, look up and compare partitions: ``log.partitions``."""

    def transfer(self, topic: str, partition: int, server: str = "") -> PartitionInfo:
        """Make an in-sync server the leader of a partition; none: the preferred replica. Returns when it leads.
        Raises ``UNKNOWN_TOPIC``, ``UNKNOWN_SERVER``, ``NOT_REPLICA``, ``NOT_IN_SYNC``, ``OFFLINE``; ``TimedOut`` if
        it did not get to the end of the log in time and the former leader stays."""

    def reassign(self, topic: str, partition: int, replicas: Iterable[str]) -> None:
        """Begin to move a partition to these replicas, the preferred leader first. ``describe`` shows them as
        ``target`` until the move is done. Raises ``UNKNOWN_TOPIC``, ``UNKNOWN_SERVER``, ``INVALID_REPLICAS``."""

    def cancel_reassignment(self, topic: str, partition: int) -> None:
        """Go back to the replicas before the reassignment; one that still waits for its turn is dropped. Raises
        ``UNKNOWN_TOPIC``, ``NO_REASSIGNMENT``."""

    def plan_rebalance(
        self, *, empty_drained: bool = False, weights: Iterable[PartitionWeight] = (), unit: str = ""
    ) -> tuple[PlannedMove, ...]:
        """Return reassignments that would spread the replicas over racks and servers; none is begun.
        ``empty_drained``: also move replicas away from servers that are being drained. ``weights``: weight of a
        replica of each partition, in ``unit`` (``B`` or ``B/s``); a partition that is not named weighs 0. Without
        ``unit`` each replica weighs 1. Raises ``UNSUPPORTED`` if the controllers are of a release that counts
        replicas only."""

    def rebalance(
        self, *, empty_drained: bool = False, weights: Iterable[PartitionWeight] = (), unit: str = ""
    ) -> None:
        """Queue the reassignments of ``plan_rebalance``; a few per server are carried out at a time. Returns when all
        are queued. They stay queued until they are done or cancelled, even if this client ends."""

    def cancel_rebalance(self) -> None:
        """Drop all queued reassignments; those that have begun go on."""

    def waiting_moves(self) -> tuple[PlannedMove, ...]:
        """List the queued reassignments of rebalances, in their order."""

    def set_learners(self, topic: str, partition: int, learners: Iterable[str]) -> None:
        """Set the servers that copy a partition's log without being replicas of it; an empty list ends that. Raises
        ``UNKNOWN_TOPIC``, ``INVALID_CONFIG`` (a learner is a live server and no replica)."""

    def set_read_only(self, topic: str, partitions: Iterable[int] = (), *, read_only: bool = True) -> None:
        """Make these partitions (none named: all) refuse records, or accept them again; reads go on. Produces are
        refused with ``TOPIC_READ_ONLY`` from when the leader has received the change, which is at once if it is in
        touch with the controllers. Raises ``UNKNOWN_TOPIC``, ``FORBIDDEN`` for the cluster's own topics."""

    def pause(self, topic: str, partitions: Iterable[int] = ()) -> None:
        """Close these partitions (none named: all) on their servers, which keep the data. Produces and reads are
        refused with ``TOPIC_PAUSED``; the outcome of a produce under way may be unknown. Raises the same as
        ``set_read_only``."""

    def resume(self, topic: str, partitions: Iterable[int] = ()) -> None:
        """End a pause: leaders are elected again. Raises the same as ``set_read_only``."""

    def history(self, topic: str, partition: int) -> tuple[HistoryEntry, ...]:
        """Return the remembered changes of a partition's leader, ISR and replicas, oldest first, each with its
        cause."""

    def histories(self, topic: TopicInfo, partitions: Iterable[int]) -> dict[int, tuple[HistoryEntry, ...]]:
        """Return the ``history`` of many partitions at a time."""

    def list_offset(self, topic: str, partition: int, at: str | datetime = "latest") -> OffsetAnswer:
        """Return the offset at a place of one partition: ``earliest``, ``latest``, or of the first record at or after
        a time (``latest`` if there is none)."""

    def list_offsets(
        self, topic: TopicInfo, at: str | datetime, partitions: Iterable[int], isolation: str = "committed"
    ) -> dict[int, OffsetAnswer]:
        """Return the offset at a place of many partitions. With isolation ``uncommitted`` ``latest`` is the high
        watermark, otherwise the last stable offset."""

    def find_positions(
        self, topic: str, where: Where, partitions: Iterable[int] | None = None
    ) -> dict[int, Position]:
        """Return the position of a place in each partition of a topic, or in these. Raises ``UNKNOWN_TOPIC``."""

    def digest(self, topic_id: str, partition: int, node: str, offsets: Iterable[int] = ()) -> DigestAnswer:
        """Return the bounds of one replica's log, and its hash chain at each of up to 64 offsets. No other server can
        answer for it, so a server that is away has ``DIGEST_PATIENCE_S`` to come back. Raises ``OFFLINE``,
        ``NOT_LEADER`` (it has no such partition), ``UNREACHABLE``."""

    def read_copy(self, topic_id: str, partition: int, node: str, offset: int) -> CopyRead:
        """Have a replica server read about 1 MiB of its copy from its disk: fingerprints of the batches from
        ``offset`` on. Raises ``OFFLINE`` (for example because the copy is damaged), ``NOT_LEADER`` (the server has no
        copy of the partition), ``FORBIDDEN`` (without the right to read the topic), ``OFFSET_OUT_OF_RANGE``,
        ``UNREACHABLE``, and ``UNSUPPORTED_LEVEL`` below feature level 4. What the server reads counts for the quota
        of bytes out; a quota that is used up is waited out."""

    def compare_replicas(self, topic: TopicInfo, partition: int, live: Collection[str]) -> Comparison:
        """Compare the logs of a partition's replicas and learners, of those that are among ``live``, below the
        smallest of their high watermarks (``tidelog.client.admin.replica_comparison``)."""

    def compare_copies(
        self,
        topic: TopicInfo,
        partition: int,
        live: Collection[str],
        max_bytes_per_s: float = 0,
        on_records: Callable[[int], None] = ignore,
    ) -> Comparison:
        """Compare the batches that a partition's replicas and learners, of those that are among ``live``, have on
        their disks, below the smallest of their high watermarks (``tidelog.client.admin.copy_comparison``).
        ``max_bytes_per_s``: how fast each copy is read; 0: no limit. ``on_records`` is called with the number of
        further records compared."""

class GroupAdmin(Face):
    """Describe, reset and delete consumer groups: ``log.groups``."""

    def list(self) -> tuple[GroupInfo, ...]:
        """List every consumer group, by name."""

    def describe(self, group: str) -> DescribeGroupAnswer:
        """Describe a group: its members, their partitions, and its positions. Raises ``UNKNOWN_GROUP``."""

    def progress(self, group: str) -> tuple[GroupProgress, ...]:
        """Return position and lag, by topic, of every partition that has a position or an owner. Raises
        ``UNKNOWN_GROUP``."""

    def fetch_offsets(self, group: str, topic: str) -> dict[int, Position]:
        """Return the group's positions in a topic; partitions without a position are left out. Raises
        ``UNKNOWN_TOPIC``."""

    def reset(self, group: str, topic: str, positions: Mapping[int, Position | int]) -> None:
        """Set the positions of a group. Raises ``GROUP_NOT_EMPTY`` while it has members, ``UNKNOWN_TOPIC``,
        ``INVALID_GROUP``."""

    def delete(self, group: str) -> None:
        """Delete a group and its positions. Raises ``UNKNOWN_GROUP``, ``GROUP_NOT_EMPTY``."""

class TransactionAdmin(Face):
    """Describe and end the transactions of any application: ``log.transactions``."""

    def list(self) -> tuple[TransactionInfo, ...]:
        """List every transaction that has not ended, by application."""

    def describe(self, app: str) -> ListTransactionsAnswer:
        """Describe the last transaction of an application, the transactions that it has staged, and the newest
        batches that it has committed; all empty if the application is not known, or has been forgotten."""

    def abort(self, app: str) -> bool:
        """Abort the open transaction of an application. Its process gets ``TRANSACTION_ABORTED`` at its next batch or
        commit. Returns False if none is open. Staged transactions are dropped by ``Log.abort``."""

    def settle(self, topic: str, partition: int, producer_id: int, epoch: int, *, commit: bool) -> None:
        """End a hanging transaction in one partition, so that readers of committed records get on. A transaction
        hangs if it is open in the partition's log and no coordinator has it. Its records in the partition become
        visible (``commit``) or are never seen. Raises ``INVALID_TRANSACTION`` if a coordinator has it,
        ``UNKNOWN_TRANSACTION`` if readers do not wait for it. Requires the right to administer the cluster."""

class AccessAdmin(Face):
    """Change tokens, rules and quotas: ``log.access``."""

    def create_token(self, principal: str, lifetime_s: float | None = None) -> str:
        """Create a bearer token of a principal and return it. The token is stored nowhere: the cluster keeps its
        SHA-256 only. ``lifetime_s`` None: it never expires. Raises ``INVALID_CONFIG``."""

    def rotate_token(self, token_id: str, grace_s: float = 0.0, lifetime_s: float | None = None) -> str:
        """Create a new token of the same principal; the old one expires ``grace_s`` later. Raises
        ``UNKNOWN_TOKEN``."""

    def revoke_token(self, token_id: str) -> None:
        """Revoke a token at once, and close the connections that were opened with it. Raises ``UNKNOWN_TOKEN``."""

    def revoke_tokens_of(self, principal: str) -> None:
        """Revoke all tokens of a principal."""

    def rotate_ticket_keys(self) -> None:
        """Let the cluster sign the tickets of producer ids with a new key. Tickets of the key before stay valid until
        the next rotation. Raises ``UNSUPPORTED_LEVEL`` below feature level 4."""

    def alter_acls(self, add: Iterable[Acl] = (), remove: Iterable[Acl] = ()) -> None:
        """Add these rules and remove those. Raises ``INVALID_CONFIG``."""

    def drop_inherited_security(self) -> None:
        """Let only superusers, and principals with the right ``security``, change tokens and rules from now on.
        Raises ``UNSUPPORTED_LEVEL`` below feature level 5."""

    def alter_quotas(self, quotas: Iterable[Quota]) -> None:
        """Set the quotas of these principals. Raises ``INVALID_CONFIG``."""

    def describe(self) -> AccessAnswer:
        """Describe tokens (without their secret parts), rules and quotas."""

class ClusterAdmin(Face):
    """Describe the cluster, and change its servers, controllers and feature level: ``log.cluster``."""

    def status(self, *, offsets: bool = False) -> MetadataAnswer:
        """Describe cluster, servers and topics as the gateway knows them; with ``offsets`` also what the leaders
        report of each partition."""

    def quorum(self) -> QuorumAnswer:
        """Describe the controllers, and which one is active."""

    def metrics(self, node: str = "") -> MetricsAnswer:
        """Return the metrics of a replica server, the active controller, or (no name) this gateway: its page in
        Prometheus' text format, its version and its clock. Raises ``UNKNOWN_SERVER``, ``UNREACHABLE``,
        ``UNSUPPORTED``."""

    def add_controller(self, node: str, url: str) -> None:
        """Add a running controller to the group, as a learner. It becomes a voter when it has caught up (see
        ``quorum``). A controller that has lost its disk begins again. Raises ``CHANGE_IN_PROGRESS``,
        ``QUORUM_AT_RISK``."""

    def remove_controller(self, node: str) -> None:
        """Remove a controller from the group. Raises ``CHANGE_IN_PROGRESS``, ``QUORUM_AT_RISK``,
        ``UNKNOWN_CONTROLLER``."""

    def features(self) -> FeaturesAnswer:
        """Return the cluster's feature level, and the levels that each process understands. Raises ``UNSUPPORTED`` if
        the active controller or the gateway is of a release without levels: the level is then 1."""

    def raise_level(self, level: int, *, left_behind: Iterable[str] = (), dry_run: bool = False) -> None:
        """Raise the cluster to a feature level, for good. ``dry_run``: only check whether that is possible. Processes
        in ``left_behind`` may be down. Raises ``UNSUPPORTED_LEVEL``, which names all processes that do not understand
        the level."""

    def forget_server(self, server: str) -> None:
        """Remove a replica server that is gone for good from the cluster. Raises ``UNKNOWN_SERVER``,
        ``SERVER_IN_USE`` (it is live, or has copies), ``UNSUPPORTED_LEVEL``."""

    def drain_server(self, server: str, drain: bool = True) -> None:
        """Let a server lead nothing that another can lead, and give it no new replicas; without ``drain``: end that.
        Raises ``UNKNOWN_SERVER``."""

    def scrub_server(self, node: str, *, begin: bool = True) -> ScrubStatus:
        """Return the progress of a replica server's scrubber. With ``begin`` it first starts a new round, and gives
        up one that is under way. Raises ``UNREACHABLE``, and ``UNSUPPORTED_LEVEL`` below feature level 4."""

    def play(self, node: str = "", act: str = "") -> tuple[PlayedNode, ...]:
        """Inject a fault into a node of a cluster that ``tidelog dev`` runs: ``kill``, ``pause``, ``cut`` or
        ``heal``; "": none. Returns the nodes as they are now. Raises ``UNSUPPORTED`` in every other cluster."""

    def played_messages(self, act: str) -> tuple[PlayedMessage, ...]:
        """Record the messages between the services of a cluster that ``tidelog dev`` runs. ``record``: begin;
        ``stop``: end, and return the newest 2,000 messages in order. Raises ``UNSUPPORTED`` in every other
        cluster."""
