"""The processes of the object store of a run (``store.py``), and what a run does to them."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import trio
from chaos.table.store import HOST, LATE, REFUSE, WELL

BUCKET = "lake"
KEYS = {"s3.access-key-id": "tester", "s3.secret-access-key": "secret", "s3.region": "us-east-1"}
PROGRAM = Path(__file__).with_name("store.py")
READY_S = 60.0


class ObjectStore:
    """A store with one empty bucket, at ``port``; its disk is at the next port. The folder has its log and its
    mood."""

    def __init__(self, folder: Path, port: int) -> None:
        folder.mkdir()
        self._log = folder / "log"
        self._mood = folder / "mood"
        self.port, self._disk_port = port, port + 1
        self._disk = self._run("disk", self._disk_port)
        self._front: subprocess.Popen[bytes] | None = None

    @property
    def options(self) -> dict[str, str]:
        """The options by which a pipeline reaches the store."""
        return KEYS | {"s3.endpoint": f"http://{HOST}:{self.port}"}

    async def start(self) -> None:
        """Start both processes, and create the bucket."""
        await _listens(self._disk_port)
        await self.start_front()
        await trio.to_thread.run_sync(lambda: self.client().create_bucket(Bucket=BUCKET))

    def client(self, config: Any = None) -> Any:
        """Return a client of boto3, with a ``botocore.config.Config`` of its own if that is given."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.options["s3.endpoint"],
            aws_access_key_id=KEYS["s3.access-key-id"],
            aws_secret_access_key=KEYS["s3.secret-access-key"],
            region_name=KEYS["s3.region"],
            config=config,
        )

    async def start_front(self) -> None:
        """Start the front, and wait until it listens."""
        self._front = self._run("front", self.port, self._disk_port, self._mood)
        await _listens(self.port)

    def kill_front(self) -> None:
        """Kill the front with SIGKILL."""
        assert self._front is not None
        self._front.kill()
        self._front.wait()

    def refuse(self) -> None:
        """Answer every request with 503 from now on."""
        self._set_mood(REFUSE)

    def answer_late(self) -> None:
        """Carry out every second request and answer 500, from now on."""
        self._set_mood(LATE)

    def be_well(self) -> None:
        """Answer every request again."""
        self._set_mood(WELL)

    def close(self) -> None:
        """End both processes."""
        for process in (self._front, self._disk):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    def _set_mood(self, mood: str) -> None:
        draft = self._mood.with_name("mood.new")
        draft.write_text(mood)
        draft.replace(self._mood)

    def _run(self, *words: object) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen([sys.executable, str(PROGRAM), *map(str, words)], stdout=log, stderr=log)


async def _listens(port: int) -> None:
    """Wait until a process listens at a port."""
    with trio.fail_after(READY_S):
        while True:
            with socket.socket() as probe:
                if probe.connect_ex((HOST, port)) == 0:
                    return
            await trio.sleep(0.05)
