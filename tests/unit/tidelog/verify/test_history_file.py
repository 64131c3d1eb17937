"""The file of a history: what a recorder writes is what the checker gets, also from a recorder that was killed.
Tests ``verify/history_writer.py`` and ``verify/history_reader.py``."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import tidelog
import trio
from click.testing import CliRunner
from tidelog.cli.main import main
from tidelog.errors import BrokerError, ConfigError, TimedOut
from tidelog.verify import KINDS, Recorder, check, identity, load
from tidelog.verify.history import FAILED, OK, UNKNOWN, CommitCall, Latest, Loss, ReadCall, SendCall, TransactionCall
from tidelog.verify.history_reader import LINES
from tidelog.verify.run import record
from tidelog.verify.summary import summarize
from tidelog.verify.workload import Mix
from tidelog.wire.messages import TopicInfo

PLACE = "orders/0"


class Clock:
    """Seconds that pass only when the test says so."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def sound_run(path: Path, clock: Clock) -> None:
    """Three records of which one is unknown and lands, a reader, a question for the end, a drain."""
    with Recorder(path, clock=clock, about={"topic": "orders"}) as recorder:
        recorder.partition(PLACE)
        for number in range(3):
            op = recorder.send("p", PLACE, [b"v%d" % number])
            clock.now += 0.5
            if number == 1:
                op.error(TimedOut("no answer", unknown_outcome=True))
            else:
                op.acked(number, 7)
        start = recorder.now()
        clock.now += 0.5
        recorder.read("c", PLACE, 0, [(0, b"v0", 7), (1, b"v1", 7), (2, b"v2", 7)], start)
        recorder.latest("c", PLACE, 3, start)
        recorder.add_note("everything is well")
        recorder.healthy(0.0, 2.0)
        recorder.drain("d", PLACE, [(0, b"v0"), (1, b"v1"), (2, b"v2")])
        recorder.drained("d", PLACE, 0)
        recorder.replicas(PLACE, ["r1", "r2"], 3)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    sound_run(tmp_path / "run", Clock())
    return tmp_path / "run"


def test_a_loaded_history_equals_the_recorded_one(file: Path) -> None:
    recording = load(file)
    assert recording.history.operations == [
        SendCall("p", PLACE, 0, (b"v0",), 0.0, 0.5, OK, 0, epoch=7),
        SendCall("p", PLACE, 1, (b"v1",), 0.5, 1.0, UNKNOWN),
        SendCall("p.1", PLACE, 2, (b"v2",), 1.0, 1.5, OK, 2, epoch=7),
        ReadCall("c", PLACE, 0, ((0, b"v0"), (1, b"v1"), (2, b"v2")), 1.5, 2.0, (7, 7, 7)),
        Latest("c", PLACE, 3, 1.5, 2.0, linearizable=True),
    ]
    assert recording.history.final == {PLACE: [(0, b"v0"), (1, b"v1"), (2, b"v2")]}
    assert recording.notes == [(2.0, "everything is well")]
    assert recording.about == {"topic": "orders"}
    assert recording.complete and not recording.history.undrained
    assert check(recording.history) == []


def test_a_recorder_that_is_killed_anywhere_leaves_what_can_be_judged(file: Path, tmp_path: Path) -> None:
    """Cut at every fifth byte: what was being sent then is unknown, and nobody is accused."""
    whole = file.read_bytes()
    cut = tmp_path / "cut"
    for size in range(whole.index(b"\n") + 1, len(whole), 5):
        cut.write_bytes(whole[:size])
        recording = load(cut)
        assert not recording.complete
        assert check(recording.history) == []


def test_a_send_is_in_the_file_before_it_is_sent(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run", clock=Clock())
    recorder.send("p", PLACE, [b"v"])
    recorder.read("c", PLACE, 0, [(0, b"v", 0)], 0.0)
    recording = load(tmp_path / "run")
    assert recording.history.operations == [
        ReadCall("c", PLACE, 0, ((0, b"v"),), 0.0, 0.0, (0,)),
        SendCall("p.open1", PLACE, 0, (b"v",), 0.0, 0.0, UNKNOWN),
    ]
    assert check(recording.history) == []
    recorder.close()


def test_failed_is_only_what_the_server_says_was_not_appended(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", clock=Clock()) as recorder:
        for number, error in enumerate(
            [
                BrokerError("refused", code="BATCH_TOO_LARGE"),
                BrokerError("who knows", code="REQUEST_TIMED_OUT", unknown_outcome=True),
                ZeroDivisionError(),
            ]
        ):
            with pytest.raises(type(error)), recorder.send("p", PLACE, [b"%d" % number]):
                raise error
        with recorder.send("p", PLACE, [b"never acked"]):
            pass
    results = [op.result for op in load(tmp_path / "run").history.operations if isinstance(op, SendCall)]
    assert results == [FAILED, UNKNOWN, UNKNOWN, UNKNOWN]


async def test_a_cancelled_operation_has_an_unknown_outcome(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run") as recorder, trio.move_on_after(0), recorder.send("p", PLACE, [b"v"]):
        await trio.sleep_forever()
    (op,) = load(tmp_path / "run").history.operations
    assert isinstance(op, SendCall) and op.result == UNKNOWN


def test_commits_and_transactions(tmp_path: Path) -> None:
    clock = Clock()
    with Recorder(tmp_path / "run", clock=clock) as recorder:
        with recorder.commit("m", "g", 4, {PLACE: 3}):
            clock.now += 1
        with recorder.transaction("t1", "app") as tx:
            tx.moves_from(5)
            recorder.send("app", PLACE, [b"v"], transaction="t1").acked(0)
            tx.asks()
        with pytest.raises(ZeroDivisionError), recorder.transaction("t2", "app"):
            raise ZeroDivisionError
        recorder.transaction("t3", "app").error(BrokerError("aborted", code="TRANSACTION_ABORTED"))
        recorder.moved("app", 6)
        recorder.group_at("g", PLACE, 3)
        recorder.loss(PLACE, 8, 2)
    history = load(tmp_path / "run").history
    assert [op for op in history.operations if isinstance(op, CommitCall)] == [
        CommitCall("m", "g", 4, PLACE, 3, 0.0, 1.0, OK)
    ]
    told = [(one.label, one.fate, one.asked, one.position) for one in history.transactions]
    assert told == [("t1", "committed", True, 5), ("t2", UNKNOWN, False, -1), ("t3", "aborted", False, -1)]
    assert isinstance(history.transactions[0], TransactionCall)
    assert (history.moved, history.committed) == ({"app": 6}, {("g", PLACE): 3})
    assert history.losses == [Loss(PLACE, 8, 2)]


def test_records_of_an_aborted_transaction_take_offsets_and_are_not_shown(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", clock=Clock()) as recorder:
        with recorder.transaction("t", "app") as tx:
            recorder.send("app", PLACE, [b"dropped"], transaction="t").acked(0)
            tx.aborted()
        recorder.send("p", PLACE, [b"kept"]).acked(2)
        recorder.drain("all", PLACE, [(0, b"dropped"), (2, b"kept")], control=[1])
        recorder.drained("all", PLACE, 0, "uncommitted")
        recorder.drain("d", PLACE, [(2, b"kept")])
        recorder.drained("d", PLACE, 0)
    history = load(tmp_path / "run").history
    assert history.control == {PLACE: {0, 1}}
    assert check(history) == []
    recording = load(tmp_path / "run")
    recording.history.control[PLACE].discard(0)
    assert [anomaly.kind for anomaly in check(recording.history)] == ["gap"]


def test_a_record_hidden_from_readers_without_a_transaction_is_lost(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", clock=Clock()) as recorder:
        recorder.send("p", PLACE, [b"hidden"]).acked(0)
        recorder.send("p", PLACE, [b"kept"]).acked(1)
        recorder.drain("all", PLACE, [(0, b"hidden"), (1, b"kept")])
        recorder.drained("all", PLACE, 0, "uncommitted")
        recorder.drain("d", PLACE, [(1, b"kept")])
        recorder.drained("d", PLACE, 0)
    assert {anomaly.kind for anomaly in check(load(tmp_path / "run").history)} == {"gap", "lost_write"}


def test_long_values_keys_and_headers_have_distinct_identities(tmp_path: Path) -> None:
    assert identity(b"short") == b"short"
    records = [
        identity(b"x" * 100),
        identity(b"x" * 99 + b"y"),
        identity(b"short", b"k"),
        identity(b"short", None, [("h", b"1")]),
        identity(None),
        identity(b""),
        identity(b"", b""),
    ]
    assert len(set(records)) == len(records)
    assert all(len(record) <= 64 for record in records)


def test_any_bytes_come_back(tmp_path: Path) -> None:
    values = [bytes([number]) for number in range(256)] + ['"\\ü\n'.encode()]
    with Recorder(tmp_path / "run", clock=Clock()) as recorder:
        recorder.send("p", PLACE, values).acked(0)
    (op,) = load(tmp_path / "run").history.operations
    assert isinstance(op, SendCall) and list(op.values) == values


def test_a_history_is_never_overwritten(file: Path) -> None:
    with pytest.raises(ConfigError, match="no history can be written there: File exists"):
        Recorder(file)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "it is empty"),
        ("{}\n", "line 1: this is no line of a history file"),
        ('{"op":"history","version":99}\n', "must be a history of version 1"),
        ("not JSON\n", "line 1"),
    ],
)
def test_an_invalid_history_is_refused_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "run").write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        load(tmp_path / "run")


def edit(file: Path, change: dict[str, object], **wanted: object) -> None:
    """Change the first line that has all of this."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    line = next(line for line in lines if wanted.items() <= line.items())
    line.update(change)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, ["verify", "check", *arguments])
    return done.exit_code, done.stdout, done.stderr


def test_the_command_says_that_a_sound_history_is_sound(file: Path) -> None:
    code, text, _ = run(str(file))
    assert code == 0
    assert "6 operations" not in text and "5 operations in 2.0 s, 1 partition" in text
    assert "sent: 2 batches acknowledged (2 records), 0 refused, 1 unknown; 0 conditional" in text
    assert "longest time without an acknowledgement: 1.000 s, from 0.500 s, in orders/0" in text
    assert text.endswith("nothing is wrong\n")


def test_the_command_explains_what_it_finds_with_records_and_moments(file: Path) -> None:
    edit(file, {"rows": [[0, "v0"], [1, "v1"], [2, "edited"]]}, op="drain")
    code, text, _ = run(str(file))
    assert code == 1
    assert (
        "A2 phantom: orders/0: 'edited' in the log at the end was never sent; at 2 was acknowledged 'v2' "
        "(sent by p.1 as number 2, 1.000 to 1.500 s, ok)" in text
    )
    assert "2.000 s: everything is well" in text, "the notes help to see why"
    assert text.endswith("1 finding\n")


def test_the_command_prints_json(file: Path) -> None:
    edit(file, {"offset": 0}, op="latest")
    code, text, _ = run("--json", str(file))
    (told,) = json.loads(text)
    assert code == 1
    assert [(one["kind"], one["letter"]) for one in told["findings"]] == [("stale_latest", "A9")]
    assert told["about"] == {"topic": "orders"}
    assert told["summary"]["sends"] == {"ok": 2, "failed": 0, "unknown": 1}
    assert told["summary"]["longest_silence_s"] == 1.0


def test_a_file_that_cannot_be_used_is_named_and_the_others_are_judged(file: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").write_text(file.read_text().replace('"op":"read"', '"op":"raed"'))
    code, text, errors = run(str(tmp_path / "missing"), str(tmp_path / "broken"), str(file))
    assert code == 2
    assert "nothing is wrong" in text
    assert "missing: it cannot be read: No such file or directory" in errors
    assert "broken, line 9: this is no line of a history file (ValueError: unknown op 'raed')" in errors


def test_a_span_at_the_end_without_acks_counts_as_silence(tmp_path: Path) -> None:
    clock = Clock()
    with Recorder(tmp_path / "run", clock=clock) as recorder:
        recorder.send("p", PLACE, [b"1"]).acked(0)
        with recorder.send("p", PLACE, [b"2"]):
            clock.now += 9
    assert summarize(load(tmp_path / "run")).longest_silence_s == 9.0


def test_a_span_in_which_nobody_wanted_an_ack_is_no_silence(tmp_path: Path) -> None:
    clock = Clock()
    with Recorder(tmp_path / "run", clock=clock) as recorder:
        recorder.send("p", PLACE, [b"1"]).acked(0)
        clock.now += 9
        with recorder.send("p", PLACE, [b"2"]) as last:
            clock.now += 2
            last.acked(1)
    assert summarize(load(tmp_path / "run")).longest_silence_s == 2.0


def test_the_documentation_lists_every_finding_and_every_line() -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "verify.md").read_text()
    assert all(f"| {row.letter} | `{kind}` |" in page for kind, row in KINDS.items())
    assert all(f"| `{op}` |" in page for op in (*LINES, "history"))


def test_the_old_way_to_compare_replicas_is_the_new_one() -> None:
    old, new = (CliRunner().invoke(main, ["verify", how, "--help"]).stdout for how in ("--replicas", "replicas"))
    assert old == new
    assert "Compare the copies of all live replicas" in new


def test_a_file_that_is_there_is_refused_before_anything_is_done(file: Path) -> None:
    done = CliRunner().invoke(main, ["verify", "record", str(file)])
    assert done.exit_code == 2
    assert "exists; a history is never overwritten" in " ".join(done.stderr.split())


async def test_a_topic_that_loses_records_by_right_is_not_recorded(tmp_path: Path) -> None:
    topic = TopicInfo("1", "orders", {"cleanup": "compact"}, ())
    with (
        Recorder(tmp_path / "run") as recorder,
        pytest.raises(ConfigError, match="orders is compacted: records vanish from it by right"),
    ):
        await record(recorder, topic, nobody, Mix(), trio.sleep_forever)


def nobody(number: int) -> AbstractAsyncContextManager[tidelog.Log]:
    raise AssertionError("no connection is needed for that")
