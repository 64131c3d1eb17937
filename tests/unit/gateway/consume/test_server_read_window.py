"""The window of a replica server: how much is read at a time, and whose turn it is."""

from __future__ import annotations

from collections import Counter
from itertools import count

from tidelog_gateway.consume.server_read_window import LEAST_BYTES, ServerReadWindow, WindowSettings
from tidelog_gateway.limits.fair_share import FairShare
from tidelog_gateway.limits.server_limits import Tenant

MIB = 1 << 20
ANN, BEN, CAT = ("ann", 0), ("ben", 0), ("cat", 0)


class Bench:
    """One replica server. ``on_way``: the reads that it was asked for, by token."""

    def __init__(self, max_bytes: int = 8 * MIB, max_waits: int = 2048) -> None:
        self.window = ServerReadWindow(WindowSettings(max_bytes, max_waits=max_waits))
        self.on_way: dict[int, tuple[Tenant, int]] = {}
        self.sent: list[tuple[Tenant, int]] = []
        self._readers: dict[int, tuple[Tenant, int]] = {}
        self._tokens = count()

    def ask(self, tenant: Tenant, source: int = 1, size: int = MIB, reads: int = 1, until: float = 1e9) -> list[int]:
        tokens = [next(self._tokens) for _ in range(reads)]
        for token in tokens:
            self._readers[token] = tenant, source
            self.window.enqueue(token, "r1", tenant, source, size, until)
        self.fill()
        return tokens

    def fill(self) -> None:
        while (token := self.window.admit("r1")) is not None:
            self.on_way[token] = self._readers[token]
            self.sent.append(self._readers[token])

    def answer(self, reads: int = 1) -> None:
        """The oldest ones, one after the other."""
        for _ in range(reads):
            token = next(iter(self.on_way))
            del self.on_way[token]
            self.window.remove(token)
            self.fill()

    def sent_by(self) -> Counter[str]:
        return Counter(tenant[0] for tenant, _ in self.sent)


def test_the_bytes_in_flight_are_bounded() -> None:
    bench = Bench()
    bench.ask(ANN, reads=50)
    bench.ask(BEN, reads=50)
    most = 0
    while bench.on_way:
        most = max(most, bench.window.bytes)
        bench.answer()
    assert most <= 8 * MIB and len(bench.sent) == 100
    assert bench.window.bytes == bench.window.waiting == 0


def test_principals_take_turns_however_many_connections_each_has() -> None:
    bench = Bench(4 * MIB)
    for connection in range(20):
        bench.ask(ANN, connection, reads=10)
    bench.ask(BEN, 100, reads=30)
    bench.ask(CAT, 101, reads=30)
    bench.sent.clear()
    bench.answer(60)
    assert all(18 <= reads <= 22 for reads in bench.sent_by().values()), bench.sent_by()


def test_the_connections_of_a_principal_take_turns() -> None:
    bench = Bench(4 * MIB)
    bench.ask(ANN, 1, reads=100)
    bench.ask(ANN, 2, reads=10)
    bench.sent.clear()
    bench.answer(20)
    assert Counter(source for _, source in bench.sent) == {1: 10, 2: 10}


def test_connections_without_a_name_take_turns() -> None:
    bench = Bench(4 * MIB)
    bench.ask(("anonymous", 1), 1, reads=100)
    bench.ask(("anonymous", 2), 2, reads=10)
    bench.sent.clear()
    bench.answer(18)
    assert 8 <= Counter(source for _, source in bench.sent)[2] <= 10


def test_reads_that_are_not_answered_leave_room_for_others() -> None:
    bench = Bench()
    bench.ask(ANN, reads=100)
    assert bench.sent_by() == {"ann": 4}
    bench.ask(BEN, reads=2)
    assert bench.sent_by() == {"ann": 4, "ben": 2}


def test_a_principal_that_has_its_share_is_passed_over() -> None:
    bench = Bench()
    bench.ask(ANN, reads=100)
    for _ in range(50):
        (token,) = bench.ask(BEN)
        assert bench.on_way.pop(token) == (BEN, 1)
        bench.window.remove(token)
    assert bench.sent_by() == {"ann": 4, "ben": 50}


def test_small_reads_do_not_overtake_a_large_one_for_ever() -> None:
    bench = Bench()
    for number in range(7):
        bench.ask((f"small {number}", 0), number, reads=100)
    bench.ask(ANN, 100, size=4 * MIB)
    before = len(bench.sent)
    while ANN not in [tenant for tenant, _ in bench.sent]:
        bench.answer()
    assert len(bench.sent) - before <= 8


def test_a_read_larger_than_the_window_goes_alone() -> None:
    bench = Bench(2 * MIB)
    bench.ask(ANN, size=11 * MIB, reads=2)
    assert len(bench.on_way) == 1
    bench.answer()
    assert len(bench.on_way) == 1 and bench.window.waiting == 0


def test_requests_without_bytes_are_bounded_in_number() -> None:
    bench = Bench()
    bench.ask(ANN, size=0, reads=5000)
    bench.ask(BEN, size=0, reads=5000)
    assert len(bench.on_way) <= 8 * MIB // LEAST_BYTES == 256


def test_a_read_that_waits_too_long_is_overdue_and_one_in_flight_is_not() -> None:
    bench = Bench(2 * MIB)
    (first,) = bench.ask(ANN, size=2 * MIB, until=1.0)
    (second,) = bench.ask(ANN, size=2 * MIB, until=2.0)
    assert bench.window.deadline() == 2.0
    assert bench.window.overdue(1.9) == []
    assert bench.window.overdue(2.0) == [second]
    assert bench.window.waiting == 0 and list(bench.on_way) == [first]
    assert bench.window.deadline() is None


def test_abandoned_reads_are_not_sent() -> None:
    bench = Bench(2 * MIB)
    bench.ask(ANN, 1, size=2 * MIB)
    gone = bench.ask(ANN, 2, size=2 * MIB, reads=3)
    (kept,) = bench.ask(ANN, 3, size=2 * MIB)
    assert bench.window.waiting_of(ANN, 2) == gone and bench.window.waiting_of(BEN, 2) == []
    for token in gone:
        bench.window.remove(token)
    bench.answer()
    assert list(bench.on_way) == [kept]


def test_servers_have_windows_of_their_own() -> None:
    window = ServerReadWindow(WindowSettings(2 * MIB))
    window.enqueue(1, "r1", ANN, 1, 2 * MIB)
    window.enqueue(2, "r2", ANN, 1, 2 * MIB)
    assert window.admit("r1") == 1 and window.admit("r2") == 2


# --- waits -------------------------------------------------------------------------------------------------------


def test_waits_take_no_space_and_their_answers_are_bounded() -> None:
    window = ServerReadWindow(WindowSettings())
    sizes = [window.begin_wait("r1", (f"p{number % 200}", 0)) for number in range(2100)]
    given = [size for size in sizes if size is not None]
    assert sizes[0] == 64 << 10 and len(given) == 2048
    assert sum(given) <= 16 * MIB and window.bytes == 0


def test_one_principal_does_not_take_all_waits() -> None:
    window = ServerReadWindow(WindowSettings(max_waits=2048))
    assert sum(window.begin_wait("r1", ANN) is not None for _ in range(5000)) == 768
    assert sum(window.begin_wait("r1", BEN) is not None for _ in range(5000)) == 384
    for number in range(30):
        for _ in range(1000):
            window.begin_wait("r1", ("anonymous", number))
    assert sum(window.begin_wait("r1", CAT) is not None for _ in range(1000)) == 16


def test_a_wait_gives_back_what_it_took() -> None:
    window = ServerReadWindow(WindowSettings(max_waits=2))
    for _ in range(1000):
        size = window.begin_wait("r1", ANN)
        assert size == 64 << 10
        window.end_wait("r1", ANN, size)
    assert window.waits == 0


# --- shares ------------------------------------------------------------------------------------------------------


def test_a_part_is_reserved_for_principals_that_hold_little() -> None:
    share = FairShare(1280, reserved=True)
    assert [sum(share.try_hold((f"p{number}", 0)) for _ in range(2000)) for number in range(12)] == [
        *(480, 240, 120, 60, 30, 15),
        *[10] * 6,
    ]
    assert sum(share.try_hold((f"q{number}", 0)) for number in range(2000)) == 1280 - 945 - 60


def test_nobody_gets_more_than_he_leaves_free() -> None:
    share = FairShare(120)
    got = {tenant: sum(share.try_hold(tenant) for _ in range(200)) for tenant in (ANN, BEN, CAT)}
    assert got == {ANN: 60, BEN: 30, CAT: 15}
    for _ in range(60):
        share.release(ANN)
    more = sum(share.try_hold(BEN) for _ in range(200))
    assert share.held(ANN) == 0 and share.held(BEN) == 30 + more == 53 and share.total == 53 + 15
