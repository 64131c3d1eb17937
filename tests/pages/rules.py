"""What becomes of each fence of the pages in ``test_fences.py``: it runs, unless it is named here with a reason. And
what a reader of a page has before its first fence, and is not to take to the letter."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from typing import NamedTuple

from pages.fences import Fence


class Rule(NamedTuple):
    """Why something of a page does not run in ``test_fences.py``. ``page`` is a pattern of paths. ``what`` is a
    regular expression: it matches the beginning of a statement of shell commands, or of another fence."""

    page: str
    what: str
    reason: str


ELSEWHERE = (
    Rule("README.md", "", "tests/pages/test_pages.py runs the README"),
    Rule("docs/web.md", "", "tests/pages/test_web_example.py runs it"),
    Rule("docs/tutorials/*", "", "each tutorial has a test of its own in tests/pages"),
    Rule("docs/kafka.md", "", "tests/pages/test_tutorial_kafka.py and tests/cluster/backup import from a Kafka"),
    Rule("docs/javascript.md", 'import \\* as tidelog from "tidelog"', "tests/pages/test_pages.py runs it"),
    Rule(
        "docs/javascript.md",
        'import \\* as tidelog from "http',
        "an import of a browser; test_tutorial_dashboard.py has such a page",
    ),
    Rule("docs/javascript.md", 'import .* from "@opentelemetry/api"', "the package is not among the test's"),
    Rule("docs/javascript.md", 'import zlib from "node:zlib"', "two ways beside each other; tests/js has the codecs"),
    Rule(
        "docs/testing-your-programs.md",
        r"# (conftest|test_\w+)\.py\n|pip install 'tidelog\[testing\]'",
        "tests/pages/test_real_clusters.py runs the tests, tests/real/test_wheel.py installs",
    ),
    Rule("docs/testing-your-programs.md", "", "tests/pages/test_testing_programs.py runs the tutorial"),
    Rule("docs/spark.md", "rows = spark.read", "tests/spark/test_source.py and test_stream.py: it takes Spark"),
    Rule("docs/spark.md", "import tidelog.spark", "tests/spark/test_snippet.py runs it: it takes Spark"),
    Rule("docs/spark.md", "from tidelog.spark.errors", "tests/spark/test_source.py: it takes Spark"),
    Rule("docs/spark.md", "def write", "tests/spark/test_sink_modes.py: it takes Spark"),
    Rule("docs/spark.md", "spark-submit|cp tidelog|unzip|PYTHONPATH=tid", "tests/spark/test_kills.py submits"),
    Rule("docs/spark.md", "pip install 'tidelog\\[spark\\]'  ", "tests/spark/test_kills.py submits"),
    Rule("docs/spark.md", "python3 -m venv|pip install|tidelog dev", "what a place of tests/pages has already"),
    Rule("docs/spark.md", "\\. venv|tidelog |printf |python -c", "tests/pages/test_five_minutes.py: it takes Spark"),
    Rule("docs/tables.md", r"orders = \(\n    spark", "tests/spark/test_history.py reads so: it takes Spark"),
    Rule(
        "docs/pipelines.md", "tidelog pipeline", "tests/pages/test_five_minutes.py runs such a file: it takes Spark"
    ),
    Rule("docs/spark-operations.md", "tidelog pipeline", "tests/spark/test_supervised.py: it takes Spark"),
    Rule(
        "docs/tables.md", "tidelog table|import duckdb\nfrom tidelog.tables", "tests/spark/test_tables.py has tables"
    ),
    Rule("docs/tables.md", "from tidelog.spark", "tests/spark/test_tables.py: it takes Spark"),
    Rule("docs/spark.md", "PYTHONPATH=/…", "tests/spark/conftest.py gives Spark such a script"),
    Rule(
        "docs/*",
        "make |docker |/opt/tidelog/bin/pip |python3 -m venv /opt",
        "tests/containers, tests/real/test_wheel.py",
    ),
    Rule("docs/*", "systemctl |journalctl |install |sudo |cp -a /var/lib", "needs systemd, and an installed service"),
    Rule("docs/deployment.md", "tidelog status --gateway", "follows docker compose"),
    Rule(
        "docs/deployment.md", "/opt/tidelog/bin/python -m tidelog.probe", "follows systemctl; tests/containers probe"
    ),
    Rule("docs/*", "kubectl |helm |for role in", "needs Kubernetes"),
    Rule("docs/kubernetes.md", "export TIDELOG_GATEWAY", "follows kubectl port-forward"),
    Rule("docs/*", "tidelog .*(log|host|minio)\\.example", "another host, with certificates and tokens"),
    Rule("docs/security.md", "tidelog produce orders --context billing", "the context names another host"),
    Rule("docs/cli.md", "tidelog context use prod|tidelog topics list --context", "the context names another host"),
    Rule("docs/backup.md", "export AWS_", "keys of a store; the test's are in its environment"),
    Rule(
        "docs/capture.md",
        "cd tests|python -m simulation",
        "runs for minutes; tests/simulation/test_told.py plays captures",
    ),
    Rule("docs/mcp.md", "pip install|tidelog mcp", "test_command.py of tests/unit/tidelog/cli/mcp starts both"),
    Rule("docs/cli.md", "tidelog mcp", "waits for an agent; tests/cluster/test_agents.py is one"),
    Rule("docs/cli.md", "tidelog bench ", "runs for minutes; tests/real/test_bench.py measures for seconds"),
    Rule("docs/cli.md", "eval .*completion zsh|tidelog completion fish", "tests/unit/tidelog/cli/test_completion.py"),
    Rule("docs/cli.md", 'tidelog sql "select value->>', "the same command runs in docs/tables.md"),
    Rule("docs/conformance.md", "tidelog conformance --client", "tests/conformance runs it with all libraries"),
    Rule(
        "docs/upgrade.md", "tidelog (cluster|features)", "tests/cluster/test_rolling_upgrade.py does this procedure"
    ),
)
"""What does not run in ``test_fences.py``. The first rule that fits counts."""

FIRST = {
    "docs/backup.md": """
        tidelog topics create orders --partitions 3
        printf 'a:one\\nb:two\\n' | tidelog produce orders --key-separator : --file -
        tidelog consume orders --group billing --to-end
        tidelog backup orders /tmp/backups/orders --groups""",
    "docs/capture.md": "echo 'node = \"r1\"' > replica.toml",
    "docs/cli.md": """
        tidelog topics create orders --partitions 3 --replication-factor 3 --config retention_ms=7d
        tidelog topics create copy --partitions 3
        tidelog topics create logs
        printf '{"customer": {"name": "ada"}, "city": "Oslo", "error": %d}\\n' 1 2 3 4 5 6 | tee orders.txt > app.log
        echo '{"customer": {"name": "grace"}}' > order.json""",
    "docs/groups.md": """
        tidelog topics create orders
        printf 'one\\ntwo\\nthree\\n' | tidelog produce orders --file -""",
    "docs/javascript.md": """
        tidelog topics create orders
        printf 'one\\ntwo\\nthree\\n' | tidelog produce orders --file -""",
    "docs/operations.md": "tidelog topics create orders",
    "docs/procedures.md": "tidelog topics create orders --replication-factor 3",
    "docs/security.md": "tidelog topics create orders",
    "docs/spark-operations.md": "tidelog topics create orders",
    "docs/tables.md": """
        tidelog topics create orders
        printf 'k:{"city": "Oslo", "amount": 2.5}\\n' | tidelog produce orders --key-separator : --file -""",
    "docs/tracing.md": "tidelog topics create orders",
    "docs/transactions.md": """
        tidelog topics create bills
        tidelog topics create ledger --partitions 4
        tidelog topics create orders --partitions 2
        tidelog topics create facts
        printf 'one\\ntwo\\n' | tidelog produce orders -p 0 --file -
        echo three | tidelog produce orders -p 1 --file -""",
    "docs/verify.md": "tidelog topics create orders",
}
"""What the reader of a page has already: topics, records and files."""

OWN = {
    "/etc/tidelog/": "",
    " /backups/": " /tmp/backups/",
    "ws://old:9292": "ws://127.0.0.1:9292",
    "ws://new:9292": "ws://127.0.0.1:9293",
    "rotate ID": "rotate $(tidelog tokens list -o json | jq -r '.[-1].token_id')",
    "revoke ID": "revoke $(tidelog tokens list -o json | jq -r '.[-1].token_id')",
    "--expected-offset 2": "--expected-offset $(tidelog topics describe orders -o json"
    " | jq '.partitions[0].high_watermark')",
    "tidelog groups delete billing": "tidelog groups delete billing --yes",
    "--at -2h": "--at -1s",
    "--at -5m": "--at -1s",
    "'earliest', 1000": "'earliest', 1",
    "record run.history --seconds 300": "record run.history --seconds 2",
}
"""Folders, ports and arguments of the test: what stands in place of a text of the pages."""

ENDLESS = {
    "tidelog consume orders --group billing  ": "three",
    "tidelog consume orders --from -1h --grep": "error",
    "tail -f app.log | tidelog produce logs": "tidelog consume logs --max 1",
    "tidelog mirror orders --from ws://old:9292 --to ws://new:9292 --groups\n": "tidelog topics describe orders"
    " --gateway ws://127.0.0.1:9293",
    "curl -N": "one record",
}
"""Beginnings of commands that run until Ctrl-C. Each with the text that it prints before the test ends it, or with a
command of the test that ends when there is something to see."""

REFUSED = (
    "tidelog restore s3://backups/orders  ",
    "tidelog servers forget r1",
    "tidelog describe orders/0 --at 2026-01-31T12:00:00",
)
"""Beginnings of commands that are refused here: as the page says beside them, or since the cluster is too young."""

FINDS = ("tidelog doctor", "tidelog verify replicas")
"""Commands whose exit code may also be 1: they find what other commands have left."""

ENOUGH = """
class Enough(Exception):
    \"\"\"Ends a program that would run for ever.\"\"\"


count = 0


async def bill(record):
    global count
    count += 1
    if count == {count}:
        raise Enough
"""
"""The function ``bill`` of a program, which ends it at so many records."""

BEFORE = {
    ("docs/groups.md", 1): f"import tidelog\n{ENOUGH.format(count=2)}",
    ("docs/javascript.md", 3): """
        import * as tidelog from "tidelog";
        const log = await tidelog.connect("ws://127.0.0.1:9292");
        let count = 0;
        const bill = async (record) => {
          if (++count < 3) return;
          await log.close();
          process.exit(0);
        };""",
    ("docs/tables.md", 4): "import tidelog",
    ("docs/tracing.md", 1): f"import tidelog\n{ENOUGH.format(count=1)}",
    ("docs/transactions.md", 1): "import tidelog",
    (
        "docs/transactions.md",
        2,
    ): f"import tidelog\nfrom tidelog import GroupOptions\n{ENOUGH.format(count=3)}".replace(
        "async def bill(record):", "def bill(record):"
    ).replace("raise Enough", "raise Enough\n    return record.value"),
    ("docs/transactions.md", 3): "import tidelog\n\nbatch = 1",
    ("docs/verify.md", 2): "import tidelog\n\nvalue = b'a value that is there once'",
}
"""What stands before a program: names that the page takes for granted."""

CONNECTED = 'async with tidelog.connect("ws://127.0.0.1:9292") as log'
WITHIN = {
    ("docs/transactions.md", 2): f"{CONNECTED}:",
    ("docs/transactions.md", 3): f"{CONNECTED}:",
    ("docs/verify.md", 2): f'{CONNECTED}, log.producer("orders") as producer:',
}
"""The block in which a program stands: a connection that it has."""

PIPELINES = ("docs/spark.md", "docs/pipelines.md", "docs/spark-operations.md", "docs/tables.md")
"""The pages whose TOML is of pipelines."""
AROUND = {
    ("docs/spark-operations.md", 2): ('name = "orders"\n[in.large]\ntopic = "orders"\n', ""),
    ("docs/spark-operations.md", 6): (
        'name = "orders"\n',
        '\n[in.orders]\ntopic = "orders"\n[out.alerts]\nfrom = "orders"\ntopic = "alerts"\n',
    ),
    ("docs/spark-operations.md", 8): ('name = "orders"\n', '\n[out.alerts]\nfrom = "orders"\ntopic = "alerts"\n'),
}
"""What stands before and after a part of a pipeline's file, so that it is a whole one."""


def rule_of(fence: Fence, statement: str = "") -> Rule | None:
    """Return the rule that names this statement, or this fence if it has no statements; None if it is to run."""
    text = statement or fence.code
    fitting = (rule for rule in ELSEWHERE if fnmatch(fence.page, rule.page) and re.match(rule.what, text))
    return next(fitting, None)
