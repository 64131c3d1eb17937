"""``python -m model.raft_search``: every state that a few real Raft cores can reach in a small scope, breadth first.

A state is (servers, messages, what is committed and who has led, budget). A server's value is a number, and so is a
message; each *component transition* (value, input) runs the real code once (``raft_cores.py``). A process may end at
any moment, in the middle of its effects, too, and begins again with what its disk holds. What is looked at is Raft's
figure 3: election safety, leader append-only, log matching, leader completeness, state machine safety.

A message that was sent stays: it may arrive never, now, later, in any order and any number of times. So there are no
steps for loss, copies and reordering; and of two states that differ in their messages only, the one with more of them
can do all that the other can, which need not be looked at. For the same reason what a server answers without being
changed by it is there at once.

What else keeps the space small: servers that nothing has happened to yet are alike, so the first of them is the next;
a server that stands asks one other, which answers at once, whether it could win (with ``pre_votes`` it asks by
messages like all others); heartbeats, which say little that other messages do not say, are counted.

A controller may come back with an old disk, the one that it had at first (``old_copies.py``). Two things are taken
for granted then: the leader of the newest term that any disk has been in has got all its acknowledgements of that
term, since they do not come after the end of the link; and the first that it hears is a heartbeat of that leader.
After that everything may happen as always, and any message of its earlier life may arrive once more."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import astuple
from typing import Any, NamedTuple

from tidelog.errors import ProtocolError
from tidelog.types import NodeId
from tidelog.wire.messages import AppendResult
from tidelog_controller.raft.log import Base, PersistentState
from tidelog_controller.raft.membership import Configuration, Member

from model.ghost import Violation, must
from model.raft_cores import BEAT_S, GIVE_UP_S, QUIET_S, Act, Cores, Facts, Move, Server
from model.raft_scopes import COSTS, LARGE, SMALL, Scope

Row = tuple[int, bytes]
"""Term and data of an entry."""


class State(NamedTuple):
    """One state of the whole; numbers stand for interned values, and messages are bits."""

    servers: tuple[int, ...]
    net: int
    ghost: int
    budget: tuple[int, ...]


class Ghost(NamedTuple):
    """What no server knows: each committed entry with the term in which it was committed, and the leader of each
    term."""

    committed: tuple[tuple[Row, int], ...] = ()
    leaders: tuple[tuple[int, int], ...] = ()


class Step(NamedTuple):
    """One step of one server: its name, its cost (a place in the budget; -1: nothing), and its result."""

    label: str
    cost: int
    move: Move


class Outcome(NamedTuple):
    """The result of a search. ``trace``: the steps to the violation, and the violation; () if there is none."""

    states: int
    depth: int
    calls: int
    """How often real code ran in a server."""
    seconds: float
    trace: tuple[str, ...]


class RaftSearch:
    """A search. ``run`` visits every state within the scope, or all up to the first violation."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.names = (*scope.voters, *scope.spares)
        self.cores = Cores(self.names, rounds=bool(scope.budget.disks))
        self._ghosts: list[Ghost] = []
        self._ghost_numbers: dict[Ghost, int] = {}
        self._own: dict[int, list[Step]] = {}
        self._arrivals: dict[tuple[int, int], tuple[int, list[Step]]] = {}
        """The effects of messages on a server: the answers that do not change it, and the steps that do."""
        self._standing: dict[tuple[int, int], list[Step]] = {}
        self._checked: set[Any] = set()
        self._alike = not (scope.logs or scope.standing or scope.spares)
        ghost = Ghost(tuple(((entry.term, entry.data), entry.term) for entry in scope.committed))
        servers = tuple(self.cores.server(self._begin(name)) for name in self.names)
        self.first = State(servers, 0, self._ghost(ghost), astuple(scope.budget))

    def _begin(self, name: NodeId) -> Server:
        scope = self.scope
        voters = tuple(Member(voter, f"ws://{voter}", True, voter) for voter in scope.voters)
        base = Base(0, 0, Configuration(voters if name in scope.voters else ()))
        disk = PersistentState(scope.heard, None, list(scope.logs.get(name, ())), base, store=name)
        return Server(name, disk, rounds=bool(scope.budget.disks))

    def _ghost(self, ghost: Ghost) -> int:
        number = self._ghost_numbers.setdefault(ghost, len(self._ghosts))
        if number == len(self._ghosts):
            self._ghosts.append(ghost)
        return number

    # --- steps -----------------------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield every step from a state that changes a server."""
        servers, fresh = state.servers, False
        for place, number in enumerate(servers):
            if self._alike and number == self.first.servers[place]:
                if fresh:
                    continue
                fresh = True
            yield from self._taken(state, place, self._own_steps(place, number))
            inbox = state.net & self.cores.to[place]
            yield from self._taken(state, place, self._arrivals_at(place, number, inbox)[1])
            if not self.scope.pre_votes and self._may_stand(place, number):
                for there, other in enumerate(servers):
                    if there != place:
                        yield from self._taken(state, place, self._stands(place, number, there, other))
        if state.budget[COSTS.index("disks")]:
            yield from self._old_disks(state)

    def _old_disks(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield the steps in which a controller comes back with its first disk and first gets a heartbeat of the
        leader of the newest term that any of them has been in."""
        cores, cost = self.cores, COSTS.index("disks")
        facts = [cores.facts[number] for number in state.servers]
        newest = max(one.term for one in facts)
        leader = next((place for place, one in enumerate(facts) if one.leads and one.term == newest), -1)
        budget = (*state.budget[:cost], state.budget[cost] - 1, *state.budget[cost + 1 :])
        for place, number in enumerate(state.servers):
            old = self.first.servers[place]
            if leader in (-1, place) or number == old or self._is_unheard(state, leader, place, newest):
                continue
            beat = cores.move(state.servers[leader], "beat", _tick(BEAT_S))[0]
            at = next(bits(beat.sent & cores.to[place]))
            heard = cores.move(old, at, _deliver(self.names[leader], cores.flights[at].message))[0]
            gone = State((*state.servers[:place], old, *state.servers[place + 1 :]), *state[1:3], budget)
            after = self._after(self._after(gone, leader, beat, budget), place, heard, budget)
            yield f"old disk of {self.names[place]}, which hears {self.names[leader]}", after

    def _is_unheard(self, state: State, leader: int, place: int, term: int) -> bool:
        """Return whether an acknowledgement of this server in this term has not reached the leader."""
        sent = [self.cores.flights[at] for at in bits(state.net & self.cores.to[leader])]
        matches = [
            flight.message.match
            for flight in sent
            if flight.sender == self.names[place] and isinstance(flight.message, AppendResult)
            if flight.message.ok and flight.message.term == term
        ]
        return max(matches, default=0) > self.cores.acked(state.servers[leader], self.names[place])

    def _taken(self, state: State, place: int, steps: list[Step]) -> Iterator[tuple[str, State]]:
        for label, cost, move in steps:
            budget = state.budget
            if cost >= 0:
                if not budget[cost]:
                    continue
                budget = (*budget[:cost], budget[cost] - 1, *budget[cost + 1 :])
            yield label, self._after(state, place, move, budget)

    def _moves(self, number: int, label: str, cost: str, input: Any, act: Act) -> Iterator[Step]:
        """Yield a step, and those of a process that ends in the middle of it; none beyond the last term."""
        done, *broken = self.cores.move(number, input, act)
        facts, crashes = self.cores.facts, COSTS.index("crashes")
        if facts[done.after].term <= self.scope.terms:
            yield Step(label, COSTS.index(cost) if cost else -1, done)
        if self.scope.budget.crashes and not cost:
            for move in broken:
                if facts[move.after].term <= self.scope.terms:
                    yield Step(f"{label}, dies in the middle", crashes, move)

    def _own_steps(self, place: int, number: int) -> list[Step]:
        """Yield the steps that a server takes by itself."""
        own = self._own.get(number)
        if own is None:
            own = self._own[number] = []
            for label, cost, input, act in self._options(place, number):
                for step in self._moves(number, f"{label} {self.names[place]}", cost, input, act):
                    if step.move.after != number or step.move.sent:
                        own.append(step)
        return own

    def _options(self, place: int, number: int) -> Iterator[tuple[str, str, Any, Act]]:
        yield "crash", "crashes", "crash", Server.crash
        if self.scope.pre_votes and self._may_stand(place, number):
            yield "stand", "", "tick", _tick(QUIET_S)
        if not self.cores.facts[number].leads:
            return
        yield "quiet", "quiets", "tick", _tick(QUIET_S)
        yield "beat", "beats", "beat", _tick(BEAT_S)
        yield "propose", "proposals", "propose", lambda server: server.raft.propose(b"%d!" % server.raft.term, 0.0)[1]
        for other in self.names:
            if other != self.names[place]:
                yield f"transfer to {other}", "transfers", ("transfer", other), _transfer(other)
        for kind, node in self.scope.changes:
            yield f"{kind} {node}, asked", "changes", (kind, node), _change(kind, node)
        yield "give up", "", "give up", _give_up

    def _arrivals_at(self, place: int, number: int, inbox: int) -> tuple[int, list[Step]]:
        arrivals = self._arrivals.get((number, inbox))
        if arrivals is None:
            told, steps = 0, dict[tuple[int, Move], Step]()
            for at in bits(inbox):
                sender, _, message = self.cores.flights[at]
                label = f"{type(message).__name__} {sender} > {self.names[place]}"
                for step in self._moves(number, label, "", at, _deliver(sender, message)):
                    if step.move.after == number and step.cost < 0:
                        told |= step.move.sent
                    else:
                        steps.setdefault(step[1:], step)
            arrivals = self._arrivals[number, inbox] = (told, list(steps.values()))
        return arrivals

    def _may_stand(self, place: int, number: int) -> bool:
        return not self.cores.facts[number].leads and self.names[place] in (self.scope.standing or self.names)

    def _stands(self, place: int, number: int, there: int, other: int) -> list[Step]:
        found = self._standing.get((number, other))
        if found is None:
            found = self._standing[number, other] = list(self._stand(place, number, there, other))
        return found

    def _stand(self, place: int, number: int, there: int, other: int) -> Iterator[Step]:
        """Yield the steps of a server whose election timeout ends. It asks one other at once whether it could win."""
        name, cores = self.names[place], self.cores
        asking = cores.move(number, "tick", _tick(QUIET_S))[0]
        label = f"stand {name}, asks {self.names[there]}"
        if cores.facts[asking.after].term > cores.facts[number].term:  # it need not ask
            yield from self._moves(number, label, "", "tick", _tick(QUIET_S))
        for at in bits(asking.sent & cores.to[there]):
            asked = cores.move(other, at, _deliver(name, cores.flights[at].message))[0]
            for answer in bits(asked.sent if asked.after == other else 0):
                told = cores.flights[answer]
                steps = self._moves(asking.after, label, "", answer, _deliver(told.sender, told.message))
                yield from (step for step in steps if step.move.after != asking.after)

    # --- what a step leads to ------------------------------------------------------------------------------

    def _after(self, state: State, place: int, move: Move, budget: tuple[int, ...]) -> State:
        before, number, ghost = state.servers[place], move.after, state.ghost
        facts = self.cores.facts
        was, now = facts[before], facts[number]
        servers = (*state.servers[:place], number, *state.servers[place + 1 :])
        if move.applied or (now.leads and now is not was):
            ghost = self._witness(place, ghost, was, now, move)
        if ghost != state.ghost or now is not was:
            key = (ghost, tuple([id(facts[server]) for server in servers]))
            if key not in self._checked:
                self._checked.add(key)
                self._check([facts[server] for server in servers], self._ghosts[ghost].committed)
        return State(servers, self._settled(servers, state.net, place, move.sent), ghost, budget)

    def _settled(self, servers: tuple[int, ...], net: int, place: int, sent: int) -> int:
        """Return the messages in flight after ``place`` has changed and sent these, with all answers that change no
        server. Answers of terms that are over are left out, since they have no effect."""
        cores = self.cores
        net &= ~cores.stale(place, servers[place])
        waiting = {place}
        while True:
            for there, number in enumerate(servers):
                new = sent & cores.to[there] & ~net & ~cores.stale(there, number)
                if new:
                    net |= new
                    waiting.add(there)
            if not waiting:
                return net
            there = min(waiting)
            waiting.remove(there)
            sent = self._arrivals_at(there, servers[there], net & cores.to[there])[0]

    def _witness(self, place: int, number: int, was: Facts, now: Facts, move: Move) -> int:
        """Return the committed entries and the leaders after a server's step. Raises ``Violation``."""
        name, (committed, leaders) = self.names[place], self._ghosts[number]
        for index, term, data in move.applied:
            must(index <= len(committed) + 1, f"{name} applies {index} before anybody has what is before it")
            if index > len(committed):
                committed = (*committed, ((term, data), now.term))
            same = committed[index - 1][0] == (term, data)
            must(same, f"state machine safety: {name} applies another entry {index} of term {term}")
        if now.leads:
            if was.leads and was.term == now.term:
                must(now.log[: len(was.log)] == was.log, f"leader append-only: {name} changes its log")
            first = dict(leaders).get(now.term, place)
            must(first == place, f"election safety: {self.names[first]} and {name} lead term {now.term}")
            leaders = tuple(sorted({*leaders, (now.term, place)}))
        return self._ghost(Ghost(committed, leaders))

    def _check(self, facts: list[Facts], committed: tuple[tuple[Row, int], ...]) -> None:
        """Check log matching and leader completeness."""
        for place, one in enumerate(facts):
            for other in facts[:place]:
                pairs = list(zip(one.log, other.log, strict=False))
                same = [index for index, (mine, theirs) in enumerate(pairs) if mine[0] == theirs[0]]
                agree = not same or all(mine == theirs for mine, theirs in pairs[: same[-1] + 1])
                must(agree, f"log matching: {one.log} and {other.log}")
            if one.leads:
                earlier = tuple(row for row, term in committed if term < one.term)
                whole = one.log[: len(earlier)] == earlier
                must(whole, f"leader completeness: {self.names[place]} leads term {one.term} without {earlier}")

    # --- the search ------------------------------------------------------------------------------------------

    def run(self, most: int = 20_000_000) -> Outcome:
        """Visit the states breadth first, so that the first violation has one of the shortest traces."""
        began = time.process_time()
        gc.disable()  # millions of tuples, none of them garbage
        try:
            return self._run(most, began)
        finally:
            gc.enable()

    def _run(self, most: int, began: float) -> Outcome:
        come_from: dict[State, tuple[State, str] | None] = {self.first: None}
        nets = {_but_net(self.first): [self.first.net]}
        """The largest sets of messages that were seen with all else the same."""
        level, depth, looked = [self.first], 0, 0
        trace: tuple[str, ...] = ()
        while level and not trace and looked < most:
            following = []
            for state in level:
                if state.net not in nets[_but_net(state)]:
                    continue  # another one can do more
                looked += 1
                try:
                    for step, after in self.steps(state):
                        if _is_news(nets.setdefault(_but_net(after), []), after.net):
                            come_from[after] = (state, step)
                            following.append(after)
                except (Violation, AssertionError, ProtocolError) as error:
                    trace = (*path(come_from, state), f"then: {error}")
                    break
            level, depth = following, depth + 1
        assert trace or not level, "the search did not end"
        return Outcome(looked, depth, self.cores.calls, time.process_time() - began, trace)


def _but_net(state: State) -> tuple[Any, ...]:
    return state.servers, state.ghost, state.budget


def _is_news(nets: list[int], net: int) -> bool:
    """Return whether no known set has all of these messages; if so, the set replaces those that have fewer."""
    if any(net & other == net for other in nets):
        return False
    nets[:] = [other for other in nets if other & net != other]
    nets.append(net)
    return True


def path(come_from: dict[State, tuple[State, str] | None], state: State) -> Iterable[str]:
    """Return the steps that led to a state."""
    steps = []
    back = come_from[state]
    while back is not None:
        state, step = back
        steps.append(step)
        back = come_from[state]
    return steps[::-1]


def bits(number: int) -> Iterator[int]:
    """Yield the places of the ones in a number."""
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low


def _tick(now: float) -> Act:
    return lambda server: server.raft.on_tick(now)


def _deliver(sender: NodeId, message: Any) -> Act:
    return lambda server: server.raft.on_message(sender, message, 0.0)


def _transfer(to: NodeId) -> Act:
    return lambda server: server.raft.transfer(0.0, to)[1]


def _change(kind: str, node: NodeId) -> Act:
    if kind == "add":
        return lambda server: server.raft.add_member(node, f"ws://{node}", 0.0)[1]
    return lambda server: server.raft.remove_member(node, 0.0)[1]


def _give_up(server: Server) -> list[Any]:
    """Let a transfer of leadership fail by its time-out."""
    return server.raft.on_tick(GIVE_UP_S) if server.raft._transfer.target is not None else []


def main() -> int:
    """Run the command. Returns the exit code: 0 if no state breaks an invariant."""
    parser = argparse.ArgumentParser(prog="python -m model.raft_search", description=__doc__)
    parser.add_argument("--large", action="store_true", help="the larger scopes, too")
    scopes = {**SMALL, **LARGE} if parser.parse_args().large else SMALL
    broken = 0
    for name, scope in scopes.items():
        found = RaftSearch(scope).run()
        for line in found.trace:
            print(f"    {line}")
        print(
            f"{name}: {found.states} states, depth {found.depth}, {found.calls} real calls, {found.seconds:.1f} s",
            flush=True,
        )
        broken += bool(found.trace)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
