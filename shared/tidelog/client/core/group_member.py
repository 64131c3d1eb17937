"""Core of a member of a consumer group: when it joins and heartbeats, what it owns, what it gives up, what it
commits. Sans-I/O. The rules are those of ``docs/protocol.md``, "Consumer groups" (KIP-848: the coordinator assigns).

Theory. A member has one of four states:

    joining     it owns nothing, and repeats the join request until it is accepted
    stable      it owns the partitions that the last answer assigned to it, in that answer's generation
    giving up   the last answer no longer assigned some of its partitions: the application finishes its current batch
                and the positions are committed; then the partitions are *released*, and a heartbeat without them
                lets other members have them
    over        it has left, or must not come back: another process is this static member, or the group refuses it

A partition that an answer keeps is never touched, so partitions that stay are read on through every rebalance. One
request (join, heartbeat, leave) is under way at a time; a change in the meantime makes the next one due at once.

All partitions are *lost*, without being given up, in two cases. The coordinator no longer knows the member or its
generation; or no heartbeat sent within the session timeout was answered, so other members may own the partitions by
now. Then no record is handed out and nothing is committed, and the member joins again.

Commits are sent one at a time, for partitions that are owned. A commit that is refused for its generation is not
repeated blindly: the answer to the next heartbeat shows which partitions are still owned, and those are committed
again in the new generation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

from tidelog.errors import Closed, TidelogError, refuse
from tidelog.types import Position, TopicPartition
from tidelog.wire.messages import (
    CommitOffsets,
    GroupHeartbeat,
    GroupHeartbeatAnswer,
    GroupPosition,
    JoinGroup,
    JoinGroupAnswer,
    LeaveGroup,
    MemberWork,
    Message,
    TopicShare,
)

LOST = ("UNKNOWN_MEMBER", "FENCED_GENERATION")
"""Error codes of a heartbeat after which the member owns nothing and joins again."""


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Effect: send this request to the group's coordinator, and pass its outcome to ``on_answer`` with ``number``."""

    number: int
    request: Message


@dataclass(frozen=True, slots=True)
class CommitPositions:
    """Effect: send this commit to the group's coordinator, and pass its outcome to ``on_committed``."""

    request: CommitOffsets


@dataclass(frozen=True, slots=True)
class CommitDue:
    """Effect: make the consumer commit what the application has finished, because the commit interval is over."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """Effect: make the consumer read these partitions, each from the group's committed position on. The member owns
    them now."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Revoked:
    """Effect: make the consumer finish these partitions, commit their positions, and call ``on_released``. The member
    owns them until then."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """Effect: make the consumer stop reading these partitions at once. The member does not own them any more, and
    their positions cannot be committed."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """Effect: report the end of the commit under way to its caller. ``error`` is None if the positions are stored,
    else the reason why they are not."""

    error: TidelogError | None = None


Effect = SendRequest | CommitPositions | CommitDue | Assigned | Revoked | Lost | Committed


def _unknown_work(now: float) -> None:
    """Report nothing of what the application does."""


def _is_of_earlier_release(asked: Message, error: TidelogError) -> bool:
    """Return whether a gateway has refused a heartbeat because it does not know the field ``work``."""
    has_work = isinstance(asked, GroupHeartbeat) and asked.work is not None
    return has_work and error.code == "UNSUPPORTED" and error.detail.get("key") == "work"


class MemberCore:
    """The membership of one consumer in a group, from its first join until it has left or was refused. ``join`` is
    its join request. Times are seconds of the shell's clock. If ``auto_commit_s`` is inf, positions are committed
    only on request. ``describe_work`` returns what the application does, for heartbeats; None: not known."""

    def __init__(
        self,
        join: JoinGroup,
        auto_commit_s: float,
        backoff_s: float,
        describe_work: Callable[[float], MemberWork | None] = _unknown_work,
    ) -> None:
        self.group = join.group
        self._describe_work = describe_work
        self.generation = -1
        self.names: dict[str, str] = {}
        """Topic names by topic id, as the coordinator reported them."""
        self.error: TidelogError | None = None
        """The error that ended the membership; None if it goes on or the member left."""
        self.is_over = False
        self._join = join
        self._session_s = join.session_timeout_ms / 1000
        self._auto_commit_s = auto_commit_s
        self._backoff_s = backoff_s
        self._owned: dict[TopicPartition, None] = {}
        self._leaving: dict[TopicPartition, None] = {}
        self._committed: dict[TopicPartition, Position] = {}
        self._joined = False
        self.asked = 0
        """Number of the last request that was sent."""
        self.answered = 0
        """Number of the last request whose answer brought a generation and a share; 0 if there is none."""
        self._under_way: Message | None = None
        """The request that has no answer yet; None if there is none."""
        self._again = False
        """Whether the next request is due as soon as this one is answered."""
        self._asked_at = 0.0
        self._due = -inf
        """Time at which the next request is sent, unless one is under way."""
        self._heartbeat_s = 0.0
        self._session_until = inf
        self._commit_at = inf
        self._commit: CommitOffsets | None = None
        self._refused_after: int | None = None
        """Set if the commit under way was refused for its generation: it is repeated after the answer to a request
        with a higher number than this."""
        self._goes: LeaveGroup | None = None

    @property
    def state(self) -> str:
        """The member's state: ``joining``, ``stable``, ``giving up`` or ``over``."""
        if self.is_over:
            return "over"
        if not self._joined:
            return "joining"
        return "giving up" if self._leaving else "stable"

    @property
    def owned(self) -> list[TopicPartition]:
        """The partitions that the member owns, including those that it is giving up."""
        return list(self._owned)

    @property
    def kept(self) -> list[TopicPartition]:
        """The partitions that the member owns and is not giving up."""
        return [key for key in self._owned if key not in self._leaving]

    # --- time ------------------------------------------------------------------------------------------------

    def on_tick(self, now: float) -> list[Effect]:
        """Return the effects that are due: the loss of all partitions after a session timeout, an automatic commit,
        and the next request (at the first call the join request). Empty once the membership is over."""
        effects: list[Effect] = []
        if self.is_over:
            return effects
        if now >= self._session_until:
            effects += self._lose(now)
        if now >= self._commit_at and self._commit is None:
            self._commit_at = now + self._auto_commit_s
            effects.append(CommitDue())
        if now >= self._due and self._under_way is None:
            self.asked += 1
            self._asked_at = now
            self._again = False
            self._under_way = self._question(now)
            effects.append(SendRequest(self.asked, self._under_way))
        return effects

    def deadline(self) -> float | None:
        """Return the time at which ``on_tick`` has something to do next; None if only an answer can change
        something."""
        times = [self._session_until]
        if self._commit is None:
            times.append(self._commit_at)
        if self._under_way is None:
            times.append(self._due)
        earliest = min(times)
        return None if self.is_over or earliest == inf else earliest

    def _question(self, now: float) -> Message:
        """Return the next request to send: the leave request if the member is leaving, the join request until it has
        joined, else a heartbeat that names the owned partitions."""
        if self._goes is not None:
            return self._goes
        if not self._joined:
            return self._join
        join = self._join
        owned, work = shares(self._owned), self._describe_work(now)
        return GroupHeartbeat(self.group, join.member, self.generation, owned, instance=join.instance, work=work)

    # --- answers ---------------------------------------------------------------------------------------------

    def on_answer(self, number: int, answer: Message | TidelogError, now: float) -> list[Effect]:
        """Handle the answer to request ``number``, or the error with which it failed. An assignment is applied and
        extends the session; a retriable error repeats the request after a back-off. If the coordinator no longer
        knows the member, all partitions are lost and it joins again; a gateway that does not know the field ``work``
        gets heartbeats without it. Any other error, and the answer to a leave request, ends the membership. Returns
        the effects. The outcome of an abandoned request is ignored."""
        if number != self.asked or self._under_way is None or self.is_over:
            return []
        asked, self._under_way = self._under_way, None
        left = isinstance(asked, LeaveGroup)
        if isinstance(answer, TidelogError) and answer.retriable:
            self._due = now + self._backoff_s
            return []
        if isinstance(answer, TidelogError) and _is_of_earlier_release(asked, answer):
            self._describe_work = _unknown_work
            return self.ask_at_once(now)
        if left:
            return self._end(None)
        if isinstance(answer, TidelogError):
            return self._lose(now) if answer.code in LOST else self._end(answer)
        assert isinstance(answer, JoinGroupAnswer | GroupHeartbeatAnswer)
        if isinstance(answer, JoinGroupAnswer):
            self._joined = True
            self._heartbeat_s = answer.heartbeat_ms / 1000
            self._commit_at = now + self._auto_commit_s
        self.generation = answer.generation
        self.answered = number
        self._session_until = self._asked_at + self._session_s
        self._due = now if self._again else self._asked_at + self._heartbeat_s
        effects = self._apply_assignment(answer.assignment)
        if self._refused_after is not None and number > self._refused_after:
            effects += self._commit_again()
        return effects + self.on_tick(now)

    def _apply_assignment(self, assignment: tuple[TopicShare, ...]) -> list[Effect]:
        """Own the partitions that an answer assigns, and begin to give up owned partitions that it does not name.
        Returns ``Revoked`` and ``Assigned`` for the changes; partitions that stay are not touched."""
        wanted = {TopicPartition(s.topic_id, p): None for s in assignment for p in s.partitions}
        self.names.update({share.topic_id: share.topic for share in assignment if share.topic})
        new = tuple(key for key in wanted if key not in self._owned)
        gone = tuple(key for key in self._owned if key not in wanted and key not in self._leaving)
        self._owned.update(dict.fromkeys(new))
        self._leaving.update(dict.fromkeys(gone))
        effects: list[Effect] = []
        if gone:
            effects.append(Revoked(gone))
        if new:
            effects.append(Assigned(new))
        return effects

    def _lose(self, now: float, why: TidelogError | None = None) -> list[Effect]:
        """Forget all partitions at once, and join again after a back-off. Returns ``Lost`` if there were any. A
        commit under way ends with the error ``why``, by default ``UNKNOWN_MEMBER``."""
        lost = tuple(self._owned)
        self._owned.clear()
        self._leaving.clear()
        self._committed.clear()
        self._joined = self._again = False
        self._under_way = None
        self._session_until = self._commit_at = inf
        self._due = now + self._backoff_s
        effects: list[Effect] = [Lost(lost)] if lost else []
        if self._commit is not None:
            why = why or refuse("UNKNOWN_MEMBER", f"the member lost its place in {self.group}")
            effects += self._commit_over(why)
        return effects

    def _end(self, error: TidelogError | None) -> list[Effect]:
        """End the membership for good, with the error that ended it, or None if the member left. Returns the effects:
        the end of a commit under way and, after an error, ``Lost``."""
        effects = self._lose(0.0, error)
        self.error = error
        self.is_over = True
        return effects if error is not None else [effect for effect in effects if not isinstance(effect, Lost)]

    def stop(self) -> list[Effect]:
        """End the membership without a request, because the connection is closed. Returns the effects that end a
        commit under way; an empty list if the membership is over already."""
        return [] if self.is_over else self._end(None)

    # --- giving up and leaving -------------------------------------------------------------------------------

    def on_released(self, partitions: Iterable[TopicPartition], now: float) -> list[Effect]:
        """Release revoked partitions, because the application has finished them and their positions are committed as
        far as possible. Returns the effects, such as a heartbeat without these partitions, which is sent at once
        unless a request is under way. Partitions that are not being given up are ignored."""
        for key in partitions:
            if key in self._leaving:
                del self._owned[key], self._leaving[key]
                self._committed.pop(key, None)
        return self.ask_at_once(now)

    def leave(self, now: float, *, keep: bool) -> list[Effect]:
        """Leave the group: return the effects that send the leave request, at once or after the answer that is
        awaited. A member that has not sent a join request ends at once. ``keep``: this static member comes back soon,
        and the coordinator keeps its partitions for it. Returns an empty list if the member is leaving or the
        membership is over."""
        if self._goes is not None or self.is_over:
            return []
        if not self._joined and self._under_way is None:
            return self._end(None)
        self._goes = LeaveGroup(self.group, self._join.member, keep)
        return self.ask_at_once(now)

    def ask_at_once(self, now: float) -> list[Effect]:
        """Make the next request due now, or as soon as the request under way is answered. Returns the effects that
        are due."""
        self._due = now
        self._again = True
        return self.on_tick(now)

    # --- commits ---------------------------------------------------------------------------------------------

    def on_position_fetched(self, key: TopicPartition, committed: Position | None) -> None:
        """Record the group's committed position of an owned partition, so that ``commit`` does not commit it again.
        Does nothing if the position is None or the partition is not owned."""
        if key in self._owned and committed is not None:
            self._committed[key] = committed

    def commit(self, positions: Mapping[TopicPartition, Position]) -> list[Effect]:
        """Begin to commit the positions that are of owned partitions and differ from what is committed. Returns
        ``CommitPositions``; ``on_committed`` returns ``Committed`` with the outcome later. If nothing is new, or the
        membership is over, ``Committed`` is returned at once. No other commit may be under way."""
        assert self._commit is None
        if self.is_over:
            return [Committed(self.error or Closed(f"the member of {self.group} has left"))]
        news = {k: at for k, at in positions.items() if k in self._owned and self._committed.get(k) != at}
        if not news:
            return [Committed()]
        parts = tuple(GroupPosition(*key, at.offset, at.leader_epoch) for key, at in news.items())
        self._commit = CommitOffsets(self.group, parts, self._join.member, self.generation, self._join.instance)
        return [CommitPositions(self._commit)]

    def on_committed(self, request: CommitOffsets, error: TidelogError | None, now: float) -> list[Effect]:
        """Handle the outcome of a commit: ``error`` is None if it is stored. Returns ``Committed`` with the outcome.
        Exception: a commit of an outdated generation is repeated after the next heartbeat. If the coordinator does
        not know the member, all partitions are lost; if another process is this static member, the membership ends.
        The outcome of an abandoned commit is ignored."""
        if request is not self._commit:
            return []
        if error is None:
            for part in request.positions:
                key = TopicPartition(part.topic_id, part.partition)
                if key in self._owned:
                    self._committed[key] = Position(part.leader_epoch, part.offset)
            return self._commit_over(None)
        if error.code == "FENCED_GENERATION":
            self._refused_after = self.asked
            return self.ask_at_once(now)
        effects = self._commit_over(error)
        if error.code == "UNKNOWN_MEMBER":
            effects += self._lose(now)
        elif error.code == "FENCED_INSTANCE":
            effects += self._end(error)
        return effects

    def _commit_again(self) -> list[Effect]:
        """Repeat a refused commit after a heartbeat, in the new generation, for the partitions that are still owned.
        If there are none, or the generation is the same, the commit ends with ``FENCED_GENERATION``."""
        assert self._commit is not None
        self._refused_after = None
        parts = tuple(p for p in self._commit.positions if TopicPartition(p.topic_id, p.partition) in self._owned)
        if not parts or self._commit.generation == self.generation:
            return self._commit_over(refuse("FENCED_GENERATION", f"the partitions are not owned in {self.group} now"))
        self._commit = replace(self._commit, generation=self.generation, positions=parts)
        return [CommitPositions(self._commit)]

    def _commit_over(self, error: TidelogError | None) -> list[Effect]:
        """End the commit under way, and return ``Committed`` with its error, or None."""
        self._commit = None
        self._refused_after = None
        return [Committed(error)]


def shares(keys: Iterable[TopicPartition]) -> tuple[TopicShare, ...]:
    """Return the partitions grouped by topic, topics and partitions in ascending order, as messages carry them."""
    topics: dict[str, list[int]] = {}
    for topic_id, partition in sorted(keys):
        topics.setdefault(topic_id, []).append(partition)
    return tuple(TopicShare(topic_id, tuple(partitions)) for topic_id, partitions in topics.items())
