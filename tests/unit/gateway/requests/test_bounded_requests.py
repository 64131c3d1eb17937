"""Requests that ask a gateway for much: what they cost is counted in look-ups, topics and steps, never in seconds.
Tests ``requests/requests.py`` and ``requests/coordinator_client.py``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import groupby
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import trio
import trio.testing
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.client.core.partitioner import partition_of
from tidelog.errors import TidelogError, TimedOut, Unreachable, refuse
from tidelog.types import GROUPS, TRANSACTIONS, ClusterImage, PartitionState, TopicState
from tidelog.wire import codec
from tidelog.wire.messages import (
    CommitOffsets,
    DescribeLogs,
    DescribeLogsAnswer,
    DescribeQuorum,
    Done,
    FetchOffsets,
    FetchOffsetsAnswer,
    GroupHeartbeat,
    GroupInfo,
    GroupPosition,
    ListGroups,
    ListGroupsAnswer,
    ListOffset,
    ListTransactions,
    ListTransactionsAnswer,
    LogBounds,
    Message,
    Metadata,
    MetadataAnswer,
    OffsetAnswer,
    StableOffset,
    TopicShare,
    TransactionInfo,
)
from tidelog_gateway.cluster_view import ClusterView
from tidelog_gateway.requests.coordinator_client import LARGE, LARGE_EACH
from tidelog_gateway.requests.requests import ClientRequests

from unit.gateway.test_server import running

PARTITIONS = 4


def described(asked: DescribeLogs) -> DescribeLogsAnswer:
    """What a server answers that leads all these partitions."""
    stable = StableOffset(5, 1, 0, 9)
    return DescribeLogsAnswer(
        tuple(LogBounds(share.topic_id, p, 2, 6, stable, 80) for share in asked.shares for p in share.partitions)
    )


class Shell:
    """A gateway whose leaders answer a look-up of offsets when the test says so."""

    def __init__(self, nursery: trio.Nursery, topics: int) -> None:
        self.nursery = nursery
        self.cluster = ClusterView()
        self.controllers = self.peers = self
        self.news = trio.Event()
        self.lookups: list[tuple[ListOffset, Callable[[Any], None]]] = []
        self.answers: list[Any] = []
        self.answered = trio.Event()
        self.quick = False
        """The leaders answer at once."""
        self.listed: list[Any] = []
        self.each = 1000
        self.fetches: list[Callable[..., None]] = []
        """Each answers a request to a coordinator, or refuses it."""
        self.asked: list[str] = []
        """Servers whose coordinators were asked."""
        self.coordinated: list[Message] = []
        """What they were asked."""
        self.changes: list[Message] = []
        """What the controllers were asked."""
        self.decide = trio.Semaphore(0)
        """So many of these are answered."""
        self.missing_disks = None
        self.described: list[tuple[str, DescribeLogs]] = []
        """What leaders were asked of many logs, and who was asked."""
        self.describe: Callable[[DescribeLogs], Any] = described
        self.index = 0
        self.have(*(self.topic(number) for number in range(topics)))

    def topic(self, number: int, leader: str | None = "r1") -> TopicState:
        states = tuple(PartitionState(("r1",), ("r1",), leader, 1, 1) for _ in range(PARTITIONS))
        return TopicState(f"id-{number}", f"topic-{number}", partitions=states)

    def have(self, *topics: TopicState) -> None:
        """The metadata says that these are the topics."""
        self.index += 1
        self.cluster.update(ClusterImage(self.index, "c", (), topics))
        self.news.set()
        self.news = trio.Event()

    async def wait_change(self) -> None:
        await self.news.wait()

    def begin_request(self, link: object, id: int, message: object = None) -> Any:
        def done(answer: Any) -> None:
            self.answers.append(answer)
            self.answered.set()

        return done

    def start_call(self, node: str, message: Any, timeout_s: float, done: Callable[[Any], None]) -> None:
        """Coordinators of 1,000 groups each, and of as many transactions; leaders that know their logs."""
        if isinstance(message, DescribeLogs):
            self.described.append((node, message))
            done(self.describe(message))
            return
        self.listed.append(message)
        if not isinstance(message, ListGroups | ListTransactions):
            answer = FetchOffsetsAnswer() if isinstance(message, FetchOffsets) else Done()
            self.fetches.append(lambda error=None: done(error or answer))
            self.asked.append(node)
            self.coordinated.append(message)
            return
        first = int(message.after[1:]) + 1 if message.after else 0
        numbers = range(first, min(first + message.most, self.each))
        more = numbers.stop < self.each
        if isinstance(message, ListGroups):
            done(ListGroupsAnswer(tuple(GroupInfo(f"{message.partition}{n:05}", "empty") for n in numbers), more))
        else:
            infos = tuple(TransactionInfo(f"{message.partition}{n:05}", "open", 7, 1) for n in numbers)
            done(ListTransactionsAnswer(infos, more=more))

    async def call(self, message: Message, timeout_s: float) -> Message:
        """Ask the controllers."""
        self.changes.append(message)
        if not isinstance(message, DescribeQuorum):
            await self.decide.acquire()
        return Done()

    def ask_leader(self, message: ListOffset, timeout_s: float, done: Callable[[Any], None]) -> None:
        if self.quick:
            done(OffsetAnswer(7))
        else:
            self.lookups.append((message, done))

    def tell(self, offset: int = 7) -> int:
        """The leaders answer all that they were asked; returns how much that was."""
        asked, self.lookups = self.lookups, []
        for _, done in asked:
            done(OffsetAnswer(offset))
        return len(asked)

    async def tell_all(self, offset: int = 7) -> int:
        """Let the leaders answer until nothing more is asked; returns how many look-ups that was."""
        count = 0
        while True:
            await trio.testing.wait_all_tasks_blocked()
            if not self.lookups:
                return count
            count += self.tell(offset)


def view(principal: str = "alice", topics: Callable[[str], bool] = lambda name: True) -> Any:
    shown = {"seen": lambda answer: answer, "on_answer": lambda request, answer: None}
    return SimpleNamespace(principal=principal, tenant=(principal, 0), of_topic=topics, of_servers=True, **shown)


def link(source: int = 1) -> Any:
    closed: list[tuple[int, str]] = []
    close = lambda *why: closed.append(why)  # noqa: E731
    return SimpleNamespace(peer=SimpleNamespace(node="n"), remote="r", source=source, close=close, closed_with=closed)


@asynccontextmanager
async def gateway(topics: int) -> AsyncIterator[tuple[Shell, ClientRequests]]:
    async with trio.open_nursery() as nursery:
        shell = Shell(nursery, topics)
        yield shell, ClientRequests(shell, "g")  # type: ignore[arg-type]
        nursery.cancel_scope.cancel()


Kind = TypeVar("Kind", bound=Message)


def heard(answer: Any, kind: type[Kind]) -> Kind:
    """What a client reads."""
    assert isinstance(answer, Message), answer
    head, payload = codec.encode(answer, re=1)
    data = head + b"".join(codec.payload_buffers(payload))
    message = codec.decode(data, answers=lambda _: kind, limits=codec.ANSWERS).message
    assert isinstance(message, kind)
    return message


def decoded(answer: Any) -> MetadataAnswer:
    """Decode an answer to ``metadata`` as a client does."""
    return heard(answer, MetadataAnswer)


async def test_a_name_that_is_given_8_000_times_is_looked_up_once() -> None:
    async with gateway(3) as (shell, requests):
        requests.on_message(link(), 1, Metadata(("topic-1",) * 8000, offsets=True), view())
        assert await shell.tell_all() == 2 * PARTITIONS, "earliest and latest"
        (topic,) = decoded(shell.answers[0]).topics
        assert [(p.log_start, p.high_watermark) for p in topic.partitions] == [(7, 7)] * PARTITIONS


async def test_offsets_that_many_clients_ask_for_are_looked_up_once() -> None:
    async with gateway(3) as (shell, requests):
        for id in range(200):
            requests.on_message(link(), id, Metadata(all_topics=True, offsets=True), view())
        assert await shell.tell_all() == 3 * 2 * PARTITIONS
        assert len(shell.answers) == 200
        assert all(len(decoded(answer).topics) == 3 for answer in shell.answers)


async def test_principals_share_the_look_ups_of_what_both_may_see() -> None:
    async with gateway(3) as (shell, requests):
        requests.on_message(link(1), 1, Metadata(all_topics=True, offsets=True), view("alice"))
        requests.on_message(link(2), 1, Metadata(all_topics=True, offsets=True), view("bob"))
        assert await shell.tell_all() == 3 * 2 * PARTITIONS
        assert [len(decoded(answer).topics) for answer in shell.answers] == [3, 3]


async def test_a_later_request_is_answered_by_a_look_up_that_began_later() -> None:
    """A record that was acked before a request came is below the high watermark that the request is told."""
    async with gateway(1) as (shell, requests):
        requests.on_message(link(), 1, Metadata(("topic-0",), offsets=True), view("alice"))
        await trio.testing.wait_all_tasks_blocked()
        assert len(shell.lookups) == 2 * PARTITIONS
        for id, name in enumerate(("bob", "carol", "dave"), 2):
            requests.on_message(link(id), id, Metadata(("topic-0",), offsets=True), view(name))
        await trio.testing.wait_all_tasks_blocked()
        assert len(shell.lookups) == 2 * PARTITIONS, "one look-up of a partition at a time"
        shell.tell(7)
        assert await shell.tell_all(9) == 2 * PARTITIONS, "all who came meanwhile share the next"
        marks = [decoded(answer).topics[0].partitions[0].high_watermark for answer in shell.answers]
        assert marks == [7, 9, 9, 9]


async def test_each_principal_gets_only_the_topics_that_it_may_see() -> None:
    async with gateway(4) as (shell, requests):
        asked = Metadata(all_topics=True)
        for id, (name, sees) in enumerate({"alice": "topic-1", "bob": "topic-2", "carol": "topic-"}.items()):
            requests.on_message(link(id), 1, asked, view(name, lambda topic, sees=sees: topic.startswith(sees)))
        await trio.testing.wait_all_tasks_blocked()
        names = [[topic.name for topic in decoded(answer).topics] for answer in shell.answers]
        assert sorted(names) == sorted([["topic-1"], ["topic-2"], [f"topic-{n}" for n in range(4)]])


async def test_a_principal_whose_rights_change_is_answered_by_the_new_ones() -> None:
    async with gateway(2) as (shell, requests):
        asked = Metadata(all_topics=True)
        for rights in ({"topic-0", "topic-1"}, {"topic-1"}, set()):
            requests.on_message(link(), 1, asked, view("alice", rights.__contains__))
            await trio.testing.wait_all_tasks_blocked()
        assert [len(decoded(answer).topics) for answer in shell.answers] == [2, 1, 0]


async def test_answers_follow_the_metadata() -> None:
    async with gateway(2) as (shell, requests):
        for topics in (2, 1, 3):
            shell.have(*(shell.topic(number, "r2" if topics == 3 else "r1") for number in range(topics)))
            requests.on_message(link(), 1, Metadata(all_topics=True), view())
            await trio.testing.wait_all_tasks_blocked()
        found = [decoded(answer) for answer in shell.answers]
        assert [len(answer.topics) for answer in found] == [2, 1, 3]
        assert [answer.index for answer in found] == [2, 3, 4]
        assert {p.leader for topic in found[2].topics for p in topic.partitions} == {"r2"}


async def test_look_ups_are_bounded_and_everybody_has_a_share() -> None:
    """Who asks for one topic does not wait behind somebody who asks for a thousand."""
    async with gateway(1000) as (shell, requests):
        requests.on_message(link(1), 1, Metadata(all_topics=True, offsets=True), view("mallory"))
        await trio.testing.wait_all_tasks_blocked()
        first = len(shell.lookups)
        assert first <= 512
        requests.on_message(link(2), 1, Metadata(("topic-999",), offsets=True), view("bob"))
        rounds = 0
        while not shell.answers:
            await trio.testing.wait_all_tasks_blocked()
            assert len(shell.lookups) <= 512
            shell.tell()
            rounds += 1
        (topic,) = decoded(shell.answers[0]).topics
        assert (topic.name, rounds <= 3) == ("topic-999", True), rounds
        assert await shell.tell_all()
        assert len(decoded(shell.answers[1]).topics) == 1000


async def test_a_request_does_not_go_on_when_its_link_has_closed() -> None:
    async with gateway(1000) as (shell, requests):
        for id in range(5):
            requests.on_message(link(1), id, Metadata((f"topic-{id}",), all_topics=id == 0, offsets=True), view())
        await trio.testing.wait_all_tasks_blocked()
        begun = len(shell.lookups)
        requests.on_close(link(1))
        assert await shell.tell_all() == begun, "what is asked already is all that is asked"
        assert shell.answers and all(isinstance(answer, Unreachable) for answer in shell.answers), "nobody hears it"


async def test_a_long_answer_is_built_in_steps_between_which_others_run() -> None:
    """A task that takes one step at a time gets many of them while the answer is built; and the second answer takes
    no more than a few, since the topics have not changed."""
    steps = []
    async with gateway(2000) as (shell, requests):
        for id in range(2):
            requests.on_message(link(), id, Metadata((), all_topics=True), view())
            steps.append(0)
            while len(shell.answers) <= id:
                await trio.lowlevel.checkpoint()
                steps[-1] += 1
    assert steps[0] > 2000 * PARTITIONS / 250
    assert steps[1] < steps[0] / 2


async def test_offsets_of_a_silent_server_are_unknown_and_it_is_not_awaited_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with gateway(1000) as (shell, requests):
        requests.on_message(link(), 1, Metadata(all_topics=True, offsets=True), view())
        await trio.testing.wait_all_tasks_blocked()
        begun = shell.lookups
        shell.lookups = []
        for _, done in begun:
            done(refuse("REQUEST_TIMED_OUT", "silent"))
        assert await shell.tell_all() == 0
        partitions = [p for topic in decoded(shell.answers[0]).topics for p in topic.partitions]
        assert {p.high_watermark for p in partitions} == {-1} and len(partitions) == 1000 * PARTITIONS


async def test_a_look_up_that_is_refused_leaves_the_other_partitions_of_its_server_known() -> None:
    """One partition's copy is offline: that says nothing of the server's others, nor does it hold them up."""
    async with gateway(1000) as (shell, requests):
        requests.on_message(link(), 1, Metadata(all_topics=True, offsets=True), view())
        await trio.testing.wait_all_tasks_blocked()
        at = ("id-0", 0)
        refused = [done for asked, done in shell.lookups if (asked.topic_id, asked.partition) == at]
        shell.lookups = [one for one in shell.lookups if one[1] not in refused]
        assert len(refused) == 2
        await shell.tell_all()
        for done in refused:
            done(refuse("OFFLINE", "its file cannot be read"))
        await shell.tell_all()
        found = {
            (t.name, p.partition): p.high_watermark for t in decoded(shell.answers[0]).topics for p in t.partitions
        }
        unknown = [place for place, mark in found.items() if mark == -1]
        assert unknown == [("topic-0", 0)] and len(found) == 1000 * PARTITIONS


async def test_partitions_without_a_leader_are_waited_for_once(autojump_clock: trio.testing.MockClock) -> None:
    async with gateway(0) as (shell, requests):
        shell.have(*(shell.topic(number, None if number % 2 else "r1") for number in range(600)))
        requests.on_message(link(), 1, Metadata(all_topics=True, offsets=True), view())
        began = trio.current_time()
        shell.quick = True
        await shell.answered.wait()
        assert trio.current_time() - began < 5, "not two seconds for each page"
        found = {t.name: t.partitions[0].high_watermark for t in decoded(shell.answers[0]).topics}
        assert set(found.values()) == {7, -1} and len(found) == 600


UNPROVED = Metadata(all_topics=True, offsets=True, consistency="eventual")


async def test_offsets_without_a_proof_take_one_request_to_each_leader() -> None:
    async with gateway(0) as (shell, requests):
        shell.have(*(shell.topic(number, f"r{number % 3}") for number in range(9)))
        requests.on_message(link(), 1, UNPROVED, view(topics=lambda name: name != "topic-8"))
        assert await shell.tell_all() == 0, "no partition is looked up by itself"
        assert sorted(node for node, _ in shell.described) == ["r0", "r1", "r2"]
        assert sum(len(asked.shares) for _, asked in shell.described) == 8, "nobody asks for a hidden topic"
        infos = [p for topic in decoded(shell.answers[0]).topics for p in topic.partitions]
        assert len(infos) == 8 * PARTITIONS
        assert {(p.log_start, p.high_watermark, p.stable and p.stable.offset, p.bytes) for p in infos} == {
            (2, 6, 5, 80)
        }


async def test_a_request_to_a_leader_names_1_000_partitions_at_most() -> None:
    async with gateway(600) as (shell, requests):
        requests.on_message(link(), 1, UNPROVED, view())
        assert await shell.tell_all() == 0
        assert [sum(len(s.partitions) for s in asked.shares) for _, asked in shell.described] == [1000, 1000, 400]


async def test_a_server_of_an_earlier_release_is_asked_for_each_partition() -> None:
    async with gateway(2) as (shell, requests):
        shell.describe = lambda asked: refuse("UNSUPPORTED", "no such operation")
        requests.on_message(link(), 1, UNPROVED, view())
        assert await shell.tell_all() == 2 * 2 * PARTITIONS
        marks = {p.high_watermark for topic in decoded(shell.answers[0]).topics for p in topic.partitions}
        assert marks == {7}


async def test_a_silent_server_is_asked_once_and_what_a_leader_leaves_out_is_looked_up() -> None:
    async with gateway(2) as (shell, requests):
        shell.describe = lambda asked: TimedOut("no answer in time")
        requests.on_message(link(), 1, UNPROVED, view())
        assert await shell.tell_all() == 0
        assert {p.high_watermark for p in decoded(shell.answers[0]).topics[0].partitions} == {-1}
        shell.describe = lambda asked: DescribeLogsAnswer(described(asked).logs[1:])
        requests.on_message(link(), 2, UNPROVED, view())
        assert await shell.tell_all() == 2, "earliest and latest of one partition"
        marks = [p.high_watermark for topic in decoded(shell.answers[1]).topics for p in topic.partitions]
        assert marks == [7] + [6] * 7


async def test_without_a_proof_no_leader_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    async with gateway(0) as (shell, requests):
        shell.have(shell.topic(0), shell.topic(1, None))
        began = trio.current_time()
        requests.on_message(link(), 1, UNPROVED, view())
        await shell.answered.wait()
        assert trio.current_time() == began
        marks = [p.high_watermark for topic in decoded(shell.answers[0]).topics for p in topic.partitions]
        assert marks == [6] * 4 + [-1] * 4


async def test_topics_are_found_by_id_and_each_is_told_once() -> None:
    async with gateway(3) as (shell, requests):
        asked = Metadata(("topic-1",), topic_ids=("id-2", "id-1", "id-2", "gone"))
        for id, (one, viewer) in enumerate(
            [
                (asked, view()),
                (Metadata(topic_ids=("id-0",)), view(topics=lambda name: False)),
                (Metadata(("topic-1",), consistency="bounded"), view()),
            ]
        ):
            requests.on_message(link(), id, one, viewer)
            await trio.testing.wait_all_tasks_blocked()
        by_id, hidden, wrong = shell.answers
        assert [topic.name for topic in decoded(by_id).topics] == ["topic-1", "topic-2"]
        assert decoded(hidden).topics == ()
        assert isinstance(wrong, TidelogError) and wrong.code == "MALFORMED"


async def test_a_principal_has_so_many_large_requests_waiting() -> None:
    """What they name is held until they are answered, over however many connections they came."""
    async with gateway(1) as (shell, requests):
        names = tuple(f"topic-{number}" for number in range(8000))
        begun = 0
        with pytest.raises(TidelogError, match="OVERLOADED"):
            while begun < 100:
                asked = Metadata((*names, str(begun)), offsets=True)
                requests.on_message(link(10 + begun), begun, asked, view())
                begun += 1
        assert begun * 8000 <= 100_000
        requests.on_message(link(1), 100, Metadata(("topic-0",)), view())
        requests.on_message(link(2), 1, Metadata(names), view("bob"))
        await shell.tell_all()
        assert len(shell.answers) == begun + 2
        requests.on_message(link(1), 101, Metadata(names), view())
        await trio.testing.wait_all_tasks_blocked()
        assert len(shell.answers) == begun + 3


async def test_more_names_than_a_request_may_have_are_refused() -> None:
    async with gateway(1) as (shell, requests):
        requests.on_message(link(), 1, Metadata(tuple(f"topic-{number}" for number in range(10_001))), view())
        await trio.testing.wait_all_tasks_blocked()
        (error,) = shell.answers
        assert isinstance(error, TidelogError) and error.code == "MALFORMED"


async def test_groups_that_are_listed_100_times_in_a_row_are_listed_once_in_pages() -> None:
    async with gateway(0) as (shell, requests):
        shell.have(replace(shell.topic(0), name=GROUPS))
        for id in range(100):
            requests.on_message(link(id % 5), id, ListGroups(), view(f"principal-{id % 5}"))
        steps = 0
        while len(shell.answers) < 100:
            await trio.lowlevel.checkpoint()
            steps += 1
        assert len(shell.listed) == PARTITIONS * 2, "500 for each page"
        assert {message.most for message in shell.listed} == {500}
        assert steps >= PARTITIONS * 1000 / 200, "others run while the answer is put together"
        for answer in shell.answers[::50]:
            names = [info.group for info in heard(answer, ListGroupsAnswer).groups]
            assert names == sorted(set(names)) and len(names) == PARTITIONS * 1000


async def test_lists_of_positions_are_made_one_at_a_time_for_a_principal() -> None:
    async with gateway(0) as (shell, requests):
        shell.have(replace(shell.topic(0), name=GROUPS))
        shell.each = 500
        for id in range(4):
            requests.on_message(link(1), id, ListGroups(topic_id="id-1", topic_partition=id), view("mallory"))
        requests.on_message(link(2), 1, ListGroups(topic_id="id-2", topic_partition=3), view("bob"))
        while len(shell.answers) < 5:
            await trio.lowlevel.checkpoint()
        asked = [(message.topic_id, message.topic_partition) for message in shell.listed]
        assert len(set(asked[: 2 * PARTITIONS])) == 2 and ("id-2", 3) in asked[: 2 * PARTITIONS], "one of each"
        of_mallory = [partition for topic_id, partition in asked if topic_id == "id-1"]
        assert len(list(groupby(of_mallory))) == 4 and len(of_mallory) == 4 * PARTITIONS, "one after the other"
        assert len(heard(shell.answers[0], ListGroupsAnswer).groups) == PARTITIONS * 500


async def test_of_positions_a_client_is_told_those_that_it_may_see() -> None:
    async with gateway(0) as (shell, requests):
        shell.have(replace(shell.topic(0), name=GROUPS))

        def seen(answer: Message) -> Message:
            return replace(answer, groups=answer.groups[:1]) if isinstance(answer, ListGroupsAnswer) else answer

        (asked := view("alice")).seen = seen
        requests.on_message(link(), 1, ListGroups(topic_id="id-1", topic_partition=0), asked)
        await trio.testing.wait_all_tasks_blocked()
        assert len(heard(shell.answers[0], ListGroupsAnswer).groups) == 1


async def test_transactions_are_listed_in_the_same_way() -> None:
    async with gateway(0) as (shell, requests):
        shell.have(replace(shell.topic(0), name=TRANSACTIONS))
        for id in range(100):
            requests.on_message(link(), id, ListTransactions(), view())
        await trio.testing.wait_all_tasks_blocked()
        assert len(shell.listed) == PARTITIONS * 2
        found = heard(shell.answers[-1], ListTransactionsAnswer)
        assert len(found.transactions) == PARTITIONS * 1000


async def test_each_principal_gets_the_part_of_a_shared_list_that_it_may_see() -> None:
    async with gateway(0) as (shell, requests):
        shell.have(replace(shell.topic(0), name=TRANSACTIONS))
        stranger = view("mallory")
        stranger.seen = lambda answer: (
            replace(answer, transactions=answer.transactions[:1])
            if isinstance(answer, ListTransactionsAnswer)
            else answer
        )
        requests.on_message(link(), 1, ListTransactions(), view())
        requests.on_message(link(2), 2, ListTransactions(), stranger)
        await trio.testing.wait_all_tasks_blocked()
        found = [heard(answer, ListTransactionsAnswer) for answer in shell.answers]
        assert sorted(len(one.transactions) for one in found) == [1, PARTITIONS * 1000]


async def test_lists_do_not_go_on_when_the_last_link_that_wants_one_has_closed() -> None:
    async with gateway(0) as (shell, requests):
        shell.have(replace(shell.topic(0), name=GROUPS))
        shell.each = 20_000
        for source in (1, 2):
            requests.on_message(link(source), 1, ListGroups(), view())
        requests.on_close(link(1))
        while len(shell.listed) < PARTITIONS:  # of each the first of 40 pages, or a few more
            await trio.lowlevel.checkpoint()
        requests.on_close(link(2))
        await trio.testing.wait_all_tasks_blocked()
        assert len(shell.listed) < PARTITIONS * 20
        assert all(isinstance(answer, Unreachable) for answer in shell.answers), "nobody hears it"


async def test_a_coordinator_has_few_large_requests_of_a_principal_at_a_time() -> None:
    """Its link is that of all clients of the gateway."""
    async with gateway(0) as (shell, requests):
        shell.have(replace(shell.topic(0), name=GROUPS))
        large = FetchOffsets("g", (TopicShare("id-0", tuple(range(1000))),))
        for id in range(50):
            requests.on_message(link(1), id, large, view("mallory"))
        await trio.testing.wait_all_tasks_blocked()
        assert len(shell.fetches) == LARGE_EACH
        requests.on_message(link(2), 1, large, view("bob"))
        requests.on_message(link(3), 1, GroupHeartbeat("g", "member", 1), view("mallory"))
        await trio.testing.wait_all_tasks_blocked()
        assert len(shell.fetches) == LARGE_EACH + 2, "others, and small requests, do not wait"
        for count in range(51):
            shell.fetches.pop(0)()
            await trio.testing.wait_all_tasks_blocked()
            assert len(shell.fetches) <= LARGE_EACH + 2 and len(shell.answers) == count + 1


POSITIONS = tuple(GroupPosition("id-0", number, 7) for number in range(1000))


def group_at(partition: int) -> str:
    """A group whose coordinator is that partition's leader."""
    return next(name for name in map(str, range(100)) if partition_of(name.encode(), PARTITIONS) == partition)


def test_commits_that_wait_for_their_turn_end_with_their_link() -> None:
    """Who connects anew, again and again, has no more of them than who stays."""
    trio.run(_commit_and_leave)


async def _commit_and_leave() -> None:
    async with gateway(0) as (shell, requests):
        shell.have(replace(shell.topic(0), name=GROUPS))
        for source in range(30):
            for id in range(20):
                requests.on_message(link(source), id, CommitOffsets("g", POSITIONS), view("mallory"))
            await trio.testing.wait_all_tasks_blocked()
            requests.on_close(link(source))
            await trio.testing.wait_all_tasks_blocked()
            assert len(shell.fetches) == LARGE_EACH and len(shell.answers) == 20 * (source + 1) - LARGE_EACH
        while shell.fetches:
            shell.fetches.pop(0)()
            await trio.testing.wait_all_tasks_blocked()
        assert len(shell.answers) == 600 and not requests._waiting


async def test_a_commit_waits_for_its_turn_no_longer_than_for_its_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with gateway(0) as (shell, requests):
        shell.have(replace(shell.topic(0), name=GROUPS))
        for id in range(LARGE_EACH + 1):
            requests.on_message(link(), id, CommitOffsets("g", POSITIONS), view("mallory"))
        with trio.fail_after(11):
            await shell.answered.wait()
        (error,) = shell.answers
        assert isinstance(error, TidelogError) and error.code == "OVERLOADED" and not error.unknown_outcome
        assert len(shell.fetches) == LARGE_EACH


def test_a_silent_coordinator_holds_up_nothing_at_another() -> None:
    trio.run(_commit_at_two_servers)


async def _commit_at_two_servers() -> None:
    async with gateway(0) as (shell, requests):
        states = tuple(PartitionState((node,), (node,), node, 1, 1) for node in ("r1", "r2", "r1", "r2"))
        shell.have(replace(shell.topic(0), name=GROUPS, partitions=states))
        for principal in range(9):
            for id in range(5):
                asked = view(f"m{principal}")
                requests.on_message(link(principal), id, CommitOffsets(group_at(0), POSITIONS), asked)
        await trio.testing.wait_all_tasks_blocked()
        assert shell.asked == ["r1"] * LARGE
        requests.on_message(link(0), 9, CommitOffsets(group_at(1), POSITIONS), view("m0"))
        await trio.testing.wait_all_tasks_blocked()
        assert shell.asked == [*["r1"] * LARGE, "r2"]


async def test_a_fault_in_the_answer_to_one_client_ends_its_connection_and_no_other(monkeypatch: Any) -> None:
    """Its own requests end, and their places are free; those of others, and the gateway, go on."""
    async with gateway(1) as (shell, requests):
        shell.have(replace(shell.topic(0), name=GROUPS))
        hit, other = link(1), link(2)

        def fail(*_: object) -> None:
            raise RuntimeError("a bug of ours")

        kinds = (ListGroups(), Metadata(("topic-0",)), FetchOffsets("g", (TopicShare("id-0", (0,)),)))
        asked = view("mallory")
        asked.seen = fail
        for id, message in enumerate(kinds):
            requests.on_message(hit, id, message, asked)
        requests.on_message(other, 1, Metadata((GROUPS,)), view("bob"))
        await trio.testing.wait_all_tasks_blocked()
        for answer in shell.fetches:
            answer()
        await trio.testing.wait_all_tasks_blocked()
        assert hit.closed_with and {code for code, _ in hit.closed_with} == {1011} and not other.closed_with
        assert len(shell.answers) == 4 and sum(isinstance(one, Unreachable) for one in shell.answers) == 3


async def test_a_fault_in_an_answer_that_many_share_ends_neither_the_gateway_nor_the_next_answer() -> None:
    async with gateway(1) as (shell, requests):
        topics, shell.cluster = shell.cluster, None  # type: ignore[assignment]
        links = [link(1), link(2)]
        for one in links:
            requests.on_message(one, 1, ListGroups(), view())
        await trio.testing.wait_all_tasks_blocked()
        assert all(one.closed_with for one in links)
        shell.cluster = topics
        requests.on_message(link(3), 1, ListGroups(), view())
        await trio.testing.wait_all_tasks_blocked()
        assert [type(answer) for answer in shell.answers[:2]] == [Unreachable] * 2 and len(shell.answers) == 3
        assert not isinstance(shell.answers[2], TidelogError)


def bomb() -> bytes:
    """A batch of a few hundred bytes that unfolds to 8 MiB."""
    records = [NewRecord(bytes(8 << 20), timestamp_ms=1)]
    return encode_batch(records, codec="zstd")


async def test_deferred_batches_are_acked_in_order_and_others_are_served_meanwhile() -> None:
    async with running() as (cluster, client):
        answered = []
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                await client.link.call(Metadata(("orders",)), 30)
                answered.append(len(cluster.replicas["r1"].stored))

            client.produce(*(bomb(),) * 12)
            client.produce(bomb(), first_id=13)
            nursery.start_soon(ask)
        offsets = [(await client.wait_ack(id)).offset for id in range(1, 14)]
        assert offsets == list(range(13))
        assert answered[0] < 13, "a request is answered before the last of them is looked at"
