"""How the queries of a pipeline read its inputs: real Spark, a real cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tidelog.sync

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

from tidelog.spark.pipelines.analysis import Analysis
from tidelog.spark.pipelines.check import check
from tidelog.spark.pipelines.declaration import parse
from tidelog.spark.pipelines.run import Run
from tidelog.tables.manifest import read_manifest

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark.*"),
]


@pytest.fixture
def client(cluster: Any) -> Iterator[tidelog.sync.Log]:
    with tidelog.sync.connect(cluster.url) as log:
        yield log


def produce(client: tidelog.sync.Log, topic: str, *values: object) -> None:
    with client.producer(topic) as producer:
        for value in values:
            producer.submit(json.dumps(value).encode())


def test_each_query_keeps_its_position_in_a_group_of_its_own(
    spark: Any, cluster: Any, client: tidelog.sync.Log, tmp_path: Path
) -> None:
    client.topics.create("visits", config={"flush": "os"})
    client.topics.create("visits-bad", config={"flush": "os"})
    produce(client, "visits", *({"id": number} for number in range(8)), "bad")
    text = """
        name = "visits"
        group-prefix = "shop."
        [in.visits]
        topic = "visits"
        value = "json"
        schema = "id INT"
        bad = "visits-bad"
        options = { maxOffsetsPerTrigger = 3 }
        [table.few]
        sql = "SELECT * FROM visits WHERE id > 5"
        [out.all]
        from = "visits"
        parquet = "all"
        [out.few]
        from = "few"
        parquet = "few"
    """
    run = Run(parse(text), spark, tmp_path, cluster.url)
    run.finish(run.start())
    groups = ("shop.all", "shop.few", "shop.visits-bad")
    assert {one: client.groups.fetch_offsets(one, "visits")[0].offset for one in groups} == dict.fromkeys(groups, 9)
    assert spark.read.parquet(str(tmp_path / "all")).count() == 8
    assert spark.read.parquet(str(tmp_path / "few")).count() == 2
    assert [record.value for record in client.consume("visits-bad", start=0, end="latest")] == [b'"bad"']


SHARED = """
    name = "shop"
    [in.orders]
    topic = "orders-in"
    value = "json"
    schema = "id INT, amount INT"
    bad = "orders-bad"
    shared-by = ["large", "ids", "kept"]
    options = { maxOffsetsPerTrigger = 4 }
    [table.large]
    sql = "SELECT * FROM orders WHERE amount > 10"
    [table.twice]
    python = "steps.py:twice"
    [out.large]
    from = "large"
    topic = "orders-large"
    key = "id"
    [out.ids]
    from = "twice"
    topic = "orders-ids"
    [out.kept]
    from = "orders"
    manifest = "kept"
"""


def ids(client: tidelog.sync.Log, topic: str, column: str) -> list[int]:
    return [json.loads(record.value or b"")[column] for record in client.consume(topic, start=0, end="latest")]


def test_outputs_that_share_a_read_get_each_record_once_whatever_is_run_twice(
    spark: Any, cluster: Any, client: tidelog.sync.Log, tmp_path: Path
) -> None:
    for topic in ("orders-in", "orders-bad", "orders-large"):
        client.topics.create(topic, config={"flush": "os"})
    (tmp_path / "steps.py").write_text(
        "def twice(spark):\n    return spark.table('orders').selectExpr('id * 2 AS twice')\n"
    )
    produce(client, "orders-in", *({"id": number, "amount": number * 4} for number in range(6)), "bad")

    def run() -> list[tuple[str, int, int, str]]:
        one = Run(parse(SHARED), spark, tmp_path, cluster.url)
        outcomes = one.finish(one.start())
        return [(outcome.output, outcome.rows, outcome.batches, outcome.state) for outcome in outcomes]

    with pytest.raises(Exception, match=r"TIDELOG_UNKNOWN_TOPIC\] \[out\.ids\]: "):
        run()
    assert ids(client, "orders-large", "id") == [3], "it comes before the output that fails"
    client.topics.create("orders-ids", config={"flush": "os"})
    assert run() == [(name, 7, 2, "done") for name in ("large", "ids", "kept", "orders-bad")]
    assert [one.name for one in (tmp_path / "checkpoints").iterdir()] == ["orders-shared"]
    (tmp_path / "checkpoints" / "orders-shared" / "commits" / "1").unlink()  # the second batch is run again
    (tmp_path / "checkpoints" / "orders-shared" / "commits" / ".1.crc").unlink(missing_ok=True)
    produce(client, "orders-in", {"id": 6, "amount": 1})
    assert [batches for _, _, batches, _ in run()] == [2] * 4
    assert ids(client, "orders-large", "id") == [3, 4, 5]
    assert ids(client, "orders-ids", "twice") == [0, 2, 4, 6, 8, 10, 12]
    rows = spark.read.parquet(*read_manifest(str(tmp_path / "kept")).paths)
    assert sorted(row.id for row in rows.select("id").collect()) == [0, 1, 2, 3, 4, 5, 6]
    assert [record.value for record in client.consume("orders-bad", start=0, end="latest")] == [b'"bad"']


def test_an_output_of_more_than_one_record_cannot_share_a_read(spark: Any, tmp_path: Path) -> None:
    tables = {
        "sums": "SELECT sum(amount) AS sum FROM orders",
        "single": "SELECT DISTINCT id FROM orders",
        "pairs": "SELECT a.id FROM orders a JOIN orders b ON a.id = b.id",
        "other": "SELECT id FROM others",
        "fine": "WITH l AS (SELECT id, amount FROM large) SELECT id, explode(array(1, 2)) AS n FROM l "
        "UNION ALL SELECT id, 3 FROM orders JOIN VALUES (1) AS v(w) ON w = id",
    }
    text = SHARED.replace('python = "steps.py:twice"', 'sql = "SELECT id AS twice FROM orders"')
    text = text.replace('"large", "ids", "kept"', ", ".join(f'"{name}"' for name in tables))
    text += '[in.others]\ntopic = "others"\nvalue = "json"\nschema = "id INT"\n'
    text += "".join(f'[table.{name}]\nsql = "{sql}"\n[out.{name}]\nfrom = "{name}"\ntopic = "{name}"\n'
                    for name, sql in tables.items())  # fmt: skip
    reading = check(text, {}, tmp_path)
    assert reading.faults == ()
    analysis = Analysis(reading, spark, tmp_path)
    analysis.run()
    depends = "; rows of a shared query are those of one record each"
    of_shared = "[in.orders]: shared-by: "
    found = [fault.text.removeprefix(of_shared) for fault in analysis.faults if fault.text.startswith(of_shared)]
    assert found == [
        f"sums: it has a step Aggregate, which is of several records{depends}",
        f"single: it has a step Distinct, which is of several records{depends}",
        f"pairs: it has a step Join, which is of several records{depends}",
        "other: it reads others, and the shared query reads orders only",
    ]
