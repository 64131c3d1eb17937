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
    """Iterate over it for records, in order per partition; ``next_records`` gives a whole batch at a time. The places
    to start are looked up at the first record, or by ``with``. Made by ``Log.consume``.

    It reads ahead within its credit. When the gateway is lost it goes on at the next, without loss or repetition;
    after ``request_timeout_s`` without one it raises ``Unreachable``. An offset that is not in the log any more is
    an error, never a silent jump. An iteration may simply be left: a consumer that nobody holds is unsubscribed.
    """

    @property
    def positions(self) -> dict[int, Position]:
        """Per partition: the leader epoch of the last record that was handed out, and the offset after it. What a
        later ``consume(start=positions)`` goes on from."""

    @property
    def buffered_bytes(self) -> int:
        """What has arrived and was not handed out."""

    @property
    def paused(self) -> list[int]:
        """Partitions of which nothing is handed out now."""

    def pause(self, *partitions: int) -> None:
        """Hand nothing of these partitions out until they are resumed, none named: of any. The others go on; what has
        arrived stays, within the credit. Raises ``UNKNOWN_TOPIC`` for a partition that is not read."""

    def resume(self, *partitions: int) -> None:
        """Hand these partitions out again, none named: all."""

    def seek(self, where: Where, *partitions: int) -> None:
        """Go on there: with these partitions; none named: with those that ``where`` names, or all. What was read
        ahead is dropped. Also the way on after ``OFFSET_OUT_OF_RANGE``, ``LOG_TRUNCATED`` and ``UnreadableBatch``
        (there: to its ``next_offset``). Ends stay."""

class BackwardConsumer(Records[Any]):
    """Iterate over it for records, the newest first per partition. It ends at its bound, and never waits for new
    records. Made by ``Log.consume(reverse=True)``.

    It looks at all partitions at a time, each time at no more than ``partition_bytes`` of each, or one batch.
    """

    @property
    def positions(self) -> dict[int, Position]:
        """Per partition: the offset of the last record that was handed out, where a later one goes on below."""

class GroupConsumer(MemberRecords):
    """Iterate over it for records of the partitions that this member of the group owns; they come and go, those that
    stay are not disturbed. Made by ``Log.consume(group=…)``; best used with ``with``.

    A partition begins where the group has come to; one that has no position yet at ``start``, which is committed at
    once. What the application has *finished*, that is asked for the next record after, is committed every
    ``auto_commit_s``, before a partition is given up, and at the end. So each record is processed at least once. A
    partition is given up when the application asks for the next record, or has committed the one in hand: until then
    that is its own.

    The iterator raises ``OFFSET_OUT_OF_RANGE`` and ``LOG_TRUNCATED`` where the committed position is not in the log:
    nothing is reset (``seek`` and ``tidelog groups reset`` do); and ``FENCED_INSTANCE``, ``GROUP_FULL``,
    ``INVALID_GROUP``. After ``UnreadableBatch`` the position of the group stays before that batch until ``seek``;
    with ``on_unreadable="skip"`` it moves on behind the batch.
    """

    @property
    def assignment(self) -> list[tuple[str, int]]:
        """(topic, partition) of all that is owned and not being given up."""

    @property
    def generation(self) -> int:
        """The member's generation; -1 before it has joined."""

    @property
    def positions(self) -> dict[tuple[str, int], Position]:
        """Per (topic, partition): where what was handed out ends, which is what ``commit`` commits."""

    @property
    def paused(self) -> list[tuple[str, int]]:
        """(topic, partition) of what is owned and not handed out now."""

    def commit(self) -> None:
        """Commit all that was handed out, the last record included: the application is done with it, so a partition
        that is to be given up may go. Raises ``UNKNOWN_MEMBER``, ``FENCED_GENERATION`` or ``FENCED_INSTANCE`` where
        others own the partitions by now, and process the records again."""

    def pause(self, *partitions: Share) -> None:
        """Hand nothing of these (topic, partition) out until they are resumed or go to another member; none named: of
        all that is owned now. The others go on. Raises ``UNKNOWN_TOPIC`` for what is not owned."""

    def resume(self, *partitions: Share) -> None:
        """Hand these out again, none named: all."""

    def seek(self, where: Start | Mapping[Share, int | Position], *partitions: Share) -> None:
        """Go on there with these partitions; none named: with all that are owned, or as a mapping like ``positions``
        says. It is what is committed next. Also the way on after ``OFFSET_OUT_OF_RANGE``, ``LOG_TRUNCATED`` and
        ``UnreadableBatch`` (there: to its ``next_offset``)."""

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
        """Change settings of a topic (fields of ``TopicConfig``); those that are not named stay. Raises
        ``UNKNOWN_TOPIC``, ``INVALID_CONFIG`` (also for what is fixed when a topic is created)."""

    def grow(self, name: str, partitions: int) -> None:
        """Give a topic more partitions, so many in all. Raises ``UNKNOWN_TOPIC``, ``INVALID_CONFIG`` (topics do not
        shrink), ``INVALID_REPLICATION_FACTOR``."""

    def list(self) -> tuple[TopicInfo, ...]:
        """Describe every topic."""

    def describe(self, topic: str, *, offsets: bool = False) -> TopicInfo:
        """Describe one topic; ``offsets``: with log start and high watermark of each partition, asked from the
        leaders. Raises ``UNKNOWN_TOPIC``."""

class PartitionAdmin(Face):
    """Move, pause, look up and compare partitions: ``log.partitions``."""

    def transfer(self, topic: str, partition: int, server: str = "") -> PartitionInfo:
        """Have a server that is in sync lead a partition; none: the preferred replica. Returns when it does. Raises
        ``UNKNOWN_TOPIC``, ``UNKNOWN_SERVER``, ``NOT_REPLICA``, ``NOT_IN_SYNC``, ``OFFLINE``; ``TimedOut`` where it
        did not get to the end of the log in time, and all is as before."""

    def reassign(self, topic: str, partition: int, replicas: Iterable[str]) -> None:
        """Begin to have these servers as the replicas of a partition, the preferred leader first; ``describe`` shows
        the ``target`` until it is done. Raises ``UNKNOWN_TOPIC``, ``UNKNOWN_SERVER``, ``INVALID_REPLICAS``."""

    def cancel_reassignment(self, topic: str, partition: int) -> None:
        """Go back to the replicas that there were; one that waits for its turn is dropped. Raises ``UNKNOWN_TOPIC``,
        ``NO_REASSIGNMENT``."""

    def plan_rebalance(
        self, *, empty_drained: bool = False, weights: Iterable[PartitionWeight] = (), unit: str = ""
    ) -> tuple[PlannedMove, ...]:
        """Reassignments that would spread the replicas over racks and servers; none is begun. ``empty_drained``: also
        away from servers that are being drained. ``weights``: what a replica of each partition weighs, in ``unit``
        (``B`` or ``B/s``); a partition that is not named weighs 0. Without ``unit`` each replica weighs 1. Raises
        ``UNSUPPORTED`` if the controllers are of a release that counts replicas only."""

    def rebalance(
        self, *, empty_drained: bool = False, weights: Iterable[PartitionWeight] = (), unit: str = ""
    ) -> None:
        """Do what ``plan_rebalance`` says, a few reassignments per server at a time; returns when all of it waits for
        its turn, which it does until it is done or cancelled, whatever becomes of this client."""

    def cancel_rebalance(self) -> None:
        """Drop all that waits for its turn; what has begun goes on."""

    def waiting_moves(self) -> tuple[PlannedMove, ...]:
        """Reassignments of rebalances that wait for their turn, in that order."""

    def set_learners(self, topic: str, partition: int, learners: Iterable[str]) -> None:
        """Which servers copy a partition's log without being replicas of it; none ends that. Raises
        ``UNKNOWN_TOPIC``, ``INVALID_CONFIG`` (a learner is a live server and no replica)."""

    def set_read_only(self, topic: str, partitions: Iterable[int] = (), *, read_only: bool = True) -> None:
        """Have these partitions (none: all) take no records, or take them again; reads go on. From when a leader has
        heard of it on, which is at once where it is in touch with the controllers, produces are refused with
        ``TOPIC_READ_ONLY``. Raises ``UNKNOWN_TOPIC``, ``FORBIDDEN`` for the cluster's own topics."""

    def pause(self, topic: str, partitions: Iterable[int] = ()) -> None:
        """Have the servers close these partitions (none: all), which keep what they hold: produces and reads are
        refused with ``TOPIC_PAUSED``, the outcome of a produce under way may be unknown. Raises as
        ``set_read_only``."""

    def resume(self, topic: str, partitions: Iterable[int] = ()) -> None:
        """End a pause: leaders are elected anew. Raises as ``set_read_only``."""

    def history(self, topic: str, partition: int) -> tuple[HistoryEntry, ...]:
        """Every change of a partition's leader, ISR and replicas that is remembered, oldest first, with its cause."""

    def histories(self, topic: TopicInfo, partitions: Iterable[int]) -> dict[int, tuple[HistoryEntry, ...]]:
        """``history`` of many partitions at a time."""

    def list_offset(self, topic: str, partition: int, at: str | datetime = "latest") -> OffsetAnswer:
        """The offset at a place of one partition: ``earliest``, ``latest``, or of the first record at or after a time
        (``latest`` when there is none)."""

    def list_offsets(
        self, topic: TopicInfo, at: str | datetime, partitions: Iterable[int], isolation: str = "committed"
    ) -> dict[int, OffsetAnswer]:
        """``list_offset`` of many partitions at a time. With isolation ``uncommitted`` ``latest`` is the high
        watermark, else the last stable offset."""

    def find_positions(
        self, topic: str, where: Where, partitions: Iterable[int] | None = None
    ) -> dict[int, Position]:
        """A place in each partition of a topic, or of these. Raises ``UNKNOWN_TOPIC``."""

    def digest(self, topic_id: str, partition: int, node: str, offsets: Iterable[int] = ()) -> DigestAnswer:
        """Bounds of the log of one replica, and its hash chain at each of up to 64 offsets. No other server can
        answer for it, so it has ``DIGEST_PATIENCE_S`` to come back. Raises ``OFFLINE``, ``NOT_LEADER`` (it has no
        such partition), ``UNREACHABLE``."""

    def read_copy(self, topic_id: str, partition: int, node: str, offset: int) -> CopyRead:
        """Have a replica server read about 1 MiB of its copy from its disk: fingerprints of the batches from
        ``offset`` on. Raises ``OFFLINE`` (for example because the copy is damaged), ``NOT_LEADER`` (the server has no
        copy of the partition), ``FORBIDDEN`` (without the right to read the topic), ``OFFSET_OUT_OF_RANGE``,
        ``UNREACHABLE``, and ``UNSUPPORTED_LEVEL`` below feature level 4. What the server reads counts for the quota
        of bytes out; a quota that is used up is waited out."""

    def compare_replicas(self, topic: TopicInfo, partition: int, live: Collection[str]) -> Comparison:
        """Whether the logs of a partition's replicas and learners, as far as they are among ``live``, are the same
        below all their high watermarks (``tidelog.client.admin.replica_comparison``)."""

    def compare_copies(
        self,
        topic: TopicInfo,
        partition: int,
        live: Collection[str],
        max_bytes_per_s: float = 0,
        on_records: Callable[[int], None] = ignore,
    ) -> Comparison:
        """Whether the disks of a partition's replicas and learners, as far as they are among ``live``, hold the same
        batches below all their high watermarks (``tidelog.client.admin.copy_comparison``). ``max_bytes_per_s``: how
        fast each copy is read; 0: no limit. ``on_records`` is called with the number of further records compared."""

class GroupAdmin(Face):
    """Describe, reset and delete consumer groups: ``log.groups``."""

    def list(self) -> tuple[GroupInfo, ...]:
        """Every consumer group, by name."""

    def describe(self, group: str) -> DescribeGroupAnswer:
        """Who is in a group, who has what, and how far it has come. Raises ``UNKNOWN_GROUP``."""

    def progress(self, group: str) -> tuple[GroupProgress, ...]:
        """Position and lag of every partition that the group has come to or that a member has, by topic. Raises
        ``UNKNOWN_GROUP``."""

    def fetch_offsets(self, group: str, topic: str) -> dict[int, Position]:
        """How far the group has come in a topic; partitions without a position are not there. Raises
        ``UNKNOWN_TOPIC``."""

    def reset(self, group: str, topic: str, positions: Mapping[int, Position | int]) -> None:
        """Have the group go on there. Raises ``GROUP_NOT_EMPTY`` while it has members, ``UNKNOWN_TOPIC``,
        ``INVALID_GROUP``."""

    def delete(self, group: str) -> None:
        """Forget a group and its positions. Raises ``UNKNOWN_GROUP``, ``GROUP_NOT_EMPTY``."""

class TransactionAdmin(Face):
    """Describe and end transactions, whoever has them: ``log.transactions``."""

    def list(self) -> tuple[TransactionInfo, ...]:
        """Every transaction that is not at its end, by application."""

    def describe(self, app: str) -> ListTransactionsAnswer:
        """The last transaction of an application, those that it has staged, and the newest batches that it has
        committed; all empty where it is not known, or has been forgotten."""

    def abort(self, app: str) -> bool:
        """Abort the transaction of an application that is open, whoever has it: that one is told at its next batch,
        or its commit (``TRANSACTION_ABORTED``). False where none is open. What it has staged: ``Log.abort``."""

    def settle(self, topic: str, partition: int, producer_id: int, epoch: int, *, commit: bool) -> None:
        """End a hanging transaction in one partition, so that readers of what is committed get on: one that is open
        in its log, and that no coordinator has. Its records there become visible (``commit``) or are never seen.
        Raises ``INVALID_TRANSACTION`` where a coordinator has it, ``UNKNOWN_TRANSACTION`` where readers do not wait
        for it. Takes the right to administer the cluster."""

class AccessAdmin(Face):
    """Change tokens, rules and quotas: ``log.access``."""

    def create_token(self, principal: str, lifetime_s: float | None = None) -> str:
        """A new bearer token of a principal. It is made here and nowhere kept: the cluster knows its SHA-256 only.
        ``lifetime_s`` None: it never expires. Raises ``INVALID_CONFIG``."""

    def rotate_token(self, token_id: str, grace_s: float = 0.0, lifetime_s: float | None = None) -> str:
        """A new token of the same principal; the former ends ``grace_s`` later. Raises ``UNKNOWN_TOKEN``."""

    def revoke_token(self, token_id: str) -> None:
        """It ends now, and so do the connections that were opened with it. Raises ``UNKNOWN_TOKEN``."""

    def revoke_tokens_of(self, principal: str) -> None:
        """Revoke all tokens of a principal."""

    def rotate_ticket_keys(self) -> None:
        """Have the cluster sign the tickets of producer ids with a new key. Tickets of the key before stay valid
        until the next rotation. Raises ``UNSUPPORTED_LEVEL`` below feature level 4."""

    def alter_acls(self, add: Iterable[Acl] = (), remove: Iterable[Acl] = ()) -> None:
        """These rules are there from now on, and those are not. Raises ``INVALID_CONFIG``."""

    def drop_inherited_security(self) -> None:
        """Nobody decides about tokens and rules any more but superusers and whom a rule allows ``security``. Raises
        ``UNSUPPORTED_LEVEL`` below feature level 5."""

    def alter_quotas(self, quotas: Iterable[Quota]) -> None:
        """What these principals may have. Raises ``INVALID_CONFIG``."""

    def describe(self) -> AccessAnswer:
        """Describe tokens (without what would help to use them), rules and quotas."""

class ClusterAdmin(Face):
    """Describe the cluster, and change its servers, controllers and feature level: ``log.cluster``."""

    def status(self, *, offsets: bool = False) -> MetadataAnswer:
        """Cluster, servers and topics as the gateway knows them; ``offsets``: with what the leaders tell of each
        partition."""

    def quorum(self) -> QuorumAnswer:
        """The controllers, and which is the active one."""

    def metrics(self, node: str = "") -> MetricsAnswer:
        """What a replica server counts, the active controller, or (no name) this gateway: its page in Prometheus'
        text format, its version and its clock. Raises ``UNKNOWN_SERVER``, ``UNREACHABLE``, ``UNSUPPORTED``."""

    def add_controller(self, node: str, url: str) -> None:
        """Take a running controller into the group, as a learner; it votes when it has caught up (``quorum`` tells).
        One that has lost its disk begins again. Raises ``CHANGE_IN_PROGRESS``, ``QUORUM_AT_RISK``."""

    def remove_controller(self, node: str) -> None:
        """Take a controller out of the group. Raises ``CHANGE_IN_PROGRESS``, ``QUORUM_AT_RISK``,
        ``UNKNOWN_CONTROLLER``."""

    def features(self) -> FeaturesAnswer:
        """The cluster's feature level, and which levels each process understands. Raises ``UNSUPPORTED`` where the
        active controller or the gateway is of a release without levels: the level is 1."""

    def raise_level(self, level: int, *, left_behind: Iterable[str] = (), dry_run: bool = False) -> None:
        """Raise the cluster to a feature level, for good; ``dry_run``: only ask whether that can be. Processes in
        ``left_behind`` may be down. Raises ``UNSUPPORTED_LEVEL``, which names all who do not understand it."""

    def forget_server(self, server: str) -> None:
        """Have a replica server that is gone for good be none of the cluster any more. Raises ``UNKNOWN_SERVER``,
        ``SERVER_IN_USE`` (it is live, or has copies), ``UNSUPPORTED_LEVEL``."""

    def drain_server(self, server: str, drain: bool = True) -> None:
        """Have a server lead nothing where another can, and get no new replicas; without ``drain``: have it take part
        again. Raises ``UNKNOWN_SERVER``."""

    def scrub_server(self, node: str, *, begin: bool = True) -> ScrubStatus:
        """How far the scrubber of a replica server is. With ``begin`` it first starts a new round, and gives up one
        that is under way. Raises ``UNREACHABLE``, and ``UNSUPPORTED_LEVEL`` below feature level 4."""

    def play(self, node: str = "", act: str = "") -> tuple[PlayedNode, ...]:
        """Have something happen to a node of a cluster that ``tidelog dev`` runs: ``kill``, ``pause``, ``cut`` or
        ``heal``; "": nothing. The nodes as they are now. Raises ``UNSUPPORTED`` everywhere else."""

    def played_messages(self, act: str) -> tuple[PlayedMessage, ...]:
        """Of a cluster that ``tidelog dev`` runs: ``record``: hear from now on what its services say to each other;
        ``stop``: no more, and what it was, in order, the newest 2,000. Raises ``UNSUPPORTED`` everywhere else."""
