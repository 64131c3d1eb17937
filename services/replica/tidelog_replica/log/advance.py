"""Retention's part of the disk: segments below a new log start go, in a thread.

The log has forgotten the segments before the job begins, so nobody else touches their files. The order is what makes
it safe: first the producers' state at the new start is durable, then the new start, then the names go. A snapshot
that is there already is written again: a sync of what a former life could not sync would say that all is well.
Whatever a crash leaves below the start, the next opening removes.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from tidelog.disk import Disk

from tidelog_replica.core.producers import ProducerState
from tidelog_replica.log.origin import Origin, write_origin
from tidelog_replica.log.recall import producers_below
from tidelog_replica.log.segment import Segment, close
from tidelog_replica.log.snapshots import Snapshots


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

    def run(self) -> None:
        """Make it so. Raises ``OSError``."""
        snapshots = Snapshots(self.disk, self.directory)
        start = self.origin.start
        state = snapshots.read(start, self.origin.chain)
        if state is None:
            state = self._producers_at(start).to_bytes()
        snapshots.write(start, self.origin.chain, state, sync=True)
        self.disk.sync_dir(self.directory)
        write_origin(self.disk, self.directory, self.origin)
        for segment in self.segments:
            close(segment)
            segment.unlink()
        snapshots.remove(below=start)
        self.disk.sync_dir(self.directory)

    def _producers_at(self, start: int) -> ProducerState:
        """Damage to what goes is no damage any more: what is in memory of that time does as well."""
        try:
            return producers_below(self.disk, self.directory, self.segments, start, self.latest)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return self.latest.before(start)
