"""The description of the gateway's HTTP (OpenAPI 3.1), which ``/v1/openapi.json`` serves."""

from __future__ import annotations

from functools import cache
from typing import Any

from tidelog.errors import CODES

from tidelog_gateway.consume.polls import POLL_MAX_S
from tidelog_gateway.http.appends import ACKS, MAX_TIMEOUT_S
from tidelog_gateway.http.idempotency import MAX_KEY_LENGTH
from tidelog_gateway.http.parameters import MAX_OFFSET
from tidelog_gateway.http.reads import DEFAULT_RECORDS, MOST_RECORDS
from tidelog_gateway.http.record_bodies import JSON, NDJSON
from tidelog_gateway.http.record_formats import CBOR, EVENTS, RAW
from tidelog_gateway.http.responses import PROBLEM_TYPE, Response, ok
from tidelog_gateway.http.routes import ROUTES

Schema = dict[str, Any]

_NAME = {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,249}$", "not": {"enum": [".", ".."]}}
_OFFSET = {"type": "integer", "minimum": 0, "maximum": MAX_OFFSET}
_EPOCH = {"type": "integer", "minimum": -1}
_PLAIN_TEXT = {"type": "string"}
_BASE64 = {"type": "string", "contentEncoding": "base64"}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: str, **properties: Any) -> Schema:
    """Return the schema of an object with these members only; ``required`` names those that are always there."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def _array(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


_SCHEMAS: dict[str, Schema] = {
    "Problem": {
        **_object(
            "type title status detail code meaning retriable unknown_outcome values",
            type=_PLAIN_TEXT,
            title=_PLAIN_TEXT,
            status={"type": "integer", "minimum": 400, "maximum": 599},
            detail=_PLAIN_TEXT,
            code={"type": "string", "enum": sorted(CODES)},
            meaning=_PLAIN_TEXT,
            retriable={"type": "boolean"},
            unknown_outcome={"type": "boolean"},
            values={"type": "object", "additionalProperties": {"type": ["string", "integer"]}},
            error_id=_PLAIN_TEXT,
            acks=_array(_ref("Outcome")),
        ),
        "description": "RFC 9457, with the error's code. acks: what came of each partition of an append.",
    },
    "Header": _object("name", name=_PLAIN_TEXT, value=_PLAIN_TEXT, value_b64=_BASE64),
    "Record": _object(
        "offset leader_epoch timestamp_ms headers",
        offset=_OFFSET,
        leader_epoch=_EPOCH,
        timestamp_ms=_OFFSET,
        key={"type": ["string", "null"]},
        key_b64=_BASE64,
        value={"type": ["string", "null"]},
        value_b64=_BASE64,
        headers=_array(_ref("Header")),
    ),
    "NewRecord": {
        **_object(
            "value",
            key={"type": ["string", "null"]},
            value={"type": ["string", "null"]},
            headers={
                "anyOf": [
                    {"type": "null"},
                    {"type": "object", "additionalProperties": _PLAIN_TEXT},
                    _array(_object("name value", name=_PLAIN_TEXT, value=_PLAIN_TEXT)),
                ]
            },
            timestamp_ms=_OFFSET,
        ),
        "description": "key_b64 and value_b64 may stand in place of key and value, in base64. Nothing else may.",
    },
    "Outcome": _object(
        "partition count",
        partition={"type": "integer", "minimum": 0},
        count={"type": "integer", "minimum": 1},
        offset={"type": "integer", "minimum": -1},
        leader_epoch=_EPOCH,
        durability={"type": "string", "description": "received, leader or all; then / and the flush policy"},
        duplicate={"type": "boolean", "description": "An earlier try with this Idempotency-Key has written them."},
        code={"type": "string", "enum": sorted(CODES)},
        detail=_PLAIN_TEXT,
        unknown_outcome={"type": "boolean"},
    ),
    "Appended": _object("topic acks", topic=_NAME, acks=_array(_ref("Outcome"), minItems=1)),
    "Window": _object(
        "records next_offset next_epoch high_watermark",
        records=_array(_ref("Record")),
        next_offset=_OFFSET,
        next_epoch=_EPOCH,
        high_watermark={"type": "integer", "minimum": -1},
    ),
    "Topics": _object(
        "topics",
        topics=_array(
            _object(
                "name topic_id partitions",
                name=_NAME,
                topic_id=_PLAIN_TEXT,
                partitions={"type": "integer", "minimum": 0},
            )
        ),
    ),
    "Topic": {
        "type": "object",
        "properties": {
            "topic_id": _PLAIN_TEXT,
            "name": _NAME,
            "config": {"type": "object", "additionalProperties": _PLAIN_TEXT},
            "partitions": _array({"type": "object", "required": ["partition", "leader", "isr", "replicas"]}),
        },
        "required": ["topic_id", "name", "config", "partitions"],
    },
    "NewTopic": _object(
        "name",
        name=_NAME,
        partitions={"type": "integer", "minimum": 1, "maximum": 2**31 - 1},
        replication_factor={"type": "integer", "minimum": 1, "maximum": 2**31 - 1},
        config={
            "type": "object",
            "propertyNames": {"pattern": "^[a-z_]{1,64}$"},
            "additionalProperties": {"type": "string", "pattern": "^[ -~]{0,256}$"},
        },
    ),
    "Created": _object("name topic_id", name=_NAME, topic_id=_PLAIN_TEXT),
    "Cluster": _object(
        "cluster index servers topics",
        cluster=_PLAIN_TEXT,
        index={"type": "integer"},
        servers=_array({"type": "object", "required": ["node", "url", "fenced"]}),
        topics=_array(_NAME),
    ),
    "Position": _object(
        "topic partition offset",
        topic=_NAME,
        partition={"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
        offset=_OFFSET,
        leader_epoch={**_EPOCH, "maximum": 2**31 - 1},
        metadata={"type": "string", "maxLength": 1024},
    ),
    "Positions": _object(
        "group positions",
        group=_PLAIN_TEXT,
        positions=_array(
            _object(
                "topic partition offset leader_epoch metadata committed_ms",
                topic=_PLAIN_TEXT,
                partition={"type": "integer", "minimum": 0},
                offset=_OFFSET,
                leader_epoch=_EPOCH,
                metadata=_PLAIN_TEXT,
                committed_ms={"type": "integer"},
            )
        ),
    ),
    "NewPositions": _object("positions", positions=_array(_ref("Position"), minItems=1, maxItems=1000)),
}

_QUERY: dict[str, tuple[Schema, str]] = {
    "acks": ({"enum": list(ACKS)}, "When the request is answered: at all by default."),
    "expected_offset": (_OFFSET, "Append only if the partition ends at this offset."),
    "key": ({"type": "string"}, "The key of a body that is one record."),
    "timeout": ({"type": "number", "minimum": 0, "maximum": MAX_TIMEOUT_S}, "Seconds to wait for the acks."),
    "format": ({"enum": ["auto", "raw"]}, "raw: the body is one record, whatever its media type."),
    "from": (
        {"anyOf": [_OFFSET, {"enum": ["earliest", "latest"]}]},
        "The first offset, or earliest or latest. By default earliest for records and latest for events.",
    ),
    "epoch": ({"type": "integer", "minimum": 0, "maximum": MAX_OFFSET}, "Leader epoch of the record before it."),
    "max": (
        {"type": "integer", "minimum": 1, "maximum": MOST_RECORDS, "default": DEFAULT_RECORDS},
        "Most records of the answer.",
    ),
    "wait": (
        {"type": "number", "minimum": 0, "maximum": POLL_MAX_S},
        "Seconds to wait for a record if there is none.",
    ),
    "offsets": ({"enum": ["false", "true"]}, "Also ask the leaders for the offsets."),
}
_PATH = {
    "topic": _NAME,
    "partition": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
    "group": _NAME,
}
_SUMMARIES = {
    "openapi": "This description.",
    "describe_cluster": "The cluster, its replica servers and topics.",
    "list_topics": "The topics.",
    "create_topic": "Create a topic.",
    "describe_topic": "A topic with its settings and partitions.",
    "delete_topic": "Delete a topic with its records.",
    "append": "Append records; the key of each record chooses its partition.",
    "append_to_partition": "Append records to one partition.",
    "read": "Read committed records.",
    "follow": "Follow a partition: server-sent events.",
    "get_positions": "The committed positions of a consumer group.",
    "set_positions": "Commit positions of a group that has no members.",
}
_ANSWERS: dict[str, tuple[int, str]] = {
    "describe_cluster": (200, "Cluster"),
    "list_topics": (200, "Topics"),
    "create_topic": (201, "Created"),
    "describe_topic": (200, "Topic"),
    "append": (200, "Appended"),
    "append_to_partition": (200, "Appended"),
    "read": (200, "Window"),
    "get_positions": (200, "Positions"),
}
_ONE_OR_MORE = {
    "anyOf": [_ref("NewRecord"), _object("records", records=_array(_ref("NewRecord"), minItems=1))],
}
_BODIES: dict[str, dict[str, Any]] = {
    "create_topic": {JSON: {"schema": _ref("NewTopic")}},
    "set_positions": {JSON: {"schema": _ref("NewPositions")}},
    "append": {JSON: {"schema": _ONE_OR_MORE}, NDJSON: {"schema": _PLAIN_TEXT}, RAW: {"schema": {}}},
}
_BODIES["append_to_partition"] = _BODIES["append"]


@cache
def document() -> dict[str, Any]:
    """Return the description. It is the same for every client. The paths of streams are not in it: the protocol of
    Durable Streams describes them."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        if route.parameters is None:
            continue
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(
            route.operation, route.path, route.parameters
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tidelog over HTTP", "version": "1", "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


@cache
def description() -> Response:
    """Return the response with the description. It is made once, since any client may ask for it often."""
    return ok(document())


def _operation(name: str, path: str, query: tuple[str, ...]) -> dict[str, Any]:
    """Return the description of one operation."""
    parameters: list[dict[str, Any]] = [
        {"name": part, "in": "path", "required": True, "schema": schema}
        for part, schema in _PATH.items()
        if f"{{{part}}}" in path
    ]
    for each in query:
        schema, text = _QUERY[each]
        parameters.append({"name": each, "in": "query", "schema": schema, "description": text})
    if name.startswith("append"):
        schema = {"type": "string", "minLength": 1, "maxLength": MAX_KEY_LENGTH, "pattern": "^[ -~]*$"}
        text = "Names the request: another request with the same key and records appends nothing."
        parameters.append({"name": "Idempotency-Key", "in": "header", "schema": schema, "description": text})
    if name == "follow":
        schema = {"type": "string", "pattern": "^(-1|[0-9]{1,18}):(-1|[0-9]{1,10})$"}
        text = "The id of the last event that was seen; takes the place of from."
        parameters.append({"name": "Last-Event-ID", "in": "header", "schema": schema, "description": text})
    found: dict[str, Any] = {"operationId": name, "summary": _SUMMARIES[name], "responses": _responses(name)}
    if parameters:
        found["parameters"] = parameters
    if name in _BODIES:
        found["requestBody"] = {"required": True, "content": _BODIES[name]}
    return found


def _responses(name: str) -> dict[str, Any]:
    """Return the responses of one operation."""
    problem = {"description": "A problem", "content": {PROBLEM_TYPE: {"schema": _ref("Problem")}}}
    if name in ("delete_topic", "set_positions"):
        return {"204": {"description": "Done"}, "default": problem}
    if name == "openapi":
        return {"200": {"description": "OpenAPI 3.1", "content": {JSON: {"schema": {"type": "object"}}}}}
    if name == "follow":
        return {"200": {"description": "Events", "content": {EVENTS: {"schema": _PLAIN_TEXT}}}, "default": problem}
    status, schema = _ANSWERS[name]
    content: dict[str, Any] = {JSON: {"schema": _ref(schema)}}
    if name == "read":
        content |= {NDJSON: {"schema": _PLAIN_TEXT}, CBOR: {"schema": {}}, RAW: {"schema": {}}}
    found = {str(status): {"description": schema, "content": content}, "default": problem}
    if name == "read":
        found["204"] = {"description": f"{RAW} was asked for, and there is no record, or it has no value"}
    if name.startswith("append"):
        found["202"] = {"description": "acks=none", "content": content}
    return found
