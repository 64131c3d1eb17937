"""The invariants of the walks, checked after every step: R1 to R9 and R12 of
``tidelog/testing/invariants/replication.py``.

The ghost sees more than any server: every append and every move of a high watermark, everywhere. Log matching (R2) is
checked at each append against all that was ever appended: a record is known by (offset, leader epoch) and has one
content and one predecessor. So two logs agree up to an offset when the record before it has the same epoch in both,
and everything else is a comparison of two numbers.

Committed records stay the same for ever, with two exceptions that the topic asks for: after an unclean election, and
with commit rule ``leader`` after any, a new *line* (history) begins with the log of its first leader. Servers of the
former history may go on for a while; what they commit does not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.types import NodeId, PartitionState, ServerState, TopicConfig

if TYPE_CHECKING:
    from tidelog_replica.partition.leader_replica import LeaderReplica

    from model.server import Server


class Violation(AssertionError):
    """An invariant does not hold."""


def must(holds: bool, said: str) -> None:
    """Raise ``Violation`` with the text unless the condition holds."""
    if not holds:
        raise Violation(said)


class Ghost:
    """The record of one walk. ``line``: the leader epoch in which the present history began; -1 while no history was
    replaced."""

    def __init__(self, config: TopicConfig) -> None:
        commit_rule = config.commit_rule
        self._may_lose = config.unclean_election
        self.committed: list[int] = []
        """The leader epochs of the committed records, by offset."""
        self.acked = 0
        self.lost = 0
        """The number of records that unclean elections removed."""
        self.line = -1
        self.state: PartitionState | None = None
        self.servers: dict[NodeId, ServerState] = {}
        self.quorum = commit_rule == "quorum"
        self._any_leader_begins = commit_rule == "leader"
        self._all: list[Server] = []
        self._begun = True
        self._records: dict[tuple[int, int], tuple[bytes, int]] = {}
        self._leaders: dict[int, tuple[NodeId, int]] = {}
        self._told: dict[int, int] = {}
        """The highest HW by leader epoch."""
        self._role: dict[NodeId, LeaderReplica] = {}
        self.now = 0.0
        """The time, which grows with every step, by too little to matter for any wait."""
        self._led_since: dict[int, float] = {}
        """The time at which a leader of each leader epoch began."""

    # --- what servers do -----------------------------------------------------------------------------------

    def on_append(self, server: Server, offset: int, batch: bytes, epoch: int, before: int) -> None:
        """Check a batch that is being appended; the record before it is of epoch ``before``."""
        partition = server.partition
        assert partition is not None and partition.state is not None
        known = partition.state.leader_epoch
        if partition.leading is not None or partition.role is None:  # also while it is becoming the leader
            must(epoch == known, f"R6: {server.name} appends in epoch {epoch} and knows {known}")
            leader = self._leaders.setdefault(epoch, (server.name, server.broker_epoch))
            must(leader == (server.name, server.broker_epoch), f"R1: {leader} and {server.name} append in {epoch}")
        must(epoch <= known, f"R6: {server.name} takes epoch {epoch} and knows {known}")
        must(before <= epoch, f"R5: epoch {epoch} behind {before} at {offset} of {server.name}")
        first = self._records.setdefault((offset, epoch), (batch, before))
        must(
            first == (batch, before),
            f"R2: {server.name} has another record at offset {offset} of epoch {epoch}, or before",
        )

    def on_settled(self, server: Server) -> None:
        """Check a server at the end of an input."""
        partition = server.partition
        assert partition is not None
        must(partition.offline is None, f"{server.name} went offline: {partition.offline}")
        log, hw = partition.log, partition.high_watermark
        must(0 <= hw <= log.end, f"HW {hw} of {server.name}, whose log ends at {log.end}")
        leading = partition.leading
        if leading is None:
            return
        if self._role.get(server.name) is not leading:
            self._role[server.name] = leading
            self._led_since.setdefault(leading.core.leader_epoch, self.now)
            self._on_leader(server)
        self._commit(server, leading)
        self.check_superset(server)
        self._check_confirmed(server, leading)

    def _check_confirmed(self, server: Server, leading: LeaderReplica) -> None:
        """Check R12: no leadership is confirmed as of a time at which a newer leader had begun."""
        core = leading.core
        newer = [at for epoch, at in self._led_since.items() if epoch > core.leader_epoch]
        if newer:
            said = f"R12: {server.name} leads in epoch {core.leader_epoch}, and another has led since {min(newer)};"
            must(core.needs_voters, f"{said} it needs nobody's word")
            must(core._confirmed_since() <= min(newer), f"{said} it is confirmed as of {core._confirmed_since()}")

    def _on_leader(self, server: Server) -> None:
        partition = server.partition
        assert partition is not None and partition.leading is not None
        epoch = partition.leading.core.leader_epoch
        if self._any_leader_begins and epoch > self.line:
            self.line, self._begun = epoch, False
        if epoch < self.line:
            return
        if not self._begun:
            self._begun = True
            self._told = {e: 0 for e in self._told if e >= self.line}
            end = min(len(self.committed), server.durable)  # what is not flushed may be lost again
            while end and server.disk.row[end - 1] != self.committed[end - 1]:
                end -= 1
            self.lost += len(self.committed) - end
            del self.committed[end:]
        before = max((told for e, told in self._told.items() if e < epoch), default=0)
        self._must_hold(server, len(server.disk.row), before, f"R3: {server.name} leads in epoch {epoch} and")

    def _must_hold(self, server: Server, end: int, committed: int, said: str) -> None:
        """Check that a server's log, up to ``end``, has the first ``committed`` of all committed records."""
        if committed:
            must(end >= committed, f"{said} has {end} of {committed} committed records")
            row, epoch = server.disk.row, self.committed[committed - 1]
            must(
                row[committed - 1] == epoch, f"{said} has epoch {row[committed - 1]} at {committed - 1}, not {epoch}"
            )

    def _commit(self, server: Server, leading: LeaderReplica) -> None:
        core, row = leading.core, server.disk.row
        hw, epoch = core.high_watermark, core.leader_epoch
        if epoch < self.line or (self._told.get(epoch) == hw and not core.knows_end):
            return
        grown = hw > len(self.committed)
        self.committed += row[len(self.committed) : hw]
        if hw:
            mine, theirs = row[hw - 1], self.committed[hw - 1]
            must(mine == theirs, f"R7: {server.name} commits epoch {mine} at {hw - 1}, where {theirs} was committed")
        must(hw >= self._told.get(epoch, 0), f"R5: the HW of {server.name} goes back to {hw}")
        self._told[epoch] = hw
        if core.knows_end:
            top = max(told for e, told in self._told.items() if e <= epoch)
            must(hw >= top, f"R5: {server.name} tells {hw} for the end, where {top} was told before")
        if grown:
            self.check_members()

    def on_served(self, server: Server, node: NodeId, epoch: int) -> None:
        """Check that a leader has answered a question only of its own leader epoch (R6). A follower in another epoch
        confirms nothing in this one, even if the comparison of positions prevents a loss."""
        assert server.partition is not None and server.partition.leading is not None
        mine = server.partition.leading.core.leader_epoch
        must(epoch == mine, f"R6: {server.name} leads in epoch {mine} and serves {node} in {epoch}")

    def on_ack(self, server: Server, batch: bytes, offset: int) -> None:
        """Check that a batch acked at an offset is committed there (R4)."""
        assert server.partition is not None and server.partition.state is not None
        if server.partition.state.leader_epoch < self.line:
            return
        must(offset < len(self.committed), f"R4: offset {offset} is acked, {len(self.committed)} are committed")
        stored = self._records[offset, self.committed[offset]][0]
        must(stored[16:] == batch[16:], f"R4: another record than was acked is committed at {offset}")
        self.acked += 1

    # --- what the controller says ----------------------------------------------------------------------------

    def on_state(self, state: PartitionState, servers: dict[NodeId, ServerState], all_servers: list[Server]) -> None:
        """Take over the controller's new state, and check that epochs do not go back (R5)."""
        old = self.state
        self.state, self.servers, self._all = state, servers, all_servers
        if old is not None:
            must(state.epoch >= old.epoch and state.leader_epoch >= old.leader_epoch, "R5: an epoch goes back")
        must(state.leader is None or not servers[state.leader].fenced, f"R3: {state.leader}, fenced, is elected")
        must(self._may_lose or state.unclean_epoch < 0, "R3: an unclean election that the topic does not allow")
        if state.unclean_epoch > self.line and not self._any_leader_begins:
            self.line, self._begun = state.unclean_epoch, False
        self.check_members()
        for server in all_servers:
            self.check_superset(server)

    def check_superset(self, server: Server) -> None:
        """Check R8 for a leader in the controller's present leader epoch."""
        leading, state = None if server.partition is None else server.partition.leading, self.state
        if leading is None or state is None or state.sealing or leading.core.leader_epoch != state.leader_epoch:
            return
        known = self.servers.get(server.name)
        if known is not None and known.broker_epoch == server.broker_epoch:
            missing = [node for node in state.isr if node not in leading.core.maximal_isr]
            must(self._any_leader_begins or not missing, f"R8: {server.name} leads and does not count {missing}")

    def check_members(self) -> None:
        """Check R3 and R4: every replica that may lead next holds everything committed, durably; with ``quorum``
        every majority of the replicas with valid promises has one that does."""
        state = self.state
        if state is None or self._any_leader_begins or not self._begun or not self.committed:
            return
        committed, epoch = len(self.committed), self.committed[-1]
        short = []
        for server in self._all:
            if server.name not in state.isr and server.name not in state.elr:
                continue
            row = server.disk.row
            if not server.hurt and not (server.durable >= committed and row[committed - 1] == epoch):
                short.append(server)
        for server in short:
            if self.quorum:
                must(2 * len(short) <= len(state.replicas), f"R3: {[s.name for s in short]} can seal without it")
            else:
                self._must_hold(server, server.durable, committed, f"R3: {server.name}, in ISR or ELR,")
