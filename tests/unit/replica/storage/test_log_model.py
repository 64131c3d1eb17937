"""The log against a reference model: a list of batches, and how many of them are durable. Tests
``tidelog_replica/storage/log.py``."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from support.log_builders import append_as_leader, batches, content, epochs_of, open_log, reset, sound
from tidelog.batch.format import read_header
from tidelog.testing.hardware.disk import SimDisk

actions = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.integers(1, 4), min_size=1, max_size=9)),
        st.tuples(st.just("lead"), st.integers(1, 2)),
        st.tuples(st.just("flush"), st.booleans()),
        st.tuples(st.just("truncate"), st.integers(0, 12)),
        st.tuples(st.just("retain"), st.integers(0, 20)),
        st.tuples(st.just("start_over"), st.integers(0, 9)),
        st.tuples(st.just("reopen"), st.none()),
        st.tuples(st.just("crash"), st.integers(0, 2**32)),
    ),
    max_size=25,
)


class Model:
    """What a log should hold."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.log = open_log(self.disk)
        self.stored: list[bytes] = []
        self.epoch = 0
        self.durable = 0
        self.pending = None

    def append(self, counts):
        made = batches(self.log.end, self.epoch, counts)
        if self.epoch % 2:
            for each in made:
                append_as_leader(self.log, each, self.epoch)
        else:
            self.log.append(made)
        self.stored += made

    def lead(self, step):
        self.epoch += step
        self.log.assign_epoch(self.epoch)

    def flush(self, run):
        if self.pending is None:
            self.pending = self.log.begin_flush()
        elif run:
            self.pending.run()
            self.log.complete_flush(self.pending)
            self.pending = None
            self.durable = max(self.durable, self.log.durable)

    def truncate(self, back):
        end = max(self.log.start, self.log.end - back)
        self.log.truncate(end)
        self.stored = [each for each in self.stored if read_header(each).end_offset <= end]
        self.durable = self.log.end if back else self.durable
        self.epoch += 1

    def retain(self, back):
        offset = max(0, self.log.end - back)
        self.log.advance_start(offset)  # a flush may be under way
        self.stored = [each for each in self.stored if read_header(each).base_offset >= self.log.start]
        self.durable = max(self.durable, self.log.start)

    def start_over(self, ahead):
        """As a follower whom retention has overtaken."""
        start = self.log.end + ahead
        self.epoch += 1
        reset(self.log, start, self.epoch if start else -1, b"c" * 16)
        self.stored, self.durable = [], start

    def reopen(self, _):
        self.log.close()
        self.pending, self.log = None, open_log(self.disk)
        self.durable = self.log.end

    def crash(self, seed):
        self.disk.crash(Random(seed))
        self.pending, self.log = None, open_log(self.disk)
        assert self.log.end >= self.durable
        self.stored = [each for each in self.stored if read_header(each).end_offset <= self.log.end]
        self.epoch = max(self.epoch, self.log.epochs.latest()) + 1
        self.durable = self.log.end


@given(actions)
@settings(max_examples=250, deadline=None)
def test_a_log_behaves_like_a_list_of_batches(actions):
    model = Model()
    for kind, argument in actions:
        getattr(model, kind)(argument)
        log = model.log
        assert content(log) == model.stored
        assert log.durable == model.durable
        sound(log)
        known = dict(log.epochs.entries)
        assert all(known[e] == start for e, start in epochs_of(model.stored) if start > log.start)
        assert not model.stored or read_header(model.stored[0]).base_offset == log.start
    assert open_log(model.disk).end == model.log.end
