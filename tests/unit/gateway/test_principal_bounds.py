"""Bounds per principal: each is reached by its own principal, frees what ends, and leaves the others alone. Tests
``requests/requests.py``, ``metadata/rules/owners.py`` and ``coordinators/tally.py``."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cbor2
import pytest
import trio
from support.applied_commands import Log
from tidelog.errors import TidelogError
from tidelog.feature_levels import OWNERS
from tidelog.sansio.effects import Answer
from tidelog.types import Quota
from tidelog.wire.messages import (
    AbortStaged,
    BeginTransaction,
    CommitOffsets,
    CommitStaged,
    CreateTopic,
    DeleteGroup,
    Done,
    EndTransaction,
    EnrolPartition,
    GroupPosition,
    GrowTopic,
    InitTaskProducer,
    JoinGroup,
    LeaveGroup,
    Message,
    StagedCommitted,
    Subscribe,
    TopicCreated,
    TransactionBegun,
    Unsubscribe,
)
from tidelog_controller.config import OwnerSettings
from tidelog_controller.metadata.commands import AddPartitions, AddTopic, RegisterServer, RemoveTopic, encode_command
from tidelog_controller.metadata.rules.owners import bounded_partitions, bounded_topic
from tidelog_controller.metadata.rules.reassignment import plan_move
from tidelog_controller.metadata.rules.topics import plan_topic
from tidelog_controller.metadata.state_machine import Replicated, decode_state, encode_state
from tidelog_gateway.config import GatewayConfig
from tidelog_gateway.limits.quotas import Quotas
from tidelog_gateway.requests.requests import ClientRequests
from tidelog_gateway.settings import SubscriptionSettings
from tidelog_replica.config import GroupSettings, TransactionSettings
from tidelog_replica.coordinators.groups.coordinator import GroupCoordinator
from tidelog_replica.coordinators.groups.group import Topic, Topics
from tidelog_replica.coordinators.groups.records import Entry, StoredGroups
from tidelog_replica.coordinators.transactions.coordinator import TransactionCoordinator
from tidelog_replica.coordinators.transactions.records import StoredTransactions
from tidelog_replica.counters import ReplicaCounts

from unit.gateway.consume.test_subscriptions import Bench

SETTINGS = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"


def over(answer: Message | TidelogError | None, setting: str, principal: str = "mallory") -> bool:
    """Whether it is the refusal that names this setting."""
    if not isinstance(answer, TidelogError):
        return False
    assert answer.code in ("LIMIT_EXCEEDED", "QUOTA_EXCEEDED"), answer
    assert answer.detail["setting"] == setting and answer.detail["principal"] == principal
    assert f"{setting} = {answer.detail['limit']}" in answer.message
    assert f"| `{setting}` |" in SETTINGS.read_text(), "there is such a setting"
    return True


def test_a_gateway_that_may_have_more_clients_accepts_more_connections() -> None:
    gateway = GatewayConfig(client_max_connections=20_000)
    assert gateway.max_connections > gateway.client_max_connections


def test_the_defaults_leave_room_for_others() -> None:
    gateway = GatewayConfig()
    assert gateway.principal_max_connections < gateway.client_max_connections
    assert gateway.principal_max_subscriptions < gateway.client_max_subscriptions * gateway.client_max_connections
    assert gateway.client_max_connections < gateway.max_connections
    groups, transactions = GroupSettings(), TransactionSettings()
    assert groups.principal_max_groups * 2 < groups.max_groups
    both = transactions.principal_max_applications, transactions.principal_max_open
    assert sum(both) < transactions.max_transactions


# --- at a gateway --------------------------------------------------------------------------------------------


def test_connections_of_a_principal() -> None:
    quotas = Quotas(2)
    for _ in range(2):
        assert quotas.refuse_connection("mallory") is None
        quotas.on_open("mallory")
    refused = quotas.refuse_connection("mallory")
    assert over(refused, "principal_max_connections")
    assert refused is not None and refused.retriable and refused.pause_s == 1.0, "connections end: come again"
    assert quotas.refuse_connection("alice") is None
    quotas.on_close("mallory")
    assert quotas.refuse_connection("mallory") is None


def test_a_quota_of_connections_takes_the_place_of_the_bound() -> None:
    quotas = Quotas(2)
    quotas.update([Quota("mallory", connections=3), Quota("alice", requests_s=1)], 0.0)
    for name in ("mallory", "alice"):
        for _ in range(2):
            quotas.on_open(name)
    assert quotas.refuse_connection("mallory") is None
    assert over(quotas.refuse_connection("alice"), "principal_max_connections", "alice")


def test_subscriptions_of_a_principal_over_all_its_connections() -> None:
    core = Bench(SubscriptionSettings(principal_max_subscriptions=2)).core
    for source, principal in ((1, "mallory"), (2, "mallory"), (3, "alice")):
        core.on_link_opened(source, principal)

    def answer(source: int, sub: int) -> object:
        (first, *_) = core.on_subscribe(source, 9, Subscribe(sub, "t", 0, 0, 0), 0.0)
        assert isinstance(first, Answer)
        return first.message

    assert answer(1, 1) == answer(2, 1) == Done()
    for source in (1, 2):
        assert over(answer(source, 2), "principal_max_subscriptions")  # type: ignore[arg-type]
    assert answer(3, 1) == Done()
    core.on_unsubscribe(1, 9, Unsubscribe(1))
    assert answer(2, 2) == Done()
    core.on_link_closed(2)
    assert answer(1, 1) == answer(1, 2) == Done()
    assert over(answer(1, 3), "principal_max_subscriptions")  # type: ignore[arg-type]


# --- at the coordinator of groups ----------------------------------------------------------------------------

GROUPS = GroupSettings(principal_max_groups=2, principal_max_members=3, max_groups=10)


class Groups:
    """A coordinator of groups that can begin again with what it has written."""

    def __init__(self, settings: GroupSettings = GROUPS) -> None:
        self.log: list[Entry] = []
        self.settings = settings
        self.restart()

    def restart(self) -> None:
        stored = StoredGroups()
        for key, value in self.log:
            stored.add_record(key, value)
        topics = Topics([Topic("t", "orders", 4)])
        self.core = GroupCoordinator("r1", self.settings, topics, ReplicaCounts())
        self.core.load_records(stored, 0.0)
        self.log += self.core.take_entries()

    def ask(self, message: Message) -> Any:
        answer = self.core.handle(message, 0.0, 1000)
        self.log += self.core.take_entries()
        return answer

    def commit(self, group: str, principal: str = "mallory") -> Any:
        return self.ask(CommitOffsets(group, (GroupPosition("t", 0, 7),), principal=principal))

    def join(self, group: str, member: str, principal: str = "mallory", instance: str = "") -> Any:
        return self.ask(JoinGroup(group, member, ("orders",), instance, principal=principal))


def test_ten_thousand_commits_to_fresh_groups_leave_room_for_another_principal() -> None:
    groups = Groups(GroupSettings())
    found = [groups.commit(f"g{number}") for number in range(10_000)]
    most = GroupSettings().principal_max_groups
    assert found[:most] == [Done()] * most
    assert all(over(answer, "settings.groups.principal_max_groups") for answer in found[most:])
    assert groups.commit("billing", "alice") == Done()
    assert not isinstance(groups.join("orders", "m", "alice"), TidelogError)


def test_groups_of_a_principal_count_until_they_have_neither_members_nor_positions() -> None:
    groups = Groups()
    assert groups.commit("a") == Done()
    groups.join("b", "m")
    assert over(groups.commit("c"), "settings.groups.principal_max_groups")
    assert over(groups.join("c", "m"), "settings.groups.principal_max_groups")
    assert groups.commit("a") == Done(), "what there is goes on"
    groups.restart()
    assert over(groups.commit("c"), "settings.groups.principal_max_groups"), "also at the next coordinator"
    groups.ask(LeaveGroup("b", "m"))
    assert groups.commit("c") == Done()
    assert over(groups.commit("d"), "settings.groups.principal_max_groups")
    groups.ask(DeleteGroup("a"))
    assert groups.commit("d") == Done()
    groups.core.on_topics(Topics(), 0.0)
    groups.log += groups.core.take_entries()
    groups.core.on_topics(Topics([Topic("t", "orders", 4)]), 0.0)
    assert groups.commit("e") == groups.commit("f") == Done(), "the topic of the positions was deleted"


def test_members_of_a_principal_over_all_groups() -> None:
    groups = Groups()
    for number in range(3):
        assert not isinstance(groups.join("a", f"m{number}", instance=f"i{number}"), TidelogError)
    assert over(groups.join("b", "m9"), "settings.groups.principal_max_members")
    assert not isinstance(groups.join("a", "m0", instance="i0"), TidelogError), "it is a member already"
    assert not isinstance(groups.join("a", "n0", instance="i0"), TidelogError), "it takes the place of one"
    groups.restart()
    assert over(groups.join("b", "m9"), "settings.groups.principal_max_members")
    assert not isinstance(groups.join("b", "m9", "alice"), TidelogError)
    groups.ask(LeaveGroup("a", "m1"))
    assert not isinstance(groups.join("b", "m8"), TidelogError)


def test_groups_of_an_earlier_release_count_for_nobody_and_it_can_read_those_without_an_owner() -> None:
    groups = Groups()
    for number in range(5):
        assert groups.commit(f"g{number}", "") == Done()
    assert groups.commit("a") == groups.commit("b") == Done()
    assert groups.commit("g0") == Done() and over(groups.commit("c"), "settings.groups.principal_max_groups")
    fields = {tuple(cbor2.loads(key)): cbor2.loads(value or b"\xa0") for key, value in groups.log}
    assert "principal" not in fields["group", "g0"] and fields["group", "a"]["principal"] == "mallory"


# --- at the coordinator of transactions ----------------------------------------------------------------------

TRANSACTIONS = TransactionSettings(principal_max_applications=3, principal_max_open=2)


class Transactions:
    """A coordinator of transactions that can begin again with what it has written; all of it is committed."""

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.next_id = 1
        self.restart()

    def restart(self) -> None:
        stored = StoredTransactions()
        for key, value in self.log:
            stored.add_record(key, value)
        self.core = TransactionCoordinator(TRANSACTIONS)
        self.core.load_records(stored, len(self.log), 0.0, 1000)
        self.write()

    def write(self) -> None:
        self.log += self.core.take_entries()
        self.core.on_written(len(self.log))
        self.core.on_committed(len(self.log))

    def ask(self, message: Message) -> Any:
        answer = self.core.handle(message, 0.0, 1000)
        self.write()
        return answer

    def begin(self, app: str, principal: str = "mallory", staged: str = "") -> Any:
        self.next_id += 1
        return self.ask(BeginTransaction(app, "o", staged, producer_id=self.next_id, principal=principal))

    def task(self, app: str, principal: str = "mallory") -> Any:
        return self.ask(InitTaskProducer(app, "o", 1, 0, first_id=5000, principal=principal))

    def end(self, app: str, begun: TransactionBegun) -> None:
        self.ask(EndTransaction(app, begun.producer_id, begun.producer_epoch, True))

    def tell(self) -> None:
        """All leaders have their markers."""
        for marker in self.core.take_markers(0.0):
            self.core.on_marker(marker, True, 0.0)


def test_a_transaction_counts_until_it_is_over_though_its_end_is_not_written() -> None:
    made = Transactions()
    first, second = made.begin("a"), made.begin("b")
    enrol = EnrolPartition("r1", "a", first.producer_id, 0, "t", 0)
    assert made.ask(enrol) == Done()
    assert over(made.begin("c"), "settings.transactions.principal_max_open")
    assert isinstance(made.begin("alices", "alice"), TransactionBegun)
    made.end("a", first)
    assert over(made.begin("c"), "settings.transactions.principal_max_open"), "a leader does not know how it ended"
    written = len(made.log)
    made.tell()
    assert isinstance(made.begin("d"), TransactionBegun)
    assert len(made.log) == written + 1, "the end of the first is not written yet"
    assert over(made.begin("a"), "settings.transactions.principal_max_open")
    made.end("b", second)
    assert isinstance(made.begin("b"), TransactionBegun), "it had no partitions"


def test_open_transactions_count_at_the_next_coordinator_too() -> None:
    made = Transactions()
    begun = made.begin("a", staged="one"), made.begin("a", staged="two")
    made.restart()
    assert over(made.begin("a", staged="three"), "settings.transactions.principal_max_open")
    made.ask(AbortStaged("a", ("one",)))
    made.tell()
    assert isinstance(made.begin("a", staged="three"), TransactionBegun)
    assert len({one.producer_id for one in begun}) == 2


def test_the_number_of_applications_of_a_principal_is_bounded_for_every_kind_of_first_request() -> None:
    made = Transactions()
    made.end("a", made.begin("a"))
    assert made.task("b").producer_id == 5000
    assert made.ask(CommitStaged("c", 1, (), principal="mallory")) == StagedCommitted(False)
    for _ in range(2):
        assert over(made.begin("d"), "settings.transactions.principal_max_applications")
        assert over(made.task("d"), "settings.transactions.principal_max_applications")
        empty = made.ask(CommitStaged("d", 1, (), principal="mallory"))
        assert over(empty, "settings.transactions.principal_max_applications")
        assert isinstance(made.begin("b"), TransactionBegun), "it is its own"
        made.ask(EndTransaction("b", made.next_id, 0, False))
        made.restart()
    assert made.task("alices", "alice").producer_id == 5000
    made.core.on_tick(0.0, 1000)
    made.core.on_tick(61.0, 1000 + TransactionSettings().retention_ms + 1)  # who has done nothing for long
    made.write()
    assert isinstance(made.begin("d"), TransactionBegun)


# --- at the controllers --------------------------------------------------------------------------------------

BOUNDS = OwnerSettings(principal_max_topics=2, principal_max_partitions=5)


class Metadata:
    """The metadata of a cluster with one server, by way of the log."""

    def __init__(self, level: int = OWNERS) -> None:
        self.log = Log()
        self.log.write(RegisterServer(0, "r1", "ws://r1", level=level))

    def plan(self, name: str, partitions: int = 1, principal: str = "mallory") -> AddTopic | TidelogError:
        planned = plan_topic(self.log.state, CreateTopic(name, partitions), random.Random(name), 0)
        assert isinstance(planned, AddTopic)
        return bounded_topic(self.log.state, planned, principal, BOUNDS)

    def create(self, name: str, partitions: int = 1, principal: str = "mallory") -> Any:
        planned = self.plan(name, partitions, principal)
        return planned if isinstance(planned, TidelogError) else self.log.write(planned).answer

    def grow(self, name: str, partitions: int) -> Any:
        planned = plan_move(self.log.state, GrowTopic(name, partitions), random.Random(name), 0)
        assert isinstance(planned, AddPartitions)
        bounded = bounded_partitions(self.log.state, planned, BOUNDS)
        return bounded if isinstance(bounded, TidelogError) else self.log.write(bounded).answer

    def delete(self, name: str) -> None:
        self.log.write(RemoveTopic(0, self.log.state.names[name]))


TOPICS, PARTITIONS = "settings.owners.principal_max_topics", "settings.owners.principal_max_partitions"


def test_topics_and_partitions_of_a_principal() -> None:
    metadata = Metadata()
    assert isinstance(metadata.create("a", 3), TopicCreated)
    assert over(metadata.create("b", 3), PARTITIONS)
    assert isinstance(metadata.create("b", 2), TopicCreated)
    assert over(metadata.create("c"), TOPICS)
    assert over(metadata.grow("a", 4), PARTITIONS)
    assert isinstance(metadata.create("c", 5, "alice"), TopicCreated)
    metadata.delete("a")
    assert metadata.grow("b", 5) == Done()
    assert over(metadata.create("a"), PARTITIONS)


def test_topics_that_were_planned_at_the_same_time_are_counted_when_they_are_applied() -> None:
    metadata = Metadata()
    planned = [metadata.plan(f"t{number}") for number in range(4)]
    answers = [metadata.log.write(command).answer for command in planned if isinstance(command, AddTopic)]
    assert [isinstance(answer, TopicCreated) for answer in answers] == [True, True, False, False]
    assert all(over(answer, TOPICS) for answer in answers[2:])  # type: ignore[arg-type]
    growth = plan_move(metadata.log.state, GrowTopic("t0", 4), random.Random(1), 0)
    again = plan_move(metadata.log.state, GrowTopic("t1", 4), random.Random(1), 0)
    bounded = [bounded_partitions(metadata.log.state, one, BOUNDS) for one in (growth, again)]  # type: ignore[arg-type]
    first, second = (metadata.log.write(one).answer for one in bounded if isinstance(one, AddPartitions))
    assert first == Done() and over(second, PARTITIONS)


def test_owners_outlive_a_snapshot_and_a_topic_without_one_counts_for_nobody() -> None:
    metadata = Metadata()
    for name in ("x", "y", "z"):
        assert isinstance(metadata.create(name, 9, ""), TopicCreated)
    assert metadata.grow("x", 12) == Done()
    metadata.create("a")
    again = decode_state(encode_state(Replicated(metadata.log.state))).metadata
    assert again == metadata.log.state and [owner.principal for owner in again.owners] == ["mallory"]
    metadata.delete("a")
    assert metadata.log.state.owners == ()


def test_below_its_feature_level_nothing_is_written_that_an_earlier_release_cannot_read() -> None:
    metadata = Metadata(OWNERS - 1)
    for number in range(9):
        assert isinstance(metadata.create(f"t{number}"), TopicCreated)
    written = [set(cbor2.loads(encode_command(command))) for command in metadata.log.commands]
    assert not set().union(*written) & {"owner", "max_topics", "max_partitions"}
    assert b"owners" not in encode_state(Replicated(metadata.log.state))


# --- who asks ------------------------------------------------------------------------------------------------


async def passed_on(asked: list[Message], level: int) -> list[Message]:
    """What a gateway makes of the requests of ``mallory``."""
    found: list[Message] = []
    async with trio.open_nursery() as nursery:
        cluster = SimpleNamespace(image=SimpleNamespace(level=level), topic_named=lambda name: None)
        shell: Any = SimpleNamespace(cluster=cluster, nursery=nursery, begin_request=lambda *_: lambda answer: None)
        requests = ClientRequests(shell, "g")

        async def note(message: Message, view: object, turn: object) -> Message:
            found.append(message)
            return Done()

        requests._answer = note  # type: ignore[assignment, method-assign]
        view: Any = SimpleNamespace(
            principal="mallory", tenant=("mallory", 0), seen=lambda answer: answer, on_answer=lambda *_: None
        )
        link: Any = SimpleNamespace(peer=SimpleNamespace(node="n"), remote="r", source=1)
        for message in asked:
            requests.on_message(link, 1, message, view)
    return found


@pytest.mark.parametrize("level", [OWNERS - 1, OWNERS])
def test_the_gateway_sets_the_principal_of_a_request_whatever_the_client_sends(level: int) -> None:
    lie = {"principal": "alice"}
    asked: list[Message] = [JoinGroup("g", "m", (), **lie), CommitOffsets("g", (), **lie)]  # type: ignore[arg-type]
    asked += [CommitStaged("a", 1, (), **lie), BeginTransaction("a", "o", **lie)]  # type: ignore[arg-type]
    asked += [InitTaskProducer("a", "o", 1, 0, **lie), CreateTopic("t", **lie)]  # type: ignore[arg-type]
    found = trio.run(passed_on, asked, level)
    assert {one.principal for one in found} == {"mallory" if level >= OWNERS else ""}  # type: ignore[attr-defined]
    assert len(found) == len(asked)
