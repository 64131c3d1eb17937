"""Segments encrypted at rest: a disk whose segment files hold their batches encrypted, and the form that these have.

Theory (and why it is so: decision 12). The log above deals in batches and in positions of the file, and so does this:
a batch takes ``stored`` bytes of a encrypted file, and everything that reads or writes segments asks for that number
(``Window``, ``stored_size``). Nothing else of the log knows that there are keys: offsets, the hash chain, CRCs, what
is sent to others, what is in memory are those of the batch itself.

    key page    4096 bytes, twice: the file's data key, random, wrapped by a key-encryption key
    batch       nonce (12 bytes, random); its first 88 bytes (zeros behind a shorter one), encrypted, 16 bytes tag;
                and where there is more, the rest, encrypted, 16 bytes tag

A file gets its data key with its first write, together with the data and synced with it: a key page that is
torn is one with nothing synced behind it. A file that is cut to nothing forgets its key. A rename takes it along.
So a file is encrypted, or in the clear, from its first batch to its last; its first bytes show which.

Nonces are random, for each batch that is written, under a key that is random for each file. Nothing has to be
remembered, so no crash, cut, reopening or restored copy of the disk can bring one back. What is written *again*
(``rewrite``) is the same ciphertext. The two parts of a batch have nonces that differ in the last bit.

What cannot be decrypted is damaged or torn, as with a CRC: ``CorruptBatch``. But a file whose key page is whole, and
names a key that this server does not have or that does not fit, is no damage: ``KeyMissing``. A key page that is
damaged in both places leaves a file without a readable key, and counts as damaged.
"""

from __future__ import annotations

import errno
import re
import struct
from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c
from tidelog.batch.format import SPARSE_HEADER_BYTES
from tidelog.errors import CorruptBatch
from tidelog.runtime.disk import Disk, File
from tidelog.types import Buffer

from tidelog_replica.storage.encryption.keyring import ID_BYTES, KEY_BYTES, NONCE_BYTES, TAG_BYTES, Cipher, Keyring

PAGE_BYTES = 4096
"""One key page, in a sector of its own."""
BATCHES_AT = 2 * PAGE_BYTES
"""Position of the first batch in an encrypted file."""
HEAD_BYTES = NONCE_BYTES + SPARSE_HEADER_BYTES + TAG_BYTES
"""Least bytes of a encrypted batch: what its header is read from."""
SEGMENT = re.compile(r"([^/]*/[0-9]{20})\.(log|log\.cleaned|repair|quarantined|tail|tail\.new)$")
"""Paths of files that hold batches; what keeps a wrapped key to its file is the directory's name and the base."""
_PAGE = struct.Struct(f">4s{ID_BYTES}s{NONCE_BYTES}s{KEY_BYTES + TAG_BYTES}s")
_CRC = struct.Struct(">I")
_MAGIC = b"TLK1"


class KeyMissing(OSError):
    """A segment is encrypted, and this server has not the key. Nothing is known of what is in it."""

    def __init__(self, path: str, key: str, known: bool) -> None:
        why = (
            "which fits not: another key has that id, or the file comes from elsewhere"
            if known
            else "which is unknown"
        )
        hint = "see encryption_key_file"
        super().__init__(errno.EACCES, f"the segment is encrypted with key {key!r}, {why} ({hint})", path)


class KeyPage(NamedTuple):
    """A wrapped data key as it stands in a file."""

    key: str
    """Id of the key-encryption key."""
    nonce: bytes
    wrapped: bytes

    def to_bytes(self) -> bytes:
        """Return the key page as the bytes of the file."""
        data = _PAGE.pack(_MAGIC, self.key.encode("ascii"), self.nonce, self.wrapped)
        return (data + _CRC.pack(crc32c(data))).ljust(PAGE_BYTES, b"\0")


def read_pages(data: Buffer) -> list[KeyPage]:
    """The key pages at the start of a file that are whole; none of a file in the clear."""
    found = []
    for start in (0, PAGE_BYTES):
        page = bytes(data[start : start + _PAGE.size])
        crc = bytes(data[start + _PAGE.size : start + _PAGE.size + _CRC.size])
        if len(crc) < _CRC.size or _CRC.unpack(crc)[0] != crc32c(page):
            continue
        magic, key, nonce, wrapped = _PAGE.unpack(page)
        if magic == _MAGIC:
            found.append(KeyPage(key.rstrip(b"\0").decode("ascii", "replace"), nonce, wrapped))
    return found


def wrap(keys: Keyring, path: str, data_key: bytes) -> KeyPage:
    """The data key of the file at ``path`` under the current key."""
    assert keys.current is not None
    nonce = keys.entropy(NONCE_BYTES)
    wrapped = Cipher(keys.keys[keys.current]).encrypt(nonce, data_key, _name_of(path))
    return KeyPage(keys.current, nonce, wrapped)


def unwrap(keys: Keyring, path: str, pages: Sequence[KeyPage]) -> bytes:
    """The data key of the file at ``path``. Raises ``KeyMissing``."""
    for page in pages:
        if page.key in keys.keys:
            data_key = Cipher(keys.keys[page.key]).decrypt(page.nonce, page.wrapped, _name_of(path))
            if data_key is not None:
                return data_key
    raise KeyMissing(path, pages[0].key, pages[0].key in keys.keys)


def _name_of(path: str) -> bytes:
    found = SEGMENT.search(path)
    assert found is not None
    return found[1].encode()


class EncryptedFile:
    """A segment's file. Positions are those behind the key pages. Each buffer that is written is a whole batch; what
    ``pread`` returns is as it stands there."""

    def __init__(self, file: File, path: str, keys: Keyring) -> None:
        self._file = file
        self._path = path
        self._keys = keys
        self._settled = False
        """Whether it is encrypted is known; of an empty file it is not."""
        self._cipher: Cipher | None = None
        self._pages = b""
        """To be written with the first batch."""

    @property
    def cipher(self) -> Cipher | None:
        """The cipher that decrypts its batches; None: they are in the clear. Raises ``KeyMissing``."""
        if not self._settled and self._file.size():
            pages = read_pages(self._file.pread(BATCHES_AT, 0))
            self._cipher = Cipher(unwrap(self._keys, self._path, pages)) if pages else None
            self._settled = True
        return self._cipher

    @property
    def _batches_at(self) -> int:
        return 0 if self.cipher is None else BATCHES_AT

    def stored(self, length: int) -> int:
        """The number of bytes that a batch of that length takes here, or will take."""
        encrypted = self.cipher is not None or (not self._settled and self._keys.current is not None)
        return stored_bytes(length) if encrypted else length

    def size(self) -> int:
        """Return the length of the batches in bytes; see ``File``."""
        return max(0, self._file.size() - self._batches_at)

    def pread(self, length: int, position: int) -> bytes:
        """Read up to ``length`` bytes at a position; see ``File``."""
        return self._file.pread(length, position + self._batches_at)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write batches, one a buffer, encrypted if the file is; see ``File``. The first one of an empty file gives
        it its key."""
        if not position and not self.size():
            self._begin()
        cipher = self.cipher
        if cipher is None:
            self._file.pwritev(buffers, position)
            return
        encrypted = [part for batch in buffers for part in self.encrypted(batch)]
        if position:
            self._file.pwritev(encrypted, position + BATCHES_AT)
        else:
            self._file.pwritev(
                [self._pages, *encrypted] if self._pages else encrypted, 0 if self._pages else BATCHES_AT
            )
            self._pages = b""

    def encrypted(self, data: Buffer) -> list[bytes]:
        """A batch as it is stored in this file, which is encrypted, in parts."""
        assert self.cipher is not None
        return encrypt_batch(self.cipher, self._keys.entropy(NONCE_BYTES), data)

    def _begin(self) -> None:
        self._cipher, self._pages, self._settled = None, b"", True
        if self._file.size():  # a key page that nothing follows: it may not be on the disk
            self._file.truncate(0)
        if self._keys.current is not None:
            data_key = self._keys.entropy(KEY_BYTES)
            self._cipher = Cipher(data_key)
            self._pages = wrap(self._keys, self._path, data_key).to_bytes() * 2

    def rewrite(self, position: int, size: int) -> None:
        """Write again what stands there, and with the first batch the key pages: the same bytes."""
        begin = position + self._batches_at if position else 0
        end = position + self._batches_at + size
        self._file.pwritev([self._file.pread(end - begin, begin)], begin)

    def truncate(self, size: int) -> None:
        """Cut the file; see ``File``. One that is cut to nothing gets a new key with its next batch."""
        if size:
            self._file.truncate(size + self._batches_at)
            return
        self._file.truncate(0)
        self._cipher, self._pages, self._settled = None, b"", False

    def sync(self) -> None:
        """Make data and size durable; see ``File``."""
        self._file.sync()

    def close(self) -> None:
        """Release the file, without a sync; see ``File``."""
        self._file.close()


def encrypt_batch(cipher: Cipher, random: bytes, batch: Buffer) -> list[bytes]:
    """The batch as it is stored, in parts. ``random``: ``NONCE_BYTES``, never used before with this key."""
    view = memoryview(batch)
    nonce = _nonce(random, 0)
    parts = [nonce, cipher.encrypt(nonce, bytes(view[:SPARSE_HEADER_BYTES]).ljust(SPARSE_HEADER_BYTES, b"\0"), None)]
    if len(view) > SPARSE_HEADER_BYTES:
        parts.append(cipher.encrypt(_nonce(nonce, 1), view[SPARSE_HEADER_BYTES:], None))
    return parts


def decrypt_head(cipher: Cipher, stored: Buffer) -> bytes:
    """The first ``SPARSE_HEADER_BYTES`` of a batch, from its first ``HEAD_BYTES`` as stored. Raises
    ``CorruptBatch``."""
    found = (
        cipher.decrypt(stored[:NONCE_BYTES], stored[NONCE_BYTES:HEAD_BYTES]) if len(stored) >= HEAD_BYTES else None
    )
    if found is None:
        raise CorruptBatch("the encrypted header of a batch is damaged or cut short")
    return found


def decrypt_rest(cipher: Cipher, stored: Buffer) -> bytes:
    """The part of a batch behind its first ``SPARSE_HEADER_BYTES``, from the whole as stored. Raises
    ``CorruptBatch``."""
    rest = stored[HEAD_BYTES:]
    found = cipher.decrypt(_nonce(stored, 1), rest) if len(rest) >= TAG_BYTES else None
    if found is None:
        raise CorruptBatch("an encrypted batch is damaged or cut short")
    return found


def _nonce(of: Buffer, part: int) -> bytes:
    return bytes(of[: NONCE_BYTES - 1]) + bytes([of[NONCE_BYTES - 1] & 0xFE | part])


def stored_bytes(length: int) -> int:
    """Size of a encrypted batch of ``length`` bytes."""
    return HEAD_BYTES + (length - SPARSE_HEADER_BYTES + TAG_BYTES if length > SPARSE_HEADER_BYTES else 0)


def stored_size(file: File, length: int) -> int:
    """The number of bytes that a batch of ``length`` takes in this file."""
    return file.stored(length) if isinstance(file, EncryptedFile) else length


def rewrite(file: File, position: int, batch: Buffer) -> None:
    """Write the batch that was read at ``position`` again, with the same bytes."""
    if isinstance(file, EncryptedFile):
        file.rewrite(position, file.stored(len(batch)))
    else:
        file.pwritev([batch], position)


def cipher_of(file: File) -> Cipher | None:
    """The cipher that decrypts the batches in this file; None: they are in the clear. Raises ``KeyMissing``."""
    return file.cipher if isinstance(file, EncryptedFile) else None


def encrypt_beside(file: File, data: bytes) -> list[bytes]:
    """Something about the segment in this file, as it is to be put beside it: encrypted with its key, if it has
    one."""
    return file.encrypted(data) if isinstance(file, EncryptedFile) and file.cipher is not None else [data]


def decrypt_beside(file: File, stored: bytes, *, whole: bool = True) -> bytes:
    """What was put beside the segment in this file; not ``whole``: at least its first ``SPARSE_HEADER_BYTES``, of
    ``HEAD_BYTES`` or more. Nothing where it is damaged, or does not belong there. Raises ``KeyMissing``."""
    cipher = cipher_of(file)
    if cipher is None:
        return stored
    try:
        head = decrypt_head(cipher, stored)
        return head + decrypt_rest(cipher, stored) if whole and len(stored) > HEAD_BYTES else head
    except CorruptBatch:
        return b""


class EncryptedDisk:
    """``Disk`` over ``below``: its segment files are opened as ``EncryptedFile``s. Without a current key it is there
    to distinguish a segment that is encrypted from one that is damaged, and those in the clear are opened as they
    are."""

    def __init__(self, below: Disk, keys: Keyring) -> None:
        self.below = below
        self._keys = keys

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reading and writing; see ``Disk``."""
        file = self.below.open(path, create=create)
        if not SEGMENT.search(path):
            return file
        encrypted = EncryptedFile(file, path, self._keys)
        try:
            clear = encrypted.cipher is None  # read now: the caller of ``open`` handles a file that cannot be read
        except OSError:
            file.close()
            raise
        return file if clear and self._keys.current is None else encrypted

    def read(self, path: str) -> bytes:
        """Read a whole file that holds no batches; see ``Disk``."""
        return self.below.read(path)

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace a file that holds no batches durably; see ``Disk``."""
        self.below.write_atomic(path, data)

    def rename(self, source: str, target: str) -> None:
        """Rename a file within its directory; see ``Disk``."""
        self.below.rename(source, target)

    def unlink(self, path: str) -> None:
        """Remove a file; see ``Disk``."""
        self.below.unlink(path)

    def listdir(self, path: str) -> list[str]:
        """List the names in a directory; see ``Disk``."""
        return self.below.listdir(path)

    def mkdir(self, path: str) -> None:
        """Create a directory durably, with its parents; see ``Disk``."""
        self.below.mkdir(path)

    def rmtree(self, path: str) -> None:
        """Remove a directory with all in it; see ``Disk``."""
        self.below.rmtree(path)

    def sync_dir(self, path: str) -> None:
        """Make the changes of a directory durable; see ``Disk``."""
        self.below.sync_dir(path)

    def modified_ms(self, path: str) -> int | None:
        """Return when a file was last written; see ``Disk``."""
        return self.below.modified_ms(path)

    def free(self, path: str) -> int:
        """Return how many bytes may still be written; see ``Disk``."""
        return self.below.free(path)

    def allocate(self, path: str, size: int) -> None:
        """Make a file that takes disk space; see ``Disk``."""
        self.below.allocate(path, size)
