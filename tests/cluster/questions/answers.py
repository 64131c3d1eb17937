"""Ways to ask a running cluster: by ``tidelog why`` in a process of its own, or by the function behind it."""

from __future__ import annotations

import json
import sys
from typing import Any

import trio
from tidelog.client.log import Log
from tidelog.explain.questions import answer_question, parse_question

from cluster.harness import Cluster
from cluster.operating import wait


async def why(log: Log, *words: str) -> Any:
    """Ask by the function behind ``tidelog why`` and return the document."""
    return json.loads(json.dumps((await answer_question(log, parse_question(words))).as_document()))


async def why_by_command(cluster: Cluster, *words: str) -> Any:
    """Run ``tidelog why`` with these words against a cluster, and return its document."""
    command = [sys.executable, "-m", "tidelog.cli", "why", *words, "-o", "json", "--gateway", cluster.gateway]
    done = await trio.run_process(command, capture_stdout=True)
    return json.loads(done.stdout)


async def why_until(log: Log, expected: str, *words: str) -> str:
    """Ask a question until its answer has the ``expected`` words, and return all its sentences as one text. Fails
    after a minute, with the last answer."""
    texts = [""]

    async def is_said() -> bool:
        texts.append(" ".join((await why(log, *words))["sentences"]))
        return expected in texts[-1]

    try:
        await wait(is_said)
    except trio.TooSlowError:
        raise AssertionError(f"{expected!r} is not in {texts[-1]!r}") from None
    return texts[-1]
