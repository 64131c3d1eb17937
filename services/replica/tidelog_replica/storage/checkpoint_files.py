"""The files in a log's directory, besides ``<base>.log``, ``.index`` and ``producers-<offset>``: their names, and
what binds them to it."""

import errno

from crc32c import crc32c
from tidelog.disk import Disk

MARK = "recovery-mark"
"""Below it everything was synced: a ``Checkpoint``."""
EPOCHS = "leader-epochs"
"""Which leader epoch begins where: an ``EpochCache``."""
HIGH_WATERMARK = "high-watermark"
COMMITTED_ONCE = "committed-once"
"""Both are of ``Committed``: ``Checkpoint``s."""
PENDING_LOSSES = "pending-losses"
"""Losses that the controller does not know of yet: see ``pending_losses.py``."""
LOG_START = "log-start"
"""Where the log begins: an ``Origin``."""
COMPACTED = "compacted-to"
"""Below it the log was compacted at least once: a ``Checkpoint``."""
TOMBSTONES = "tombstones-to"
"""Below it tombstones may be gone: a ``Checkpoint``. See ``storage/tombstones.py``."""
RESET = "reset"
"""The log is to be thrown away: see ``reset.py``."""
CLEANED = ".cleaned"
"""Ends the name of a compacted segment that does not stand in its place yet."""
REPAIR = ".repair"
"""Ends the name of a file that fills a hole in the log: see ``damage.py``."""


UNREADABLE = (errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ENODATA, errno.EILSEQ, errno.ENOENT)
"""What a failing medium answers to who opens or reads (Linux). Other errors (no rights, no descriptors, no memory)
say nothing of what is there."""


def seed_of(directory: str) -> int:
    """Where the CRCs of these files begin: with the name of the directory, so that a file of another partition counts
    as damaged here, however sound it is."""
    seed: int = crc32c(directory.rpartition("/")[2].encode())
    return seed


def read_cache(disk: Disk, path: str) -> bytes:
    """A file that can be made again; nothing where it is missing. One that the disk cannot read is as good as missing
    and is removed: a write to a part of it would fail, too, and so would every later start. Raises ``OSError``."""
    try:
        return disk.read(path)
    except FileNotFoundError:
        return b""
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        disk.unlink(path)
        return b""
