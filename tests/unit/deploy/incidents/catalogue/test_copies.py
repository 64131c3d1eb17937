"""What is planted in logs is what the incidents say: whole batches with a right CRC."""

from __future__ import annotations

from pathlib import Path

import pytest
from incidents.catalogue.copies import poison, tamper
from tidelog.batch.format import NewRecord, check_batch, decode_batch, encode_batch, read_header
from tidelog.errors import TidelogError


def batches(data: bytes) -> list[bytes]:
    """Take the batches of a segment apart."""
    found, position = [], 0
    while position < len(data):
        end = position + read_header(data, position).batch_length
        found.append(data[position:end])
        position = end
    return found


def test_one_batch_of_a_copy_is_changed_and_its_crc_is_right(tmp_path: Path) -> None:
    whole = [encode_batch([NewRecord(b"%d...." % n, None, 3000)], producer_id=7, base_sequence=n) for n in range(9)]
    (tmp_path / "0.log").write_bytes(b"".join(whole))
    (tmp_path / "0.index").write_bytes(b"index")
    tamper(tmp_path, 4)
    after = batches((tmp_path / "0.log").read_bytes())
    assert [n for n, (one, other) in enumerate(zip(whole, after, strict=True)) if one != other] == [4]
    assert not (tmp_path / "0.index").exists(), "the server reads the file again"
    for batch in after:
        check_batch(batch)
    assert [record.value for batch in after[3:6] for record in decode_batch(batch)] == [b"3....", b"4.!..", b"5...."]


def test_a_poison_batch_is_whole_and_has_no_records() -> None:
    batch = poison(7)
    check_batch(batch)
    assert (read_header(batch).record_count, read_header(batch).producer_id) == (3, 7)
    with pytest.raises((TidelogError, ValueError)):
        decode_batch(batch)
