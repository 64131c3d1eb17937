"""Removes from an answer whatever names a topic or principal that the client may not know of.

``named_fields.py`` lists these fields and their rules. The answer to ``metadata`` is built for its viewer from the
start, so that no leader is asked for offsets that are then left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol, TypeVar

from tidelog.wire.messages import (
    DescribeGroupAnswer,
    FetchOffsetsAnswer,
    GroupHeartbeatAnswer,
    GroupInfo,
    GroupMember,
    GroupPosition,
    HistoryAnswer,
    HistoryEntry,
    JoinGroupAnswer,
    ListGroupsAnswer,
    ListTransactionsAnswer,
    MemberWork,
    Message,
    MovedPosition,
    StagedCommitted,
    TopicShare,
    TransactionEnded,
)

ASKED_BY = "asked_by"
"""Key of a history's evidence that names a principal and its address."""

P = TypeVar("P", GroupPosition, MovedPosition)
Allows = Callable[[str], bool]
"""Whether the viewer may know of a topic, by its name."""


class Viewer(Protocol):
    """The rights of the client that gets an answer: which topics, groups and servers it may know of, and which topics
    it may read."""

    def of_topic(self, name: str) -> bool: ...
    def of_group(self, name: str) -> bool: ...
    def reads(self, name: str) -> bool: ...
    def name_of(self, topic_id: str) -> str: ...
    @property
    def of_servers(self) -> bool: ...


def seen(answer: Message, viewer: Viewer) -> Message:
    """Return an answer without the topics, positions and principals that the viewer may not know of. An answer of a
    type that names nothing is returned unchanged."""
    match answer:
        case JoinGroupAnswer() | GroupHeartbeatAnswer():
            return replace(answer, assignment=_shares(answer.assignment, viewer, viewer.reads))
        case FetchOffsetsAnswer():
            return replace(answer, positions=_positions(answer.positions, viewer))
        case ListGroupsAnswer():
            return replace(answer, groups=tuple(_group(info, viewer) for info in answer.groups))
        case DescribeGroupAnswer():
            members = tuple(_member(member, viewer) for member in answer.members)
            moved = _positions(answer.moved, viewer)
            return replace(answer, members=members, positions=_positions(answer.positions, viewer), moved=moved)
        case ListTransactionsAnswer():
            infos = (
                replace(info, parts=_visible(info.parts, viewer), pending=_visible(info.pending, viewer))
                for info in answer.transactions
            )
            return replace(answer, transactions=tuple(infos))
        case TransactionEnded() | StagedCommitted():
            return replace(answer, pending=tuple(_masked(share, viewer) for share in answer.pending))
        case HistoryAnswer() if not viewer.of_servers:
            return replace(answer, entries=tuple(map(_without_principal, answer.entries)))
        case _:
            return answer


def _shares(shares: Iterable[TopicShare], viewer: Viewer, allows: Allows) -> tuple[TopicShare, ...]:
    return tuple(share for share in shares if _is_allowed(share, viewer, allows))


def _is_allowed(share: TopicShare, viewer: Viewer, allows: Allows) -> bool:
    """Return whether the viewer may know of the topic of ``share``. If the gateway does not know the topic's id, the
    name in the coordinator's answer counts."""
    name = viewer.name_of(share.topic_id) or share.topic
    return bool(name) and allows(name)


def _visible(shares: Iterable[TopicShare], viewer: Viewer) -> tuple[TopicShare, ...]:
    return _shares(shares, viewer, viewer.of_topic)


def _positions(positions: Iterable[P], viewer: Viewer) -> tuple[P, ...]:
    names = ((at, viewer.name_of(at.topic_id)) for at in positions)
    return tuple(at for at, name in names if name and viewer.of_topic(name))


def _group(info: GroupInfo, viewer: Viewer) -> GroupInfo:
    """Return a group of a list without its positions if the viewer may not describe the group."""
    return info if info.positions is None or viewer.of_group(info.group) else replace(info, positions=None)


def _member(member: GroupMember, viewer: Viewer) -> GroupMember:
    """Return a group's member without the topics that the viewer may not describe."""
    return replace(
        member,
        topics=tuple(name for name in member.topics if viewer.of_topic(name)),
        assignment=_visible(member.assignment, viewer),
        leaving=_visible(member.leaving, viewer),
        target=_visible(member.target, viewer),
        work=_work(member.work, viewer) if member.work is not None else None,
    )


def _work(work: MemberWork, viewer: Viewer) -> MemberWork:
    """Return what a member's application does without the topics that the viewer may not describe."""
    known = viewer.name_of(work.topic_id) if work.topic_id else ""
    shown = replace(work, paused=_visible(work.paused, viewer))
    return shown if known and viewer.of_topic(known) else replace(shown, topic_id="", partition=-1, offset=-1)


def _masked(share: TopicShare, viewer: Viewer) -> TopicShare:
    """Return the share unchanged if the viewer may know of its topic, otherwise with empty topic id and name. It is
    not left out, since the viewer must see that a commit waits."""
    return share if _is_allowed(share, viewer, viewer.of_topic) else replace(share, topic_id="", topic="")


def _without_principal(entry: HistoryEntry) -> HistoryEntry:
    return replace(entry, evidence={key: text for key, text in entry.evidence.items() if key != ASKED_BY})
