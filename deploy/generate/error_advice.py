"""The advice for an operator about each error: the last column of ``docs/errors.md``. Where the next step that the
command line prints is for operators, too, it is that."""

from __future__ import annotations

from tidelog.cli.main import NEXT_STEP

NOTHING = "Nothing: clients and servers deal with it."
STAYS = "Nothing, unless it stays: then `tidelog doctor`."
PROGRAM = "The program has to change."
ADVICE = {code: step.replace("'", "`") for code, step in NEXT_STEP.items()} | {
    "NOT_LEADER": NOTHING,
    "FENCED_LEADER_EPOCH": NOTHING,
    "UNKNOWN_LEADER_EPOCH": NOTHING,
    "FENCED_BROKER_EPOCH": "If it stays: two processes use one server's name or data; end one of them.",
    "NOT_REPLICA": NOTHING,
    "OFFSET_NOT_AVAILABLE": STAYS,
    "STALE_REPLICA": "If it stays: the replica lags; ask for less freshness, or find what slows it down.",
    "OFFSET_OUT_OF_RANGE": "Retention overtook the consumer: a longer `retention_ms`, or `tidelog groups reset`.",
    "LOG_TRUNCATED": "`tidelog why TOPIC/PARTITION` shows what was lost; then `tidelog groups reset`.",
    "NOT_ENOUGH_REPLICAS": "Start the servers that `tidelog topics describe TOPIC` shows out of sync.",
    "REQUEST_TIMED_OUT": STAYS,
    "UNREACHABLE": "See whether the server runs, and its name, port, network and certificate.",
    "CORRUPT_BATCH": "Sent: nothing was written; the producer builds batches wrongly, or its memory is bad. "
    "Read: the error names the place; go on behind it, or skip such batches "
    "([more](operations.md#batches-that-cannot-be-decoded)).",
    "BATCH_TOO_LARGE": "A smaller record, or a larger `max_batch_bytes` of the topic (11 MiB at most).",
    "OUT_OF_ORDER_SEQUENCE": NOTHING,
    "SEQUENCE_CONFLICT": "The program gets a new producer id and sends the records again. (Our clients take a new id "
    "for the records that follow.) If it comes often: two producers use one id.",
    "UNVERIFIED_SEQUENCE": "The program reads the log, to see whether the records are there, before it sends them "
    "again.",
    "DUPLICATE_SEQUENCE": "As for `UNVERIFIED_SEQUENCE`; upgrade the server.",
    "FENCED_PRODUCER": "Two processes write under one name: end the older one.",
    "INVALID_TICKET": "A client of release 0.1: upgrade it. Our clients get a new id by themselves. If it comes"
    " often: a program makes up producer ids, or keys are rotated too often (`tidelog tickets rotate`).",
    "UNKNOWN_TICKET_KEY": "Nothing, unless it stays: then the gateway does not hear from the controllers"
    " (`tidelog doctor`).",
    "UNEXPECTED_OFFSET": "The program has to read what was written, and decide again.",
    "UNKNOWN_TOPIC": "`tidelog topics list`; rules may hide it (`tidelog acls check`).",
    "TOPIC_EXISTS": "Another name, or use the one that there is.",
    "INVALID_TOPIC": "Another name.",
    "INVALID_CONFIG": "What the message says; all settings: [configuration](configuration.md).",
    "INVALID_REPLICATION_FACTOR": "Start more replica servers, or ask for fewer replicas.",
    "NO_REASSIGNMENT": "Nothing: it is done, or was cancelled.",
    "NOT_ACTIVE_CONTROLLER": NOTHING,
    "NO_QUORUM": "Start controllers until a majority runs; if they are lost for good: "
    "[procedures](procedures.md#the-majority-of-the-controllers-is-lost).",
    "QUORUM_AT_RISK": "Start the controllers that are down first: `tidelog controllers list`.",
    "NOT_COORDINATOR": "If it stays: `tidelog topics describe __groups` (or `__transactions`): any leader missing?",
    "UNKNOWN_MEMBER": "If it comes often: members process longer than their session lasts.",
    "FENCED_GENERATION": NOTHING,
    "FENCED_INSTANCE": "Two processes have one instance id: give each its own.",
    "INVALID_GROUP": PROGRAM,
    "UNKNOWN_STREAM": "Create it (`PUT`), or see whether its lifetime is over.",
    "STREAM_EXISTS": "Use the stream as it is, or delete it first.",
    "STREAM_CLOSED": "Nothing: the writer has said that the stream is complete.",
    "STREAM_CONFLICT": "The writer reads the stream: another one writes it, too, or an append was lost on the way.",
    "GROUP_FULL": "Larger `settings.groups.max_members` or `max_groups`, or fewer of them.",
    "TRANSACTION_ENDING": NOTHING,
    "TRANSACTION_ABORTED": "If it comes often: a longer time-out of the transaction.",
    "UNKNOWN_TRANSACTION": NOTHING,
    "INVALID_TRANSACTION": PROGRAM,
    "UNSTABLE_OFFSETS": "If it stays: `tidelog transactions list`, and `abort` what nobody ends.",
    "REQUEST_CONFLICT": PROGRAM,
    "STALE_EPOCH": NOTHING,
    "UNAUTHENTICATED": "A token or certificate that is good: [security](security.md#who-is-it).",
    "FORBIDDEN": "The rule that the message names, if it shall be allowed: `tidelog acls add`.",
    "QUOTA_EXCEEDED": "A larger quota (`tidelog quotas set`), or a slower client.",
    "ANSWER_TOO_LARGE": "Ask for single topics by name (`describe`) instead of all of them.",
    "METADATA_WENT_BACK": "Let one controller go on alone: procedures.md, The metadata have gone back.",
    "NODE_IN_USE": "Two processes have one name: end one. After a move to another machine: wait a session time-out.",
    "WRONG_CLUSTER": "Addresses or data of another cluster: see `cluster`, `controllers`, `peers`, `data_dir`.",
    "UNSUPPORTED": "Upgrade the older side. With `key` in its details: that key may be misspelt.",
    "UNSUPPORTED_LEVEL": "Upgrade the older side.",
    "MALFORMED": "Find out what sent it: no client or server of ours does.",
    "OVERLOADED": "With `window` in its details: the program has more batches of a producer in flight than that, and "
    "waits for an ack. With `limit`: the client keeps no count of what it has in flight "
    "([limits](protocol.md#capabilities-and-limits)). Else, if it stays: more gateways, or larger bounds "
    "([sizing](sizing.md)).",
    "DISK_FULL": "[Make room](operations.md#a-full-disk).",
    "OFFLINE": "If it stays: that server's log, and [damage](operations.md#damage).",
    "BAD_BACKUP": "What the message says: [backup](backup.md).",
    "IMPORT_FAILED": "What the message says: [kafka](kafka.md).",
    "CLOSED": NOTHING,
}
"""Error code -> what to do."""
