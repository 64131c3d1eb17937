"""Retention's part of the disk: segments below a new log start go, in a thread.

The log has forgotten the segments before the job begins, so nobody else touches their files. The order is what makes
it safe: first the producers' state at the new start is durable, then the new start, then the names go. A snapshot
that is there already is written again: a sync of what a former life could not sync would say that all is well.
Where no sound snapshot tells the state at the new start and the segments that go are damaged, the state is what is in
memory of that time. It can lack batches that later ones have pushed out of memory. The job says so: that is final.
Whatever a crash leaves below the start, the next opening removes.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from tidelog.disk import Disk

from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.log_start_checkpoint import Origin, write_origin
from tidelog_replica.storage.producer_rebuild import producers_below
from tidelog_replica.storage.producer_snapshots import Snapshots
from tidelog_replica.storage.segment import Segment, close


@dataclass(frozen=True, slots=True)
class Advance:
    """The log begins at ``origin`` now. A job (see ``jobs.py``)."""

    disk: Disk
    directory: str
    origin: Origin
    segments: tuple[Segment, ...]
    """Those that go, oldest first; the job's own."""
    latest: ProducerState
    """At the log's end; nobody else's."""
    generation: int

    def run(self) -> bool:
        """Make it so. The result is False where damage has hidden what producers had written before the new start.
        Raises ``OSError``."""
        snapshots = Snapshots(self.disk, self.directory)
        start, is_whole = self.origin.start, True
        state = snapshots.read(start, self.origin.chain)
        if state is None:
            producers, is_whole = self._producers_at(start)
            state = producers.to_bytes()
        snapshots.write(start, self.origin.chain, state, sync=True)
        self.disk.sync_dir(self.directory)
        write_origin(self.disk, self.directory, self.origin)
        for segment in self.segments:
            close(segment)
            segment.unlink()
        snapshots.remove(below=start)
        self.disk.sync_dir(self.directory)
        return is_whole

    def _producers_at(self, start: int) -> tuple[ProducerState, bool]:
        """The state at ``start``, and whether it is all that the log told. Damage to what goes costs no copy: what is
        in memory of that time has to do."""
        try:
            return producers_below(self.disk, self.directory, self.segments, start, self.latest), True
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return self.latest.before(start), False
