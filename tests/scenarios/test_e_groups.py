"""E6: consumer groups."""

from __future__ import annotations

from dataclasses import replace

from tidelog.client.core.partitioner import partition_of
from tidelog.errors import TidelogError
from tidelog.types import TopicPartition
from tidelog.wire.messages import (
    CommitOffsets,
    Done,
    FetchOffsets,
    FetchOffsetsAnswer,
    GroupHeartbeat,
    GroupPosition,
    JoinGroup,
    JoinGroupAnswer,
    Message,
    PrepareGroups,
    TopicCreated,
)

from scenarios.stage import Stage

JOIN = JoinGroup("g", "a", ("t",), session_timeout_ms=6000)


class Coordinated(Stage):
    """A stage with the topic of the groups."""

    def __init__(self) -> None:
        super().__init__()
        answer = self.ask(self.active, PrepareGroups())
        assert isinstance(answer, TopicCreated)
        partitions = len(self.invariants.metadata.topics[answer.topic_id].partitions)
        self.groups = TopicPartition(answer.topic_id, partition_of(b"g", partitions))

    @property
    def coordinator(self) -> str:
        """Return the leader of the group's partition in the metadata."""
        return self.state(self.groups).leader or ""

    def tell(self, message: Message, node: str = "") -> Message | TidelogError:
        """Send a request to the coordinator until it accepts it."""
        answers: list[Message | TidelogError] = []

        def answered() -> bool:
            answers.append(self.ask(node or self.coordinator, message))
            return not (isinstance(answers[-1], TidelogError) and answers[-1].retriable)

        self.until(answered, 30.0)
        return answers[-1]

    def joined(self, member: str) -> JoinGroupAnswer:
        answer = self.tell(replace(JOIN, member=member))
        assert isinstance(answer, JoinGroupAnswer), answer
        return answer

    def commit(self, member: str, generation: int, offset: int) -> CommitOffsets:
        return CommitOffsets("g", (GroupPosition(self.key.topic_id, 0, offset),), member, generation)

    def committed(self) -> int:
        answer = self.tell(FetchOffsets("g"))
        assert isinstance(answer, FetchOffsetsAnswer)
        (position,) = answer.positions
        return position.offset


def code(answer: object) -> str:
    return answer.code if isinstance(answer, TidelogError) else ""


def test_E6_two_members_believe_they_own_a_partition_and_one_of_them_commits() -> None:
    stage = Coordinated()
    a = stage.joined("a")
    assert [share.partitions for share in a.assignment] == [(0,)]
    assert stage.tell(stage.commit("a", a.generation, 5)) == Done()
    # the coordinator is cut off with a, which goes on at it; the others elect another, where a is not heard
    old = stage.coordinator
    stage.isolate(old)
    stage.until(lambda: stage.coordinator not in ("", old), 30.0)
    held = stage.ask(old, stage.commit("a", a.generation, 6))
    assert isinstance(held, TidelogError) and held.retriable, "what cannot be committed is not answered"
    b = stage.joined("b")
    assert b.assignment == (), "a may still be there"
    generation, owned = b.generation, False

    def b_owns() -> bool:
        nonlocal generation, owned
        answer = stage.tell(GroupHeartbeat("g", "b", generation))
        assert not isinstance(answer, TidelogError)
        generation, owned = answer.generation, bool(answer.assignment)  # type: ignore[attr-defined]
        return owned

    stage.until(b_owns, 20.0)
    # now both believe that they own it
    assert generation > a.generation
    assert stage.tell(stage.commit("b", generation, 10)) == Done()
    assert isinstance(stage.ask(old, stage.commit("a", a.generation, 7)), TidelogError)
    stage.settle()
    assert code(stage.tell(stage.commit("a", a.generation, 8))) == "UNKNOWN_MEMBER"
    assert code(stage.tell(stage.commit("a", generation, 8))) == "UNKNOWN_MEMBER"
    assert stage.committed() == 10


def test_E6_a_member_goes_on_committing_partitions_that_it_gave_up() -> None:
    stage = Coordinated()
    a = stage.joined("a")
    b = stage.joined("b")
    assert b.assignment == () and len(a.assignment) == 1
    heard = stage.tell(GroupHeartbeat("g", "a", a.generation, a.assignment))
    assert heard.assignment == a.assignment, "one partition for two members stays where it is"  # type: ignore[union-attr]
    moved = stage.tell(replace(JOIN, topics=("other",)))
    assert not isinstance(moved, TidelogError)
    generation: int = moved.generation  # type: ignore[attr-defined]
    assert code(stage.tell(stage.commit("a", a.generation, 4))) == "FENCED_GENERATION", "before it knows"
    assert stage.tell(stage.commit("a", generation, 5)) == Done(), "until it has given it up it is its own"
    stage.tell(GroupHeartbeat("g", "a", generation))
    got = stage.tell(GroupHeartbeat("g", "b", b.generation))
    assert code(stage.tell(stage.commit("a", generation, 6))) == "FENCED_GENERATION"
    assert stage.tell(stage.commit("b", got.generation, 7)) == Done()  # type: ignore[union-attr]
    stage.kill(stage.coordinator)
    assert stage.committed() == 7
    assert code(stage.tell(stage.commit("a", generation, 8))) == "FENCED_GENERATION"
    stage.settle()
