"""Raft between controllers, as one-way messages that the core matches with each other; and requests about the Raft
group. Section numbers such as §5.2 are those of the Raft paper; "dissertation" is Ongaro's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.messages.base import AdminRequest, Done, Message, Payload


@dataclass(frozen=True, slots=True)
class ControllerInfo:
    """Part of ``QuorumAnswer``: address, role, and state of the log of one controller, as the sender of the answer
    knows them."""

    node: str
    url: str
    role: str
    """``leader`` (the active controller), ``follower``, ``candidate``, or ``unknown``: no leader is known, or the
    active controller has not heard this one for some seconds."""
    voter: bool = True
    """False: the controller is a learner."""
    match: int = -1
    """The controller's log agrees with the log of the active controller up to this index; -1: not known."""
    lost: bool = False
    """The controller's store is not the store that the configuration has. The controller has no vote until it is
    added again."""
    rolled_back: bool = False
    """The controller's disk is an old copy: its store lacks entries that it had acknowledged. The controller does not
    vote and does not count until the leader has refilled the store."""
    refill_to: int = 0
    """The controller counts again when its log agrees with the leader's up to this index; 0 while no leader refills
    it."""


@dataclass(frozen=True, slots=True)
class QuorumAnswer(Message):
    """Answer to ``DescribeQuorum``: the active controller, term, commit index and members of the Raft group of the
    controllers, as the sender of the answer knows them."""

    active: str
    """Name of the active controller; "": none is known."""
    term: int
    """Raft term of the controller that answers."""
    commit_index: int
    """Commit index of the controller that answers."""
    controllers: tuple[ControllerInfo, ...]
    gateways: tuple[str, ...] = ()
    """Names of the gateways that are connected to this controller. All gateways are connected to the active one."""
    disks_needed: tuple[str, ...] = ()
    """Controllers without which no leader can be elected, each with the disk that it had. The disks of other
    controllers are old copies."""
    gateway_urls: dict[str, str] = field(default_factory=dict)
    """The URLs that gateways have announced to this controller (``AnnounceGateway``), by name, 64 at most."""


@dataclass(frozen=True, slots=True)
class DescribeQuorum(Message):
    """Request of any process to any controller: describe the Raft group of the controllers, above all which one is
    active."""

    OP: ClassVar[str] = "describe_quorum"
    ANSWER: ClassVar[type[Message]] = QuorumAnswer


@dataclass(frozen=True, slots=True)
class AddController(Message):
    """Request of a client, passed on by its gateway to the active controller: add a controller to the Raft group. It
    begins as a learner and becomes a voter as soon as it has caught up. A member whose store is lost begins again in
    the same way. Errors: ``CHANGE_IN_PROGRESS`` while another change of the group is in progress, and
    ``QUORUM_AT_RISK`` if fewer live voters than a majority would be left."""

    OP: ClassVar[str] = "add_controller"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    url: str
    asker: str = ""
    """As in ``AdminRequest``."""


@dataclass(frozen=True, slots=True)
class RemoveController(Message):
    """Request of a client, passed on by its gateway to the active controller: remove a controller from the Raft
    group. The errors are those of ``AddController``."""

    OP: ClassVar[str] = "remove_controller"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    asker: str = ""
    """As in ``AdminRequest``."""


AskedRequest = AdminRequest | AddController | RemoveController
"""Requests that have an ``asker``."""


@dataclass(frozen=True, slots=True)
class Acked:
    """Part of Raft messages: the newest entry that a controller's store has acknowledged as durable. A store that
    lacks this entry is an old copy."""

    store: str
    """Id of the store."""
    index: int
    term: int


@dataclass(frozen=True, slots=True)
class RequestVote(Message):
    """One-way message of a candidate to all other voters among the controllers: request a vote or pre-vote for
    ``term`` (§5.2). The receiver answers with ``Vote``."""

    OP: ClassVar[str] = "request_vote"
    term: int
    last_index: int
    """Index of the last entry in the candidate's log."""
    last_term: int
    """Term of the last entry in the candidate's log."""
    pre: bool = False
    """Request a pre-vote (dissertation §9.6)."""
    transfer: bool = False
    """The leader itself wants this election (dissertation §3.10). So a receiver that has heard from the leader
    recently does not refuse for that reason."""
    store: str = ""
    """Id of the candidate's store."""
    acked: tuple[Acked, ...] = ()
    """Entries that stores have acknowledged, as far as the candidate knows. All of them are committed."""


@dataclass(frozen=True, slots=True)
class Vote(Message):
    """One-way message of a voter to a candidate, which answers ``RequestVote``: the vote or pre-vote is granted or
    refused."""

    OP: ClassVar[str] = "vote"
    term: int
    granted: bool
    pre: bool = False
    """The answer is to a pre-vote."""
    store: str = ""
    """Id of the voter's store. A store that was lost and made anew has no vote until the configuration has it."""
    rolled_back: bool = False
    """The voter's store is an old copy, so it grants no vote."""
    acked: tuple[Acked, ...] = ()
    """As in ``RequestVote``. From the votes a new leader knows what a majority has acknowledged."""


@dataclass(frozen=True, slots=True)
class AppendEntries(Message):
    """One-way message of the active controller (the Raft leader) to a follower: append entries to its log (§5.3);
    without entries it is a heartbeat. The receiver answers with ``AppendResult``. The payload is a CBOR array: [term,
    data] for each entry, or [term, [data]] if the entry is a configuration."""

    OP: ClassVar[str] = "append_entries"
    term: int
    prev_index: int
    """Index of the entry before the first one in the payload."""
    prev_term: int
    """Term of the entry before the first one in the payload."""
    commit: int
    """Commit index of the leader."""
    payload: Payload = b""
    round: int = 0
    """Number of the leader's heartbeat, which the answer repeats (ReadIndex, dissertation §6.4)."""
    acked: tuple[Acked, ...] = ()
    """With heartbeats: entries that stores have acknowledged. The entry for the receiver's own store need not be
    committed."""
    refill_id: int = 0
    """The ``refill_id`` that the receiver has answered with; 0: none."""
    refill_to: int = 0
    """A receiver with this ``refill_id`` counts again when its log agrees with the leader's up to this index."""


@dataclass(frozen=True, slots=True)
class AppendResult(Message):
    """One-way message of a follower to the Raft leader, which answers ``AppendEntries``: whether the entries were
    appended, and up to which index the two logs agree."""

    OP: ClassVar[str] = "append_result"
    term: int
    ok: bool
    """The follower's log agrees with the leader's at ``prev_index``, and it has the entries of the message."""
    match: int
    """With ``ok``: last index that is known to agree. Otherwise: index that the leader should try next."""
    hint_term: int = 0
    """Without ``ok``: term of the follower's entry at ``match``."""
    round: int = 0
    """``round`` of the message that is answered."""
    store: str = ""
    """Id of the follower's store, as in ``Vote``."""
    refill_id: int = 0
    """Random number that identifies one refilling of the store, which is an old copy; 0: it is none."""


@dataclass(frozen=True, slots=True)
class ControllerMember:
    """Part of ``InstallSnapshot`` and ``Meet``: a controller in the Raft configuration, with its address, its store,
    and whether it is a voter."""

    node: str
    url: str = ""
    voter: bool = True
    """False: the controller is a learner. It receives the log and counts for nothing."""
    store: str = ""
    """Id of the controller's store; "": not known yet. Only this store has the vote."""


@dataclass(frozen=True, slots=True)
class InstallSnapshot(Message):
    """One-way message of the Raft leader to a follower that needs entries which the leader has compacted away (§7): a
    piece of a snapshot, as the payload. The snapshot stands for all entries up to ``index``. The payload is empty in
    a heartbeat. The receiver answers with ``SnapshotResult``, and with ``AppendResult`` when it has the whole
    snapshot."""

    OP: ClassVar[str] = "install_snapshot"
    term: int
    index: int
    """Index of the last entry that the snapshot includes."""
    last_term: int
    """Term of the last entry that the snapshot includes."""
    size: int
    """Size of the whole snapshot in bytes."""
    crc: int
    """CRC-32 of the whole snapshot."""
    members: tuple[ControllerMember, ...]
    """Raft configuration at ``index``."""
    offset: int = 0
    """Byte of the snapshot at which the payload begins."""
    payload: Payload = b""
    round: int = 0
    """As in ``AppendEntries``."""
    acked: tuple[Acked, ...] = ()
    """As in ``AppendEntries``."""


@dataclass(frozen=True, slots=True)
class SnapshotResult(Message):
    """One-way message of a follower to the Raft leader, which answers a piece of a snapshot: up to which byte the
    follower has the snapshot. Once it has the whole snapshot, the follower answers with ``AppendResult`` instead."""

    OP: ClassVar[str] = "snapshot_result"
    term: int
    index: int
    """Index of the snapshot."""
    offset: int
    """The receiver has the snapshot up to this byte."""
    round: int = 0
    """``round`` of the message that is answered."""
    store: str = ""
    """Id of the receiver's store, as in ``Vote``."""
    refill_id: int = 0
    """As in ``AppendResult``."""


@dataclass(frozen=True, slots=True)
class TimeoutNow(Message):
    """One-way message of the Raft leader of ``term`` to a follower: stand for election at once. So the leader
    transfers its leadership (dissertation §3.10)."""

    OP: ClassVar[str] = "timeout_now"
    term: int


@dataclass(frozen=True, slots=True)
class Meet(Message):
    """One-way message between two controllers of which one has an empty store. Until the cluster is founded, the
    controllers exchange the ids of their stores. A founded controller answers with its configuration, and with the id
    of the receiver's store in it."""

    OP: ClassVar[str] = "meet"
    store: str
    """Id of the sender's store."""
    yours: str = ""
    """Id of the receiver's store: as the sender has heard it or, with ``founded``, as the sender's configuration has
    it. "": none."""
    founded: bool = False
    """The sender has been founded."""
    members: tuple[ControllerMember, ...] = ()
    """With ``founded``: the configuration at the beginning of the sender's log."""
    stores: dict[str, str] = field(default_factory=dict)
    """Without ``founded``: ids of all stores that the sender knows, by node, its own included."""
