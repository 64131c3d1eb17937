"""What each op of a client needs: one table.

An op that is not in the table, and not listed in ``OPEN``, needs the highest right (``EVERYTHING``), so a new op
needs a row. Requests that name topics by name are authorized by the name, whether there is such a topic or not. Those
that name a topic by id are answered as if the topic did not exist, if the principal may not describe it. So requests
reveal no topics. Every field that names something is in a table of its own (``named_fields.py``).
"""

from __future__ import annotations

from tidelog.wire.messages import (
    AbortStaged,
    AddController,
    AlterAcls,
    AlterLearners,
    AlterQuotas,
    AlterTopic,
    AppendStream,
    BeginTransaction,
    CancelReassignment,
    CommitOffsets,
    CommitStaged,
    CreateStream,
    CreateTopic,
    Credit,
    DeleteGroup,
    DeleteStream,
    DeleteTopic,
    DescribeAccess,
    DescribeFeatures,
    DescribeGroup,
    DescribeMetrics,
    DescribeQuorum,
    DescribeRefusal,
    DescribeStream,
    Digest,
    DrainServer,
    EndTransaction,
    FetchOffsets,
    ForgetServer,
    GroupHeartbeat,
    GrowTopic,
    History,
    InitProducer,
    InitTaskProducer,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    ListOffset,
    ListTransactions,
    Metadata,
    PauseTopic,
    PlanRebalance,
    Play,
    PrepareTransaction,
    Produce,
    PutToken,
    RaiseLevel,
    Read,
    ReadCopy,
    ReadStream,
    Reassign,
    Rebalance,
    ReleaseProducer,
    RemoveController,
    RevokeTokens,
    RotateTicketKeys,
    ScrubServer,
    SetReadOnly,
    SettleTransaction,
    Subscribe,
    TransferLeader,
    Unsubscribe,
    UseProducer,
)

BY_NAME = {
    CreateTopic.OP: "create",
    DeleteTopic.OP: "delete",
    AlterTopic.OP: "alter",
    GrowTopic.OP: "alter",
    SetReadOnly.OP: "alter",
    PauseTopic.OP: "alter",
}
"""Ops on the topic ``name``."""
BY_ID = {
    ListOffset.OP: "describe",
    History.OP: "describe",
    Digest.OP: "describe",
    ReadCopy.OP: "read",
    Read.OP: "read",
    Subscribe.OP: "read",
    Produce.OP: "write",
}
"""Ops on the topic ``topic_id``; ``produce`` names one in each part."""
OF_GROUP = {
    JoinGroup.OP: "group",
    GroupHeartbeat.OP: "group",
    LeaveGroup.OP: "group",
    CommitOffsets.OP: "group",
    FetchOffsets.OP: "describe",
    DeleteGroup.OP: "group",
    DescribeGroup.OP: "describe",
}
"""Ops on the consumer group ``group``. ``commit_offsets`` with a ``transaction`` also needs to ``transact`` on that
application (``Authorizer.refuse_request``)."""
BESIDES = {JoinGroup.OP: "read", CommitOffsets.OP: "read", FetchOffsets.OP: "describe", ListGroups.OP: "describe"}
"""Ops on groups that also name topics: the operation that they need on each of these."""
OF_APP = {
    BeginTransaction.OP: "transact",
    EndTransaction.OP: "transact",
    PrepareTransaction.OP: "transact",
    CommitStaged.OP: "transact",
    AbortStaged.OP: "transact",
    InitTaskProducer.OP: "transact",
    ListTransactions.OP: "describe",
}
"""Ops on the transactions of the application ``app``; without one ``list_transactions`` is about the cluster."""
OF_STREAM = {
    CreateStream.OP: "create",
    AppendStream.OP: "write",
    ReadStream.OP: "read",
    DescribeStream.OP: "describe",
    DeleteStream.OP: "delete",
}
"""Ops on the stream ``path``."""
OF_CLUSTER = {
    DescribeQuorum.OP: "describe",
    DescribeMetrics.OP: "describe",
    ListGroups.OP: "describe",
    AlterLearners.OP: "cluster",
    TransferLeader.OP: "cluster",
    Reassign.OP: "cluster",
    CancelReassignment.OP: "cluster",
    DrainServer.OP: "cluster",
    ForgetServer.OP: "cluster",
    DescribeFeatures.OP: "describe",
    RaiseLevel.OP: "cluster",
    Play.OP: "cluster",
    PlanRebalance.OP: "cluster",
    Rebalance.OP: "cluster",
    AddController.OP: "cluster",
    RemoveController.OP: "cluster",
    PutToken.OP: "security",
    RevokeTokens.OP: "security",
    RotateTicketKeys.OP: "security",
    ScrubServer.OP: "cluster",
    SettleTransaction.OP: "cluster",
    AlterAcls.OP: "security",
    AlterQuotas.OP: "cluster",
    DescribeAccess.OP: "cluster",
}
"""Ops on the cluster."""
ALSO = {DescribeAccess.OP: "security"}
"""By op: another operation on the cluster, the right to which is enough, too."""
OPEN = frozenset(
    {
        *(Metadata.OP, DescribeRefusal.OP, InitProducer.OP, UseProducer.OP, ReleaseProducer.OP),
        *(Credit.OP, Unsubscribe.OP),
    }
)
"""Ops that need no right: ``metadata`` answers only what its client may describe, ``describe_refusal`` only refusals
of its client unless that may describe the cluster, and the others concern only what belongs to their client."""
ASKING = frozenset(
    {DescribeQuorum.OP, DescribeFeatures.OP, DescribeMetrics.OP, DescribeAccess.OP, ListGroups.OP, PlanRebalance.OP}
)
ADMIN = frozenset({*BY_NAME, *OF_CLUSTER, DeleteGroup.OP} - ASKING)
"""Ops that change the cluster."""
EVERYTHING = ("security", "cluster")
"""The right that an op needs that is in no table: to decide who may do what."""


def resource_of(message: object, op: str) -> tuple[str, str] | None:
    """Return the right, as operation and resource, that a principal needs for a request with this op; None if it
    needs none. An op that is in no table needs ``EVERYTHING``. Not for ops that name a topic by id (``BY_ID``): the
    caller checks these by the topic."""
    if op in BY_NAME:
        return BY_NAME[op], f"topic:{getattr(message, 'name', '')}"
    if op in OF_GROUP:
        return OF_GROUP[op], f"group:{getattr(message, 'group', '')}"
    if op in OF_APP:
        app = getattr(message, "app", "")
        return OF_APP[op], f"app:{app}" if app or op != ListTransactions.OP else "cluster"
    if op in OF_STREAM:
        return OF_STREAM[op], f"stream:{getattr(message, 'path', '')}"
    if op in OF_CLUSTER:
        return OF_CLUSTER[op], "cluster"
    return None if op in OPEN else EVERYTHING
