"""``tidelog capture``: what a person needs to report a problem, in one file, without secrets; and shown again."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import tidelog
import trio
from click.testing import CliRunner, Result
from tidelog.captures import Capture, redact
from tidelog.cli.main import main
from tidelog.errors import ConfigError
from tidelog.feature_levels import NEWEST

from cluster.harness import running


async def command(*arguments: str) -> Result:
    """As a user runs it."""
    invoke: Callable[[], Result] = partial(CliRunner().invoke, main, arguments)
    return await trio.to_thread.run_sync(invoke)


async def test_a_capture_holds_what_is_known_of_the_cluster_and_shows_it(tmp_path: Path) -> None:
    file, config = tmp_path / "c.tidelog", tmp_path / "r1.toml"
    config.write_text('node = "r1"\nencryption_key_env = "THE_KEYS"\n')
    async with running(tmp_path / "cluster") as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", replication_factor=3)
        async with log.producer("orders") as producer:
            ack = await producer.send(b"a secret order")
        await cluster.stop("r3")
        while next(s for s in (await log.cluster.status()).servers if s.node == "r3").fenced is False:
            await trio.lowlevel.checkpoint()
        taken = await command("capture", str(file), "--config", str(config), "--gateway", cluster.gateway)
    assert taken.exit_code == 0, taken.output
    found = Capture.load(file)
    assert set(found.parts) == {
        *("metadata", "controllers", "features", "metrics", "digests", "timeline", "doctor", "configuration"),
    }
    assert "THE_KEYS" not in str(found.parts) and "a secret order" not in str(found.parts)
    assert {topic["name"] for topic in found.part("metadata")["topics"]} >= {"orders"}
    copies = found.part("digests")["orders/0"]["replicas"]
    assert set(copies) == {"r1", "r2"} and {one["log_end"] for one in copies.values()} == {ack.offset + 1}
    assert {one["entries"][0]["chain"] for one in copies.values()} == {copies["r1"]["entries"][0]["chain"]}
    assert any(finding["what"] == "replica server r3 is down" for finding in found.part("doctor"))
    assert {"r1", "r2", "c1", "gateway"} <= set(found.part("metrics"))
    kinds = [record["kind"] for record in found.part("timeline") if record["type"] == "event"]
    assert kinds.count("server_joined") == 3 and "topic_created" in kinds
    shown = await command("capture", "show", str(file))
    level = f"feature level {NEWEST}"
    for words in ("servers r1, r2, r3 (down)", level, "problem: replica server r3 is down", "events"):
        assert words in shown.output
    whole = await command("capture", "show", str(file), "--part", "configuration")
    assert json.loads(whole.output) == {str(config): 'node = "r1"\nencryption_key_env = "redacted"\n'}


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ('tls_key = "/etc/x.pem"', False),
        ('"Token" = "abc"', False),
        ("password = 'x' # y", False),
        ('node = "r1"', True),
        ('c1 = "ws://10.0.0.1:9192"', True),
        ("# a key = ", True),
    ],
)
def test_secrets_are_left_out_of_configurations_by_their_names(line: str, kept: bool) -> None:
    assert (redact(f"host = 1\n{line}\nport = 2\n") == f"host = 1\n{line}\nport = 2\n") is kept
    assert redact(f"{line}\nport = 2\n").endswith("\nport = 2\n")


def test_a_file_that_is_no_capture_or_has_a_later_format_is_refused_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text("no archive")
    with pytest.raises(ConfigError, match="cannot be read as a capture"):
        Capture.load(file)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("capture.json", '{"format": 2}')
    with pytest.raises(ConfigError, match="no capture of format 1"):
        Capture.load(file)
    with pytest.raises(ConfigError, match="lacks timeline: it was asleep"):
        Capture({"missing": {"timeline": "it was asleep"}}).part("timeline")
