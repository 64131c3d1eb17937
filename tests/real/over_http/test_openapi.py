"""The description of HTTP against a real gateway: requests that Schemathesis makes from it, right and wrong ones.

Each answer is as the description says, none is a fault of the server, and each wrong request is refused with a
problem document. The seed is fixed, and so is the number of requests.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterator

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, seed, settings
from running import running_cluster
from tidelog_gateway.http.openapi import document

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Schemathesis's own imports
    import schemathesis
    from schemathesis import Case, GenerationMode
    from schemathesis.checks import load_all_checks
    from schemathesis.specs.openapi.checks import positive_data_acceptance

load_all_checks()

pytestmark = pytest.mark.real

EXAMPLES = 20
TOPIC = "described"
SCHEMA = schemathesis.openapi.from_dict(json.loads(json.dumps(document())))
OPERATIONS = {
    operation.definition.raw["operationId"]: operation
    for operation in (found.ok() for found in SCHEMA.get_all_operations())
}
ENDLESS = "follow"
"""Its right answer has no end; the wrong requests are made all the same."""
WITHOUT_INPUT = ("openapi", "describe_cluster", "list_topics")
POSITIVE = [name for name in OPERATIONS if name != ENDLESS]
NEGATIVE = [name for name in OPERATIONS if name not in WITHOUT_INPUT]
one_run = settings(
    max_examples=EXAMPLES,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the gateway of a cluster of its own, since topics of any name are made. ``TOPIC`` has two
    partitions."""
    with running_cluster(tmp_path_factory.mktemp("described")) as cluster:
        url = cluster.gateways[0].replace("ws://", "http://")
        made = requests.post(
            f"{url}/v1/topics", json={"name": TOPIC, "partitions": 2, "replication_factor": 3}, timeout=60
        )
        assert made.status_code == 201, made.text
        yield url


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


@pytest.mark.parametrize("name", POSITIVE)
def test_a_request_that_is_as_described_is_answered_as_described(
    name: str, base: str, session: requests.Session
) -> None:
    operation = OPERATIONS[name]
    names = {"topic": TOPIC, "partition": 0}
    path = {part: value for part, value in names.items() if f"{{{part}}}" in operation.path} or None
    if operation.method == "delete":
        path = None  # any topic but that of the others
    statuses: Counter[int] = Counter()

    @seed(1)
    @one_run
    @given(operation.as_strategy(generation_mode=GenerationMode.POSITIVE, path_parameters=path))
    def ask(case: Case) -> None:
        settle(case)
        answer = case.call(base_url=base, session=session, timeout=60)
        case.validate_response(answer, excluded_checks=[positive_data_acceptance])
        statuses[answer.status_code] += 1
        if answer.status_code >= 400:
            assert answer.json()["code"] != "MALFORMED", answer.text

    ask()
    if name not in ("delete_topic", "set_positions"):  # which get names that do not exist
        assert min(statuses) < 300, statuses


def settle(case: Case) -> None:
    """Change what a description of single parameters cannot say: which of them go together, and what would wait."""
    query = case.query or {}
    if "wait" in query:
        query["wait"] = 0
    if "timeout" in query:
        query["timeout"] = 60
    if "epoch" in query:
        query["epoch"] = 0  # a later one would be waited for
    if "acks" in query and case.headers:
        case.headers.pop("Idempotency-Key", None)
    if case.media_type in ("application/json", "application/x-ndjson"):
        query.pop("key", None)
    if case.media_type == "application/x-ndjson":
        query["format"] = "raw"


@pytest.mark.parametrize("name", NEGATIVE)
def test_a_request_that_is_not_as_described_is_refused(name: str, base: str, session: requests.Session) -> None:
    operation = OPERATIONS[name]

    @seed(1)
    @one_run
    @given(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))
    def ask(case: Case) -> None:
        answer = case.call(base_url=base, session=session, timeout=60, stream=name == ENDLESS)
        case.validate_response(answer)
        assert 400 <= answer.status_code < 500
        assert answer.headers["content-type"] == ["application/problem+json"]

    ask()
