"""A simulated replica server: its disk, and its links to peers and to the active controller."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tidelog_replica.effects import Stop
from tidelog_replica.jobs import run_job
from tidelog_replica.node import ReplicaNode, StartFlush, StartJob
from tidelog_replica.storage.encryption.files import EncryptedDisk
from tidelog_replica.storage.encryption.keyring import KEY_BYTES, Keyring
from tidelog_replica.storage.open_files import OpenFiles

from tidelog.errors import TidelogError, TimedOut, Unreachable
from tidelog.feature_levels import PROGRESS
from tidelog.runtime.disk import Disk
from tidelog.sansio.effects import CONTROLLER, Call, Send
from tidelog.testing.hardware.disk import PowerLost, SimDisk
from tidelog.testing.hardware.loop import stream
from tidelog.testing.hardware.network import Frame, SimLink
from tidelog.testing.invariants.deep import MAY_BE_STALE
from tidelog.testing.processes.process import SimProcess, describe
from tidelog.wire.messages import DescribeQuorum, MetadataUpdate, QuorumAnswer

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster

MAX_OPEN_FILES = 4
"""So few open files that files are closed and opened again all the time."""
KEYWORDS = inspect.signature(ReplicaNode.__init__).parameters
DATA = "/data"
"""The data directory of a replica server on its own simulated disk."""


def lives_are_known() -> bool:
    """Return whether the servers of this revision notice a disk that is not the one of their last incarnation."""
    return "boot" in KEYWORDS


class ReplicaProcess(SimProcess):
    """A simulated replica server with its disk, its links to peers and its link to the active controller."""

    core: ReplicaNode

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name)
        self.disk = SimDisk()
        self.boots = 0
        """The number of power losses of the machine."""
        self.lost = ""
        """What the machine lost since its last registered incarnation: ``power``, its ``disk``, or "" for nothing."""
        self.distrusted = False
        """Whether the server met an error of its disk, so that its next incarnation must not rely on unflushed
        data."""
        self.flush_failed = False
        """Whether a flush failed and the server does not know it yet. If it were killed now, its next run would find
        clean pages that never reached the disk, a gap that the server cannot close; so ``stop`` then takes the
        machine down too."""
        self._peers: dict[str, SimLink] = {}
        self._calls: dict[int, tuple[SimLink, int]] = {}
        self._call_id = 0
        self._flushes: dict[int, Callable[[], None]] = {}
        """For each flush in progress, the function that completes it."""
        self._flush_number = 0
        self._controller: SimLink | None = None
        self._seeking: SimLink | None = None
        self._next_controller = 0
        self._performers |= {
            Call: self._call,
            StartFlush: self._start_flush,
            StartJob: self._start_job,
            Stop: self._end,
            Send: self._send,
        }

    def start(self) -> None:
        super().start()
        cluster = self.cluster
        self.core = ReplicaNode(
            self.name,
            f"sim://{self.name}",
            self._sealing(OpenFiles(self.disk, MAX_OPEN_FILES)),
            DATA,
            cluster.replica_settings,
            cluster.core_rng(self.name, self.life),
            cluster.name,
            **self._keywords(),
        )
        self._seek()
        self.submit("start", lambda: self.core.start(self.loop.now))

    def _sealing(self, files: OpenFiles) -> Disk:
        """Return the files, encrypted if the run asks for it: with a new key for each run of the process, and the
        keys of all earlier runs."""
        if not self.cluster.options.encrypted:
            return files
        self.cluster.count("lives with encryption")
        seed = self.cluster.options.seed
        keys = {str(life): stream(seed, f"key/{life}").randbytes(KEY_BYTES) for life in range(self.life + 1)}
        entropy = stream(seed, f"entropy/{self.name}/{self.life}").randbytes
        return EncryptedDisk(files, Keyring(keys, str(self.life), entropy))

    def _keywords(self) -> dict[str, Any]:
        """Return the facts about the machine that the server takes: its rack, the id of this boot of the operating
        system, and the clock."""
        rack = self.cluster.racks.get(self.name, "")
        facts = {"rack": rack, "boot": f"{self.name} {self.boots}", "wall_ms": self.wall_ms}
        return {name: value for name, value in facts.items() if name in KEYWORDS}

    def stop(self, power: bool, in_mid_step: bool = False) -> None:
        power = power or self.flush_failed
        self.distrusted |= self.running and self.core.failed
        if self.broker_epoch_known():
            self.lost = ""
        super().stop(power, in_mid_step)
        self._peers.clear()
        self._calls.clear()
        self._flushes.clear()
        self._controller = self._seeking = None
        self.flush_failed = False
        if power:
            self.boots += 1
            self.disk.crash(self.rng)
        vouches = self.disk.exists(f"{DATA}/boot")  # of lives that were clean, or registered and knew it
        if power or self.distrusted or not lives_are_known() or not vouches:
            self.lost = self.lost or "power"
        self.distrusted = False

    def change_disk(self, disk: SimDisk) -> None:
        """Replace the disk while the process is down."""
        assert not self.running
        self.disk = disk
        self.lost = "disk"
        self.cluster.invariants.on_disk_changed(self)

    @staticmethod
    def forgets(disk: SimDisk, life: str) -> bool:
        """Return whether an incarnation is missing among those that the disk has recorded."""
        path = f"{DATA}/meta"
        return life not in (json.loads(disk.read(path))["lives"] if disk.exists(path) else ())

    def broker_epoch_known(self) -> bool:
        """Return whether the present incarnation is registered and the server knows its epoch."""
        return self.running and self.core.broker_epoch >= 0

    def supervise(self, life: int) -> None:
        """Restart a server that ended itself, as a process supervisor does. Before it ends, the server must record
        that its next incarnation may not rely on its disk; if that fails, it tries again every second."""
        if not (self.ending and self.life == life):
            return
        try:
            self.core.distrust()
        except OSError:
            self.loop.after(1.0, lambda: self.supervise(life))
            return
        except PowerLost:
            self.cluster.faults.power_lost(self)
            return
        self.stop(power=False)
        self.start()

    # --- the active controller ---------------------------------------------------------------------------

    def _seek(self, hint: str = "") -> None:
        """Open a link to a controller and ask whether it is the active one: first the hinted one, then all in turn.
        Does nothing if a link or a search exists."""
        if self._controller is not None or self._seeking is not None:
            return
        names = self.cluster.controllers
        if not hint:
            hint = names[self._next_controller % len(names)]
            self._next_controller += 1
        link = self._seeking = self.network.connect(self, hint)
        link.send(self, Frame("request", 0, DescribeQuorum()))
        self.later(1.0, lambda: self._give_up(link))

    def _give_up(self, link: SimLink, hint: str = "") -> None:
        """Close the link of the search and begin another one after a short random pause."""
        if link is self._seeking:
            link.close(self)
            self._seeking = None
            self.later(self.cluster.client_rng.uniform(0.02, 0.2), lambda: self._seek(hint))

    def _on_quorum(self, link: SimLink, answer: Any) -> None:
        """Keep the link if its controller is the active one and report it to the core; otherwise search on, with the
        hint of the answer."""
        if link is not self._seeking:
            return
        if isinstance(answer, QuorumAnswer) and answer.active == link.server_name:
            self._seeking, self._controller = None, link
            self.submit("controller up", lambda: self.core.on_controller_up(self.loop.now))
        else:
            self._give_up(link, answer.active if isinstance(answer, QuorumAnswer) else "")

    def _drop_controller(self, hint: str = "") -> None:
        """Close the link to the controller, fail its open requests, report the loss to the core and search again."""
        link = self._controller
        if link is None:
            return
        self._controller = None
        link.close(self)
        self._fail_calls(link)
        self.submit("controller down", lambda: self.core.on_controller_down(self.loop.now))
        self.later(self.cluster.client_rng.uniform(0.0, 0.1), lambda: self._seek(hint))

    # --- effects -----------------------------------------------------------------------------------------

    def _end(self, effect: Stop) -> None:
        """Perform ``Stop``: detach the process from the network; its supervisor restarts it soon."""
        life = self.life
        self.distrusted = self.ending = True
        self.network.detach(self, slow=False)
        self.loop.after(self.rng.uniform(0.1, 1.0), lambda: self.supervise(life))

    def _send(self, effect: Send) -> None:
        level = self.cluster.invariants.metadata.level
        assert level >= PROGRESS, f"{self.name} tells its leader what one of level {level} does not understand"
        self._peer(effect.to).send(self, Frame("post", None, effect.message), lossy=True)

    def _peer(self, name: str) -> SimLink:
        link = self._peers.get(name)
        if link is None:
            link = self._peers[name] = self.network.connect(self, name)
        return link

    def _call(self, effect: Call) -> None:
        link = self._controller if effect.to == CONTROLLER else self._peer(effect.to)
        if link is None:
            self.later(0.001, lambda: self._answer(effect.token, Unreachable("no active controller is known")))
            return
        self._call_id += 1
        number = self._call_id
        self._calls[number] = (link, effect.token)
        link.send(self, Frame("request", number, effect.message))
        self.later(effect.timeout_s, lambda: self._expire(number))

    def _expire(self, number: int) -> None:
        call = self._calls.pop(number, None)
        if call is not None:
            link, token = call
            self._answer(token, TimedOut("no answer in time"))
            if link is self._controller:
                self._drop_controller()

    def _answer(self, token: int, answer: Any) -> None:
        label = f"answer {token} {describe(answer)}" if self.loop.tracing else ""
        self._submit_fenced(label, answer, lambda: self.core.on_answer(token, answer, self.loop.now))

    def on_message(self, link: SimLink, id: int | None, message: Any) -> None:
        self._submit_fenced(
            describe(message, link.other(self.name)) if self.loop.tracing else "",
            message,
            lambda: self.core.on_request(link.number, id, message, self.loop.now),
        )

    def _submit_fenced(self, label: str, message: Any, action: Callable[[], Sequence[Any]]) -> None:
        """Queue an input for the core. If its message may be of an earlier epoch, check that the core does not act on
        a stale one."""
        if isinstance(message, MAY_BE_STALE):
            self.submit(label, lambda: self.cluster.invariants.fenced(self.name, self.core, message, action))
        else:
            self.submit(label, action)

    def _start_flush(self, effect: StartFlush) -> None:
        """Sync the files as a thread does: at the start or at the end of a random time, so that bytes written
        meanwhile may or may not be covered. The core gets the result at the end."""
        took = self.cluster.faults.flush_time(self)
        early = self.rng.random() < 0.5
        failed: list[OSError | None] = [None]
        self._flush_number += 1
        number = self._flush_number

        def sync() -> None:
            try:
                effect.flush.run()
            except OSError as error:
                failed[0] = error
                self.flush_failed = True
            except PowerLost:
                self.cluster.faults.power_lost(self)

        def finish() -> None:
            if self._flushes.pop(number, None) is None:
                return  # it ended when the disks were healed
            if not early:
                sync()
            self.submit(f"flushed {effect.key.partition} to {effect.flush.end} {failed[0] or ''}", report)
            self.cluster.faults.on_protocol_event("flush", self)

        def report() -> Sequence[Any]:
            self.flush_failed = False
            return self.core.on_flushed(effect.key, effect.flush, failed[0], self.loop.now)

        self._flushes[number] = finish
        if early:
            sync()
        self.later(took, finish)

    def end_flushes(self) -> None:
        """Complete all flushes that are in progress now."""
        for finish in list(self._flushes.values()):
            self.later(0.0, finish)

    def _start_job(self, effect: StartJob) -> None:
        """Run a job as a thread does: its effect on the disk happens at one moment of a random time, and the core
        gets the result at the end."""
        self.cluster.count(f"job {type(effect.job).__name__}")
        took, at = self.rng.uniform(0.0, 0.02), self.rng.random()
        results: list[object] = []

        def run() -> None:
            try:
                results.append(run_job(effect.job))
            except PowerLost:
                self.cluster.faults.power_lost(self)

        def finish() -> None:
            self.submit(
                f"job {type(effect.job).__name__} of {effect.key.partition} ended",
                lambda: self.core.on_job(effect.key, effect.job, results[0], self.loop.now),
            )

        self.later(took * at, run)
        self.later(took, finish)

    # --- network -----------------------------------------------------------------------------------------

    def on_frame(self, link: SimLink, frame: Frame) -> None:
        if frame.kind != "answer":
            if isinstance(frame.body, MetadataUpdate):
                update = frame.body
                self._submit_fenced(
                    f"metadata {update.index}", update, lambda: self.core.on_metadata(update, self.loop.now)
                )
            else:
                super().on_frame(link, frame)
            return
        if frame.id == 0:
            self._on_quorum(link, frame.body)
            return
        assert frame.id is not None
        call = self._calls.pop(frame.id, None)
        if call is None:
            return
        self._answer(call[1], frame.body)
        if link is self._controller and getattr(frame.body, "code", "") == "NOT_ACTIVE_CONTROLLER":
            assert isinstance(frame.body, TidelogError)
            self._drop_controller(str(frame.body.detail.get("leader", "")))

    def on_close(self, link: SimLink) -> None:
        if link is self._seeking:
            self._seeking = None
            self.later(self.cluster.client_rng.uniform(0.02, 0.2), self._seek)
        elif link is self._controller:
            self._drop_controller()
        elif self._peers.get(link.server_name) is link:
            del self._peers[link.server_name]
            self._fail_calls(link)
            name = link.server_name
            self.submit(f"peer {name} down", lambda: self.core.on_peer_down(name, self.loop.now))
        else:
            super().on_close(link)

    def _fail_calls(self, link: SimLink) -> None:
        """Answer all open requests of a link with ``Unreachable``."""
        for number, (used, token) in list(self._calls.items()):
            if used is link and self._calls.pop(number, None) is not None:  # the answer before may end the process
                self._answer(token, Unreachable(f"the link to {link.server_name} broke"))
