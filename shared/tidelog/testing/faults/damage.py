"""The effect of each kind of fault; scenarios call the same methods by hand. Times are virtual seconds."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from tidelog_controller.raft.effects import Persist
from tidelog_replica.storage.encryption.files import BATCHES_AT

from tidelog.testing.hardware.disk import SimDisk
from tidelog.testing.hardware.loop import stream
from tidelog.testing.hardware.network import Weather
from tidelog.testing.processes.controller import ControllerProcess, RaftStore
from tidelog.testing.processes.replica_server import ReplicaProcess, lives_are_known
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster
    from tidelog.testing.processes.process import SimProcess


@dataclass(slots=True)
class _Doom:
    """A planned death of a process, before its effect number ``left`` from now on."""

    left: int
    power: bool
    seconds: float


class Damage:
    """One method per kind of fault, named as in ``Dice``, and the answers to processes about their disk and death."""

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
        """The seconds until a machine restarts whose power goes in the middle of a write, by process."""

    def repair(self) -> None:
        """End all faults: clear partitions and weather, heal the disks, and start the processes that are down."""
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
                self.loop.after(0.07 * place, partial(revive, process))

    # --- nodes -------------------------------------------------------------------------------------------

    def _stop(self, target: SimProcess, power: bool, seconds: float) -> None:
        """Stop a running process and start it again after some seconds."""
        if target.running:
            target.stop(power)
            self.loop.after(seconds, lambda: revive(target))

    def kill(self, target: SimProcess, seconds: float) -> None:
        """Kill a process; its machine runs on. It starts again after some seconds."""
        self._stop(target, False, seconds)

    def power(self, target: SimProcess, seconds: float) -> None:
        """Cut the power of a machine: unflushed data may be lost. It starts again after some seconds."""
        self._stop(target, True, seconds)

    def power_all(self, target: SimProcess, seconds: Sequence[float]) -> None:
        """Cut the power of all replica servers at once; each starts again after its own number of seconds."""
        for name, time in zip(self.cluster.replicas, seconds, strict=True):
            self._stop(self.cluster.processes[name], True, time)

    def pause(self, target: SimProcess, seconds: float) -> None:
        """Pause a process for some seconds, without its knowledge."""
        if target.running:
            target.freeze(seconds)

    def crash_at_effect(self, target: SimProcess, after: int, power: bool, seconds: float) -> None:
        """Let a process die before one of its next effects."""
        self._doomed[target.name] = _Doom(after, power, seconds)

    def crash_at_write(self, target: SimProcess, after: int, seconds: float) -> None:
        """Cut the power of a replica server in the middle of one of its next writes."""
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
        """Cut a process off from the named others for some seconds."""
        self._cut(target.name, others, seconds)

    def split(self, target: SimProcess, side: Sequence[str], seconds: float) -> None:
        """Cut the network into two sides for some seconds."""
        names = [*self.cluster.processes, *(client.name for client in self.cluster.clients)]
        there = [name for name in names if name not in side]
        for name in side:
            self._cut(name, there, seconds)

    def one_way(self, target: SimProcess, others: Sequence[str], out: bool, seconds: float) -> None:
        """Block one direction between a process and the named others for some seconds: ``out`` what it sends, else
        what is sent to it."""
        until = self.loop.now + seconds
        for other in others:
            pair = (target.name, other) if out else (other, target.name)
            self.cluster.network.block(*pair, until)

    def cut_pair(self, target: SimProcess, other: str, seconds: float) -> None:
        """Cut two processes off from each other for some seconds (a partial partition)."""
        self._cut(target.name, [other], seconds)

    def weather(self, target: SimProcess, seconds: float, **values: float) -> None:
        """Change delays, loss and copies of messages everywhere for some seconds."""
        self._change_weather(Weather(**values), seconds)

    def flaky_links(self, target: SimProcess, seconds: float, probability: float) -> None:
        """Let links break with a probability per message for some seconds."""
        self._change_weather(Weather(break_link=probability), seconds)

    def _change_weather(self, weather: Weather, seconds: float) -> None:
        self.cluster.network.weather = weather
        self.loop.after(seconds, lambda: self._clear(weather))

    def _clear(self, weather: Weather) -> None:
        if self.cluster.network.weather is weather:
            self.cluster.network.weather = Weather()

    def reset_links(self, target: SimProcess, others: Sequence[str], slow: bool) -> None:
        """Break all links between a process and the named others at once, with all messages in flight; new links may
        be opened."""
        self.cluster.network.reset(target.name, others, slow)

    def mute(self, target: SimProcess, others: Sequence[str], out: bool, back: bool, seconds: float) -> None:
        """Make the links between a process and the named others mute, in one or both directions; new links are mute
        for some seconds too."""
        until = self.loop.now + seconds
        for other in others:
            if out:
                self.cluster.network.mute(target.name, other, until)
            if back:
                self.cluster.network.mute(other, target.name, until)

    # --- disks -------------------------------------------------------------------------------------------

    def slow_disk(self, target: SimProcess, seconds: float) -> None:
        """Let writes and flushes take up to a second for some seconds."""
        self._slow[target.name] = self.loop.now + seconds

    def sync_error(self, target: SimProcess, after: int, seconds: float) -> None:
        """Let flushes of a replica server fail with EIO for some seconds; what they cover never becomes durable."""
        disk = getattr(target, "disk", None)
        if disk is not None:
            disk.fail_syncs(errno.EIO, after=after)
            self.loop.after(seconds, lambda: disk.fail_syncs(0))

    def write_error(self, target: SimProcess, error: int, after: int, seconds: float) -> None:
        """Let writes of a replica server fail with an error (EIO or ENOSPC) for some seconds."""
        disk = getattr(target, "disk", None)
        if disk is not None:
            disk.fail_writes(error, after=after)
            self.loop.after(seconds, lambda: disk.fail_writes(0))

    def read_error(self, target: SimProcess, after: int, seconds: float) -> None:
        """Let reads of a replica server fail with EIO for some seconds."""
        disk = getattr(target, "disk", None)
        if disk is not None:
            disk.fail_reads(errno.EIO, after=after)
            self.loop.after(seconds, lambda: disk.fail_reads(0))

    def disk_full(self, target: SimProcess, seconds: float) -> None:
        """Let no file of a replica server grow for some seconds, over any restart."""
        disk = getattr(target, "disk", None)
        if disk is not None:
            disk.full = True
            self.loop.after(seconds, lambda: setattr(disk, "full", False))

    def stall_disk(self, target: SimProcess, seconds: float) -> None:
        """Delay the end of each flush that begins within these seconds until they are over (KIP-501)."""
        self._stalled[target.name] = self.loop.now + seconds

    def bit_rot(self, target: SimProcess, place: float, bit: int) -> None:
        """Flip a bit in the durable content of a segment of one replica server, open or closed. All such faults of a
        run hit the same server, so that the others still have the data."""
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
        """Give a machine a new, empty disk and start it after some seconds."""
        self._change_disk(target, SimDisk(), seconds)

    def restore_disk(self, target: SimProcess, age: float, seconds: float) -> None:
        """Give a machine a copy of its disk that is some seconds old, of an incarnation before its last registered
        one. (With a copy of the same incarnation nobody can tell at once that flushed records are missing; the
        members that have them refuse to cut them.)"""
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
        """Replace the store of a controller by an empty one; the operator adds the controller again. Does nothing
        while the group lacks another store, which would lose the majority."""
        self._replace_store(target, False, seconds, damaged=False)

    def rot_store(self, target: SimProcess, power: bool, seconds: float) -> None:
        """Let a controller find its synced store damaged when it starts: it puts the store aside and begins with an
        empty one, as with ``lose_store``."""
        self._replace_store(target, power, seconds, damaged=True)

    def _replace_store(self, target: SimProcess, power: bool, seconds: float, *, damaged: bool) -> None:
        cluster = self.cluster
        if isinstance(target, ControllerProcess) and cluster.admin.group_is_at_rest and cluster.can_lose(target.name):
            self._stop(target, power, seconds)
            target.lose_store(damaged=damaged)
            cluster.count("stores rotted" if damaged else "stores lost")
            cluster.admin.add_controller(target.name)

    def old_store(self, target: SimProcess, age: float, seconds: float) -> None:
        """Give a controller a copy of its store that is some seconds old. Does nothing while the group lacks another
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
        """Kill these controllers, or with ``cut`` cut them off together with the replica servers ``beside`` them;
        clients stay with the others."""
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
        """Let the operator add or remove a controller. None is removed while another runs on an old copy of its
        store: of three that would leave one."""
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
        """Move the clock of a machine by some ms."""
        target.clock_skew_ms += ms

    def recreate_topic(self, target: SimProcess, name: str, number: int) -> None:
        """Delete a topic and create another of the same name, with the settings of the topic of a number."""
        topics = self.cluster.options.topics
        wanted = topics[number % len(topics)]
        self.cluster.admin.recreate(replace(wanted, name=name))

    def alter_topic(self, target: SimProcess, name: str, config: dict[str, str]) -> None:
        """Change settings of a topic."""
        self.cluster.admin.alter(name, config)

    # --- asked by the processes --------------------------------------------------------------------------

    def dies_before(self, process: SimProcess, effect: Any) -> bool:
        """Return whether the process dies instead of performing this effect, and kill it then. Half of the time a
        ``Persist`` effect is performed first: the commit reached the disk, and nobody learnt of it."""
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
        """Handle a power loss in the middle of a write: stop the process and start it again after a while."""
        self.cluster.count("crashed at a write")
        process.stop(power=True, in_mid_step=True)
        self.loop.after(self._returns.pop(process.name, 0.1), lambda: revive(process))

    def process_ended(self, process: SimProcess, error: OSError) -> None:
        """Handle a server that ended because of a disk error: its supervisor starts it again."""
        process.note("exit", str(error))
        self.cluster.count("exited")
        process.stop(power=False, in_mid_step=True)
        self.loop.after(process.rng.choice((0.1, 0.4, 1.0)), lambda: revive(process))

    def disk_stall(self, process: SimProcess) -> float:
        """Return the seconds that a blocking write takes now; 0 on a healthy disk."""
        if self._slow.get(process.name, 0.0) > self.loop.now:
            return process.rng.uniform(0.0, 0.5)
        return 0.0

    def flush_time(self, process: SimProcess) -> float:
        """Return the seconds that a flush takes now."""
        stalled = self._stalled.get(process.name, 0.0) - self.loop.now
        if stalled > 0.0:
            return stalled + process.rng.uniform(0.0, 0.1)
        if self._slow.get(process.name, 0.0) > self.loop.now:
            return process.rng.uniform(0.0, 1.0)
        return process.rng.uniform(0.0002, 0.004)


def revive(process: SimProcess) -> None:
    """Start a process if it is down."""
    if not process.running:
        process.start()
