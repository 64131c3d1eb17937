"""Topics that may exist already, over a gateway that hears of them late."""

from __future__ import annotations

import tidelog
from support.fake_gateway import FakeCluster
from tidelog.net.link import Link
from tidelog.wire.messages import Message, Metadata, MetadataAnswer


class Behind(FakeCluster):
    """A cluster whose gateway has not heard of any topic when it is asked for the first time."""

    asked = 0

    def answer(self, link: Link, message: Message) -> Message:
        if isinstance(message, Metadata) and message.topics:
            self.asked += 1
            if self.asked == 1:
                return MetadataAnswer("fake", 1, (), ())
        return super().answer(link, message)


async def test_a_topic_that_another_program_has_just_created_is_waited_for() -> None:
    cluster = Behind()
    made = cluster.add_topic("orders", 3)
    async with cluster.gateways() as (url,), tidelog.connect(url) as log:
        found = await log.topics.create("orders", partitions=5, exist_ok=True)
    assert (found.topic_id, len(found.partitions), cluster.asked) == (made.topic_id, 3, 2)
