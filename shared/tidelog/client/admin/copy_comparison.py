"""Finds out whether the copies of a partition hold the same bytes on their disks.

Every replica server reads its copy from its disk, piece by piece, checks each batch and answers with fingerprints
(``tidelog.batch.fingerprints``). The fingerprints of all copies are compared batch by batch, from the greatest log
start to the smallest high watermark. If a copy turns out to be damaged, its server stops answering, or its records
are not synced to the disk (``flush=os``, a disk that stalls), the copy is named, and the comparison goes on with the
others. A single copy that is left is read to its end, too, so that its batches are checked.

Each replica compacts its own copy. If compaction has thinned out a batch in some copy, only the header is compared
that the batch had when its producer sent it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from tidelog.batch.fingerprints import Fingerprint, unpack
from tidelog.client.admin.replica_comparison import Ask, Comparison, Difference, Side, ask_bounds
from tidelog.client.loop import Loop
from tidelog.errors import TidelogError
from tidelog.wire.codec import payload_view
from tidelog.wire.messages import CopyRead

AGAIN_S = 0.2
"""Pause in seconds before a server is asked again that had nothing to read, because its log has changed or is not
synced up to that offset yet."""
TRIES = 5
"""Number of empty answers at one offset after which a copy is not compared any further."""

ReadPiece = Callable[[str, int], Awaitable[CopyRead]]
"""A function (server, offset) that has a replica server read a piece of its copy from that offset on."""


@dataclass(slots=True)
class _ComparedCopy:
    """One copy in a comparison: how far it was read, and the fingerprints that were read and not compared yet."""

    node: str
    offset: int
    """Offset at which the next piece begins."""
    waiting: deque[Fingerprint] = field(default_factory=deque)
    bytes_read: int = 0
    """Bytes of the last piece."""


class _Comparer:
    """A comparison of the copies of one partition between two offsets, of which the second is exclusive. It reads the
    copies piece by piece, and counts the bytes read and the thinned batches. ``unasked`` has the copies that could
    not be compared up to the end, with the reason."""

    def __init__(
        self,
        loop: Loop,
        nodes: Sequence[str],
        start: int,
        end: int,
        read: ReadPiece,
        max_bytes_per_s: float,
        on_records: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self._copies = [_ComparedCopy(node, start) for node in nodes]
        self._end = end
        self._read = read
        self._max_bytes_per_s = max_bytes_per_s
        self._on_records = on_records
        self.unasked: dict[str, str] = {}
        self.compared_to = start
        self.bytes_read = 0
        self.thinned = 0

    async def run(self) -> Difference | None:
        """Compare the copies from the start offset to the end offset, and return the first difference; None if there
        is none. ``unasked`` then has the copies that could not be compared up to the end, with the reason."""
        while True:
            await self._loop.gather(partial(self._fill, copy) for copy in self._copies if not copy.waiting)
            self._copies = [copy for copy in self._copies if copy.node not in self.unasked]
            if not self._copies or not all(copy.waiting for copy in self._copies):
                return None
            edge = max(copy.waiting[0].base_offset for copy in self._copies)
            for copy in self._copies:  # retention has overtaken the reading of some of them
                while copy.waiting and copy.waiting[0].end_offset <= edge:
                    copy.waiting.popleft()
            if all(copy.waiting for copy in self._copies) and (found := self._compare_one()) is not None:
                return found

    def _compare_one(self) -> Difference | None:
        """Remove the next batch of each copy and compare these batches. Returns the difference; None if they agree,
        after the progress was reported to ``on_records``."""
        heads = {copy.node: copy.waiting.popleft() for copy in self._copies}
        whole = next((head for head in heads.values() if not head.is_sparse), next(iter(heads.values())))
        self.thinned += any(head.is_sparse for head in heads.values())
        if not all(head.agrees(whole) for head in heads.values()):
            sides = {node: Side(head.end_offset, _shown(head, whole)) for node, head in heads.items()}
            return Difference(min(head.base_offset for head in heads.values()), sides)
        self._on_records(whole.end_offset - self.compared_to)
        self.compared_to = whole.end_offset
        return None

    async def _fill(self, copy: _ComparedCopy) -> None:
        """Read the copy until at least one fingerprint waits or its end is reached, no faster than
        ``max_bytes_per_s``. A copy that cannot be read is added to ``unasked``."""
        try:
            tries = 0
            while not copy.waiting and copy.offset < self._end:
                began, before = self._loop.now(), copy.offset
                await self._read_piece(copy)
                tries = tries + 1 if copy.offset == before else 0
                if tries >= TRIES:
                    self.unasked[copy.node] = (
                        f"from offset {copy.offset} on nothing can be read from its disk: it is not synced so far,"
                        f" or changes all the time; copies are compared up to {self._end}"
                    )
                    return
                if tries:
                    await self._loop.sleep(AGAIN_S)
                elif self._max_bytes_per_s and copy.bytes_read:
                    pause_s = copy.bytes_read / self._max_bytes_per_s - (self._loop.now() - began)
                    await self._loop.sleep(max(0.0, pause_s))
        except TidelogError as error:
            self.unasked[copy.node] = str(error)

    async def _read_piece(self, copy: _ComparedCopy) -> None:
        """Read one piece of the copy, and append the fingerprints of its batches that end at or below the end offset.
        If the log now starts above the copy's offset, reading goes on at the log start. Raises any other error of the
        server."""
        try:
            answer = await self._read(copy.node, copy.offset)
        except TidelogError as error:
            start = error.detail.get("log_start")
            if error.code != "OFFSET_OUT_OF_RANGE" or not isinstance(start, int) or start <= copy.offset:
                raise
            copy.offset, copy.bytes_read = start, 0  # retention has overtaken it
            return
        found = unpack(payload_view(answer.payload))
        copy.waiting.extend(one for one in found if one.end_offset <= self._end)
        copy.offset, copy.bytes_read = answer.next_offset, answer.bytes
        self.bytes_read += answer.bytes


def _shown(head: Fingerprint, whole: Fingerprint) -> str:
    """Return, in hexadecimal, the digest by which a batch differs from the batch ``whole``: the digest of its header
    if the headers differ, else that of its content."""
    return (head.content if head.sent == whole.sent else head.sent).hex()


async def compare_copies(
    loop: Loop,
    nodes: Sequence[str],
    ask: Ask,
    read: ReadPiece,
    max_bytes_per_s: float,
    on_records: Callable[[int], None],
) -> Comparison:
    """Compare the copies of a partition that the servers ``nodes`` have on their disks, from the greatest log start
    to the smallest high watermark, and return the result. ``ask`` gets the bounds of a log and ``read`` a piece of a
    copy. ``max_bytes_per_s``: how fast each copy is read; 0: no limit. ``on_records`` is called with the number of
    further records that were compared. A server that does not answer is named in the result and left out; if no
    server answers, nothing is compared."""
    first, unasked = await ask_bounds(loop, nodes, ask)
    if not first:
        return Comparison((), unasked=unasked)
    start = max(answer.log_start for answer in first.values())
    end = max(start, min(answer.high_watermark for answer in first.values()))
    comparer = _Comparer(loop, list(first), start, end, read, max_bytes_per_s, on_records)
    difference = await comparer.run()
    compared = tuple(node for node in first if node not in comparer.unasked)
    return Comparison(
        compared,
        start,
        comparer.compared_to,
        difference,
        unasked | comparer.unasked,
        comparer.bytes_read,
        comparer.thinned,
    )
