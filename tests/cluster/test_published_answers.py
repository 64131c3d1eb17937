"""Real answers follow the rule of their operation in ``tidelog.cddl``, and of no other. Tests ``tidelog.cddl`` and
``operation_errors`` with a whole cluster; ``conftest.py`` checks every other test of this folder likewise."""

from __future__ import annotations

from pathlib import Path

import cbor2
import pycddl
import pytest
from tidelog.cli.conformance.traffic import ANSWERS, schema_of
from tidelog.errors import TidelogError
from tidelog.wire.messages import (
    BeginTransaction,
    CommitOffsets,
    DescribeAccess,
    DescribeFeatures,
    DescribeGroup,
    DescribeMetrics,
    DescribeQuorum,
    Digest,
    EndTransaction,
    FetchOffsets,
    GroupHeartbeat,
    GroupPosition,
    History,
    InitTaskProducer,
    JoinGroup,
    JoinGroupAnswer,
    ListGroups,
    ListOffset,
    ListTransactions,
    Message,
    PutToken,
    ReadCopy,
    ScrubServer,
    Subscribe,
    TopicShare,
    TransactionBegun,
)

from cluster.conftest import Answers
from cluster.harness import Client, connected, running

pytestmark = pytest.mark.real


async def ask(client: Client, request: Message) -> Message:
    return await client.link.call(request, 15)


async def ask_much(client: Client, topic_id: str) -> None:
    """Send a request of most kinds, each of which is answered with what there is."""
    await ask(client, PutToken("0123456789abcdef", "0" * 64, "alice"))
    await client.init()
    await client.wait_ack(client.send(topic_id, b"one", b"two"))
    await client.read(topic_id, 2)
    for at in ("earliest", "latest", "timestamp"):
        await ask(client, ListOffset(topic_id, 0, at, 1 if at == "timestamp" else -1))
    await ask(client, Subscribe(1, topic_id, 0, 0, 1 << 20))
    await client.wait_deliveries(2)
    joined = await ask(client, JoinGroup("biller", "m1", ("orders",)))
    assert isinstance(joined, JoinGroupAnswer)
    share = TopicShare(topic_id, (0,))
    await ask(client, GroupHeartbeat("biller", "m1", joined.generation, (share,)))
    await ask(client, CommitOffsets("biller", (GroupPosition(topic_id, 0, 1, 0),), "m1", joined.generation))
    await ask(client, FetchOffsets("biller", (share,)))
    begun = await ask(client, BeginTransaction("app", "owner"))
    assert isinstance(begun, TransactionBegun)
    await ask(client, ListTransactions())
    await ask(client, EndTransaction("app", begun.producer_id, begun.producer_epoch, True))
    for request in (
        *(ListGroups(), DescribeGroup("biller"), InitTaskProducer("etl", "owner", 1, 0), History(topic_id, 0)),
        *(DescribeAccess(), DescribeFeatures(), DescribeMetrics(), DescribeQuorum()),
        *(Digest("r1", topic_id, 0, (0, 2)), ReadCopy("r1", topic_id, 0, 0), ScrubServer("r1")),
    ):
        await ask(client, request)


async def test_an_answer_follows_the_rule_of_its_operation_and_of_no_other(tmp_path: Path, answers: Answers) -> None:
    answers.headers.clear()
    async with running(tmp_path) as cluster, connected(cluster) as client:
        await ask_much(client, await client.create("orders"))
        with pytest.raises(TidelogError, match="UNKNOWN_GROUP"):
            await ask(client, DescribeGroup("nobody"))
    assert len(answers.headers) > 25
    closed = {rule: schema_of(rule) for rule in sorted(set(ANSWERS.values()))}
    confused = set()
    for op, header in answers.headers.items():
        closed[ANSWERS[op]].validate_cbor(header)
        if cbor2.loads(header).keys() == {"re"}:  # it has nothing to tell, as `done`
            continue
        for rule, schema in closed.items():
            if rule != ANSWERS[op]:
                try:
                    schema.validate_cbor(header)
                except pycddl.ValidationError:
                    continue
                confused.add((op, rule))
    assert confused == set()
