"""Raft between controllers, in one-way messages that the core correlates; and requests about the Raft group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.messages.base import AdminRequest, Done, Message, Payload


@dataclass(frozen=True, slots=True)
class ControllerInfo:
    """Part: a controller as its peers see it."""

    node: str
    url: str
    role: str
    """``leader`` (the active controller), ``follower``, ``candidate`` or ``unknown``."""
    voter: bool = True
    match: int = -1
    """Its log agrees with the active controller's up to this index; -1 where that is not known."""
    lost: bool = False
    """Its store is not the one that the configuration knows: without a vote until it is added again."""
    rolled_back: bool = False
    """Its disk is an old copy: its store lacks entries that it had acknowledged. It does not vote and does not count
    until the leader has refilled it."""
    refill_to: int = 0
    """It counts again when its log agrees with the leader's up to this index; 0 while no leader refills it."""


@dataclass(frozen=True, slots=True)
class QuorumAnswer(Message):
    """Answer: the Raft group as this controller sees it."""

    active: str
    term: int
    commit_index: int
    controllers: tuple[ControllerInfo, ...]
    gateways: tuple[str, ...] = ()
    """Names of the gateways that are connected to this controller; all are to the active one."""
    disks_needed: tuple[str, ...] = ()
    """Nobody can be elected without these controllers, with the disks that they had: others run on an old copy."""


@dataclass(frozen=True, slots=True)
class DescribeQuorum(Message):
    """Who is the active controller? Answered by any controller."""

    OP: ClassVar[str] = "describe_quorum"
    ANSWER: ClassVar[type[Message]] = QuorumAnswer


@dataclass(frozen=True, slots=True)
class AddController(Message):
    """Take a controller into the group: a learner first, a voter as soon as it has caught up. One that is there
    already with a lost store begins again. ``CHANGE_IN_PROGRESS`` while another change is; ``QUORUM_AT_RISK``
    where it would leave fewer live voters than a majority."""

    OP: ClassVar[str] = "add_controller"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    url: str
    asker: str = ""


@dataclass(frozen=True, slots=True)
class RemoveController(Message):
    """Take a controller out of the group; errors as with ``AddController``."""

    OP: ClassVar[str] = "remove_controller"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    asker: str = ""


AskedRequest = AdminRequest | AddController | RemoveController
"""Requests with an ``asker``."""


@dataclass(frozen=True, slots=True)
class Acked:
    """Part: the store ``store`` of a controller has acknowledged the entry ``index`` of term ``term``, durably. A
    store that lacks it is an old copy."""

    store: str
    index: int
    term: int


@dataclass(frozen=True, slots=True)
class RequestVote(Message):
    """Raft §5.2; ``pre`` is the pre-vote of Ongaro's dissertation §9.6. ``transfer``: the leader itself wants this
    election (dissertation §3.10), so having heard from it is no reason to refuse. ``store`` is the candidate's; it
    has heard of ``acked``, and all of that is committed."""

    OP: ClassVar[str] = "request_vote"
    term: int
    last_index: int
    last_term: int
    pre: bool = False
    transfer: bool = False
    store: str = ""
    acked: tuple[Acked, ...] = ()


@dataclass(frozen=True, slots=True)
class Vote(Message):
    """Answer to a (pre-)vote request. ``store`` names the voter's storage: one that was lost and made anew has no
    vote until the configuration says so. ``rolled_back``: it is an old copy, and votes for nobody. ``acked`` as in
    ``RequestVote``: a new leader knows what a majority remembers."""

    OP: ClassVar[str] = "vote"
    term: int
    granted: bool
    pre: bool = False
    store: str = ""
    rolled_back: bool = False
    acked: tuple[Acked, ...] = ()


@dataclass(frozen=True, slots=True)
class AppendEntries(Message):
    """Raft §5.3, also the heartbeat. ``payload``: CBOR array of [term, data], or [term, [data]] for a configuration.
    ``round`` numbers the leader's heartbeats: the answer names it (ReadIndex, dissertation §6.4). ``acked`` comes
    with heartbeats; what it says of the receiver's own store need not be committed. A receiver that has answered with
    ``refill_id`` counts again when its log agrees with the leader's up to ``refill_to``."""

    OP: ClassVar[str] = "append_entries"
    term: int
    prev_index: int
    prev_term: int
    commit: int
    payload: Payload = b""
    round: int = 0
    acked: tuple[Acked, ...] = ()
    refill_id: int = 0
    refill_to: int = 0


@dataclass(frozen=True, slots=True)
class AppendResult(Message):
    """``match`` is the last index known to agree when ``ok``, else a hint where to try next (with its term).
    ``store`` as in ``Vote``; ``round`` is that of the message answered. ``refill_id``: the store is an old copy, and
    this random number stands for its being refilled; 0: it is none."""

    OP: ClassVar[str] = "append_result"
    term: int
    ok: bool
    match: int
    hint_term: int = 0
    round: int = 0
    store: str = ""
    refill_id: int = 0


@dataclass(frozen=True, slots=True)
class ControllerMember:
    """Part: a controller in the configuration. ``store`` is its storage, "" while it is not known; only that store
    votes. Without ``voter`` it is a learner: it gets the log and counts for nothing."""

    node: str
    url: str = ""
    voter: bool = True
    store: str = ""


@dataclass(frozen=True, slots=True)
class InstallSnapshot(Message):
    """Raft §7: a follower needs entries that the leader has compacted away. ``payload`` is a piece of the snapshot
    from byte ``offset`` on, b"" in a heartbeat; the whole has ``size`` bytes and CRC-32 ``crc``, and stands for all
    up to ``index`` with ``last_term`` and the configuration ``members``. ``acked`` as in ``AppendEntries``."""

    OP: ClassVar[str] = "install_snapshot"
    term: int
    index: int
    last_term: int
    size: int
    crc: int
    members: tuple[ControllerMember, ...]
    offset: int = 0
    payload: Payload = b""
    round: int = 0
    acked: tuple[Acked, ...] = ()


@dataclass(frozen=True, slots=True)
class SnapshotResult(Message):
    """The receiver has the snapshot of ``index`` up to byte ``offset``; once it has it all it says so with an
    ``AppendResult``. ``refill_id`` as there."""

    OP: ClassVar[str] = "snapshot_result"
    term: int
    index: int
    offset: int
    round: int = 0
    store: str = ""
    refill_id: int = 0


@dataclass(frozen=True, slots=True)
class TimeoutNow(Message):
    """Leadership transfer (dissertation §3.10): the leader of ``term`` asks the receiver to stand at once."""

    OP: ClassVar[str] = "timeout_now"
    term: int


@dataclass(frozen=True, slots=True)
class Meet(Message):
    """Between controllers of which one has an empty store. While the cluster is founded each tells its ``store``,
    what it has heard of the receiver's (``yours``), and the names of all ``stores`` that it has heard of, its own
    included, by node. With ``founded`` the sender has been founded: ``yours`` is the receiver's store as its
    configuration says, and ``members`` the configuration at the beginning of its log."""

    OP: ClassVar[str] = "meet"
    store: str
    yours: str = ""
    founded: bool = False
    members: tuple[ControllerMember, ...] = ()
    stores: dict[str, str] = field(default_factory=dict)
