"""Every field of the client plane that holds text, and the rule that covers it: one table.

A field that names a topic, group, application, principal or server is shown and accepted only if the client has the
*right* of its row. The checks themselves are ``permissions.py`` (what an op needs), ``rights/authorizer.py`` and
``clients/connections.py`` (what a request names besides) and ``rights/visibility.py`` (what is left out of an
answer). tests/unit/gateway/rights/test_named_fields.py fails for a field without a row and for a row without a field,
and tries each field against the checks.
"""

from __future__ import annotations

from typing import NamedTuple


class FieldRule(NamedTuple):
    """A row of the table: some text fields of messages, what they name, and the right that a client needs to send
    them or to see them in an answer. A field is written as ``Message.field``, or ``Message.field.field`` for one of a
    part."""

    names: str
    """The kind of thing that the fields name: ``topic``, ``group``, ``application``, ``stream``, ``principal``,
    ``server``; "": nothing."""
    right: str
    """Operation and kind of resource to which the client needs a right; "": none is needed."""
    why: str
    fields: tuple[str, ...]


def _fields(message: str, names: str) -> tuple[str, ...]:
    return tuple(f"{message}.{name}" for name in names.split())


FIELD_RULES = (
    FieldRule(
        "topic",
        "read topic",
        "Whoever reads a topic, as a member of a group too, may read it; so may whoever commits positions in it.",
        (
            *_fields("CommitOffsets", "positions.topic_id"),
            *_fields("GroupHeartbeatAnswer", "assignment.topic_id assignment.topic"),
            *_fields("JoinGroup", "topics"),
            *_fields("JoinGroupAnswer", "assignment.topic_id assignment.topic"),
            *_fields("Read", "topic_id"),
            *_fields("ReadCopy", "topic_id"),
            *_fields("Subscribe", "topic_id"),
        ),
    ),
    FieldRule("topic", "write topic", "Whoever writes may.", _fields("Produce", "parts.topic_id")),
    FieldRule("topic", "create topic", "", (*_fields("CreateTopic", "name"), *_fields("TopicCreated", "topic_id"))),
    FieldRule("topic", "delete topic", "", _fields("DeleteTopic", "name")),
    FieldRule(
        "topic",
        "alter topic",
        "Settings and partitions of a topic.",
        (
            *_fields("AlterTopic", "name"),
            *_fields("GrowTopic", "name"),
            *_fields("PauseTopic", "name"),
            *_fields("SetReadOnly", "name"),
        ),
    ),
    FieldRule(
        "topic",
        "describe topic",
        "Whoever is told of a topic may know of it, also where a group or a transaction names it.",
        (
            *_fields("DescribeGroupAnswer", "members.topics positions.topic_id moved.topic_id"),
            *_fields("DescribeGroupAnswer", "members.assignment.topic_id members.assignment.topic"),
            *_fields("DescribeGroupAnswer", "members.leaving.topic_id members.leaving.topic"),
            *_fields("DescribeGroupAnswer", "members.target.topic_id members.target.topic"),
            *_fields("DescribeGroupAnswer", "members.work.topic_id members.work.paused.topic_id"),
            *_fields("DescribeGroupAnswer", "members.work.paused.topic"),
            *_fields("Digest", "topic_id"),
            *_fields("FetchOffsets", "parts.topic_id"),
            *_fields("FetchOffsetsAnswer", "positions.topic_id"),
            *_fields("History", "topic_id"),
            *_fields("ListGroups", "topic_id"),
            *_fields("ListGroupsAnswer", "groups.positions.topic_id"),
            *_fields("ListOffset", "topic_id"),
            *_fields("ListTransactionsAnswer", "transactions.parts.topic_id transactions.parts.topic"),
            *_fields("ListTransactionsAnswer", "transactions.pending.topic_id transactions.pending.topic"),
            *_fields("MetadataAnswer", "topics.topic_id topics.name topics.config"),
            *_fields("StagedCommitted", "pending.topic_id pending.topic"),
            *_fields("TransactionEnded", "pending.topic_id pending.topic"),
        ),
    ),
    FieldRule(
        "server",
        "describe topic",
        "Whoever knows of a topic is told which servers have it.",
        (
            *_fields("HistoryAnswer", "entries.leader entries.isr"),
            *_fields("MetadataAnswer", "topics.partitions.replicas topics.partitions.isr topics.partitions.leader"),
            *_fields("MetadataAnswer", "topics.partitions.elr topics.partitions.learners topics.partitions.doubtful"),
            *_fields("MetadataAnswer", "topics.partitions.successor topics.partitions.target"),
        ),
    ),
    FieldRule(
        "server",
        "describe cluster",
        "Servers and their addresses; a server without a copy of the topic that it is asked about.",
        (
            *_fields("DescribeMetrics", "node"),
            *_fields("Digest", "node"),
            *_fields("FeaturesAnswer", "processes.node"),
            *_fields("ListGroupsAnswer", "groups.coordinator"),
            *_fields("MetadataAnswer", "servers.node servers.url servers.rack"),
            *_fields("MetricsAnswer", "differing.odd differing.compared"),
            *_fields("QuorumAnswer", "active controllers.node controllers.url gateways disks_needed gateway_urls"),
            *_fields("ReadCopy", "node"),
        ),
    ),
    FieldRule(
        "topic",
        "describe cluster",
        "What servers count, they count of all topics.",
        _fields("MetricsAnswer", "page recent unreadable.topic_id differing.topic_id"),
    ),
    FieldRule(
        "principal",
        "describe cluster",
        "Who asked for a change, and whom a gateway has refused.",
        (
            *_fields("HistoryAnswer", "entries.evidence"),
            *_fields("MetricsAnswer", "refused.address refused.name refused.principal refused.token"),
        ),
    ),
    FieldRule(
        "server",
        "cluster cluster",
        "Servers, controllers and replicas are the administrators' affair.",
        (
            *_fields("AddController", "node url"),
            *_fields("AlterLearners", "learners"),
            *_fields("DrainServer", "server"),
            *_fields("ForgetServer", "server"),
            *_fields("Play", "node"),
            *_fields("PlayAnswer", "nodes.node messages.sender messages.receiver messages.words"),
            *_fields("RaiseLevel", "left_behind"),
            *_fields("Reassign", "replicas"),
            *_fields("RebalancePlan", "moves.replicas moves.target waiting.replicas waiting.target"),
            *_fields("RemoveController", "node"),
            *_fields("ScrubServer", "node"),
            *_fields("TransferLeader", "server"),
        ),
    ),
    FieldRule(
        "topic",
        "cluster cluster",
        "So is where the replicas of any topic are, and a transaction that hangs.",
        (
            *_fields("AlterLearners", "name"),
            *_fields("CancelReassignment", "name"),
            *_fields("PlanRebalance", "weights.name"),
            *_fields("Reassign", "name"),
            *_fields("Rebalance", "weights.name"),
            *_fields("RebalancePlan", "moves.name moves.reason moves.evidence"),
            *_fields("RebalancePlan", "waiting.name waiting.reason waiting.evidence"),
            *_fields("SettleTransaction", "topic_id"),
            *_fields("TransferLeader", "name"),
        ),
    ),
    FieldRule(
        "principal",
        "security cluster",
        "Tokens and rules, which name resources, too. Administrators of the cluster may look at them.",
        (
            *_fields("AccessAnswer", "tokens.token_id tokens.principal quotas.principal heirs principal"),
            *_fields("AccessAnswer", "acls.principal acls.operation acls.resource"),
            *_fields("AlterAcls", "add.principal add.operation add.resource"),
            *_fields("AlterAcls", "remove.principal remove.operation remove.resource"),
            *_fields("PutToken", "token_id digest principal replaces"),
            *_fields("RevokeTokens", "token_id principal"),
        ),
    ),
    FieldRule("principal", "cluster cluster", "Quotas.", _fields("AlterQuotas", "quotas.principal")),
    FieldRule(
        "group",
        "group group",
        "Whoever takes part in a group may speak for each of its members.",
        (
            *_fields("CommitOffsets", "group member instance"),
            *_fields("DeleteGroup", "group"),
            *_fields("GroupHeartbeat", "group member instance"),
            *_fields("JoinGroup", "group member instance"),
            *_fields("LeaveGroup", "group member"),
        ),
    ),
    FieldRule(
        "group",
        "describe group",
        "",
        (
            *_fields("DescribeGroup", "group"),
            *_fields("DescribeGroupAnswer", "group members.member members.instance members.node"),
            *_fields("DescribeGroupAnswer", "events.member events.node"),
            *_fields("FetchOffsets", "group"),
        ),
    ),
    FieldRule(
        "server", "describe group", "Which server coordinates it.", _fields("DescribeGroupAnswer", "coordinator")
    ),
    FieldRule(
        "group",
        "describe cluster",
        "All groups.",
        (*_fields("ListGroups", "after"), *_fields("ListGroupsAnswer", "groups.group")),
    ),
    FieldRule(
        "application",
        "transact app",
        "Its transactions, and the producers of its tasks.",
        (
            *_fields("AbortStaged", "app staged"),
            *_fields("BeginTransaction", "app staged"),
            *_fields("CommitOffsets", "transaction"),
            *_fields("CommitStaged", "app staged"),
            *_fields("EndTransaction", "app"),
            *_fields("InitTaskProducer", "app owner"),
            *_fields("PrepareTransaction", "app"),
            *_fields("Produce", "parts.transaction"),
        ),
    ),
    FieldRule(
        "application",
        "describe app",
        "Of one application; of all it takes the right to describe the cluster.",
        (
            *_fields("ListTransactions", "app after"),
            *_fields("ListTransactionsAnswer", "transactions.app transactions.staged"),
        ),
    ),
    FieldRule("stream", "create stream", "", _fields("CreateStream", "path")),
    FieldRule("stream", "write stream", "", _fields("AppendStream", "path")),
    FieldRule("stream", "read stream", "", _fields("ReadStream", "path stream_id")),
    FieldRule("stream", "delete stream", "", _fields("DeleteStream", "path")),
    FieldRule("stream", "describe stream", "", _fields("DescribeStream", "path")),
    # --- what names nothing ---------------------------------------------------------------------------------
    FieldRule(
        "",
        "",
        "Topics that a client asks about by name or id: the answer leaves out what it may not know of.",
        _fields("Metadata", "topics topic_ids"),
    ),
    FieldRule(
        "",
        "",
        "What a member says that it still has: nothing counts but what it was given.",
        _fields("GroupHeartbeat", "owned.topic_id owned.topic"),
    ),
    FieldRule(
        "",
        "",
        "What a member says that its application does: shown to those who may describe the group and the topic.",
        _fields("GroupHeartbeat", "work.topic_id work.paused.topic_id work.paused.topic"),
    ),
    FieldRule("", "", "Ignored: the id beside it counts.", _fields("FetchOffsets", "parts.topic")),
    FieldRule(
        "",
        "",
        "The name under which a change is done once.",
        tuple(
            f"{message}.client"
            for message in (
                *("AlterAcls", "AlterLearners", "AlterQuotas", "AlterTopic", "CancelReassignment", "CreateTopic"),
                *("DeleteTopic", "DrainServer", "ForgetServer", "GrowTopic", "PauseTopic", "PutToken", "RaiseLevel"),
                *("Reassign", "Rebalance", "RevokeTokens", "RotateTicketKeys", "SetReadOnly", "TransferLeader"),
            )
        ),
    ),
    FieldRule(
        "",
        "",
        "Set by the gateway, whatever a client says.",
        tuple(
            f"{message}.asker"
            for message in (
                *("AddController", "AlterLearners", "AlterTopic", "CancelReassignment", "CreateTopic", "DeleteTopic"),
                *("DrainServer", "ForgetServer", "GrowTopic", "PauseTopic", "RaiseLevel", "Reassign", "Rebalance"),
                *("RemoveController", "RotateTicketKeys", "SetReadOnly", "TransferLeader"),
            )
        ),
    ),
    FieldRule(
        "",
        "",
        "Set by the gateway, likewise.",
        (
            *_fields("AlterQuotas", "spared"),
            *_fields("BeginTransaction", "principal"),
            *_fields("CommitOffsets", "principal"),
            *_fields("CommitStaged", "principal"),
            *_fields("CreateStream", "principal"),
            *_fields("CreateTopic", "principal"),
            *_fields("InitTaskProducer", "principal"),
            *_fields("JoinGroup", "principal"),
            *_fields("PutToken", "spared"),
            *_fields("RevokeTokens", "spared"),
        ),
    ),
    FieldRule(
        "",
        "",
        "A random name, or words of one's own, for whom they are told to.",
        (
            *_fields("BeginTransaction", "owner"),
            *_fields("CommitOffsets", "positions.metadata"),
            *_fields("DescribeGroupAnswer", "positions.metadata"),
            *_fields("FetchOffsetsAnswer", "positions.metadata"),
            *_fields("JoinGroup", "node"),
            *_fields("ListGroupsAnswer", "groups.positions.metadata"),
        ),
    ),
    FieldRule(
        "",
        "",
        "A refusal: shown to the principal that got it, or with the right to describe the cluster; what the gateway"
        " knew of the topic only to those who may describe that, and message and detail also to whom it went.",
        (
            *_fields("Delivery", "error.id"),
            *_fields("DescribeRefusal", "error_id"),
            *_fields("Produced", "acks.error.id"),
            *_fields("RefusalAnswer", "refusal.error_id refusal.op refusal.code refusal.message refusal.principal"),
            *_fields("RefusalAnswer", "refusal.remote refusal.program refusal.detail refusal.facts"),
        ),
    ),
    FieldRule(
        "",
        "",
        "Secrets that are shown, or given to whom they are for.",
        (
            *_fields("Hello", "token"),
            *_fields("ProducerId", "ticket"),
            *_fields("ProducerTicket", "ticket"),
            *_fields("TaskProducer", "ticket"),
            *_fields("TransactionBegun", "ticket"),
            *_fields("UseProducer", "ticket"),
        ),
    ),
    FieldRule(
        "",
        "",
        "Where a client goes on when this gateway ends; whoever is let in may go to any gateway.",
        _fields("MetadataAnswer", "gateways.node gateways.url"),
    ),
    FieldRule(
        "",
        "",
        "Who speaks, and of which cluster: the other end of this very connection.",
        (
            *_fields("Hello", "role node cluster url capabilities"),
            *_fields("MetadataAnswer", "cluster"),
            *_fields("Welcome", "cluster node role capabilities"),
        ),
    ),
    FieldRule(
        "",
        "",
        "Which of the streams that have had a path, and names among the writers of one stream.",
        (
            *_fields("AppendStream", "producer seq"),
            *_fields("StreamData", "stream_id"),
            *_fields("StreamInfo", "stream_id"),
        ),
    ),
    FieldRule(
        "",
        "",
        "One of a few words, a setting, a content type or a version.",
        (
            *_fields("AppendStream", "content_type"),
            *_fields("CreateStream", "content_type"),
            *_fields("StreamData", "content_type"),
            *_fields("StreamInfo", "content_type"),
            *_fields("AlterTopic", "config"),
            *_fields("CreateTopic", "config"),
            *_fields("DescribeGroupAnswer", "state assignor events.event events.code"),
            *_fields("FeaturesAnswer", "processes.role"),
            *_fields("HistoryAnswer", "entries.event entries.cause"),
            *_fields("JoinGroup", "assignor"),
            *_fields("ListGroupsAnswer", "groups.state"),
            *_fields("ListOffset", "at isolation"),
            *_fields("ListTransactionsAnswer", "transactions.state"),
            *_fields("Metadata", "consistency"),
            *_fields("MetricsAnswer", "version refused.cause"),
            *_fields("PlanRebalance", "unit"),
            *_fields("Play", "act"),
            *_fields("PlayAnswer", "nodes.state messages.op"),
            *_fields("Produced", "acks.durability"),
            *_fields("QuorumAnswer", "controllers.role"),
            *_fields("Read", "consistency isolation"),
            *_fields("Rebalance", "unit"),
            *_fields("RebalancePlan", "unit"),
            *_fields("Subscribe", "read_from consistency isolation"),
        ),
    ),
    FieldRule(
        "",
        "",
        "An error is about what was asked for, after the rules were heeded.",
        (
            *_fields("Delivery", "error.code error.message error.detail"),
            *_fields("Produced", "acks.error.code acks.error.message acks.error.detail"),
        ),
    ),
)
