"""What the parts of a pipeline mean for each other."""

from __future__ import annotations

import pytest
from tidelog.spark.pipelines.declaration import read

IN = 'name = "p"\n[in.a]\ntopic = "t"\n'
OUT = '[out.b]\nfrom = "a"\nparquet = "f"\n'


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ('[table.c]\nsql = """\nSELECT *\nFROM a JOIN d"""\n[table.d]\nsql = "SELECT * FROM a"\n', [
            "10: [table.c]: the table d is declared later, in line 11; a table reads those above it"]),
        ('[table.c]\nsql = "SELECT * FROM d"\n[table.d]\nsql = "SELECT * FROM e"\n'
         '[table.e]\nsql = "SELECT * FROM c"\n', [
            "8: [table.c]: the tables d, e, c read each other in a circle",
            "10: [table.d]: the tables e, c, d read each other in a circle"]),
        ('[table.c]\nsql = "SELECT * FROM C"\n', ["8: [table.c]: the table reads itself"]),
        ('[table.cc]\nsql = "SELECT * FROM A, aa, c"\n', [
            "8: warning: [table.cc]: aa is no table of this pipeline; do you mean a?",
            "8: warning: [table.cc]: c is no table of this pipeline; do you mean cc?"]),
        ('[table.c]\nsql = "SELECT * FROM x"\n[spark]\n"spark.sql.catalogImplementation" = "hive"\n', []),
        ('[table.c]\nsql = "SELECT * FROM x"\n[table.d]\npython = "x.py:f"\n', []),
        ('[out.c]\nfrom = "a"\nparquet = "./f/"\n', ["9: [out.c]: writes to the same folder as [out.b]"]),
        ('[out.c]\nfrom = "a"\ndelta = "f/g"\n', [
            "9: [out.c]: writes to a folder that overlaps with that of [out.b]"]),
        ('[out.c]\nfrom = "a"\nparquet = "s3a://f/g"\n[out.d]\nfrom = "a"\nparquet = "s3a://f/h/../g/"\n', [
            "12: [out.d]: writes to the same folder as [out.c]"]),
        ('[out.c]\nfrom = "a"\nparquet = "fg"\n', []),
        ('[out.c]\nfrom = "a"\nparquet = "checkpoints"\n', ["9: [out.c]: writes to a folder with checkpoints"]),
        ('[out.c]\nfrom = "a"\nparquet = "g"\noptions = { checkpointLocation = "checkpoints/b" }\n', [
            "10: [out.c]: has the same checkpoint as [out.b]"]),
        ('[out.c]\nfrom = "a"\ntopic = "t"\n', [
            "9: warning: [out.c]: writes the topic t, which [in.a] reads: records may go round for ever"]),
        ('[in.c]\nsubscribe-pattern = "u.*"\nvalue = "json"\nschema = "i INT"\nbad = "ux"\n', [
            "11: warning: [in.c]: bad records go to the topic ux, which [in.c] reads"]),
        ('[out.c]\nfrom = "a"\ntopic = "u"\noptions = { appId = "x" }\n[out.d]\nfrom = "a"\ntopic = "v"\n'
         'options = { APPID = "x" }\n', [
            "14: [out.d]: has the appId of [out.c]: batches of one would count as those of the other"]),
        ('[out.c]\nfrom = "a"\ntopic = "u"\nmode = "complete"\noptions = { acks = "some", delivry = "x" }\n', [
            "11: [out.c]: options: acks is none, leader or all; not 'some'",
            "11: [out.c]: options: there is no option delivry, perhaps delivery"]),
        ('[out.c]\nfrom = "a"\ntopic = "u"\ndelivery = "idempotent"\noptions = { transactionTimeout = "1m" }\n', [
            "11: [out.c]: options: transactionTimeout belongs to delivery exactly-once, not to idempotent"]),
        ('[in.c]\ntopic = "u,v"\noptions = { startingTimestamp = 3 }\n', []),
        ('[in.c]\ntopic = "u"\noptions = { groupId = "g" }\n', []),
    ],
)  # fmt: skip
def test_faults_between_parts(text: str, faults: list[str]) -> None:
    shown = [one.shown("").removeprefix(":").split("; a stream takes")[0] for one in read(IN + OUT + text).faults]
    assert shown == faults


def test_a_query_has_one_group() -> None:
    text = f'group-prefix = "g-"\n{IN}options = {{ groupID = "h" }}\n{OUT}'
    assert [one.shown("f") for one in read(text).faults] == [
        "f:5: [in.a]: options: groupId does not go with group-prefix, by which each query has a group of its own"
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('[out.c]\nfrom = "a"\ntopic = "u"\n', ""),
        ('[out.d]\nfrom = "a"\ntopic = "u"\n', "there is no output c"),
        ('[out.c]\nfrom = "a"\nparquet = "g"\n',
         "c writes parquet, which could have a batch twice; take manifest, delta, iceberg or a topic"),
        ('[out.c]\nfrom = "a"\ntopic = "u"\nmode = "complete"\n',
         "c has mode complete; outputs that share a read are appended to"),
        ('[out.c]\nfrom = "a"\ntopic = "u"\ndelivery = "idempotent"\n',
         "c has delivery idempotent; outputs that share a read are written exactly-once"),
        ('[out.c]\nfrom = "a"\ntopic = "u"\ntrigger = "1 second"\n',
         "c has another trigger than b, and both have one query"),
        ('[out.c]\nfrom = "a"\ntopic = "u"\nrestart = { times = 3 }\n',
         "c has another restart than b, and both have one query"),
        ('[out.c]\nfrom = "a"\ntopic = "u"\n[in.e]\ntopic = "v"\nshared-by = ["c"]\n',
         "c is named twice, here or in another input"),
    ],
)  # fmt: skip
def test_outputs_that_cannot_share_a_read(text: str, fault: str) -> None:
    shared = IN + 'shared-by = [\n"b",\n"c"]\n[out.b]\nfrom = "a"\ntopic = "w"\n'
    line, of = ("15", "e") if "in.e" in text else ("6", "a")
    assert [one.shown("f") for one in read(shared + text).faults] == (
        [f"f:{line}: [in.{of}]: shared-by: {fault}"] if fault else []
    )


def test_a_read_is_shared_by_outputs_and_bad_records() -> None:
    text = 'valid = "true"\nbad = "x"\nshared-by = ["c"]\n[out.c]\nfrom = "a"\ntopic = "u"\n'
    (shared,) = read(IN + text + OUT).pipeline.shared_reads()
    assert (shared.query, shared.writes) == ("a-shared", ("c", "a-bad"))
