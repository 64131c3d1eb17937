"""``python -m model.search``: every state that the real cores can reach within a small scope, breadth first.

A state is (controller, servers, messages in flight, what is committed, who led which epoch, budgets). Each component
value is interned to a number, and each *component transition* (value, input) to its outcome: a server is thawed from
its pickle, the real code runs, and it is frozen again, once for each distinct pair; after that a step of the whole is
a look into a table. Invariants are looked at on the facts of the components, so they cost little, too.

What keeps the space small: a server learns the newest metadata only; it has one question to its leader in flight (a
newer one takes the older one's place, which is its loss) and one proposal; what may come late or twice is *held*, as
often as the scope allows; nothing is ever refused for lack of time but when the leader looks for laggards.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tidelog.types import NodeId, PartitionState, TopicConfig
from tidelog_controller.metadata.commands import UnfenceServer
from tidelog_controller.metadata.state import MetadataState
from tidelog_replica.replication import leader_state as leader_module

from model.components import Components, Move, Silent, Unasked, freeze, learn, take
from model.ghost import Violation, must
from model.messages import CONTROLLER, Told
from model.server import KEY, Server
from model.world import Setting, World

DEFAULTS = TopicConfig()


@dataclass(frozen=True, slots=True)
class Scope:
    """The extent of a search."""

    replicas: int = 3
    records: int = 1
    leader_epochs: int = 2
    """The number of leader changes."""
    crashes: int = 1
    expirations: int = 1
    proposals: int = 1
    held: int = 0
    config: TopicConfig = DEFAULTS


class Budget(NamedTuple):
    """The rest of the scope that is left in a state."""

    records: int
    crashes: int
    expirations: int
    proposals: int
    held: int


class State(NamedTuple):
    """One state of the whole; numbers stand for interned values."""

    control: int
    servers: tuple[int, ...]
    net: tuple[int, ...]
    ghost: int
    budget: Budget


Option = tuple[str, str, Any, Callable[[Server], bool]]
"""A step that a server may take: its name, its cost in the budget, its input, and the action."""


class Search:
    """A search. ``run`` visits every state within the scope, or all up to the first violation."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.parts = Components()
        self.controls: list[MetadataState] = []
        self._controls: dict[Any, int] = {}
        self._decisions: dict[tuple[int, Any], Move | None] = {}
        world = World(Setting(scope.replicas, 0, scope.config))
        self.names = tuple(world.servers)
        self._options: dict[int, list[Option]] = {}
        self._joined: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, ...]] = {}
        self._ghosts: list[tuple[tuple[int, ...], tuple[tuple[int, NodeId, int], ...]]] = []
        """The committed records, and the server and run that led each leader epoch."""
        self._ghost_numbers: dict[Any, int] = {}
        self._witnessed: dict[tuple[int, int, int, int], int] = {}
        self._checked: set[Any] = set()
        self._desk = world
        for server in world.servers.values():
            server.ghost = Silent(scope.config)
        world.ghost = Silent(scope.config)
        self.first = State(
            self._control(world.state),
            tuple(self.parts.server(server) for server in world.servers.values()),
            (),
            self._ghost((), ()),
            Budget(scope.records, scope.crashes, scope.expirations, scope.proposals, scope.held),
        )

    # --- the controller ----------------------------------------------------------------------------------

    def _control(self, state: MetadataState) -> int:
        key = freeze((state.index, state.servers, state.topics, state.earlier_lives), {})
        number = self._controls.setdefault(key, len(self.controls))
        if number == len(self.controls):
            self.controls.append(state)
        return number

    def _decide(self, number: int, input: Any, act: Callable[[World], object]) -> Move | None:
        """Return the result of a command at the controller, as ``Components.move``; None if it changes nothing."""
        key = (number, input)
        if key not in self._decisions:
            desk, before = self._desk, self.controls[number]
            desk.state, desk.net = before, []
            act(desk)
            changed = (desk.state.servers, desk.state.topics) != (before.servers, before.topics)
            after = self._control(desk.state) if changed else number
            sent = tuple(self.parts.message(message) for message in desk.net)
            self._decisions[key] = (after, sent) if changed or sent else None
        return self._decisions[key]

    # --- steps -----------------------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield every step from a state."""
        yield from self._deliveries(state)
        for place in range(len(self.names)):
            yield from self._own_steps(state, place)
        for label, spent, moved in self._decisions_of(state):
            left = _spend(state.budget, spent)
            if left is not None and moved is not None:
                after = self._after_control(state, moved, state.net)
                if after is not None:
                    yield label, after._replace(budget=left)

    def _deliveries(self, state: State) -> Iterator[tuple[str, State]]:
        messages = self.parts.messages
        for at, number in enumerate(state.net):
            sent = messages[number]
            rest = state.net[:at] + state.net[at + 1 :]
            if sent.to == CONTROLLER:
                moved = self._decide(state.control, number, lambda desk, sent=sent: desk._on_controller(sent))
                after = state._replace(net=rest) if moved is None else self._after_control(state, moved, rest)
            else:
                place = self.names.index(sent.to)
                done = self.parts.move(state.servers[place], number, lambda server, sent=sent: take(server, sent))
                after = self._after_move(state, place, done, rest) if done else state._replace(net=rest)
            if after is not None:
                yield f"deliver {sent.kind} {sent.source} > {sent.to}", after
            if state.budget.held and not sent.held and not isinstance(sent.body, Told):
                net = tuple(sorted((*state.net, self.parts.message(replace(sent, held=True)))))
                budget = state.budget._replace(held=state.budget.held - 1)
                yield f"hold {sent.kind} {sent.source} > {sent.to}", state._replace(net=net, budget=budget)

    def _own_steps(self, state: State, place: int) -> Iterator[tuple[str, State]]:
        number, name = state.servers[place], self.names[place]
        options = self._options.get(number)
        if options is None:
            options = self._options[number] = self._options_of(number)
        for label, spent, what, act in options:
            left = _spend(state.budget, spent)
            if left is None or (label == "ask" and self._has_question(state.net, name)):
                continue
            moved = self.parts.move(number, what, act)
            if moved is None:
                continue
            after = self._after_move(state, place, moved, state.net)
            yield f"{label} {name}", after if left is state.budget else after._replace(budget=left)
        control = state.control
        learned = self.parts.move(number, ("learn", control), lambda server: learn(server, self.controls[control]))
        if learned is not None:
            yield f"learn {name}", self._after_move(state, place, learned, state.net)

    def _options_of(self, number: int) -> list[Option]:
        """Return the steps that a server may take by itself; some may have no effect."""
        facts = self.parts.facts[number]
        if not facts.up:
            return [("start", "", "start", lambda server: server.start() is None)]
        return [
            ("flush", "", "flush", Server.flushed),
            ("ask", "", "ask", Server.ask),
            ("produce", "records", "produce", lambda server: server.produce(len(facts.row))),
            ("lag", "proposals", "lag", Server.lag),
            *(
                ("crash", "crashes", ("crash", end), lambda server, end=end: server.power_loss(end) is None)
                for end in range(facts.durable, len(facts.row) + 1)
            ),
        ]

    def _decisions_of(self, state: State) -> Iterator[tuple[str, str, Move | None]]:
        for place, name in enumerate(self.names):
            known = self.controls[state.control].servers[name]
            if known.fenced:
                facts = self.parts.facts[state.servers[place]]
                if facts.up and facts.broker_epoch == known.broker_epoch:
                    command = UnfenceServer(0, name, known.broker_epoch)
                    moved = self._decide(state.control, command, lambda desk, command=command: desk.apply(command))
                    yield f"heartbeat {name}", "", moved
            elif state.budget.expirations:
                moved = self._decide(state.control, ("expire", name), lambda desk, name=name: desk.do_expire(name))
                yield f"expire {name}", "expirations", moved
        if state.budget.expirations:
            yield "replace", "expirations", self._decide(state.control, "replace", World.do_replace)

    # --- what a step leads to ------------------------------------------------------------------------------

    def _has_question(self, net: tuple[int, ...], name: NodeId) -> bool:
        return any(self.parts.asker[number] == name for number in net)

    def _join(self, net: tuple[int, ...], sent: tuple[int, ...]) -> tuple[int, ...]:
        """Return the messages in flight with new ones; older ones of the same sender and kind count as lost."""
        if not sent:
            return net
        joined = self._joined.get((net, sent))
        if joined is None:
            joined = net
            for number in sent:
                new, asker = self.parts.messages[number], self.parts.asker[number]
                kept = []
                for other in joined:
                    old = self.parts.messages[other]
                    same = not old.held and (old.kind, old.source, old.to) == (new.kind, new.source, new.to)
                    if not same and not (asker and self.parts.asker[other] == asker):
                        kept.append(other)
                joined = tuple(sorted((*kept, number)))
            self._joined[net, sent] = joined
        return joined

    def _after_move(self, state: State, place: int, moved: Move, net: tuple[int, ...]) -> State:
        number, sent = moved
        servers, old = state.servers, state.servers[place]
        ghost = state.ghost
        if number != old:
            servers = (*servers[:place], number, *servers[place + 1 :])
            key = (old, number, ghost, state.control)
            seen = self._witnessed.get(key)
            if seen is None:
                seen = self._witnessed[key] = self._witness(*key)
            ghost = seen
            if ghost != state.ghost or self.parts.holdings[number] != self.parts.holdings[old]:
                self._check(state.control, servers, ghost)
        return State(state.control, servers, self._join(net, sent), ghost, state.budget)

    def _witness(self, old: int, number: int, ghost: int, control: int) -> int:
        """Return the committed records and the leaders after a server's value has changed. Raises ``Violation``."""
        facts, before = self.parts.facts[number], self.parts.facts[old]
        committed, leaders = self._ghosts[ghost]
        must(facts.offline is None, f"{facts.name} went offline: {facts.offline}")
        if facts.leads >= 0:
            if facts.leads != before.leads:
                entry = (facts.leads, facts.name, facts.broker_epoch)
                must(all(other[0] != facts.leads for other in leaders), f"R1: {entry} leads, and did {leaders}")
                leaders = tuple(sorted((*leaders, entry)))
                if facts.leads == self._partition(control).leader_epoch:
                    must(facts.row[: len(committed)] == committed, f"R3: {facts.name} leads without {committed}")
            hw = facts.high_watermark
            must(facts.row[: min(hw, len(committed))] == committed[:hw], f"R7: {facts.name} commits something else")
            if hw > len(committed):
                committed = facts.row[:hw]
        return self._ghost(committed, leaders)

    def _ghost(self, committed: tuple[int, ...], leaders: tuple[tuple[int, NodeId, int], ...]) -> int:
        number = self._ghost_numbers.setdefault((committed, leaders), len(self._ghosts))
        if number == len(self._ghosts):
            self._ghosts.append((committed, leaders))
        return number

    def _after_control(self, state: State, moved: Move, net: tuple[int, ...]) -> State | None:
        """Return the state after a step of the controller; None beyond the scope."""
        if self._partition(moved[0]).leader_epoch > self.scope.leader_epochs:
            return None
        if moved[0] != state.control:
            self._check(moved[0], state.servers, state.ghost)
        return state._replace(control=moved[0], net=self._join(net, moved[1]))

    def _partition(self, control: int) -> PartitionState:
        return self.controls[control].topics[KEY.topic_id].partitions[0]

    def _check(self, control: int, servers: tuple[int, ...], ghost: int) -> None:
        partition, committed = self._partition(control), self._ghosts[ghost][0]
        key = (partition, ghost, tuple([self.parts.holdings[number] for number in servers]))
        if key in self._checked:
            return
        self._checked.add(key)
        members = (*partition.isr, *partition.elr)
        facts = [self.parts.facts[number] for number in servers]
        for one in facts:
            if one.name in members and not one.hurt:
                held = one.durable >= len(committed) and one.row[: len(committed)] == committed
                must(held, f"R3: {one.name}, in ISR or ELR, has {one.row} durable to {one.durable}, not {committed}")
            if one.leads == partition.leader_epoch:
                must(set(partition.isr) <= set(one.maximal_isr), f"R8: {one.name} does not count {partition.isr}")
            for other in facts:
                for offset, (mine, theirs) in enumerate(zip(one.row, other.row, strict=False)):
                    if mine == theirs:
                        same = one.batches[: offset + 1] == other.batches[: offset + 1]
                        must(same, f"R2: {one.name} and {other.name} differ at or below {offset} of epoch {mine}")

    # --- the search ------------------------------------------------------------------------------------------

    def run(self, most: int = 20_000_000) -> Outcome:
        """Visit the states breadth first, so that the first violation has one of the shortest traces."""
        began = time.perf_counter()
        gc.disable()  # millions of tuples, none of them garbage
        try:
            return self._run(most, began)
        finally:
            gc.enable()

    def _run(self, most: int, began: float) -> Outcome:
        come_from: dict[State, tuple[State, str] | None] = {self.first: None}
        level, depth = [self.first], 0
        while level and len(come_from) < most:
            following = []
            for state in level:
                try:
                    for step, after in self.steps(state):
                        if after not in come_from:
                            come_from[after] = (state, step)
                            following.append(after)
                except (Violation, AssertionError) as error:
                    trace = [*_path(come_from, state), f"then: {error}"]
                    return Outcome(len(come_from), depth, self.parts.calls, time.perf_counter() - began, tuple(trace))
            level, depth = following, depth + 1
        assert not level, "the search did not end"
        return Outcome(len(come_from), depth, self.parts.calls, time.perf_counter() - began, ())


class Outcome(NamedTuple):
    """The result of a search. ``trace``: the steps to the violation, and the violation; () if there is none."""

    states: int
    depth: int
    calls: int
    """How often real code ran in a server."""
    seconds: float
    trace: tuple[str, ...]


def _path(come_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    steps = []
    back = come_from[state]
    while back is not None:
        state, step = back
        steps.append(step)
        back = come_from[state]
    return steps[::-1]


def _spend(budget: Budget, what: str) -> Budget | None:
    """Return the budget after this cost; None if it is used up."""
    if not what:
        return budget
    left: int = getattr(budget, what)
    return budget._replace(**{what: left - 1}) if left else None


SMALL = Scope(leader_epochs=1, crashes=1, expirations=0, proposals=0)
"""A scope with a crash at any moment, which loses any part of the unflushed records."""
LARGE = Scope(leader_epochs=1, crashes=0, expirations=1, proposals=0)
"""A scope with an expired session or a reported leader at any moment, instead of a crash."""


def search(scope: Scope) -> Outcome:
    """Search a scope and return the outcome."""
    confirmation = leader_module.LeadershipConfirmation
    leader_module.LeadershipConfirmation = Unasked  # type: ignore[misc, assignment]
    try:
        return Search(scope).run()
    finally:
        leader_module.LeadershipConfirmation = confirmation  # type: ignore[misc]


def main() -> int:
    """Run the command. Returns the exit code: 0 if no state breaks an invariant."""
    parser = argparse.ArgumentParser(prog="python -m model.search", description=__doc__)
    parser.add_argument("--large", action="store_true")
    outcome = search(LARGE if parser.parse_args().large else SMALL)
    for line in outcome.trace:
        print(line)
    print(f"{outcome.states} states, depth {outcome.depth}, {outcome.calls} real calls, {outcome.seconds:.1f} s")
    return 1 if outcome.trace else 0


if __name__ == "__main__":
    sys.exit(main())
