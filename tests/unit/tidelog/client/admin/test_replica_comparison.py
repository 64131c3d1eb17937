"""Replicas are compared by the hash chains of their logs: the first difference is found, wherever it is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from hashlib import blake2b

import pytest
import trio
from support.replica_network import KEY, cluster, code
from tidelog.client.admin.replica_comparison import Comparison, compare
from tidelog.client.trio_loop import TrioLoop
from tidelog.errors import Unreachable
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.types import TopicConfig
from tidelog.wire.messages import Digest, DigestAnswer, DigestEntry


class Copy:
    """A replica's log, reduced to the end offsets of its batches and the hash chain at each."""

    def __init__(self, sizes: Sequence[int], contents: Sequence[int], start: int = 0, hw: int | None = None) -> None:
        self.chain = {0: b""}
        end, chain = 0, b""
        for size, content in zip(sizes, contents, strict=True):
            end, chain = end + size, blake2b(chain + b"%d %d" % (size, content)).digest()[:4]
            self.chain[end] = chain
        self.start, self.end = start, end
        self.hw = end if hw is None else hw
        self.moves: list[int] = []
        """What the log start becomes after each question."""

    def answer(self, offsets: Sequence[int]) -> DigestAnswer:
        entries = []
        for offset in offsets:
            boundary = max(self.start, max(end for end in self.chain if end <= max(offset, self.start)))
            entries.append(DigestEntry(offset, boundary, self.chain[boundary]))
        answer = DigestAnswer(self.start, self.end, self.hw, 0, self.start, tuple(entries))
        if self.moves:
            self.start = self.moves.pop(0)
        return answer


def compared(**copies: Copy) -> tuple[Comparison, int]:
    """Compare these replicas, and return the result and the number of requests that one replica got."""
    asked = []

    async def ask(node: str, offsets: Sequence[int]) -> DigestAnswer:
        asked.append(node)
        await trio.lowlevel.checkpoint()
        if node not in copies:
            raise Unreachable(f"{node} is away")
        return copies[node].answer(offsets)

    return trio.run(compare, TrioLoop(WebSocketTransport()), list(copies), ask), asked.count(next(iter(copies)))


def test_equal_logs_have_no_difference_whatever_lies_above_the_high_watermarks() -> None:
    result, questions = compared(a=Copy([3, 2, 4], [1, 2, 3]), b=Copy([3, 2, 1], [1, 2, 9], hw=5))
    assert (result.compared, result.start, result.end, result.difference) == (("a", "b"), 0, 5, None)
    assert questions == 2


@pytest.mark.parametrize("seed", range(40))
def test_the_first_batch_that_differs_is_found_wherever_it_is(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.randint(1, 50) for _ in range(rng.randint(1, 300))]
    contents = [rng.randint(0, 9) for _ in sizes]
    place = rng.randrange(len(sizes))
    other = [*contents[:place], 10, *contents[place + 1 :]]
    result, questions = compared(a=Copy(sizes, contents), b=Copy(sizes, contents), c=Copy(sizes, other))
    assert result.difference is not None and not result.difference.below
    assert result.difference.offset == sum(sizes[:place])
    sides = result.difference.sides
    assert sides["a"] == sides["b"] != sides["c"]
    assert questions <= 10


def test_other_batch_boundaries_are_a_difference_too() -> None:
    result, _ = compared(a=Copy([4, 4], [1, 2]), b=Copy([4, 2, 2], [1, 2, 3]))
    assert result.difference is not None and result.difference.offset == 4


def test_a_difference_below_the_common_range_is_known_of_but_not_placed() -> None:
    result, _ = compared(a=Copy([4, 4, 4], [1, 2, 3]), b=Copy([4, 4, 4], [9, 2, 3], start=4))
    assert result.difference is not None
    assert (result.difference.offset, result.difference.below) == (4, True)


def test_retention_may_overtake_the_search() -> None:
    sizes, contents = [1] * 1000, [0] * 1000
    moving = Copy(sizes, contents)
    moving.moves = [0, 0, 400, 400, 400, 400, 400]
    result, _ = compared(a=moving, b=Copy(sizes, [*contents[:500], 1, *contents[501:]]))
    assert result.difference is not None
    assert (result.difference.offset, result.difference.below) == (500, False)
    moving = Copy(sizes, contents)
    moving.moves = [0, 0, 900, 900, 900]
    result, _ = compared(a=moving, b=Copy(sizes, [*contents[:500], 1, *contents[501:]]))
    assert result.difference is not None and result.difference.below


def test_without_a_common_range_there_is_nothing_to_say() -> None:
    result, _ = compared(a=Copy([4], [1]), b=Copy([4, 4], [1, 2], start=4))
    assert (result.start, result.end, result.difference) == (4, 4, None)
    assert compared(a=Copy([4], [1]))[0] == Comparison(("a",))


def test_a_replica_that_does_not_answer_is_named() -> None:
    async def ask(node: str, offsets: Sequence[int]) -> DigestAnswer:
        if node == "b":
            raise Unreachable("b is away")
        return Copy([4], [1]).answer(offsets)

    result = trio.run(compare, TrioLoop(WebSocketTransport()), ["a", "b", "c"], ask)
    assert (result.compared, result.difference) == (("a", "c"), None)
    assert "b is away" in result.unasked["b"]


# --- what replica servers say ----------------------------------------------------------------------------------


def test_every_replica_answers_the_hash_chain_of_its_log_in_any_role() -> None:
    net = cluster(config=TopicConfig(min_insync_replicas=2))
    for value in (b"a", b"b", b"c"):
        net.send("r1", value, value)
    net.advance(4)

    def ask(name: str, *offsets: int, node: str = "") -> DigestAnswer:
        answer: DigestAnswer = net.answers[net.ask(name, Digest(node or name, *KEY, offsets))]
        return answer

    first, *others = [ask(name, 3, 6) for name in net.names]
    assert others == [first, first]
    assert (first.log_start, first.log_end, first.high_watermark, first.leader_epoch) == (0, 6, 6, 0)
    assert [(entry.offset, entry.boundary) for entry in first.entries] == [(3, 2), (6, 6)]
    assert first.entries[0].chain != first.entries[1].chain
    assert code(ask("r1", node="r2")) == "NOT_REPLICA"
    assert code(ask("r1", *range(65))) == "MALFORMED"
    assert code(net.answers[net.ask("r1", Digest("r1", "nothing", 0))]) == "NOT_LEADER"
    net.partition("r1").fail("its disk failed")
    assert code(ask("r1")) == "OFFLINE"
