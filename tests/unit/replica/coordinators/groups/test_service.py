"""Consumer groups at replica servers: what is answered when, and what a failover leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.fake_controller import KEY
from support.replica_network import CLIENT, Net, code
from tidelog.batch.format import NewRecord, decode_columns, encode_batch, read_header
from tidelog.errors import TidelogError
from tidelog.types import GROUPS, PartitionState, TopicConfig, TopicState
from tidelog.wire.messages import (
    CommitOffsets,
    DescribeGroup,
    Done,
    FetchOffsets,
    GroupHeartbeat,
    GroupPosition,
    JoinGroup,
    JoinGroupAnswer,
    LeaveGroup,
    ListGroups,
    Message,
)
from tidelog_replica.config import ReplicaSettings

JOIN = JoinGroup("g", "a", ("orders",), session_timeout_ms=10_000)
POSITION = GroupPosition("id-orders", 0, 9)


class Groups(Net):
    """r1 leads the one partition of ``__groups``; of the topic ``orders`` there is only the metadata."""

    def __init__(self, **config: Any) -> None:
        super().__init__(3, TopicConfig(min_insync_replicas=2, cleanup="compact", **config), ReplicaSettings())
        self.wall_ms = 1000
        self.start()
        state = PartitionState(("r1", "r2", "r3"), ("r1", "r2", "r3"), "r1", 0, 0)
        orders = (PartitionState((), (), None, 0, 0),) * 2
        self.topics = {
            KEY.topic_id: TopicState(KEY.topic_id, GROUPS, self.config, (state,)),
            "id-orders": TopicState("id-orders", "orders", TopicConfig(), orders),
        }
        self.broadcast()
        self.run()
        self.advance(0.1)

    def tell(self, message: Message, name: str = "r1") -> Any:
        """Ask, and the answer; None: it waits."""
        return self.answers.get(self.ask(name, message))

    def joined(self, name: str = "r1", message: JoinGroup = JOIN) -> JoinGroupAnswer:
        answer = self.tell(message, name)
        assert isinstance(answer, JoinGroupAnswer), answer
        return answer

    def cut_followers(self) -> None:
        self.cut |= {("r2", "r1"), ("r3", "r1")}
        self.drop_notify = True

    def join_followers(self) -> None:
        self.cut.clear()
        self.drop_notify = False


def commit(generation: int, offset: int = 9) -> CommitOffsets:
    return CommitOffsets("g", (replace(POSITION, offset=offset),), "a", generation)


def test_an_answer_waits_until_its_record_is_committed() -> None:
    net = Groups()
    net.cut_followers()
    waiting = net.ask("r1", JOIN)
    assert waiting not in net.answers
    net.join_followers()
    net.advance(4)
    assert isinstance(net.answers[waiting], JoinGroupAnswer)


def test_an_answer_that_changes_nothing_waits_for_what_was_written_before_it() -> None:
    net = Groups()
    net.cut_followers()
    first = net.ask("r1", JOIN)
    second = net.ask("r1", GroupHeartbeat("g", "a", 1))
    third = net.ask("r1", GroupHeartbeat("g", "nobody", 1))
    assert not {first, second, third} & set(net.answers)


def test_a_request_not_committed_in_time_has_an_unknown_outcome() -> None:
    net = Groups()
    net.cut_followers()
    waiting = net.ask("r1", JOIN)
    net.advance(6)
    answer = net.answers[waiting]
    assert isinstance(answer, TidelogError) and answer.unknown_outcome and answer.retriable


def test_the_next_leader_goes_on_with_members_and_positions() -> None:
    net = Groups()
    generation = net.joined().generation
    assert net.tell(commit(generation)) == Done()
    net.lead("r2", "r1 r2 r3")
    assert code(net.tell(ListGroups(0), "r1")) == "NOT_COORDINATOR"
    net.advance(0.1)
    assert code(net.tell(commit(generation, 5))) == "NOT_COORDINATOR"
    assert net.tell(GroupHeartbeat("g", "a", generation), "r2").generation == generation
    described = net.tell(DescribeGroup("g"), "r2")
    assert (described.coordinator, described.generation) == ("r2", generation)
    assert [p.offset for p in described.positions] == [9]
    assert net.tell(commit(generation, 10), "r2") == Done()


def test_a_leader_that_has_not_read_its_log_answers_nothing() -> None:
    net = Groups()
    net.joined()
    net.lead("r2", "r1 r2 r3")
    answer = net.tell(ListGroups(0), "r2")
    assert code(answer) == "NOT_COORDINATOR" and answer.retriable
    net.advance(0.1)
    assert [group.group for group in net.tell(ListGroups(0), "r2").groups] == ["g"]


def test_the_last_in_sync_coordinates_without_controllers() -> None:
    net = Groups()
    assert net.tell(commit(net.joined().generation)) == Done()
    net.reconfigure(min_insync_replicas=1)
    net.push(isr=("r1",))
    net.cut_followers()
    net.controller_up = False
    net.advance(10.0)
    assert [group.group for group in net.tell(ListGroups(0)).groups] == ["g"]
    assert net.partition("r1").leading.core.maximal_isr == ("r1",)


def test_waiting_requests_are_refused_when_the_role_ends() -> None:
    net = Groups()
    net.cut_followers()
    waiting = net.ask("r1", JOIN)
    net.lead("r2", "r2 r3")
    assert code(net.answers[waiting]) == "NOT_COORDINATOR" and net.answers[waiting].unknown_outcome


def test_a_replaced_leader_that_does_not_know_it_can_commit_and_answer_nothing() -> None:
    net = Groups()
    generation = net.joined().generation
    net.tell(commit(generation))
    net.cut |= {("r2", "r1"), ("r3", "r1"), ("r1", "r2"), ("r1", "r3")}
    net.watchers.remove("r1")
    net.lead("r2", "r2 r3")
    net.advance(0.1)
    reads = net.ask("r1", FetchOffsets("g"))
    late = net.ask("r1", commit(generation, 5))
    assert net.tell(commit(generation, 20), "r2") == Done()
    net.advance(6)
    assert isinstance(net.answers[late], TidelogError)
    assert isinstance(net.answers[reads], TidelogError), "a position that is none any more"
    assert [p.offset for p in net.tell(FetchOffsets("g"), "r2").positions] == [20]


def test_while_too_few_are_in_sync_nothing_changes_and_nobody_is_put_out() -> None:
    net = Groups()
    generation = net.joined().generation
    net.cut_followers()
    net.push(isr=("r1",))
    net.run()
    assert code(net.tell(commit(generation))) == "NOT_ENOUGH_REPLICAS"
    assert code(net.tell(GroupHeartbeat("g", "a", generation))) == "NOT_ENOUGH_REPLICAS"
    net.advance(30)
    net.join_followers()
    net.advance(0.9)
    assert net.tell(commit(generation)) == Done()


def test_a_silent_member_is_put_out_by_time_alone() -> None:
    net = Groups()
    net.joined()
    net.advance(10.5)
    assert code(net.tell(GroupHeartbeat("g", "a", 1))) == "UNKNOWN_MEMBER"


def test_grown_topics_reach_the_members() -> None:
    net = Groups()
    generation = net.joined().generation
    net.topics["id-orders"] = replace(net.topics["id-orders"], partitions=(PartitionState((), (), None, 0, 0),) * 3)
    net.broadcast()
    net.run()
    net.advance(0.2)
    answer = net.tell(GroupHeartbeat("g", "a", generation))
    assert answer.generation > generation
    assert [share.partitions for share in answer.assignment] == [(0, 1, 2)]


def test_a_log_that_cannot_be_read_is_not_guessed_at() -> None:
    net = Groups()
    net.joined()
    leading = net.partition("r1").leading
    assert leading is not None
    batch = encode_batch([NewRecord(b"?", b"?")])
    leading.append(batch, read_header(batch))
    net.tell(LeaveGroup("g", "a"))  # whatever is appended next is committed with it
    net.lead("r2", "r1 r2 r3")
    net.advance(1)
    answer = net.tell(ListGroups(0), "r2")
    assert code(answer) == "NOT_COORDINATOR" and "cannot be read" in answer.message
    assert net.happened("groups_unreadable")


def test_a_server_that_does_not_lead_it_refuses() -> None:
    net = Groups()
    assert code(net.tell(JOIN, "r2")) == "NOT_COORDINATOR"
    assert code(net.tell(ListGroups(3))) == "NOT_COORDINATOR"
    assert code(net.tell(replace(JOIN, group=""))) == "INVALID_GROUP"


def test_a_client_that_left_gets_no_answer() -> None:
    net = Groups()
    net.cut_followers()
    waiting = net.ask("r1", JOIN)
    net.nodes["r1"].on_link_closed(CLIENT, net.now)
    net.join_followers()
    net.advance(10)
    assert waiting not in net.answers


def test_a_large_log_is_read_bite_by_bite_while_others_are_served() -> None:
    net = Groups(segment_max_bytes=1 << 20)
    generation = net.joined().generation
    metadata = "m" * 4000
    for offset in range(200):
        position = replace(POSITION, offset=offset, metadata=metadata)
        assert net.tell(CommitOffsets("g", (position,), "a", generation)) == Done()
    net.lead("r2", "r1 r2 r3")
    ticks = 0
    while code(net.tell(ListGroups(0), "r2")):
        ticks += 1
        net.advance(0.001)
    assert ticks > 3
    assert [p.offset for p in net.tell(FetchOffsets("g"), "r2").positions] == [199]


def test_all_that_is_written_is_in_the_log_of_every_replica() -> None:
    net = Groups()
    net.tell(commit(net.joined().generation))
    net.advance(1)
    kinds = []
    log = net.partition("r3").log
    for batch in log.read(0, 1 << 20):
        kinds += [key for key in decode_columns(batch).keys if key is not None]
    assert [b"member" in key for key in kinds] == [True, False, False]
    assert [b"offset" in key for key in kinds] == [False, False, True]
