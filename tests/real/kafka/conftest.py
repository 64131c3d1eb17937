"""The broker of Kafka for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from broker import Kafka, running_broker


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A broker for all tests, each of which has topics of its own."""
    with running_broker(tmp_path_factory.mktemp("kafka")) as running:
        yield running
