"""``tidelog topics create`` as a user types it."""

from __future__ import annotations

import json

from click.testing import CliRunner, Result
from support.gateway_thread import served
from tidelog.cli.main import main


def create(url: str, name: str, *options: str) -> Result:
    return CliRunner().invoke(main, ["topics", "create", name, *options, "--gateway", url])


def test_a_topic_that_exists_is_an_error_that_says_how_to_go_on() -> None:
    with served(partitions=2) as (_, url):
        done = create(url, "orders")
    assert (done.exit_code, "TOPIC_EXISTS" in done.stderr) == (1, True)
    assert "'tidelog topics create --if-not-exists' leaves it as it is" in done.stderr


def test_if_not_exists_leaves_a_topic_as_it_is_and_says_what_it_is() -> None:
    with served(partitions=2) as (cluster, url):
        kept = cluster.topics["orders"].topic_id
        done = create(url, "orders", "--if-not-exists", "--partitions", "6")
        assert done.exit_code == 0, done.output
        assert done.stdout == "orders exists, and stays as it is: 2 partitions, 1 replica each\n"
        described = json.loads(create(url, "orders", "--if-not-exists", "--json").stdout)
        assert (described["topic_id"], len(described["partitions"])) == (kept, 2)
        assert create(url, "new", "--if-not-exists").stdout.startswith("created new: 1 partition,")
