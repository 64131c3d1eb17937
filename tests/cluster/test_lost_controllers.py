"""All controllers end, and what docs/procedures.md says of that is so: the data plane goes on."""

from __future__ import annotations

from pathlib import Path

import tidelog
import trio
from click.testing import CliRunner
from tidelog.cli.main import main
from tidelog.client.log import Log
from tidelog_controller.config import ControllerSettings

from cluster.harness import running

APP = "billing"
QUICK = {"c1": {"settings": ControllerSettings(session_timeout_s=1.0)}}
PARTITIONS = 3
LAPSED = "tidelog_replica_session_lapsed_seconds"


async def lapsed(log: Log, node: str) -> bool:
    """Whether the session of a replica server is over."""
    page = (await log.cluster.metrics(node)).page
    return any(line.startswith(LAPSED) and float(line.split()[-1]) > 0 for line in page.splitlines())


async def test_C4_the_data_plane_goes_on_without_controllers(tmp_path: Path) -> None:
    async with (
        running(tmp_path, settings=QUICK) as cluster,
        tidelog.connect(cluster.gateway) as log,
    ):
        await log.topics.create("orders", partitions=PARTITIONS, replication_factor=3)
        sent: list[bytes] = []
        with trio.fail_after(60):
            async with log.producer("orders") as producer:

                async def send() -> None:
                    value = b"%d" % len(sent)
                    await producer.send(value, partition=len(sent) % PARTITIONS)
                    sent.append(value)

                await send()
                async with log.transaction(APP) as transaction:
                    await transaction.send("orders", b"in a transaction", partition=0)
                await cluster.stop("c1")
                for node in ("r1", "r2", "r3"):
                    while not await lapsed(log, node):
                        await send()
                for _ in range(30):
                    await send()
            read = [r.value async for r in log.consume("orders", start="earliest", end="latest")]
            assert sorted(read, key=str) == sorted([*sent, b"in a transaction"], key=str)
            async with log.transaction(APP) as transaction:
                await transaction.send("orders", b"in another", partition=1)
            options = {"consistency": "linearizable", "end": "latest"}
            again = [r.value async for r in log.consume("orders", start="earliest", **options)]
            assert len(again) == len(sent) + 2

        result = await trio.to_thread.run_sync(
            lambda: CliRunner().invoke(main, ["doctor", "--gateway", cluster.gateway])
        )
        assert result.exit_code == 1
        assert "no controller has answered r1" in " ".join(result.output.split())
