"""The vectors in ``docs/vectors``, which authors of other clients use. Tests ``tidelog.batch``, ``tidelog.wire`` and
the partitioner with them."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tidelog.batch.format import NewRecord, chain_after, decode_batch, encode_batch, read_header
from tidelog.client.core.partitioner import murmur2, partition_of
from tidelog.errors import CODES, CorruptBatch
from tidelog.wire import codec

VECTORS = Path(__file__).resolve().parents[4] / "docs" / "vectors"


def read(name: str) -> Any:
    return json.loads((VECTORS / name).read_text())


BATCHES = read("batches.json")
MESSAGES = read("messages.json")


def named(entry: dict[str, Any]) -> str:
    return str(entry["name"])


@pytest.mark.parametrize("entry", BATCHES["good"], ids=named)
def test_batches_hold_what_is_told(entry: dict[str, Any]) -> None:
    batch = bytes.fromhex(entry["hex"])
    found = [
        {
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "key": None if record.key is None else record.key.hex(),
            "value": None if record.value is None else record.value.hex(),
            "headers": [[name, value.hex()] for name, value in record.headers],
        }
        for record in decode_batch(batch)
    ]
    assert found == entry["records"]
    assert read_header(batch)._asdict() == entry["header"]


@pytest.mark.parametrize("entry", BATCHES["bad"], ids=named)
def test_faulty_batches_are_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(CorruptBatch):
        decode_batch(bytes.fromhex(entry["hex"]))


@pytest.mark.parametrize("name", ["producer", "idempotent-producer"])
def test_producers_write_these_bytes(name: str) -> None:
    (entry,) = (one for one in BATCHES["good"] if one["name"] == name)
    records = [
        NewRecord(
            None if one["value"] is None else bytes.fromhex(one["value"]),
            None if one["key"] is None else bytes.fromhex(one["key"]),
            one["timestamp_ms"],
            tuple((header, bytes.fromhex(value)) for header, value in one["headers"]),
        )
        for one in entry["records"]
    ]
    fields = {field: entry["header"][field] for field in ("producer_id", "producer_epoch", "base_sequence")}
    assert encode_batch(records, **fields).hex() == entry["hex"]


def test_every_fault_and_every_kind_of_batch_is_there() -> None:
    attributes = {entry["header"]["attributes"] for entry in BATCHES["good"]}
    assert {bits & 0b111 for bits in attributes} == {0, 1, 2}
    assert all(any(bits & flag for bits in attributes) for flag in (1 << 3, 1 << 4, 1 << 5))
    assert len({named(entry) for entry in BATCHES["bad"]}) == len(BATCHES["bad"])


def test_keys_have_these_partitions() -> None:
    for entry in read("partitioner.json"):
        key = bytes.fromhex(entry["key"])
        assert murmur2(key) == entry["murmur2"]
        for count, partition in entry["partition_of"].items():
            assert partition == partition_of(key, int(count)) == (entry["murmur2"] & 0x7FFFFFFF) % int(count)


def test_keys_of_every_length_are_there() -> None:
    """The hash takes four bytes at a time; bytes above 127 show a client whose bytes have a sign."""
    keys = [bytes.fromhex(entry["key"]) for entry in read("partitioner.json")]
    assert {len(key) % 4 for key in keys if key and max(key) > 127} == {0, 1, 2, 3}


def test_the_chain_leads_from_batch_to_batch() -> None:
    log = read("hash-chain.json")
    chain = bytes.fromhex(log["empty"])
    for entry in log["log"]:
        chain = chain_after(chain, bytes.fromhex(entry["hex"]))
        assert chain.hex() == entry["chain"]


def test_a_digest_is_that_of_the_whole_text() -> None:
    for entry in read("tokens.json"):
        form = re.fullmatch(r"tide_([0-9a-f]{16})_[A-Za-z0-9_-]{43}", entry["token"])
        assert form is not None and form[1] == entry["token_id"]
        assert hashlib.sha256(entry["token"].encode()).hexdigest() == entry["digest"]


@pytest.mark.parametrize("entry", MESSAGES["messages"], ids=named)
def test_messages_are_read_and_written(entry: dict[str, Any]) -> None:
    data = bytes.fromhex(entry["hex"])
    answered = {
        one["header"].get("id"): codec.OPS[one["header"]["op"]]
        for one in MESSAGES["messages"]
        if "id" in one["header"]
    }
    decoded = codec.decode(data, answers=lambda re: answered[re].ANSWER)
    assert decoded.message is not None
    head, payload = codec.encode(decoded.message, id=decoded.id, re=decoded.re)
    assert head + codec.payload_view(payload) == data
    assert bytes(codec.payload_view(getattr(decoded.message, "payload", b""))).hex() == entry["payload"]


def test_the_error_answer_of_every_code_is_there() -> None:
    assert [named(entry) for entry in MESSAGES["errors"]] == list(CODES)
    for entry in MESSAGES["errors"]:
        decoded = codec.decode(bytes.fromhex(entry["hex"]), answers=lambda _: None)
        error = decoded.error
        assert error is not None
        assert error.code == entry["name"] == entry["header"]["error"]["code"]
        assert error.unknown_outcome is CODES[error.code].unknown_outcome
