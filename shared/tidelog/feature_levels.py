"""Feature levels: which messages and formats the processes of a cluster may use, so that two releases can work side
by side.

A *level* is a number. Each release understands a range of levels, and announces it in its ``hello``. A level adds
messages, commands of the metadata log, or fields on disk. No process uses them before an operator has raised the
cluster to that level, which requires that every process understands it (KIP-584, KIP-778). The cluster's level is
part of the metadata, so snapshots and restarts keep it. A process that does not understand the level is refused. A
release from before there were levels announces none, which means 1.

An addition that older readers can ignore or refuse without harm, such as an optional field or a new op, needs no
level: the protocol allows for it (docs/protocol.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.errors import TidelogError, refuse
from tidelog.wire.link_session import PROTOCOL_VERSION
from tidelog.wire.messages import Hello

OLDEST, NEWEST = 1, 7
"""The levels that this release understands."""
FORGET_SERVERS = 2
"""Since this level a replica server can be forgotten. An older controller could not read that entry of its log. An
older gateway or replica server would ignore it and go on counting the server."""
PROGRESS = 3
"""Since this level a follower that has the records sent with a notification reports it without waiting for an answer.
An older leader would ignore the report."""
VALIDATION = 4
"""Since this level a topic may turn off the validation of batches, and a zstd batch need not declare the size of its
content. Earlier controllers do not know the setting, and earlier clients refuse such a batch."""
TASK_PRODUCERS = 4
"""Since this level coordinators of transactions remember the producers of numbered batches (``init_task_producer``).
An older coordinator cannot read such a record of ``__transactions``."""
SETTLING = 4
"""Since this level a gateway may ask a leader to end a transaction that no coordinator has. An earlier replica server
takes markers from other replica servers only, and would close the connection."""
RECOVERY = 4
"""Since this level the partitions of every commit rule are sealed after a rescue until the replicas have reported
what they know, and the active controller decides where a block of producer ids begins. An older controller would
apply these entries of the metadata log in another way."""
DOUBTFUL_TAILS = 4
"""Since this level a replica server can report that the tail of a log is doubtful. An older controller has no state
for that, and an older replica server does not answer the requests that settle it."""
PRODUCER_SHARES = 4
"""Since this level controllers give the producer ids of a principal from one share (``tidelog.types.share_of``). An
older controller would give any."""
POSSIBLE_LOSSES = 4
"""Since this level the metadata log distinguishes records that were lost from records that may have been committed
before they were lost (``possible`` of ``report_loss``). Below it both are recorded as lost: an older controller knows
one kind only."""
TICKETS = 4
"""Since this level writing under a producer id requires a ticket (``tidelog.tickets``). An older controller cannot
read the keys in the metadata, and an older client has no ticket."""
MAX_COMPACTION_LAG = 4
"""Since this level a topic can have a maximal compaction lag. An older controller does not know the setting."""
COPY_CHECKS = 4
"""Since this level replica servers compare their copies, and gateways may ask a server to read its copy or to scrub
now. An older replica server would close the connection."""
RANKING = 4
"""Since this level the commands that replace leaders carry the active controller's ranking of the servers. An older
controller cannot read the ranks, and would elect in replica order."""
OWNERS = 5
"""Since this level gateways name the principal of each request, and groups, members, applications, transactions and
topics have an owner whose bounds they count against (``tidelog.principal_bounds``). An older coordinator or
controller cannot read the owner in its log."""
REQUEST_DIGESTS = 5
"""Since this level the controllers remember the contents of each answered request (``metadata/client_sessions.py``
there). An older controller cannot read such an entry of the metadata log."""
SECURITY = 5
"""Since this level changing tokens and rules requires the operation ``security``. Below it ``cluster`` is enough, as
in older gateways. A principal that has ``cluster`` when the level is raised keeps ``security`` (``Access.heirs``)."""

STREAMS = 6
"""Since this level there are streams, and access rules for them. An older replica server would close the connection,
and an older controller refuses the rules."""
RETENTION_WAITS = 7
"""Since this level retention can wait for consumer groups. An older controller does not know the settings, and an
older replica server would delete without waiting, and refuse to tell another server the positions of groups."""

CHANGES = {
    1: "everything before there were levels",
    2: "the level itself in metadata and snapshots; replica servers can be forgotten (tidelog servers forget)",
    3: "followers acknowledge what came with a notice by a message of its own, which needs no answer (progress)",
    4: "doubtful tails of logs (report_doubt, read_tail); leaders after a rescue from what replicas report; producer"
    " ids that follow the clock, and those of numbered batches (init_task_producer); validate_batches; tickets for"
    " producer ids (use_producer); a share of producer ids for each principal; transactions that no coordinator has"
    " are ended by hand; records that were possibly lost, beside those that were lost; max_compaction_lag_ms; servers"
    " compare their copies of partitions, and are asked to read or scrub them (read_copy, scrub_server); new"
    " leaders by the active controller's ranking of the servers",
    5: "owners of groups, members, applications, transactions and topics: bounds per principal; answered requests are"
    " remembered with a digest of what was asked; tokens and rules take an operation of their own (security), which"
    " administrators of the cluster keep until 'tidelog acls drop-inherited'",
    6: "streams over HTTP (docs/streams.md), and access rules for them",
    7: "retention that waits for consumer groups (retention_waits_for)",
}
"""The features of each level."""


@dataclass(frozen=True, slots=True)
class Levels:
    """The range of feature levels that a process understands, from ``oldest`` to ``newest`` (inclusive). ``level in
    levels`` says whether a level is in the range."""

    oldest: int = OLDEST
    newest: int = NEWEST

    def __contains__(self, level: int) -> bool:
        return self.oldest <= level <= self.newest

    def __str__(self) -> str:
        return f"{self.oldest} to {self.newest}" if self.oldest < self.newest else str(self.oldest)


ALL = Levels()


def service_hello(role: str, node: str, cluster: str = "", levels: Levels = ALL) -> Hello:
    """Return the hello with which a service of this role and node name opens a connection, including the feature
    levels that it understands."""
    return Hello(PROTOCOL_VERSION, role, node, cluster, level_min=levels.oldest, level_max=levels.newest)


def refuse_levels(who: str, levels: Levels, level: int) -> TidelogError | None:
    """Return ``UNSUPPORTED_LEVEL`` if ``levels``, which the process ``who`` understands, do not include the cluster's
    feature level ``level``; None if they do."""
    if level in levels:
        return None
    text = f"the cluster is at feature level {level}, {who} understands {levels}"
    step = "upgrade it" if level > levels.newest else "raise the cluster's level first, by an earlier release"
    return refuse("UNSUPPORTED_LEVEL", f"{text}: {step}", level=level)
