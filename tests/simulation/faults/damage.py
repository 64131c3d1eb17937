"""What each kind of fault does; a scenario calls the same methods by hand. Times are virtual seconds."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from tidelog.types import TopicPartition
from tidelog_controller.raft.log import Persist
from tidelog_replica.storage.encryption.files import BATCHES_AT

from simulation.processes.controller import ControllerProcess, RaftStore
from simulation.processes.replica_server import ReplicaProcess, lives_are_known
from simulation.world.disk import SimDisk
from simulation.world.loop import stream
from simulation.world.network import Weather

if TYPE_CHECKING:
    from simulation.cluster import Cluster
    from simulation.processes.process import SimProcess


@dataclass(slots=True)
class _Doom:
    """A process dies before one of its next effects."""

    left: int
    power: bool
    seconds: float


class Damage:
    """One method per kind, named as in ``Dice``; and what processes ask of their disk and their death."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.loop = cluster.loop
        self.healed = False
        self.rotten: set[str] = set()
        """The replica server whose disk has rotted, if any."""
        self._slow: dict[str, float] = {}
        self._stalled: dict[str, float] = {}
        self._doomed: dict[str, _Doom] = {}
        self._in_flight = stream(cluster.options.seed, "commits in flight")
        self._returns: dict[str, float] = {}
        """After how long a machine comes back whose power goes in the middle of a write."""

    def repair(self) -> None:
        """End of all faults: partitions and weather clear, disks are quick again, the dead return."""
        self._slow.clear()
        self._stalled.clear()
        self._doomed.clear()
        self.cluster.network.heal()
        for place, process in enumerate(self.cluster.processes.values()):
            disk = getattr(process, "disk", None)
            if disk is not None:
                disk.heal()
            process.end_flushes()
            process.thaw()
            if not process.running:
                self.loop.after(0.07 * place, lambda process=process: revive(process))

    # --- nodes -------------------------------------------------------------------------------------------

    def _stop(self, target: SimProcess, power: bool, seconds: float) -> None:
        if target.running:
            target.stop(power)
            self.loop.after(seconds, lambda: revive(target))

    def kill(self, target: SimProcess, seconds: float) -> None:
        """The process dies; the machine runs on."""
        self._stop(target, False, seconds)

    def power(self, target: SimProcess, seconds: float) -> None:
        """The machine dies: what was not flushed is in doubt."""
        self._stop(target, True, seconds)

    def power_all(self, target: SimProcess, seconds: Sequence[float]) -> None:
        """The machines of all replica servers die at once."""
        for name, time in zip(self.cluster.replicas, seconds, strict=True):
            self._stop(self.cluster.processes[name], True, time)

    def pause(self, target: SimProcess, seconds: float) -> None:
        """It does nothing for a while, and does not know."""
        if target.running:
            target.freeze(seconds)

    def crash_at_effect(self, target: SimProcess, after: int, power: bool, seconds: float) -> None:
        """It dies between two of its next effects."""
        self._doomed[target.name] = _Doom(after, power, seconds)

    def crash_at_write(self, target: SimProcess, after: int, seconds: float) -> None:
        """Power goes in the middle of one of its next writes."""
        disk = getattr(target, "disk", None)
        if disk is not None:
            self._returns[target.name] = seconds
            disk.lose_power(after=after)

    # --- network -----------------------------------------------------------------------------------------

    def _cut(self, target: str, others: Sequence[str], seconds: float) -> None:
        until = self.loop.now + seconds
        for other in others:
            self.cluster.network.block(other, target, until)
            self.cluster.network.block(target, other, until)

    def isolate(self, target: SimProcess, others: Sequence[str], seconds: float) -> None:
        """From controllers, from replica servers, from clients, or from all."""
        self._cut(target.name, others, seconds)

    def split(self, target: SimProcess, side: Sequence[str], seconds: float) -> None:
        """Cut the network into two sides."""
        names = [*self.cluster.processes, *(client.name for client in self.cluster.clients)]
        there = [name for name in names if name not in side]
        for name in side:
            self._cut(name, there, seconds)

    def one_way(self, target: SimProcess, others: Sequence[str], out: bool, seconds: float) -> None:
        """What the target sends is lost, or what is sent to it."""
        until = self.loop.now + seconds
        for other in others:
            pair = (target.name, other) if out else (other, target.name)
            self.cluster.network.block(*pair, until)

    def cut_pair(self, target: SimProcess, other: str, seconds: float) -> None:
        """Partial partition: two processes do not reach each other."""
        self._cut(target.name, [other], seconds)

    def weather(self, target: SimProcess, seconds: float, **values: float) -> None:
        """Delays, loss, copies, everywhere."""
        self._change_weather(Weather(**values), seconds)

    def flaky_links(self, target: SimProcess, seconds: float, probability: float) -> None:
        """Links break while messages are sent."""
        self._change_weather(Weather(break_link=probability), seconds)

    def _change_weather(self, weather: Weather, seconds: float) -> None:
        self.cluster.network.weather = weather
        self.loop.after(seconds, lambda: self._clear(weather))

    def _clear(self, weather: Weather) -> None:
        if self.cluster.network.weather is weather:
            self.cluster.network.weather = Weather()

    def reset_links(self, target: SimProcess, others: Sequence[str], slow: bool) -> None:
        """All its links with these break at once, with what is under way both ways; new ones may be opened."""
        self.cluster.network.reset(target.name, others, slow)

    def mute(self, target: SimProcess, others: Sequence[str], out: bool, back: bool, seconds: float) -> None:
        """Its links with these stay up and carry nothing more, out, back, or both; new ones neither, for a while."""
        until = self.loop.now + seconds
        for other in others:
            if out:
                self.cluster.network.mute(target.name, other, until)
            if back:
                self.cluster.network.mute(other, target.name, until)

    # --- disks -------------------------------------------------------------------------------------------

    def slow_disk(self, target: SimProcess, seconds: float) -> None:
        """Writes and flushes take up to a second."""
        self._slow[target.name] = self.loop.now + seconds

    def sync_error(self, target: SimProcess, after: int, seconds: float) -> None:
        """The next flushes of a replica server fail with EIO, and what they covered never gets to the disk."""
        disk = getattr(target, "disk", None)
        if disk is not None:
            disk.fail_syncs(errno.EIO, after=after)
            self.loop.after(seconds, lambda: disk.fail_syncs(0))

    def write_error(self, target: SimProcess, error: int, after: int, seconds: float) -> None:
        """Writes of a replica server fail for a while: EIO, or no space."""
        disk = getattr(target, "disk", None)
        if disk is not None:
            disk.fail_writes(error, after=after)
            self.loop.after(seconds, lambda: disk.fail_writes(0))

    def read_error(self, target: SimProcess, after: int, seconds: float) -> None:
        """Reads of a replica server fail with EIO for a while."""
        disk = getattr(target, "disk", None)
        if disk is not None:
            disk.fail_reads(errno.EIO, after=after)
            self.loop.after(seconds, lambda: disk.fail_reads(0))

    def disk_full(self, target: SimProcess, seconds: float) -> None:
        """No file grows for a long while, over any restart."""
        disk = getattr(target, "disk", None)
        if disk is not None:
            disk.full = True
            self.loop.after(seconds, lambda: setattr(disk, "full", False))

    def stall_disk(self, target: SimProcess, seconds: float) -> None:
        """A flush that begins now ends only after this (KIP-501)."""
        self._stalled[target.name] = self.loop.now + seconds

    def bit_rot(self, target: SimProcess, place: float, bit: int) -> None:
        """A bit flips in what a segment of one replica server holds durably, closed or written; only ever of one in a
        run, so that the others have what it held."""
        if not isinstance(target, ReplicaProcess) or not self.rotten <= {target.name}:
            return
        disk = target.disk
        begin = BATCHES_AT if self.cluster.options.encrypted else 0  # what rots in one of two key pages is no loss
        logs = [path for path in disk.files() if path.endswith(".log")]
        sizes = [max(0, disk.stable_size(path) - begin) for path in logs]
        position = int(place * sum(sizes))
        for path, size in zip(logs, sizes, strict=True):
            if position < size:
                self.cluster.count("bits flipped")
                self.rotten.add(target.name)
                topic_id, _, number = PurePosixPath(path).parent.name.rpartition("-")
                self.cluster.invariants.may_forget.add(TopicPartition(topic_id, int(number)))
                disk.flip(path, begin + position, bit)
                return
            position -= size

    def wipe_disk(self, target: SimProcess, seconds: float) -> None:
        """The machine gets a new, empty disk."""
        self._change_disk(target, SimDisk(), seconds)

    def restore_disk(self, target: SimProcess, age: float, seconds: float) -> None:
        """The machine gets a copy of its disk that is some seconds old, of a life before its last registered one.
        (With a copy of the same life nobody can tell at once that flushed records are missing; the members that have
        them refuse to cut them.)"""
        if isinstance(target, ReplicaProcess):
            copy = target.disk.clone()
            copy.crash(target.rng)
            self._stop(target, False, 0.05)
            self.loop.after(age, lambda: self._restore(target, copy, seconds))

    def _restore(self, target: ReplicaProcess, copy: SimDisk, seconds: float) -> None:
        server = self.cluster.invariants.metadata.servers.get(target.name)
        if not self.healed and server is not None and target.forgets(copy, server.life):
            self.cluster.count("disks restored")
            self._change_disk(target, copy, seconds)

    def _change_disk(self, target: SimProcess, disk: SimDisk, seconds: float) -> None:
        if isinstance(target, ReplicaProcess) and lives_are_known():
            self._stop(target, False, seconds)
            target.change_disk(disk)

    # --- the group of controllers --------------------------------------------------------------------------

    def lose_store(self, target: SimProcess, seconds: float) -> None:
        """A controller's disk is gone; the operator adds it again. Never a second one before that: the group would
        have lost what it cannot do without."""
        self._replace_store(target, False, seconds, damaged=False)

    def rot_store(self, target: SimProcess, power: bool, seconds: float) -> None:
        """A controller finds its synced store damaged when it starts: it puts it aside and begins with an empty one.
        Otherwise as ``lose_store``."""
        self._replace_store(target, power, seconds, damaged=True)

    def _replace_store(self, target: SimProcess, power: bool, seconds: float, *, damaged: bool) -> None:
        cluster = self.cluster
        if isinstance(target, ControllerProcess) and cluster.admin.group_is_at_rest and cluster.can_lose(target.name):
            self._stop(target, power, seconds)
            target.lose_store(damaged=damaged)
            cluster.count("stores rotted" if damaged else "stores lost")
            cluster.admin.add_controller(target.name)

    def old_store(self, target: SimProcess, age: float, seconds: float) -> None:
        """A controller's machine gets a copy of its disk that is some seconds old. Not while the group lacks another
        store: two of three would be gone."""
        if isinstance(target, ControllerProcess):
            copy = target.store.copy()
            self.loop.after(age, lambda: self._put_back(target, copy, seconds))

    def _put_back(self, target: ControllerProcess, copy: RaftStore, seconds: float) -> None:
        cluster = self.cluster
        same = copy.stored.store == target.store.stored.store
        if not self.healed and same and cluster.admin.group_is_at_rest and cluster.can_lose(target.name):
            self._stop(target, False, seconds)
            target.put_back(copy)

    def controllers_majority(
        self, target: SimProcess, names: Sequence[str], cut: bool, beside: Sequence[str], seconds: float
    ) -> None:
        """These controllers die, or nobody reaches them but the replica servers beside them. Clients are on the side
        of the others."""
        if cut:
            side = (*names, *beside)
            everybody = [*self.cluster.processes, *(client.name for client in self.cluster.clients)]
            there = [name for name in everybody if name not in side]
            for name in side:
                self._cut(name, there, seconds)
        else:
            for name in names:
                self._stop(self.cluster.processes[name], False, seconds)

    def change_group(self, target: SimProcess, add: bool) -> None:
        """The operator adds or removes a controller; removes none while another runs on an old copy of its disk: of
        three that would leave one."""
        admin = self.cluster.admin
        old_copies = [name for name in self.cluster.controllers if self.cluster.controller(name).runs_on_an_old_copy]
        member = self.cluster.invariants.members.find(target.name)
        if not admin.group_is_at_rest or (member is None) is not add:
            return
        if add:
            admin.add_controller(target.name)
        elif len(self.cluster.invariants.members.voters) > 2 and not old_copies:
            admin.remove_controller(target.name)

    # --- clocks, topics ----------------------------------------------------------------------------------

    def clock_jump(self, target: SimProcess, ms: int) -> None:
        """Somebody sets the clock of the machine."""
        target.clock_skew_ms += ms

    def recreate_topic(self, target: SimProcess, name: str, number: int) -> None:
        """A topic is deleted and another made under its name, with the settings of the topic of that number."""
        topics = self.cluster.options.topics
        wanted = topics[number % len(topics)]
        self.cluster.admin.recreate(replace(wanted, name=name))

    def alter_topic(self, target: SimProcess, name: str, config: dict[str, str]) -> None:
        """Settings of a topic change."""
        self.cluster.admin.alter(name, config)

    # --- asked by the processes --------------------------------------------------------------------------

    def dies_before(self, process: SimProcess, effect: Any) -> bool:
        """Whether the process dies instead of performing this effect."""
        doom = self._doomed.get(process.name)
        if doom is None:
            return False
        if doom.left > 0:
            doom.left -= 1
            return False
        del self._doomed[process.name]
        self.cluster.count("crashed at an effect")
        if isinstance(effect, Persist) and self._in_flight.random() < 0.5:
            process.perform(effect)  # the commit under way reached the disk, and nobody was told so
            self.cluster.count("commits that nobody was told of")
        self._stop(process, doom.power, doom.seconds)
        return True

    def power_lost(self, process: SimProcess) -> None:
        """Power went in the middle of a write."""
        self.cluster.count("crashed at a write")
        process.stop(power=True, in_mid_step=True)
        self.loop.after(self._returns.pop(process.name, 0.1), lambda: revive(process))

    def process_ended(self, process: SimProcess, error: OSError) -> None:
        """The server gave up because of its disk; its supervisor starts it again."""
        process.note("exit", str(error))
        self.cluster.count("exited")
        process.stop(power=False, in_mid_step=True)
        self.loop.after(process.rng.choice((0.1, 0.4, 1.0)), lambda: revive(process))

    def disk_stall(self, process: SimProcess) -> float:
        """How long a blocking write takes now, s."""
        if self._slow.get(process.name, 0.0) > self.loop.now:
            return process.rng.uniform(0.0, 0.5)
        return 0.0

    def flush_time(self, process: SimProcess) -> float:
        """How long a flush takes now, s."""
        stalled = self._stalled.get(process.name, 0.0) - self.loop.now
        if stalled > 0.0:
            return stalled + process.rng.uniform(0.0, 0.1)
        if self._slow.get(process.name, 0.0) > self.loop.now:
            return process.rng.uniform(0.0, 1.0)
        return process.rng.uniform(0.0002, 0.004)


def revive(process: SimProcess) -> None:
    """Start it if it is down."""
    if not process.running:
        process.start()
