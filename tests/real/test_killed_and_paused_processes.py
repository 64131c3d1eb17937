"""Processes die and hang under load. After each fault nothing acked is lost, nothing is there twice, and the files of
all replicas are equal to the byte."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import tidelog
import trio
from load import Load, flowing
from running import HEAL_S, Cluster, in_sync, run_tidelog, until
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.cli.demo.check import digest
from tidelog.cli.local.local_cluster import SECRET
from tidelog.errors import BrokerError, TidelogError
from tidelog.feature_levels import service_hello
from tidelog.net.link import Link, connect_link
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.types import Acks
from tidelog.verify import Recorder, check, load
from tidelog.verify.run import record
from tidelog.verify.summary import summarize
from tidelog.verify.workload import Mix, Stage
from tidelog.wire.messages import ListOffset, Message, Produce, ProduceAck, Produced, ProducePart

pytestmark = pytest.mark.real

ReportGap = Callable[[str, float], None]


async def test_kill_of_a_leader(failing_cluster: Cluster, report_gap: ReportGap) -> None:
    async with flowing(failing_cluster, "leader-killed") as load:
        load.begin_fault()
        leader = await load.leader()
        failing_cluster.local.kill(leader)
        await load.more()
        assert await load.leader() != leader
        failing_cluster.local.restart(leader)
        await load.heal()
    report_gap("kill -9 of a leader", load.longest_gap())


async def test_kill_of_the_active_controller(failing_cluster: Cluster, report_gap: ReportGap) -> None:
    async with flowing(failing_cluster, "controller-killed") as load:
        load.begin_fault()
        active = (await load.log.cluster.quorum()).active
        failing_cluster.local.kill(active)
        await load.log.topics.create("made-by-the-next-controller", replication_factor=3)
        assert (await load.log.cluster.quorum()).active != active
        await load.more()
        failing_cluster.local.restart(active)
        await load.heal()
    report_gap("kill -9 of the active controller", load.longest_gap())


async def test_kill_of_a_gateway(failing_cluster: Cluster, report_gap: ReportGap) -> None:
    async with flowing(failing_cluster, "gateway-killed") as load:
        load.begin_fault()
        failing_cluster.local.kill("g1")  # the one that producer and consumer use
        await load.more()
        failing_cluster.local.restart("g1")
        await load.heal()
    report_gap("kill -9 of the clients' gateway", load.longest_gap())


async def test_stop_of_a_gateway(failing_cluster: Cluster) -> None:
    """SIGTERM: it lets its clients go when they have their acks, and ends well."""
    await failing_cluster.local.wait_ready()  # an earlier test may just have started it
    async with flowing(failing_cluster, "gateway-stopped") as load:
        gateway = failing_cluster.local.get("g1").pid
        os.kill(gateway, signal.SIGTERM)
        ended = await trio.to_thread.run_sync(os.waitid, os.P_PID, gateway, os.WEXITED | os.WNOWAIT)
        assert ended is not None and (ended.si_code, ended.si_status) == (os.CLD_EXITED, 0)
        failing_cluster.local.terminate("g1")  # which reaps it
        await load.more()
        failing_cluster.local.restart("g1")
        await load.heal()


async def test_zombie_leader_serves_nobody(failing_cluster: Cluster, report_gap: ReportGap) -> None:
    """The leader is stopped until its session is over. What it finds in its sockets when it runs again, sent in its
    leader epoch, it refuses, whatever the acks."""
    async with flowing(failing_cluster, "leader-paused") as load:
        before = (await load.log.topics.describe(load.topic)).partitions[0]
        leader = failing_cluster.local.get(before.leader)
        acks: dict[int, ProduceAck] = {}
        answers: list[Message | TidelogError] = []

        def on_message(_link: Link, _id: int | None, message: Message) -> None:
            assert isinstance(message, Produced)
            acks.update({ack.id: ack for ack in message.acks})

        async def answered() -> bool:
            return len(acks) == 2 and len(answers) == 1

        hello = service_hello("gateway", "probe", failing_cluster.local.cluster)
        secret = (failing_cluster.local.folder / SECRET).read_bytes().strip()
        async with connect_link(WebSocketTransport(secret=secret), leader.url, hello, on_message) as link:
            load.begin_fault()
            failing_cluster.local.pause(leader.id)
            try:
                await until(lambda: is_fenced(load, leader.id))
                await load.more()
                batch = encode_batch([NewRecord(b"lost", None, 0)])
                for wanted in Acks.LEADER, Acks.ALL:
                    part = ProducePart(
                        int(wanted), load.topic_id, 0, int(wanted), 5_000, len(batch), before.leader_epoch
                    )
                    link.post(Produce((part,), batch))
                latest = ListOffset(load.topic_id, 0, "latest", leader_epoch=before.leader_epoch)
                link.start_call(latest, HEAL_S, answers.append)
            finally:
                failing_cluster.local.resume(leader.id)
            await until(answered)
        assert [acks[int(a)].error is not None for a in (Acks.LEADER, Acks.ALL)] == [True, True], acks
        assert isinstance(answers[0], BrokerError), answers
        await load.heal()
    report_gap("SIGSTOP of a leader until its session ended", load.longest_gap())


async def is_fenced(load: Load, node: str) -> bool:
    """The controller ended the server's session."""
    return any(server.node == node and server.fenced for server in (await load.log.cluster.status()).servers)


async def test_C1_leader_and_follower_die_together(failing_cluster: Cluster, report_gap: ReportGap) -> None:
    async with flowing(failing_cluster, "two-killed") as load:
        mark = max(offset for partition, offset in load.acked if partition == 0)
        await load.more()
        replicas = (await load.log.topics.describe(load.topic)).partitions[0].replicas
        leader = await load.leader()
        follower, survivor = (node for node in replicas if node != leader)
        load.begin_fault()
        failing_cluster.local.kill(leader, follower)

        async def survivor_leads() -> bool:
            partitions = (await load.log.topics.describe(load.topic)).partitions
            return all((p.leader, p.isr) == (survivor, (survivor,)) for p in partitions)

        await until(survivor_leads)
        async with failing_cluster.connect() as log:
            async with log.producer(load.topic, tidelog.ProducerOptions(idempotent=False)) as producer:
                with pytest.raises(BrokerError) as refused:
                    await producer.send(b"one is too few", partition=0)
            assert (refused.value.code, refused.value.unknown_outcome) == ("NOT_ENOUGH_REPLICAS", False)
            acked = len(load.acked)
            read = [r async for r in log.consume(load.topic, start="earliest", end={0: mark}, partitions=[0])]
        assert [digest(r.key, r.value) for r in read] == [load.acked[0, offset] for offset in range(mark)]
        assert len(load.acked) == acked, "nothing is acked while one replica is in sync"
        failing_cluster.local.restart(leader)
        failing_cluster.local.restart(follower)
        await load.heal()
    report_gap("leader and a follower killed together, then restarted", load.longest_gap())


async def test_kill_of_everything_at_once(failing_cluster: Cluster, report_gap: ReportGap) -> None:
    async with flowing(failing_cluster, "all-killed") as load:
        await load.more(200)
        load.begin_fault()
        failing_cluster.local.kill(*(process.id for process in failing_cluster.local.processes))
        failing_cluster.local.start()
        await load.heal()
    report_gap("kill -9 of all eight processes, then restarted", load.longest_gap())


async def test_C11_every_process_is_killed_in_turn(failing_cluster: Cluster, report_gap: ReportGap) -> None:
    async with flowing(failing_cluster, "killed-in-turn") as load:
        topics = {(topic.topic_id, topic.name) for topic in await load.log.topics.list()}
        load.begin_fault()
        for process in failing_cluster.local.processes:
            failing_cluster.local.kill(process.id)
            await load.more(10)
            failing_cluster.local.restart(process.id)
            await load.heal()
        assert {(topic.topic_id, topic.name) for topic in await load.log.topics.list()} == topics
    report_gap("kill -9 of each of eight processes in turn", load.longest_gap())


async def test_a_history_recorded_while_a_leader_is_killed_is_sound_until_a_record_is_edited(
    failing_cluster: Cluster, tmp_path: Path
) -> None:
    stages: list[Stage] = []
    file = tmp_path / "run"
    with Recorder(file, patience_s=60.0) as recorder:
        async with failing_cluster.connect() as log:
            topic = await log.topics.create("verified", partitions=2, replication_factor=3)

            async def kill_and_restart() -> None:
                counts = stages[0].counts
                await until(lambda: _reached(counts, ok=60, read=100, commits=2, transactions=2))
                leader = (await log.topics.describe(topic.name)).partitions[0].leader
                recorder.add_note(f"kill -9 {leader}")
                failing_cluster.local.kill(leader)
                acked = counts["ok"]
                await until(lambda: _reached(counts, ok=acked + 60))
                failing_cluster.local.restart(leader)
                await until(lambda: in_sync(log, topic.name))

            undone = await record(
                recorder, topic, lambda number: failing_cluster.connect(), Mix(3, 1, 1, 2, 2), kill_and_restart,
                on_stage=lambda what, stage: stages.append(stage),
            )  # fmt: skip
    assert undone == []
    recording = load(file)
    assert check(recording.history) == []
    summary = summarize(recording)
    assert summary.complete and summary.drained == 2
    assert summary.replicas_compared == 6
    assert summary.fresh > 0 and summary.conditional > 0
    assert summary.transactions["committed"] > 0
    assert recording.history.healthy, "it was seen that the cluster was well"
    assert recording.history.committed, "the group has come somewhere"

    lines = file.read_text().splitlines()
    at = next(at for at, line in enumerate(lines) if '"op":"drain"' in line and json.loads(line)["rows"])
    lines[at] = lines[at].replace(json.loads(lines[at])["rows"][0][1], "edited", 1)
    file.write_text("\n".join(lines) + "\n")
    done = run_tidelog("verify", "check", "--json", str(file))
    assert done.returncode == 1, done.stderr.decode()
    (told,) = json.loads(done.stdout)
    assert {finding["kind"] for finding in told["findings"]} == {"conflict"}
    assert "edited" in told["findings"][0]["text"]


async def _reached(counts: dict[str, int], **wanted: int) -> bool:
    return all(counts[name] >= least for name, least in wanted.items())
