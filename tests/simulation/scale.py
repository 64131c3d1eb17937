"""``python -m simulation.scale [--partitions 10000]``: what a large cluster costs, in counts.

Six real replica servers and three real controllers under virtual time, without clients and without the checks of
every step. The partitions are created; the settings of one are changed, many times; a server that leads its share is
killed; and a follower among the controllers is started again. Of each phase are counted:

    messages    what was sent over links and between controllers
    bytes       of it, encoded
    metadata    bytes of what controllers tell the watchers, of those
    operations  calls of functions of the services, on all processes together
    lines       of their code that were executed, loops included; of the changes only, since counting them is slow

Counts are the same on every machine, so that a test can say what must not grow: a change costs the same in a small
and in a large cluster, and everything else what its own partitions cost.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import tidelog.testing
from tidelog.errors import TidelogError
from tidelog.testing.clients.client import Client
from tidelog.testing.cluster import Cluster, Options, TopicOptions
from tidelog.testing.hardware.loop import stream
from tidelog.testing.hardware.network import Frame, SimLink
from tidelog.testing.invariants.replication import Invariants
from tidelog.testing.processes.process import SimProcess
from tidelog.wire.codec import encode, encode_error, payload_size
from tidelog.wire.messages import MetadataUpdate, SetReadOnly
from tidelog_controller.raft.membership import Configuration
from tidelog_replica.config import ReplicaSettings

SERVERS = 6
CHANGES = 8
HARNESS = (str(Path(__file__).parent), str(Path(tidelog.testing.__file__).parent))
"""Where the code is that is not counted."""
PATIENCE_S = 60.0
"""The virtual seconds that a phase may take."""


@dataclass(slots=True)
class Cost:
    """The counts of one phase."""

    messages: int = 0
    bytes: int = 0
    metadata: int = 0
    operations: int = 0
    lines: int = 0


class _Followed(Invariants):
    """Checks nothing: it keeps the newest metadata and the members that a controller has applied."""

    def after_step(self, process: SimProcess, effects: Sequence[Any]) -> None:
        if process.name in self.cluster.controllers and process.core.state.index > self.metadata.index:
            self.metadata = process.core.state
            self.members: Configuration = process.core.metadata_log.raft.members

    def fenced(self, name: str, core: Any, message: Any, action: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        return action()

    def on_stop(self, process: SimProcess, in_mid_step: bool, power: bool) -> None: ...

    def on_send(self, process: SimProcess, effect: Any) -> None: ...


class Scale(Cluster):
    """A large cluster that counts messages and function calls. ``topics`` topics share the partitions."""

    def __init__(self, partitions: int, topics: int = 1) -> None:
        wanted = tuple(TopicOptions(f"t{n}", partitions // topics, 3) for n in range(topics))
        super().__init__(Options(1, replicas=SERVERS, topics=wanted))
        raft = replace(self.controller_settings.raft, snapshot_threshold=256, snapshot_chunk_bytes=256 << 10)
        self.controller_settings = replace(self.controller_settings, raft=raft)
        at_once = ReplicaSettings().changes_at_once
        self.replica_settings = replace(self.replica_settings, changes_at_once=at_once)
        self.invariants = _Followed(self)
        self.cost = Cost()
        self._codes: dict[CodeType, bool] = {}
        self._encoding = False
        """Whether a message is being encoded only to count its bytes; this work is not counted."""
        self._count_messages()

    def _count_messages(self) -> None:
        carry, datagram = self.network.carry, self.network.datagram

        def counted_carry(link: SimLink, sender: Any, frame: Frame, lossy: bool = False) -> None:
            self._count(frame)
            carry(link, sender, frame, lossy)

        def counted_datagram(sender: str, target: str, message: Any) -> None:
            self._count(Frame("post", None, message))
            datagram(sender, target, message)

        self.network.carry = counted_carry  # type: ignore[method-assign]
        self.network.datagram = counted_datagram  # type: ignore[method-assign]

    def _count(self, frame: Frame) -> None:
        self._encoding, body = True, frame.body
        if isinstance(body, TidelogError):
            size = len(encode_error(frame.id or 0, body))
        else:
            ids = {"request": {"id": frame.id}, "answer": {"re": frame.id}, "post": {}}[frame.kind]
            head, payload = encode(body, **ids)  # type: ignore[arg-type]
            size = len(head) + payload_size(payload)
        self._encoding = False
        self.cost.messages += 1
        self.cost.bytes += size
        self.cost.metadata += size if isinstance(body, MetadataUpdate) else 0

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and not self._encoding:
            code = frame.f_code
            counts = self._codes.get(code)
            if counts is None:
                counts = self._codes[code] = not code.co_filename.startswith(HARNESS)
            self.cost.operations += counts

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if self._encoding or frame.f_code.co_filename.startswith(HARNESS):
            return None
        self.cost.lines += event == "line"
        return self._trace

    @contextmanager
    def counted(self, *, lines: bool = False) -> Iterator[Cost]:
        """Count everything done in the block; ``lines``: also executed lines of code, which is slow."""
        self.cost = cost = Cost()
        before = sys.gettrace()
        sys.setprofile(self._profile)
        if lines:
            sys.settrace(self._trace)
        try:
            yield cost
        finally:
            sys.settrace(before)
            sys.setprofile(None)

    # --- phases ------------------------------------------------------------------------------------------

    def create(self) -> Cost:
        """Create all partitions and wait until each has a leader and all replicas in sync, as the leaders know it.
        Returns the cost."""
        with self.counted() as cost:
            self.until(lambda: self.admin.done, PATIENCE_S)
            self._wait(self._all_led)
        self.asker = Client(self, "operator", stream(1, "operator"))
        self.run_for(2.0)  # until it knows all, and followers ask for nothing that they have
        self.active = next(name for name in self.controllers if self.controller(name).core.active)
        return cost

    def change(self) -> Cost:
        """Change the settings of one partition ``CHANGES`` times and return the cost of one change."""
        with self.counted(lines=True) as cost:
            for number in range(CHANGES):
                answers: list[Any] = []
                wish = SetReadOnly("t0", (0,), read_only=number % 2 == 0)
                self.asker.call(self.active, wish, 2.0, answers.append)
                self.until(lambda: bool(answers))  # noqa: B023
                assert not isinstance(answers[0], Exception), answers[0]
            self.run_for(0.01)  # until the last change has been sent to every watcher
        return Cost(*(value // CHANGES for value in astuple(cost)))

    def idle(self) -> Cost:
        """Return the cost of a virtual second without requests."""
        with self.counted() as cost:
            self.run_for(1.0)
        return cost

    def fail_over(self) -> Cost:
        """Kill a server and wait until all partitions that it led have other leaders and do not wait for it. Returns
        the cost."""
        lost = next(self._states()).leader
        with self.counted() as cost:
            self.processes[lost].stop(power=False)
            self._wait(lambda: all(lost not in p.isr and p.leader != lost for p in self._states()))
            self._wait(self._all_led)
        return cost

    def restart_controller(self) -> Cost:
        """Restart a controller that is not active and wait until it has caught up. Returns the cost."""
        name = next(name for name in self.controllers if name != self.active)
        with self.counted() as cost:
            self.processes[name].stop(power=False)
            self.processes[name].start()
            self._wait(self.controllers_agree)
        return cost

    def _wait(self, condition: Callable[[], bool]) -> None:
        """Run until the condition holds, checking it only every 0.05 s since it is expensive. Raises AssertionError
        after ``PATIENCE_S``."""
        for _ in range(round(PATIENCE_S / 0.05)):
            if condition():
                return
            self.run_for(0.05)
        raise AssertionError(f"not within {PATIENCE_S:g} s")

    def _states(self) -> Iterator[Any]:
        return (p for topic in self.invariants.metadata.topics.values() for p in topic.partitions)

    def _all_led(self) -> bool:
        led = sum(
            partition.leading is not None
            for name in self.replicas
            if self.processes[name].running
            for partition in self.replica(name).core.partitions.values()
        )
        return led == sum(1 for _ in self._states())


def measure(partitions: int, topics: int = 1) -> dict[str, Cost]:
    """Run all phases in order and return their costs by name."""
    scale = Scale(partitions, topics)
    return {
        "create": scale.create(),
        "change one": scale.change(),
        "idle 1 s": scale.idle(),
        "fail over 1/6": scale.fail_over(),
        "restart controller": scale.restart_controller(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--topics", type=int, default=10)
    chosen = parser.parse_args()
    print(f"{chosen.partitions} partitions in {chosen.topics} topics, three replicas each, {SERVERS} replica servers")
    print(" " * 20 + "".join(f"{known.name:>14}" for known in fields(Cost)))
    for name, cost in measure(chosen.partitions, chosen.topics).items():
        print(f"{name:20}" + "".join(f"{value:14,}" for value in astuple(cost)))


if __name__ == "__main__":
    main()
