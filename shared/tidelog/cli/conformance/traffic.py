"""Checks the messages between a library and the gateways against ``tidelog.cddl``, and the errors of the gateways
against ``tidelog.wire.operation_errors``.

Keys that the file does not know count as faults: a library that misspells an optional key would otherwise go
unnoticed. Needs the package ``pycddl``."""

from __future__ import annotations

import io
import re
from functools import cache
from pathlib import Path
from typing import Any

import cbor2
import pycddl

import tidelog.wire
from tidelog.batch import body as batch_body
from tidelog.batch.format import CODEC_MASK, CODECS, split
from tidelog.cli.conformance.proxy import Passing
from tidelog.wire.operation_errors import fault_of

CDDL = (Path(tidelog.wire.__file__).parent / "tidelog.cddl").read_text(encoding="utf-8")
KNOWN_KEYS_ONLY = CDDL.replace("  * tstr => any,\n", "")
ANSWERS: dict[str, str] = {
    op.replace("-", "_"): rule for op, rule in re.findall(r"^answer-to-([a-z-]+) = ([a-z-]+)$", CDDL, re.MULTILINE)
}
"""The rule of the answer to each operation."""
MOST_SHOWN = 300
"""Most bytes of a message that a fault shows."""


@cache
def schema_of(rule: str) -> pycddl.Schema:
    """Return the rule of that name, closed: keys that the file does not know break it."""
    return pycddl.Schema(f"root = {rule}\n{KNOWN_KEYS_ONLY}")


class Traffic:
    """The messages of one library. ``kinds``: the rules of all of them; ``faults``: descriptions of those that break
    their rule."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self.faults: list[str] = []

    def passing(self) -> Passing:
        """Return the check of a new connection."""
        conversation = Conversation()

        def look(message: bytes, from_client: bool) -> None:
            try:
                self.kinds.add(conversation.check(message, from_client))
            except Exception as error:
                sender = "client" if from_client else "gateway"
                self.faults.append(f"{sender}: {error!r}: {message[:MOST_SHOWN]!r}")

        return Passing(look)


class Conversation:
    """Both directions of a connection, which decide the rule that each message must keep."""

    def __init__(self) -> None:
        self._asked: dict[int, str] = {}
        self._answered = ""
        """Operation that the last answer belongs to."""

    def check(self, data: bytes, from_client: bool) -> str:
        """Return the rule that a message keeps. Raises an error if it breaks it."""
        stream = io.BytesIO(data)
        header = cbor2.load(stream)
        end = stream.tell()
        rule = self._rule(header, from_client)
        schema_of(rule).validate_cbor(data[:end])
        if not from_client:
            check_errors(self._answered, header)
        if end < len(data):
            payload = cbor2.loads(data[end:])
            if rule not in ("produce", "read-answer", "delivery"):
                raise ValueError(f"{rule} has no payload")
            sizes = [part["size"] for part in header["parts"]] if rule == "produce" else [len(payload)]
            if sum(sizes) != len(payload):
                raise ValueError("the sizes of the parts are not those of the batches")
            _check_batches(payload)
        return rule

    def _rule(self, header: dict[str, Any], from_client: bool) -> str:
        if "op" in header:
            op = str(header["op"])
            if from_client and "id" in header:
                self._asked[int(str(header["id"]))] = op
            return op.replace("_", "-")
        op = self._answered = self._asked.pop(int(str(header["re"])))
        if "error" in header:
            return "error-answer"
        return ANSWERS[op]


def check_errors(operation: str, header: dict[str, Any]) -> None:
    """Raise an error if a message of a gateway has an error that is not among those of its operation: the answered
    one, or that of a delivery or an ack."""
    if header.get("op") == "produced":
        errors = [("produce", ack["error"]) for ack in header["acks"] if "error" in ack]
    else:
        errors = [("subscribe" if "op" in header else operation, header["error"])] if "error" in header else []
    for op, error in errors:
        if fault := fault_of(op, error["code"], error.get("detail", {})):
            raise ValueError(fault)


def _check_batches(payload: bytes) -> None:
    """Raise an error unless the payload is a sequence of batches whose bodies follow the file."""
    for header, batch in split(payload):
        stored = memoryview(batch)[header.header_length :]
        body = batch_body.decompress(CODECS[header.attributes & CODEC_MASK], stored, header.body_length)
        schema_of("batch-body").validate_cbor(bytes(body))
