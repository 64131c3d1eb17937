"""``tidelog doctor``: each thing that can be wrong with a cluster has a level and a next step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.fake_gateway import FakeCluster
from support.gateway_thread import served
from tidelog.captures import Capture
from tidelog.cli.explain.disk_growth import Growth, growth_between, keeps_everything, record_bytes
from tidelog.cli.explain.doctor import limits_in
from tidelog.cli.explain.findings.diagnosis import examine
from tidelog.cli.explain.findings.finding import NOTE, PROBLEM, WARNING
from tidelog.cli.explain.findings.snapshot import ClusterSnapshot, WaitingReaders
from tidelog.cli.explain.retention_waits import AwaitedGroup, KeptForGroup, kept_in
from tidelog.cli.main import NEXT_STEP, main
from tidelog.errors import refuse
from tidelog.net.link import Link
from tidelog.runtime.metrics import MetricsPage, metrics_answer
from tidelog.sansio.counters import Sample
from tidelog.types import TopicConfig
from tidelog.wire.messages import (
    ControllerInfo,
    DescribeFeatures,
    DescribeMetrics,
    DescribeQuorum,
    DifferingCopies,
    FeaturesAnswer,
    HistoryEntry,
    Message,
    MetadataAnswer,
    PartitionInfo,
    ProcessLevels,
    QuorumAnswer,
    ServerInfo,
    StableOffset,
    TopicInfo,
    TransactionInfo,
    UnreadablePlace,
)
from tidelog_gateway.observability.metrics import HELD, LIMIT, METRICS
from tidelog_replica.observability.metrics import METRICS as OF_REPLICA
from tidelog_replica.observability.metrics import WAIT_BYTES, WAIT_SHARE

SERVERS = tuple(ServerInfo(f"r{n}", f"ws://r{n}", n, False) for n in (1, 2, 3))
CONTROLLERS = tuple(ControllerInfo(f"c{n}", f"ws://c{n}", "follower", match=9) for n in (1, 2, 3))
QUORUM = QuorumAnswer("c1", 1, 9, (replace(CONTROLLERS[0], role="leader"), *CONTROLLERS[1:]))
WHOLE = PartitionInfo(0, ("r1", "r2", "r3"), ("r1", "r2", "r3"), "r1", 1, 1)
CONFIG = TopicConfig(min_insync_replicas=2).texts()


def view(*partitions: PartitionInfo) -> ClusterSnapshot:
    """A cluster of three and three, with one topic."""
    chosen = tuple(replace(p, partition=n) for n, p in enumerate(partitions or (WHOLE,)))
    return ClusterSnapshot(MetadataAnswer("c", 1, (TopicInfo("id", "orders", CONFIG, chosen),), SERVERS), QUORUM)


def with_controller(**changes: object) -> ClusterSnapshot:
    changed = replace(QUORUM.controllers[2], **changes)  # type: ignore[arg-type]
    return replace(view(), quorum=replace(QUORUM, controllers=(*QUORUM.controllers[:2], changed)))


def with_server(**changes: object) -> ClusterSnapshot:
    seen = view()
    servers = (*SERVERS[:2], replace(SERVERS[2], **changes))  # type: ignore[arg-type]
    return replace(seen, metadata=replace(seen.metadata, servers=servers))


def uneven(*leaders: str) -> ClusterSnapshot:
    """Servers that lead so."""
    return view(*(replace(WHOLE, leader=leader) for leader in leaders))


def with_metric(name: str, value: float) -> ClusterSnapshot:
    return replace(view(), metrics={"r1": {f"tidelog_replica_{name}": value}})


def with_levels(level: int, **newest: int) -> ClusterSnapshot:
    """Processes that understand levels up to these; 0: not in touch."""
    processes = tuple(ProcessLevels("replica", node, min(n, 1), n) for node, n in newest.items())
    return replace(view(), features=FeaturesAnswer(level, processes))


def waiting(age_s: int, transaction: TransactionInfo | None, epoch: int = 3) -> ClusterSnapshot:
    return replace(
        view(), waits=(WaitingReaders("orders/0", "r1", StableOffset(17, 4711, epoch, age_s * 1000), transaction),)
    )


def in_state(state: str, staged: str = "") -> TransactionInfo:
    return TransactionInfo("billing", state, 4711, 3, staged)


def test_a_whole_cluster_gives_nothing_to_say() -> None:
    assert examine(view()) == []
    assert examine(with_metric("disk_free_bytes", 50 << 30)) == []
    assert examine(with_metric("disk_free_bytes", 0)) == [], "not known"
    seen = replace(view(), versions={"r1": "1.0", "r2": "1.0"}, clocks={"r1": 0.4, "r2": -1.0}, lags={"a": (1, 900)})
    assert examine(seen) == []
    assert examine(with_levels(2, r1=2, r2=2, r3=0)) == []
    assert examine(uneven("r1", "r1", "r1", "r2")) == [], "few partitions cannot be even"


@pytest.mark.parametrize(
    ("seen", "level", "words", "step"),
    [
        (replace(view(), quorum=None), PROBLEM, "no active controller", "majority"),
        (replace(view(), quorum=replace(QUORUM, active="")), PROBLEM, "no active controller", "majority"),
        (with_controller(role="unknown"), WARNING, "do not answer: c3; no other may fail", "controllers remove"),
        (with_controller(lost=True), PROBLEM, "c3 lost its store", "controllers add c3 ws://c3"),
        (with_controller(rolled_back=True), PROBLEM, "c3 runs on an old copy of its disk: waits", "others running"),
        (with_controller(rolled_back=True, refill_to=40), PROBLEM, "being refilled, at index 9 of 40", "others"),
        (
            replace(view(), quorum=replace(QUORUM, active="", disks_needed=("c2",))),
            PROBLEM,
            "without the disks of c2",
            "rescue",
        ),
        (with_controller(voter=False), WARNING, "c3 has no vote yet", "controllers add c3 ws://c3"),
        (with_server(fenced=True), PROBLEM, "r3 is down", "Start it"),
        (with_server(draining=True), NOTE, "r3 is drained", "servers resume r3"),
        (with_metric("disk_full", 1), PROBLEM, "disk of r1 is full", "Make room"),
        (with_metric("disk_free_bytes", 5 << 20), WARNING, "r1 has 5 MiB", "Make room"),
        (with_metric("session_lapsed_seconds", 7.2), WARNING, "no controller has answered r1 for 7 s", "network"),
        (with_metric("unconfirmed_partitions", 3), PROBLEM, "r1 refuses the clients of 3 partitions", "r1 names"),
        (with_metric("damaged_partitions", 2), PROBLEM, "r1 has 2 damaged logs", "operations.md"),
        (view(replace(WHOLE, leader="")), PROBLEM, "orders/0: no leader", "why orders/0"),
        (view(replace(WHOLE, isr=("r1",))), PROBLEM, "they are refused", "why orders/0"),
        (view(replace(WHOLE, isr=("r1", "r2"))), WARNING, "not in sync: r3, catching up", "partitions list"),
        (view(replace(WHOLE, learners=("r9",))), WARNING, "learners are down: r9", "topics learners orders/0"),
        (view(replace(WHOLE, paused=True, leader="")), NOTE, "paused", "topics resume orders"),
        (view(replace(WHOLE, read_only=True)), NOTE, "read-only", "set-readonly orders --off"),
        (view(replace(WHOLE, target=("r1", "r2"))), NOTE, "being reassigned", "partitions reassignments"),
        (with_levels(1, r1=2, r2=1, g1=2), NOTE, "level 1 and not 2: r2", "Finish the upgrade"),
        (
            replace(view(), heirs=("olga", "*")),
            WARNING,
            "make tokens and rules: olga, *",
            "tidelog acls drop-inherited",
        ),
        (with_levels(1, r1=2, r2=2, r3=0), NOTE, "at feature level 1, and all its processes understand 2", "raise"),
        (
            replace(view(), versions={"r1": "1.0", "r2": "1.1"}),
            NOTE,
            "versions run: r2 runs 1.1, the others 1.0",
            "upgrade",
        ),
        (replace(view(), clocks={"r1": 0.1, "r2": 0.0, "c1": -9.0}), WARNING, "c1 is 9 s behind those", "keep time"),
        (replace(view(), clocks={"r1": 5.0, "r2": 5.1, "c1": 5.2}), NOTE, "machine is 5 s behind", "timestamps"),
        (
            uneven(*["r1"] * 9, *["r2"] * 2, "r3"),
            NOTE,
            "lead uneven numbers of partitions: r1 9, r2 2, r3 1",
            "transfer",
        ),
        (replace(view(), lags={"billing": (0, 7)}), NOTE, "billing has no members, and is 7", "describe billing"),
        (
            waiting(300, None),
            PROBLEM,
            "orders/0: readers of what is committed have waited at 17 for at least 5 min",
            "settle orders/0 --producer 4711 --epoch 3 --commit",
        ),
        (waiting(300, None), PROBLEM, "of producer 4711 epoch 3 that no coordinator has", "transactions.md"),
        (waiting(300, None, -1), WARNING, "of producer 4711 is written, and not committed", "why orders/0"),
        (waiting(20, in_state("open")), NOTE, "the transaction of billing (producer 4711 epoch 3)", "abort billing'"),
        (waiting(90, in_state("open")), WARNING, "for at least 90 s: the transaction of billing", "abort billing'"),
        (waiting(90, in_state("prepared", "7-1")), WARNING, "staged transaction of billing", "billing --staged 7-1'"),
        (waiting(20, in_state("committing")), PROBLEM, "is committing, and r1 has not taken", "log of r1"),
        (replace(view(), lags={"billing": (2, 20_000)}), WARNING, "20000 records behind, with 2", "describe billing"),
    ],
)
def test_each_finding_has_a_level_and_a_next_step(seen: ClusterSnapshot, level: str, words: str, step: str) -> None:
    first = examine(seen)[0]
    assert (first.level, words in first.what, step in first.next_step) == (level, True, True), first


DOUBTFUL = HistoryEntry(5, 2, 1, "tail_doubtful", "tail_doubtful", evidence={"node": "r1", "start": "3", "end": "9"})
LOST = replace(DOUBTFUL, event="records_possibly_lost", cause="doubtful_tail")
AWAITING = replace(
    DOUBTFUL, event="awaiting", cause="rescue", evidence={"reported": "r1", "awaited": "r2 r3", "down": "r3"}
)
OFFLINE = replace(WHOLE, leader="", isr=("r1",), elr=("r2",))


@pytest.mark.parametrize(
    ("partition", "entry", "level", "words", "step"),
    [
        (
            replace(OFFLINE, doubtful=("r1",)),
            DOUBTFUL,
            PROBLEM,
            "doubtful: r1 from offset 3 on; waits for r2, which may hold what is missing",
            "orders unclean_election=true' cuts the tail",
        ),
        (
            replace(OFFLINE, doubtful=("r1", "r2")),
            DOUBTFUL,
            PROBLEM,
            "doubtful: r1 from offset 3 on, r2; the other replicas are asked for what is missing",
            "Start the servers",
        ),
        (
            replace(WHOLE, leader="r2", doubtful=("r1",)),
            DOUBTFUL,
            WARNING,
            "doubtful: r1 from offset 3 on; gives up its tail for that of r2",
            "why orders/0",
        ),
        (WHOLE, LOST, WARNING, "possibly lost: offsets 3 up to 9, at", "why orders/0"),
        (WHOLE, replace(LOST, event="records_lost"), WARNING, "lost: offsets 3 up to 9, at", "why orders/0"),
        (
            replace(WHOLE, leader="", sealing=True),
            AWAITING,
            PROBLEM,
            "sealed by a rescue: reported: r1; waiting for one or more of r2 r3; down: r3",
            "have not reported",
        ),
    ],
)
def test_a_doubtful_tail_in_a_history_is_found(
    partition: PartitionInfo, entry: HistoryEntry, level: str, words: str, step: str
) -> None:
    found = examine(replace(view(partition), histories={("orders", 0): (entry,)}))
    (one,) = [finding for finding in found if f"orders/0: {words}" in finding.what]
    assert (one.level, step in one.next_step) == (level, True), one


def test_an_earlier_entry_of_a_history_is_no_finding() -> None:
    histories = {("orders", 0): (DOUBTFUL, AWAITING)}
    assert examine(replace(view(), histories=histories)) == []


def test_the_clusters_own_topics_get_the_replicas_that_there_were_no_servers_for() -> None:
    alone = replace(WHOLE, replicas=("r2",), isr=("r2",), leader="r2")
    seen = view(alone, replace(alone, replicas=("r2", "r1"), isr=("r2", "r1")), WHOLE)
    own = replace(
        seen.metadata, topics=(replace(seen.metadata.topics[0], name="__groups", config=TopicConfig().texts()),)
    )
    first, second = examine(replace(seen, metadata=own))
    assert (first.level, "__groups/0: made when there were fewer servers" in first.what) == (NOTE, True)
    assert "partitions reassign __groups/0 r2,r1,r3'" in first.next_step
    assert "partitions reassign __groups/1 r2,r1,r3'" in second.next_step
    few = replace(own, servers=SERVERS[:1])
    assert not any("fewer servers" in finding.what for finding in examine(replace(seen, metadata=few)))


def test_one_finding_covers_many_partitions_and_the_worst_finding_comes_first() -> None:
    behind = replace(WHOLE, isr=("r1", "r2"))
    lost = replace(WHOLE, isr=("r3",), leader="")
    found = examine(view(*[behind] * 7, lost))
    assert [finding.level for finding in found] == [PROBLEM, WARNING, WARNING, NOTE]
    assert (found[0].about, found[1].because_of) == (("r1", "r2", "r3", "orders/7"), "partition-without-leader")
    assert "orders/0, orders/1, orders/2, orders/3, orders/4 and 2 more: not in sync: r3" in found[2].what


def test_a_gateway_that_does_not_answer_is_a_finding() -> None:
    done = CliRunner().invoke(main, ["doctor", "--json", "--gateway", "ws://127.0.0.1:1"])
    metrics_answer = json.loads(done.stdout)
    assert (done.exit_code, metrics_answer["healthy"]) == (1, False)
    assert (
        metrics_answer["findings"][0]["level"] == PROBLEM
        and "cluster up" in metrics_answer["findings"][0]["next_step"]
    )


def barred(cluster: FakeCluster, code: str) -> None:
    """Let the gateways of a cluster refuse its clients what needs the right to describe the cluster."""
    answer = cluster.answer

    def refusing(link: Link, message: Message) -> Message:
        if isinstance(message, (DescribeQuorum, DescribeFeatures, DescribeMetrics)):
            raise refuse(code, "low may not describe cluster; 'tidelog acls add low describe cluster' would allow it")
        return answer(link, message)

    cluster.answer = refusing  # type: ignore[method-assign]


@pytest.mark.parametrize("code", ["FORBIDDEN", "UNAUTHENTICATED"])
@pytest.mark.parametrize("shape", [(), ("-o", "json")])
def test_without_the_right_to_look_it_says_so_and_names_no_cause(code: str, shape: tuple[str, ...]) -> None:
    with served() as (cluster, url):
        barred(cluster, code)
        done = CliRunner().invoke(main, ["doctor", *shape, "--gateway", url])
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"[{code}] low may not describe cluster" in done.stderr and NEXT_STEP[code] in done.stderr


def test_a_gateway_without_the_right_to_look_is_a_finding_beside_one_that_answers() -> None:
    with served() as (cluster, url), served() as (other, barring):
        cluster.topics.clear()
        barred(other, "FORBIDDEN")
        done = CliRunner().invoke(main, ["doctor", "-o", "json", "--gateway", url, "--gateway", barring])
    found = {one["cause"]: one["what"] for one in json.loads(done.stdout)["findings"]}
    assert f"gateway {barring}: [FORBIDDEN]" in found["gateway-unreachable"]


def test_a_capture_without_the_right_to_look_has_no_diagnosis(tmp_path: Path) -> None:
    file = tmp_path / "c.capture"
    with served() as (cluster, url):
        barred(cluster, "FORBIDDEN")
        done = CliRunner().invoke(main, ["capture", "take", str(file), "--gateway", url])
    assert done.exit_code == 0 and "missing: doctor: [FORBIDDEN]" in done.stderr
    assert "doctor" not in Capture.load(file).parts


def test_the_report_has_findings_and_what_was_seen() -> None:
    with served() as (cluster, url):
        cluster.topics.clear()
        done = CliRunner().invoke(main, ["doctor", "--json", "--gateway", url])
        metrics_answer = json.loads(done.stdout)
        assert (
            done.exit_code == 1
            and metrics_answer["seen"]["cluster"] == "fake"
            and metrics_answer["seen"]["protocol"] == 1
        )
        fields = {"level", "what", "next_step", "cause", "about", "evidence", "because_of"}
        assert all(set(finding) == fields for finding in metrics_answer["findings"])
        assert "no replica server is live" in [finding["what"] for finding in metrics_answer["findings"]]


@pytest.mark.parametrize(
    ("free_gib", "level", "words"),
    [
        (1, WARNING, "about 17 minutes"),
        (500, WARNING, "about 6 days"),
        (2000, NOTE, "about 24 days"),
        (9000, None, ""),
    ],
)
def test_it_says_how_long_until_a_disk_is_full_where_nothing_is_ever_deleted(
    free_gib: int, level: str | None, words: str
) -> None:
    growth = Growth({"r1": 1 << 20, "r3": 1 << 20}, ("orders", "events"))
    free = {"tidelog_replica_disk_free_bytes": float(free_gib << 30)}
    found = examine(replace(view(), growth=growth, metrics={"r1": free}))
    assert [one.level for one in found] == [level] * (level is not None), "of r3 it is not known how much is free"
    assert all(words in one.what and "no retention is set for orders, events" in one.what for one in found)
    assert all("configure orders retention_ms" in one.next_step for one in found)


def test_the_rate_of_a_disk_is_that_of_its_partitions_of_topics_that_keep_everything() -> None:
    def topic(name: str, ends: tuple[int, int], **config: object) -> TopicInfo:
        parts = (WHOLE, replace(WHOLE, partition=1, replicas=("r1",), learners=("r4",)))
        parts = tuple(replace(p, high_watermark=end) for p, end in zip(parts, ends, strict=True))
        return TopicInfo(name, name, replace(TopicConfig(), **config).texts(), parts)  # type: ignore[arg-type]

    before, after = topic("a", (10, 20)), topic("a", (40, 80))
    assert growth_between([before], [after], 3.0, 100.0) == Growth(
        {"r1": 3000.0, "r2": 1000.0, "r3": 1000.0, "r4": 2000.0}, ("a",)
    )
    unknown = [topic("a", (-1, 20))]
    assert growth_between(unknown, unknown, 3.0, 100.0) == growth_between([before], unknown, 3.0, 100.0) == Growth()
    assert keeps_everything(before)
    for setting in ({"retention_ms": 5}, {"retention_bytes": 5}, {"retention_records": 5}, {"cleanup": "compact"}):
        assert not keeps_everything(topic("a", (1, 1), **setting))
    produced = {"tidelog_replica_produced_bytes_total": 600.0, "tidelog_replica_produced_records_total": 3.0}
    assert record_bytes({"r1": produced, "r2": produced, "gateway": {}}) == 200.0 and record_bytes({}) == 0.0


def test_a_server_that_the_gateway_limits_is_named_with_its_rate() -> None:
    def page(*samples: Sample) -> str:
        return metrics_answer(MetricsPage(METRICS, lambda: samples)).page

    limited = limits_in(page((LIMIT, ("r1",), 1572864.0), (LIMIT, ("r2",), 3145728.5), (HELD, (), 7.0)))
    assert limited == {"r1": 1572864.0, "r2": 3145728.5}
    one, two = examine(replace(view(), limits=limited))
    assert (one.level, two.level) == (WARNING, WARNING)
    assert "r1 is slow: the gateway sends it 1.5 MiB/s at most" in one.what and "disk" in one.next_step
    assert "r2 is slow" in two.what
    assert limits_in(page((HELD, (), 7.0))) == {}


def test_batches_that_no_reader_can_decode_are_named_with_their_places() -> None:
    places = [UnreadablePlace("id", n, 10 * n, 10 * n + 3, 7) for n in range(7)]
    counted = {name: {"tidelog_replica_unreadable_batches": 9.0} for name in ("r1", "r2")}
    (one,) = examine(replace(view(), unreadable=places[1:2], metrics=with_metric("unreadable_batches", 1).metrics))
    assert (one.level, "consumers stop there" in one.what) == (WARNING, True)
    assert "orders/1 offsets 10 to 13 (producer id 7);" in one.what and "on_unreadable" in one.next_step
    (many,) = examine(replace(view(), unreadable=places, metrics=counted))
    assert "orders/4 offsets 40 to 43 (producer id 7) and 4 more;" in many.what


def test_copies_that_differ_are_named_until_they_do_not() -> None:
    odd = DifferingCopies("id", 0, ("r3",), ("r1", "r2", "r3"), 7, 12)
    unknown = DifferingCopies("id", 0, (), ("r1", "r3"), 0, 20)
    (finding,) = examine(replace(view(), differing={unknown, odd}))
    assert finding.level == PROBLEM and "orders/0: the copy on r3 is not what r1 and r2 hold" in finding.what
    assert "between offsets 7 and 12" in finding.what and "verify replicas orders/0" in finding.next_step
    (finding,) = examine(replace(view(), differing={unknown}))
    assert finding.level == PROBLEM and "the copies on r1 and r3 differ" in finding.what
    assert "No majority" in finding.next_step
    (finding,) = examine(replace(view(), differing={replace(odd, below=True), odd}))
    assert "the copy on r3 is not what r1 and r2 hold" in finding.what and "below offset 7" in finding.what
    assert "by itself" not in finding.next_step and "made again" in finding.next_step
    (finding,) = examine(replace(view(), differing={replace(unknown, start=4, below=True)}))
    assert "below offset 4" in finding.what and "No majority" in finding.next_step


def test_what_retention_keeps_for_a_group_is_found_when_half_of_the_bound_is_used() -> None:
    def page(share: float) -> str:
        labels = ("orders", "0", "archive")
        samples = ((WAIT_BYTES, labels, 3 << 20), (WAIT_SHARE, labels, share))
        return metrics_answer(MetricsPage(OF_REPLICA, lambda: samples)).page

    kept = kept_in([page(0.6), ""])
    assert kept == (KeptForGroup("orders", 0, "archive", 3 << 20, 0.6),)
    (found,) = examine(replace(view(), kept=kept))
    assert found.level == WARNING and "orders/0: retention keeps 3.0 MiB for group archive" in found.what
    assert "60% of the bound" in found.what and "configure orders" in found.next_step
    assert not examine(replace(view(), kept=kept_in([page(0.49)])))


def test_what_was_deleted_before_a_group_had_read_it_is_found_and_a_group_without_a_position_too() -> None:
    def group(partition: int, position: int, error: str = "") -> AwaitedGroup:
        return AwaitedGroup("orders", partition, "archive", position, 100, 500, error)

    assert not examine(replace(view(), awaited=(group(0, 100), group(1, 500), group(2, -1, "not known"))))
    lost, none = examine(replace(view(), awaited=(group(0, 60), group(1, -1), group(2, -1))))
    assert (lost.level, none.level) == (WARNING, NOTE)
    assert lost.what == "orders/0: offsets 60 to 99 are deleted, and archive has not read them"
    assert none.what == "orders/1, orders/2: retention waits for group archive, which has no position"
