"""The source's options: what is taken, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidelog.net.tls import TlsOptions
from tidelog.spark.errors import CODES, SourceError
from tidelog.spark.option_parsers import AtTime
from tidelog.spark.options import BATCH, STREAM, ReadOptions, parse
from tidelog.spark.write.options import WRITE
from tidelog.tables.tables import TableAddress


def refusal(**options: str) -> str:
    with pytest.raises(SourceError) as caught:
        parse({name.replace("__", "."): text for name, text in options.items()})
    text = str(caught.value)
    assert text.startswith("[TIDELOG_OPTION] ")
    return text


def test_a_topic_is_enough() -> None:
    assert parse({"subscribe": "orders"}) == ReadOptions(subscribe=("orders",))


def test_everything_at_once_in_any_case() -> None:
    options = parse(
        {
            "GATEWAY": "ws://a:1, ws://b:2",
            "assign": '{"b": [2, 0], "a": [1]}',
            "startingoffsets": '{"a": {"1": -2}, "b": {"0": 5, "2": 7}}',
            "endingOffsets": "Latest",
            "minPartitions": "8",
            "failOnDataLoss": "False",
            "includeHeaders": "true",
            "fetchMaxBytes": "1000000",
        }
    )
    assert options == ReadOptions(
        gateways=("ws://a:1", "ws://b:2"),
        assign=(("a", (1,)), ("b", (0, 2))),
        starting_offsets={"a": {1: -2}, "b": {0: 5, 2: 7}},
        ending_offsets="latest",
        min_partitions=8,
        fail_on_data_loss=False,
        include_headers=True,
        fetch_max_bytes=1_000_000,
    )
    assert options.topics() == ("a", "b")


def test_options_that_spark_adds_for_tables_are_let_through() -> None:
    assert parse({"subscribe": "a", "owner": "me", "provider": "tidelog", "option.subscribe": "a"}).subscribe == (
        "a",
    )


def test_an_unknown_option_is_refused_with_what_there_is() -> None:
    text = refusal(subscribe="a", startingOffset="earliest")
    assert "there is no option startingOffset, perhaps startingOffsets; a read takes gateway, ca" in text


def test_a_path_is_refused() -> None:
    assert "a read takes no path" in refusal(subscribe="a", path="orders")


def test_every_fault_is_named() -> None:
    text = refusal(subscribe="a,a", minPartitions="none", failOnDataLoss="maybe", fetchMaxBytes="1")
    assert "subscribe is different topic names" in text
    assert "minPartitions is a whole number, at least 1; not 'none'" in text
    assert "failOnDataLoss is true or false; not 'maybe'" in text
    assert (
        "fetchMaxBytes is a whole number of bytes, or a size such as 64KiB, 64MiB or 1GB, at least 64KiB; not '1'"
        in text
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "exactly one of subscribe, subscribePattern and assign, not none of them"),
        (
            {"subscribe": "a", "assign": '{"a": [0]}'},
            "exactly one of subscribe, subscribePattern and assign, not subscribe and assign",
        ),
        ({"subscribe": "a/b"}, "subscribe is different topic names"),
        ({"subscribe": "a", "gateway": "http://x"}, "gateway is one or more URLs ws://host:port"),
        ({"subscribe": "a", "gateway": ""}, "gateway is one or more URLs ws://host:port"),
        ({"assign": "{}"}, "assign is JSON such as"),
        ({"assign": '{"a": []}'}, "assign is JSON such as"),
        ({"assign": '{"a": [-1]}'}, "assign is JSON such as"),
        ({"assign": '{"a": [true]}'}, "assign is JSON such as"),
        ({"assign": "[1]"}, "assign is JSON such as"),
        ({"subscribe": "a", "startingOffsets": "latest"}, "startingOffsets is earliest, or JSON"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": -1}}'}, "never latest (-1)"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "endingOffsets is latest, or JSON"),
        ({"subscribe": "a", "endingOffsets": '{"a": {"0": -2}}'}, "never earliest (-2)"),
        ({"subscribe": "a", "endingOffsets": '{"a": {"x": 1}}'}, "endingOffsets is latest, or JSON"),
        ({"subscribe": "a", "endingOffsets": '{"a": 1}'}, "endingOffsets is latest, or JSON"),
        ({"subscribe": "a", "endingOffsets": "{"}, "endingOffsets is latest, or JSON"),
        ({"subscribePattern": "a("}, "subscribePattern is a regular expression that topic names match as a whole"),
        ({"subscribe": "a", "startingTimestamp": "soon"}, "startingTimestamp is milliseconds since 1970"),
        ({"subscribe": "a", "startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "startingOffsetsByTimestamp is JSON"),
        (
            {"subscribe": "a", "startingTimestamp": "1", "startingOffsets": "earliest"},
            "at most one of startingOffsets, startingTimestamp and startingOffsetsByTimestamp, not startingOffsets",
        ),
        (
            {"subscribe": "a", "endingTimestamp": "1", "endingOffsetsByTimestamp": '{"a": {"0": 1}}'},
            "at most one of endingOffsets, endingTimestamp and endingOffsetsByTimestamp, not endingTimestamp and",
        ),
        ({"subscribe": "a", "startingOffsetsByTimestampStrategy": "later"}, "Strategy is error or latest; not"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger belongs to streams; a read takes"),
        ({"subscribe": "a", "groupId": "g"}, "groupId belongs to streams"),
        ({"subscribe": "a", "startingOffsets": '{"b": {"0": 1}}'}, "starting offsets name topics b, but a are read"),
    ],
)
def test_wrong_options_of_a_read_are_refused_with_the_reason(options: dict[str, str], text: str) -> None:
    assert text in refusal(**options)


def test_a_read_takes_credentials_and_its_token_is_not_shown() -> None:
    given = {"gateway": "wss://a:1", "subscribe": "t", "ca": "ca.pem", "token": "tide_x_secret"}
    options = parse(given)
    assert options.how_to_connect() == {"urls": ("wss://a:1",), "tls": TlsOptions("ca.pem"), "token": "tide_x_secret"}
    assert "secret" not in repr(options)
    with pytest.raises(SourceError, match="both cert and key"):
        parse(given | {"cert": "c.pem"})


def stream(**options: str) -> ReadOptions:
    return parse({"subscribe": "a", **options}, streaming=True)


def test_a_stream_begins_at_the_end_unless_an_option_says_otherwise() -> None:
    assert parse({"subscribe": "a"}).starting_offsets == "earliest"
    assert stream().starting_offsets == "latest"
    assert stream(startingOffsets="earliest").starting_offsets == "earliest"
    assert stream(startingOffsets='{"a": {"0": -1, "1": -2, "2": 7}}').starting_offsets == {"a": {0: -1, 1: -2, 2: 7}}


def test_times_are_taken_for_all_partitions_or_for_each() -> None:
    options = parse({"subscribe": "a", "startingTimestamp": "5", "endingOffsetsByTimestamp": '{"a": {"0": 9}}'})
    assert (options.starting_offsets, options.ending_offsets) == (AtTime(5), AtTime({"a": {0: 9}}))


def test_options_bound_a_micro_batch() -> None:
    options = stream(maxOffsetsPerTrigger="100", minOffsetsPerTrigger="10", maxTriggerDelay="2 min", groupId="etl")
    assert (options.max_offsets, options.min_offsets, options.max_delay_ms, options.group) == (
        100,
        10,
        120_000,
        "etl",
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets belongs to batch reads; a stream takes gateway, "),
        ({"filterPushdown": "true"}, "filterPushdown belongs to batch reads"),
        ({"maxTriggerDelay": "soon", "minOffsetsPerTrigger": "1"}, "maxTriggerDelay is a time such as 500ms"),
        ({"maxTriggerDelay": "1s"}, "maxTriggerDelay bounds what minOffsetsPerTrigger waits for"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "minOffsetsPerTrigger, 6, is above"),
        ({"groupId": "a/b"}, "groupId is the name of a consumer group"),
    ],
)
def test_wrong_options_of_a_stream_are_refused_with_the_reason(options: dict[str, str], text: str) -> None:
    with pytest.raises(SourceError) as caught:
        stream(**options)
    assert text in str(caught.value)


def test_the_page_lists_every_option_and_every_code() -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "spark.md").read_text()
    assert [name for name in {**BATCH, **STREAM, **WRITE} if f"`{name}`" not in page] == []
    assert [code for code in CODES if f"| `{code}` |" not in page] == []


def test_the_table_of_history() -> None:
    given = {
        "subscribe": "orders",
        "history": "iceberg:lake.orders",
        "history.catalog.uri": "http://c",
        "history.s3.endpoint": "http://s",
        "history.appid": "lake.orders",
    }
    options = parse(given)
    assert options.history == TableAddress("iceberg", "lake.orders", {"uri": "http://c"}, {"s3.endpoint": "http://s"})
    assert options.history_app == "lake.orders"
    manifest = parse({"subscribe": "orders", "history": "manifest:s3://lake/orders"}).history
    assert manifest == TableAddress("parquet", "s3://lake/orders")


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"history": "orc:x"}, "history is a table: iceberg:NAMESPACE.TABLE, delta:FOLDER or manifest:FOLDER"),
        ({"history": "delta:"}, "history is a table"),
        ({"history": "delta:/x", "history.app": "y"}, "there is no option history.app; history takes history.appId"),
        ({"history.appid": "y"}, "history.appid: there is no history"),
        ({"history": "delta:/x", "startingTimestamp": "1"}, "history takes offsets, not times"),
        ({"history": "delta:/x", "filterPushdown": "true"}, "filterPushdown and history do not go together"),
    ],
)
def test_what_does_not_go_with_history_is_said(options: dict[str, str], fault: str) -> None:
    with pytest.raises(SourceError, match=rf"\[TIDELOG_OPTION\] {fault}"):
        parse({"subscribe": "orders", **options})


def test_a_stream_with_history_begins_in_the_table() -> None:
    found = parse({"subscribe": "orders", "history": "delta:/x", "history.appId": "y"}, streaming=True)
    assert found.history is not None and found.history.place == "/x" and found.history_app == "y"
    assert found.starting_offsets == "earliest"
    assert parse({"subscribe": "orders"}, streaming=True).starting_offsets == "latest"
