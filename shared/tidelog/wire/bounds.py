"""Bounds of the work and the memory that each request costs its receiver: the table of ``docs/security.md``.

The first bound is the size. A message has at most ``link_session.MAX_MESSAGE_BYTES``, and its header at most what
``codec.Limits`` allows its sender. Both are checked before a message is decoded, so no array has more than
``most_parts`` parts. The table has what a request may cost beyond that. A test fails for an op that has no row, or
two.
"""

from __future__ import annotations

import typing
from dataclasses import MISSING, dataclass, is_dataclass

from tidelog.wire.codec import OPS, Limits
from tidelog.wire.fields import default_of, hints, typed_fields
from tidelog.wire.messages import Message


@dataclass(frozen=True, slots=True)
class Bound:
    """A row of the table in ``docs/security.md``: what a request with one of these ``ops`` may cost the process that
    receives it. ``work`` says on what the work depends; ``memory`` says which memory a request holds, and for how
    long."""

    ops: tuple[str, ...]
    work: str
    memory: str


BYTES = "its size"
UNTIL_ANSWERED = "its size, until it is answered"
ONE_CALL = "its size; the request goes on to one server, once"
BOUNDS = (
    Bound(("hello",), "its size (64 KiB before a hello is accepted); tokens are compared by one digest", BYTES),
    Bound(("prove",), "its size; one HMAC, once for each connection", BYTES),
    Bound(
        ("metadata",),
        "names are taken once, 10,000 at most; the description of a partition is encoded once for each change of the "
        "partition; 200 topics or partitions, then others run; one answer at a time, principals in turn; one for all "
        "who ask the same at the same time. Offsets: one look-up of a partition at a time for all, 64 partitions "
        "under way at a server, 4 requests of a principal, 10 s. With consistency eventual: 1,000 partitions in a "
        "request to a server, one of a principal and 4 of all at a time",
        "100,000 names of a principal wait, in requests of 100 and more; the answer, shared by all who asked the "
        "same; the outbox (64 MiB) ends a link that does not read",
    ),
    Bound(
        ("list_groups", "list_transactions"),
        "one list at a time for all who ask; coordinators list 500 at a time; after 200 are encoded other tasks run; "
        "with an application: its own, bounded by transactions.max_transactions. Groups with positions: 4 lists at a "
        "time, one of a principal",
        "one list, shared, and what each viewer sees of it; its length is bounded by groups.max_groups and "
        "transactions.max_transactions",
    ),
    Bound(
        ("describe_access", "describe_features", "describe_metrics", "describe_quorum"),
        "one answer at a time for all who ask the same",
        "the answer: the tokens and rules, servers, or metrics that there are",
    ),
    Bound(("describe_refusal",), "4,096 refusals that are kept, 64 of a principal", BYTES),
    Bound(
        ("plan_rebalance", "rebalance"),
        "partitions times servers; needs the right to administer the cluster; one plan at a time for all "
        "requests of a principal that ask the same; 2 of a principal at the controllers at a time",
        "one plan",
    ),
    Bound(
        ("history",),
        "the last 200 changes of one partition; one answer at a time for all requests of a principal that ask the "
        "same; 2 of a principal at the controllers at a time",
        "the answer",
    ),
    Bound(
        ("produce",),
        "each batch is looked at once: its header; where the topic says validate_batches its body, at most 64 MiB "
        "and 2,097,152 items. Of bodies that unfold to more than 64 times their size 4 MiB and one are looked "
        "at when they come, unless its principal rests. The rest later: 1 MiB and one at a time, "
        "principals in turn, a tenth of the time for one, half of it for all. To a leader: its size",
        "client_max_bytes and client_max_batches for a connection, and total_max_bytes for all, of which "
        "a principal has three eighths at "
        "most, what is looked at later included; of each message at most twice as much; one body at a time is "
        "unfolded",
    ),
    Bound(
        ("read", "read_copy", "read_tail"),
        "max_bytes, cut to half of server_max_read_bytes by a gateway and to fetch_max_bytes by a server (read_copy: "
        "1 MiB), or one batch; client_max_in_flight (1,024) of a connection wait at a gateway, and 65,536 of all; "
        "8 copy reads of a server",
        "server_max_read_bytes on the way from each server to a gateway, or one batch; what was read, until it is "
        "sent: the outbox (64 MiB) ends a link that does not read",
    ),
    Bound(("list_offset",), "one look-up in an index; by time one segment index", UNTIL_ANSWERED),
    Bound(("describe_logs",), "1,000 partitions at most; what is in memory of each", UNTIL_ANSWERED),
    Bound(("digest",), "64 offsets; one hash each is kept", UNTIL_ANSWERED),
    Bound(("scrub_server",), "one round at a time, at scrub speed; needs the right to administer the cluster", BYTES),
    Bound(("use_producer", "release_producer"), "one MAC", "1,000 producer ids of a connection"),
    Bound(
        ("init_producer", "allocate_producer_ids"),
        "one change of the metadata for 100,000 ids; a gateway gives them out one by one",
        "two numbers",
    ),
    Bound(("init_task_producer",), "one record in __transactions", "a record for each application and owner"),
    Bound(
        ("subscribe", "unsubscribe", "credit"),
        "its size; the reads that follow are bounded as read is, and by credit",
        "client_max_subscriptions of a connection, principal_max_subscriptions of a principal; 8 MiB of credit for "
        "each, and the outbox (64 MiB)",
    ),
    Bound(
        ("join_group", "group_heartbeat", "leave_group", "describe_group", "delete_group"),
        "one group: members times partitions of its topics; groups.max_joins_per_s. At the coordinators of a server "
        "at a time: 2 of a principal and 16 of all, with other large requests; of heartbeats 4 and 64, with other "
        "small requests about groups; 10 s with the wait for that",
        "groups.max_groups, groups.max_members and groups.max_topics",
    ),
    Bound(
        ("commit_offsets", "fetch_offsets"),
        "the positions in it, 10,000 of a commit at most. At the coordinators of a server at a time: of 100 "
        "positions and more 2 requests of a principal and 16 of all, of fewer 4 and 64; 10 s with the wait for that",
        "100,000 positions of a principal wait, and 99 in each of 1,536 smaller requests of all; kept: a position of "
        "each group and partition, with groups.max_metadata_bytes",
    ),
    Bound(
        (
            *("begin_transaction", "end_transaction", "prepare_transaction", "commit_staged", "abort_staged"),
            *("settle_transaction", "enrol_partition", "write_marker"),
        ),
        "one transaction: transactions.max_partitions, 2,000 staged names. 16 of a principal, and 256 of all, at the "
        "coordinators of a server at a time; 10 s with the wait for that",
        "transactions.max_transactions of a coordinator",
    ),
    Bound(
        ("create_stream", "append_stream", "read_stream", "describe_stream", "delete_stream"),
        "one append, or streams.read_bytes in as many places of the log; 256 of a principal, and 1,024 of all, at "
        "the coordinators of a server at a time, of appends above 256 KiB 2 and 16; reads that wait at the end of a "
        "stream: one for each stream and gateway",
        "streams.max_streams of a coordinator; for each append of a stream 24 bytes",
    ),
    Bound(
        ("create_topic", "grow_topic"),
        "10,000 partitions of a topic; one change of the metadata; 2 changes of a principal, and 16 of all, at the "
        "controllers at a time",
        "a state for each partition, in the metadata",
    ),
    Bound(
        (
            *("delete_topic", "alter_topic", "alter_learners", "set_read_only", "pause_topic", "transfer_leader"),
            *("reassign", "cancel_reassignment", "drain_server", "forget_server", "raise_level"),
            *("put_token", "revoke_tokens", "alter_acls", "alter_quotas", "rotate_ticket_keys"),
            *("add_controller", "remove_controller", "prepare_audit", "prepare_groups", "prepare_transactions"),
            *("prepare_streams",),
        ),
        "one change of the metadata: what it names; max_pending changes wait; from a gateway 2 of a principal, and "
        "16 of all, at a time",
        "what it puts into the metadata",
    ),
    Bound(("play",), "one act, at nodes of tidelog dev only", BYTES),
    Bound(
        ("register", "heartbeat", "alter_isr", "report_leader", "hand_over", "seal", "report_loss", "report_doubt"),
        "the partitions in it, 1,000 at most from a server of this release",
        "one state for each server and partition",
    ),
    Bound(("confirm_leader", "timeout_now", "meet"), BYTES, BYTES),
    Bound(("announce_gateway",), "one URL of 255 characters; an answer with 64 of them", "one URL for each gateway"),
    Bound(("watch",), "one image of the metadata, then what changes", "the outbox of the watcher (64 MiB)"),
    Bound(
        ("request_vote", "vote", "append_entries", "append_result", "install_snapshot", "snapshot_result"),
        "its size; append_max_bytes of commands; a snapshot comes in pieces",
        "one snapshot of 1 GiB at most",
    ),
    Bound(
        ("fetch", "progress", "notify", "epoch_offset", "log_snapshot"),
        "the partitions in it, 1,000 at most from a server of this release; fetch_max_bytes and one batch of records",
        "what was read, until it is sent",
    ),
    Bound(
        ("metadata_update", "produced", "delivery"),
        "its size: sent only by the end that was connected to",
        "its size; of deliveries the credit that was given",
    ),
)
BOUND_OF: dict[str, Bound] = {op: bound for bound in BOUNDS for op in bound.ops}
"""The row of each op."""


def most_parts(kind: type[Message], limits: Limits) -> int:
    """Return the highest number of parts that an array in a message of this class can have, if the sender has these
    limits. Return 0 if the class has no array."""
    least = [_items_of(typing.get_args(hint)[0]) for hint in hints(kind).values() if typing.get_origin(hint) is tuple]
    sizes = [(limits.header_items // items, limits.header_bytes // max(1, items)) for items in least]
    return max((min(pair) for pair in sizes), default=0)


def _items_of(part: type) -> int:
    """Return the least number of CBOR items that encode one part of this type: 1 for a plain type; for a dataclass 1,
    and key and value of each required field. Each item is at least one byte long."""
    if not is_dataclass(part):
        return 1
    required = [hint for field, hint in typed_fields(part) if default_of(field) is MISSING]
    return 1 + sum(1 + (_items_of(hint) if isinstance(hint, type) else 1) for hint in required)


def kinds() -> dict[str, type[Message]]:
    """Return the message class of every op, in the order of the rows of ``BOUNDS``."""
    return {op: OPS[op] for bound in BOUNDS for op in bound.ops}
