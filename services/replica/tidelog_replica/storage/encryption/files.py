"""Segments encrypted at rest: a disk whose segment files hold their batches encrypted, and the form that these have.

Theory (decision 12 has the reasons). Like the log above, this deals in batches and in positions of the file. A batch
takes ``stored`` bytes of an encrypted file, and everything that reads or writes segments asks for that number
(``SegmentReader``, ``stored_size``). Nothing else of the log knows that there are keys: offsets, the hash chain,
CRCs, and batches in memory and in messages are not encrypted.

    key page    4096 bytes, twice: the file's data key, random, wrapped by a key-encryption key
    batch       nonce (12 bytes, random); its first 88 bytes (zeros behind a shorter one), encrypted, 16 bytes tag;
                and where there is more, the rest, encrypted, 16 bytes tag

A file gets its data key with its first write, together with the data, and is synced with it: nothing synced can stand
behind a torn key page. A file that is cut to nothing loses its key. A renamed file keeps it. So a file is encrypted,
or not, from its first batch to its last; its first bytes show which.

Nonces are random for each batch that is written, and the key is random for each file. No state must be remembered, so
no crash, cut, reopening or restored copy of the disk can repeat a nonce. A batch that is written *again*
(``rewrite``) is the same ciphertext. The two parts of a batch have nonces that differ in the last bit.

A batch that cannot be decrypted is damaged or torn, as one with a wrong CRC: ``CorruptBatch``. But if the key page is
whole and names a key that this server does not have, or that does not fit, nothing is damaged: ``KeyMissing``. A file
whose key page is damaged in both places has no readable key, and counts as damaged.
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
"""The length of a key page, which fills a sector of its own."""
BATCHES_AT = 2 * PAGE_BYTES
"""The byte position of the first batch in an encrypted file."""
HEAD_BYTES = NONCE_BYTES + SPARSE_HEADER_BYTES + TAG_BYTES
"""Fewest bytes that an encrypted batch takes: its header is read from them."""
SEGMENT = re.compile(r"([^/]*/[0-9]{20})\.(log|log\.cleaned|repair|quarantined|tail|tail\.new)$")
"""Matches the paths of files that hold batches. Its first group, the directory's name and the base, binds a wrapped
key to its file."""
_PAGE = struct.Struct(f">4s{ID_BYTES}s{NONCE_BYTES}s{KEY_BYTES + TAG_BYTES}s")
_CRC = struct.Struct(">I")
_MAGIC = b"TLK1"


class KeyMissing(OSError):
    """An error that says that the segment at ``path`` is encrypted with a key that this server does not have, so that
    its content is unknown. ``known`` says that the server has a key with that id, but it does not fit."""

    def __init__(self, path: str, key: str, known: bool) -> None:
        why = (
            "which does not fit: another key has that id, or the file comes from elsewhere"
            if known
            else "which is unknown"
        )
        hint = "see encryption_key_file"
        super().__init__(errno.EACCES, f"the segment is encrypted with key {key!r}, {why} ({hint})", path)


class KeyPage(NamedTuple):
    """The wrapped data key of an encrypted file. A page with it is stored twice at the start of the file."""

    key: str
    """The id of the key-encryption key that wraps it."""
    nonce: bytes
    wrapped: bytes

    def to_bytes(self) -> bytes:
        """Return the key page as stored: its fields and a CRC, padded with zeros to ``PAGE_BYTES``."""
        data = _PAGE.pack(_MAGIC, self.key.encode("ascii"), self.nonce, self.wrapped)
        return (data + _CRC.pack(crc32c(data))).ljust(PAGE_BYTES, b"\0")


def read_pages(data: Buffer) -> list[KeyPage]:
    """Return the undamaged key pages in ``data``, the first ``BATCHES_AT`` bytes of a file: two, one or none. An
    empty list means that the file is not encrypted or that both pages are damaged."""
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
    """Return a key page that holds ``data_key``, the data key of the file at ``path``, wrapped by the current key of
    ``keys``. There must be a current key."""
    assert keys.current is not None
    nonce = keys.entropy(NONCE_BYTES)
    wrapped = Cipher(keys.keys[keys.current]).encrypt(nonce, data_key, _name_of(path))
    return KeyPage(keys.current, nonce, wrapped)


def unwrap(keys: Keyring, path: str, pages: Sequence[KeyPage]) -> bytes:
    """Return the data key of the file at ``path``, decrypted from one of its key ``pages``, of which there must be
    one. Raises ``KeyMissing`` if no known key opens any of them."""
    for page in pages:
        if page.key in keys.keys:
            data_key = Cipher(keys.keys[page.key]).decrypt(page.nonce, page.wrapped, _name_of(path))
            if data_key is not None:
                return data_key
    raise KeyMissing(path, pages[0].key, pages[0].key in keys.keys)


def _name_of(path: str) -> bytes:
    """Return the part of a segment's path that is authenticated with its wrapped key, so that the key fits no other
    file."""
    found = SEGMENT.search(path)
    assert found is not None
    return found[1].encode()


class EncryptedFile:
    """The file of a segment, encrypted or not, as the log reads and writes it. Positions in it do not count the key
    pages. Each buffer that is written must be a whole batch; ``pread`` returns the stored bytes without decrypting
    them. Every method may raise ``OSError``."""

    def __init__(self, file: File, path: str, keys: Keyring) -> None:
        self._file = file
        self._path = path
        self._keys = keys
        self._settled = False
        """Whether it is known if the file is encrypted; for an empty file it is not."""
        self._cipher: Cipher | None = None
        self._pages = b""
        """Key pages that are to be written with the first batch."""

    @property
    def cipher(self) -> Cipher | None:
        """Return the cipher that decrypts the batches of the file; None if they are not encrypted, or if the file is
        empty. Reads the key pages at the first call. Raises ``KeyMissing``, and other ``OSError``s."""
        if not self._settled and self._file.size():
            pages = read_pages(self._file.pread(BATCHES_AT, 0))
            self._cipher = Cipher(unwrap(self._keys, self._path, pages)) if pages else None
            self._settled = True
        return self._cipher

    @property
    def _batches_at(self) -> int:
        return 0 if self.cipher is None else BATCHES_AT

    def stored(self, length: int) -> int:
        """Return how many bytes a batch of ``length`` bytes takes in this file, or would take in an empty one."""
        encrypted = self.cipher is not None or (not self._settled and self._keys.current is not None)
        return stored_bytes(length) if encrypted else length

    def size(self) -> int:
        """Return the length of the stored batches in bytes, without the key pages."""
        return max(0, self._file.size() - self._batches_at)

    def pread(self, length: int, position: int) -> bytes:
        """Return up to ``length`` stored bytes from ``position`` on, not decrypted."""
        return self._file.pread(length, position + self._batches_at)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write batches, one per buffer, at ``position``, encrypted if the file is. The first batch of an empty file
        decides: with a current key the file gets a new data key, and its key pages are written too. Raises
        ``OSError``."""
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
        """Return ``data``, a batch, encrypted with this file's key and a new nonce, as the parts to be stored one
        after the other. The file must be encrypted."""
        assert self.cipher is not None
        return encrypt_batch(self.cipher, self._keys.entropy(NONCE_BYTES), data)

    def _begin(self) -> None:
        """Decide whether an empty file is encrypted: if there is a current key, make a new data key and the key pages
        for the first write. Key pages that no batch follows are cut away, since they may not be on the disk."""
        self._cipher, self._pages, self._settled = None, b"", True
        if self._file.size():  # a key page without a batch behind it may not be durable
            self._file.truncate(0)
        if self._keys.current is not None:
            data_key = self._keys.entropy(KEY_BYTES)
            self._cipher = Cipher(data_key)
            self._pages = wrap(self._keys, self._path, data_key).to_bytes() * 2

    def rewrite(self, position: int, size: int) -> None:
        """Read ``size`` stored bytes at ``position`` and write them again unchanged, so that a later sync covers
        them. At position 0 the key pages are written again, too. Raises ``OSError``."""
        begin = position + self._batches_at if position else 0
        end = position + self._batches_at + size
        self._file.pwritev([self._file.pread(end - begin, begin)], begin)

    def truncate(self, size: int) -> None:
        """Cut the file so that its stored batches take ``size`` bytes. With ``size`` 0 the file's key is removed,
        too, and the next batch gets a new one. Raises ``OSError``."""
        if size:
            self._file.truncate(size + self._batches_at)
            return
        self._file.truncate(0)
        self._cipher, self._pages, self._settled = None, b"", False

    def sync(self) -> None:
        """Make data and size of the underlying file durable. Raises ``OSError``."""
        self._file.sync()

    def close(self) -> None:
        """Close the underlying file, without a sync."""
        self._file.close()


def encrypt_batch(cipher: Cipher, random: bytes, batch: Buffer) -> list[bytes]:
    """Return the batch encrypted with ``cipher``, as the parts to be stored one after the other. ``random`` is
    ``NONCE_BYTES`` bytes that were never used before with this key."""
    view = memoryview(batch)
    nonce = _nonce(random, 0)
    parts = [nonce, cipher.encrypt(nonce, bytes(view[:SPARSE_HEADER_BYTES]).ljust(SPARSE_HEADER_BYTES, b"\0"), None)]
    if len(view) > SPARSE_HEADER_BYTES:
        parts.append(cipher.encrypt(_nonce(nonce, 1), view[SPARSE_HEADER_BYTES:], None))
    return parts


def decrypt_head(cipher: Cipher, stored: Buffer) -> bytes:
    """Return the first ``SPARSE_HEADER_BYTES`` of a batch, decrypted from ``stored``, its first ``HEAD_BYTES`` or
    more in the file. Raises ``CorruptBatch`` if they are damaged or too few."""
    found = (
        cipher.decrypt(stored[:NONCE_BYTES], stored[NONCE_BYTES:HEAD_BYTES]) if len(stored) >= HEAD_BYTES else None
    )
    if found is None:
        raise CorruptBatch("the encrypted header of a batch is damaged or cut short")
    return found


def decrypt_rest(cipher: Cipher, stored: Buffer) -> bytes:
    """Return the part of a batch behind its first ``SPARSE_HEADER_BYTES``, decrypted from ``stored``, the whole batch
    as in the file. Raises ``CorruptBatch`` if that part is damaged or cut short."""
    rest = stored[HEAD_BYTES:]
    found = cipher.decrypt(_nonce(stored, 1), rest) if len(rest) >= TAG_BYTES else None
    if found is None:
        raise CorruptBatch("an encrypted batch is damaged or cut short")
    return found


def _nonce(of: Buffer, part: int) -> bytes:
    """Return the nonce for part 0 or 1 of a batch: the bytes ``of`` with their last bit set to ``part``."""
    return bytes(of[: NONCE_BYTES - 1]) + bytes([of[NONCE_BYTES - 1] & 0xFE | part])


def stored_bytes(length: int) -> int:
    """Return how many bytes a batch of ``length`` bytes takes in a file when it is encrypted."""
    return HEAD_BYTES + (length - SPARSE_HEADER_BYTES + TAG_BYTES if length > SPARSE_HEADER_BYTES else 0)


def stored_size(file: File, length: int) -> int:
    """Return how many bytes a batch of ``length`` bytes takes in ``file``, which may be encrypted or not."""
    return file.stored(length) if isinstance(file, EncryptedFile) else length


def rewrite(file: File, position: int, batch: Buffer) -> None:
    """Write ``batch``, which was read at ``position`` of a segment's file, again to the same place, so that a later
    sync covers it. In an encrypted file the stored bytes are written unchanged. Raises ``OSError``."""
    if isinstance(file, EncryptedFile):
        file.rewrite(position, file.stored(len(batch)))
    else:
        file.pwritev([batch], position)


def cipher_of(file: File) -> Cipher | None:
    """Return the cipher that decrypts the batches in this file; None if they are not encrypted. Raises
    ``KeyMissing``."""
    return file.cipher if isinstance(file, EncryptedFile) else None


def encrypt_beside(file: File, data: bytes) -> list[bytes]:
    """Return ``data``, which is about the segment in ``file`` and goes to another file beside it, in the form to be
    stored: encrypted with the segment's key if the segment is encrypted, otherwise unchanged."""
    return file.encrypted(data) if isinstance(file, EncryptedFile) and file.cipher is not None else [data]


def decrypt_beside(file: File, stored: bytes, *, whole: bool = True) -> bytes:
    """Return the data that ``encrypt_beside`` was given for the segment in ``file``, from the bytes ``stored`` in
    another file. With ``whole`` False, ``stored`` may be cut behind its first ``HEAD_BYTES``, and at least the first
    ``SPARSE_HEADER_BYTES`` of the data are returned. Return empty bytes if ``stored`` is damaged or belongs to
    another segment. Raises ``KeyMissing``."""
    cipher = cipher_of(file)
    if cipher is None:
        return stored
    try:
        head = decrypt_head(cipher, stored)
        return head + decrypt_rest(cipher, stored) if whole and len(stored) > HEAD_BYTES else head
    except CorruptBatch:
        return b""


class EncryptedDisk:
    """A ``Disk`` over another disk, ``below``, that opens segment files as ``EncryptedFile``s. With a current key in
    ``keys``, new segments are encrypted. Without one, they are not, and this disk only reads encrypted segments and
    distinguishes them from damaged ones."""

    def __init__(self, below: Disk, keys: Keyring) -> None:
        self.below = below
        self._keys = keys

    def open(self, path: str, *, create: bool = False) -> File:
        """Open the file at ``path`` for reading and writing, creating it with ``create``. A segment's file is
        returned as an ``EncryptedFile``, unless the file is not encrypted and there is no current key. Other files
        are returned as they are. Raises ``KeyMissing`` for a segment that no known key opens, and other
        ``OSError``s."""
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
        """Return the content of the whole file at ``path``, which must not hold batches. Raises ``OSError``."""
        return self.below.read(path)

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace the content of the file at ``path``, which must not hold batches, durably and in one step. Raises
        ``OSError``."""
        self.below.write_atomic(path, data)

    def rename(self, source: str, target: str) -> None:
        """Rename the file ``source`` to ``target`` within its directory; durable only after a ``sync_dir``. An
        encrypted file keeps its key. Raises ``OSError``."""
        self.below.rename(source, target)

    def unlink(self, path: str) -> None:
        """Delete the file at ``path``; durable only after a ``sync_dir``. Raises ``OSError``."""
        self.below.unlink(path)

    def listdir(self, path: str) -> list[str]:
        """Return the names in the directory ``path``, sorted. Raises ``OSError``."""
        return self.below.listdir(path)

    def mkdir(self, path: str) -> None:
        """Create a directory durably, with its parents, unless it exists. Raises ``OSError``."""
        self.below.mkdir(path)

    def rmtree(self, path: str) -> None:
        """Remove a directory with everything in it. Raises ``OSError``."""
        self.below.rmtree(path)

    def sync_dir(self, path: str) -> None:
        """Make new, renamed and removed names in a directory durable. Raises ``OSError``."""
        self.below.sync_dir(path)

    def modified_ms(self, path: str) -> int | None:
        """Return when a file was last written, in ms since 1970; None if that is unknown."""
        return self.below.modified_ms(path)

    def free(self, path: str) -> int:
        """Return how many bytes may still be written to the file system that holds ``path``. Raises ``OSError``."""
        return self.below.free(path)

    def total(self, path: str) -> int:
        """Return how many bytes the file system that holds ``path`` has, free or not. Raises ``OSError``."""
        return self.below.total(path)

    def allocate(self, path: str, size: int) -> None:
        """Create a file at ``path`` that reserves ``size`` bytes of the disk until it is deleted. Raises
        ``OSError``."""
        self.below.allocate(path, size)
