"""The configuration loader: sources and their order, and every fault reported at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tidelog.errors import ConfigError
from tidelog.quantities import COUNT
from tidelog.runtime.config import load, setting, settings_of


@dataclass(frozen=True, slots=True)
class Times:
    heartbeat_s: float = field(default=0.5, metadata={"help": "Pause in seconds.", "min": 0.01, "max": 60})
    session_s: float = 3.0

    def faults(self) -> list[str]:
        return [] if self.heartbeat_s < self.session_s else ["heartbeat_s must be below session_s"]


@dataclass(frozen=True, slots=True)
class Example:
    node: str = field(metadata={"help": "name of this node"})
    port: int = field(default=9292, metadata={"min": 0, "max": 65535})
    flush: str = field(default="os", metadata={"choices": ("os", "fsync")})
    tls: bool = False
    seeds: tuple[str, ...] = ()
    peers: dict[str, str] = field(default_factory=dict)
    directory: str | None = None
    buffer_bytes: int = 0
    keep_ms: int = setting(0, "How long.", -1, 1 << 40)
    refusals_s: int = setting(1, "So many a second.", unit=COUNT)
    times: Times = field(default_factory=Times)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tidelog.toml"
    path.write_text(text)
    return path


def test_defaults_and_one_required_flag() -> None:
    assert load(Example, flags={"node": "r1"}, environ={}) == Example("r1")


def test_flags_beat_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, 'node = "file"\nport = 1\ntls = true\n[times]\nheartbeat_s = 1\n[peers]\nc1 = "ws://a"\n')
    environ = {"TIDELOG_NODE": "env", "TIDELOG_PORT": "2", "TIDELOG_TIMES_SESSION_S": "9", "TIDELOG_SEEDS": "a, b"}
    made = load(Example, path, "TIDELOG_", {"node": "flag", "port": None, "directory": "/data"}, environ=environ)
    assert made == Example(
        "flag", 2, tls=True, seeds=("a", "b"), peers={"c1": "ws://a"}, directory="/data", times=Times(1.0, 9.0)
    )


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("TIDELOG_TLS", "Yes", "tls", True),
        ("TIDELOG_TLS", "0", "tls", False),
        ("TIDELOG_PORT", "1k", "port", 1000),
        ("TIDELOG_BUFFER_BYTES", "1 KiB", "buffer_bytes", 1024),
        ("TIDELOG_BUFFER_BYTES", "1_000", "buffer_bytes", 1000),
        ("TIDELOG_KEEP_MS", "1.5h", "keep_ms", 5_400_000),
        ("TIDELOG_KEEP_MS", "-1", "keep_ms", -1),
        ("TIDELOG_REFUSALS_S", "2", "refusals_s", 2),
        ("TIDELOG_PEERS", "c1=ws://a:1, c2=ws://b:2", "peers", {"c1": "ws://a:1", "c2": "ws://b:2"}),
        ("TIDELOG_SEEDS", "", "seeds", ()),
        ("TIDELOG_DIRECTORY", "", "directory", None),
    ],
)
def test_texts_are_read(variable: str, text: str, name: str, value: object) -> None:
    assert getattr(load(Example, flags={"node": "r1"}, environ={variable: text}), name) == value


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, 'prot = 1\nflush = "never"\nseeds = [1]\n[times]\nheartbeat_s = 0\n[other]\nx = 1\n')
    environ = {"TIDELOG_PORT": "70000", "TIDELOG_TLS": "maybe", "TIDELOG_NOD": "x", "TIDELOG_SERVICE_HOST": "1.2.3.4"}
    with pytest.raises(ConfigError) as caught:
        load(Example, path, flags={"peers": "c1", "nodes": "y"}, environ=environ)
    assert caught.value.message.split("\n") == [
        f"{path}: prot is unknown; did you mean port?",
        f"{path}: other.x is unknown",
        "TIDELOG_NOD is unknown; did you mean TIDELOG_NODE?",
        "--nodes: nodes is unknown; did you mean node?",
        "node is missing: name of this node",
        "TIDELOG_PORT: port = 70000: must be from 0 to 65535",
        f"{path}: flush = 'never': must be one of os, fsync",
        "TIDELOG_TLS: tls = 'maybe': must be true or false",
        f"{path}: seeds = [1]: must be a list of texts",
        "--peers: peers = 'c1': must be a table of texts (k=v,k=v)",
        f"{path}: times.heartbeat_s = 0.0: must be from 0.01 to 60 seconds",
    ]


def test_relations_are_checked_when_the_values_are_right() -> None:
    with pytest.raises(ConfigError, match=r"times\.heartbeat_s must be below session_s"):
        load(Example, flags={"node": "r1", "times.heartbeat_s": 4}, environ={})


@pytest.mark.parametrize("value", ["nan", "inf", "x", True, [1]])
def test_a_number_is_finite_and_no_boolean(value: object) -> None:
    with pytest.raises(ConfigError, match="must be a number"):
        load(Example, flags={"node": "r1", "times.session_s": value}, environ={})


@pytest.mark.parametrize("value", ["1.5", 1.0, True, ""])
def test_an_integer_is_nothing_else(value: object) -> None:
    with pytest.raises(ConfigError, match="must be a whole number"):
        load(Example, flags={"node": "r1", "port": value}, environ={})


def test_a_text_in_toml_may_have_a_unit(tmp_path: Path) -> None:
    path = write(tmp_path, 'node = "r1"\nkeep_ms = "7d"\nbuffer_bytes = "64MiB"\n[times]\nheartbeat_s = "20ms"\n')
    made = load(Example, path, environ={})
    assert (made.keep_ms, made.buffer_bytes, made.times.heartbeat_s) == (604_800_000, 64 << 20, 0.02)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("keep_ms", "soon", "keep_ms = 'soon': must be a whole number of milliseconds, or a time such as 500ms"),
        ("keep_ms", "0.5ms", "keep_ms = '0.5ms': must be a whole number of milliseconds"),
        ("keep_ms", "-2s", "keep_ms = -2000: must be from -1 to"),
        ("keep_ms", "99999999999w", "must be from -1 to"),
        ("buffer_bytes", "7d", "buffer_bytes = '7d': must be a whole number of bytes, or a size such as 64KiB"),
        ("refusals_s", "2s", "refusals_s = '2s': must be a whole number, such as 500, 10k"),
        ("times.heartbeat_s", "1 KiB", "must be a number of seconds, or a time such as 500ms, 12h or 7d"),
        ("times.heartbeat_s", "2m", "must be from 0.01 to 60 seconds"),
    ],
)
def test_a_wrong_quantity_is_refused_with_what_is_accepted(name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(Example, flags={"node": "r1", name: text}, environ={})
    assert said in caught.value.message


def test_a_file_that_is_missing_or_no_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(Example, tmp_path / "none.toml", flags={"node": "r1"}, environ={})
    with pytest.raises(ConfigError, match="is not TOML"):
        load(Example, write(tmp_path, "node = "), flags={"node": "r1"}, environ={})


def test_every_setting_is_listed() -> None:
    rows = {row.name: row for row in settings_of(Example)}
    assert list(rows)[-2:] == ["times.heartbeat_s", "times.session_s"]
    row = rows["times.heartbeat_s"]
    assert (row.variable, row.kind, row.default, row.minimum) == ("TIDELOG_TIMES_HEARTBEAT_S", "a number", 0.5, 0.01)
    assert rows["node"].required and rows["directory"].kind == "a text, or nothing"
