"""When the active controller transfers the leadership of partitions of its own accord, a few partitions at a time.

    needed    the leader's server is being drained, or the leader is not in the target of a reassignment whose target
              is in sync: at once
    wished    the preferred replica should lead: checked every ``leader_imbalance_check_interval_s``; of a server
              that has more than ``leader_imbalance_percentage`` of the partitions that prefer it led by others, all
              come back, but none that changed its leader within ``leader_min_term_s``: those would only go to and
              fro; and none to a server that is slow (``active/slow_servers.py``) or ranks worse than the leader
              (``active/server_ranks.py``)

A transfer is a command that names the successor (``metadata/rules/reassignment.py``) and ends with another leader
epoch. One that has not ended after ``transfer_timeout_s`` is withdrawn, and the partition left alone for a while.
Times are volatile, of the caller's monotonic clock: a new active controller gives every transfer its full time, and
takes all leaders for new ones.

A proposal is in flight until it is applied; it names the epoch for which it was decided, so that what comes between
makes it void, and it is decided again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from tidelog.types import NodeId, PartitionState, TopicPartition

from tidelog_controller.config import BalanceSettings
from tidelog_controller.metadata.commands import Command, RemoveTopic, SetDraining, SetSuccessor
from tidelog_controller.metadata.rules.leader_election import ALL_ALIKE, Ranks
from tidelog_controller.metadata.state import MetadataState

PAUSE_S = 0.05
"""Seconds between two searches for partitions that need another leader."""
REST_TIMEOUTS = 2
"""For how many transfer timeouts no transfer of a partition begins after one was withdrawn."""


class LeaderBalancer:
    """The decisions of the active controller which leaderships to transfer: away from servers that are drained and
    from replicas that a reassignment removes, and back to preferred replicas. In memory only. Times are seconds of
    the caller's monotonic clock."""

    def __init__(self, settings: BalanceSettings) -> None:
        self._settings = settings
        self._running: dict[TopicPartition, float] = {}
        """Transfers under way, and the time at which each is withdrawn if it has not ended."""
        self._needed: dict[TopicPartition, None] = {}
        self._wished: dict[TopicPartition, None] = {}
        self._rest: dict[TopicPartition, float] = {}
        """Partitions whose transfer was withdrawn, and until when no other one begins."""
        self._led_since: dict[TopicPartition, float] = {}
        """When a partition last changed its leader, if that was less than ``leader_min_term_s`` ago."""
        self._in_flight: dict[TopicPartition, None] = {}
        self._slow: Collection[NodeId] = ()
        self._ranks: Ranks = ALL_ALIKE
        self._active_at = 0.0
        self._next_look = 0.0
        self._next_check = 0.0

    def become_active(self, state: MetadataState, now: float) -> None:
        """Forget everything, and find in the metadata ``state`` the transfers that are under way and the partitions
        that need another leader."""
        self.clear()
        self._active_at = self._next_look = now
        self._next_check = now + self._settings.leader_imbalance_check_interval_s
        for key, partition in _partitions(state):
            self._track(state, key, partition, now)

    def clear(self) -> None:
        """Forget all transfers and plans, since this controller is no longer active. What is in the metadata goes
        on."""
        for known in (self._running, self._needed, self._wished, self._rest, self._led_since, self._in_flight):
            known.clear()

    def on_applied(
        self,
        before: MetadataState,
        state: MetadataState,
        command: Command,
        changed: Iterable[TopicPartition],
        now: float,
    ) -> None:
        """Take into account that ``command`` turned the state ``before`` into ``state`` and changed the partitions in
        ``changed``: transfers that began or ended, new leaders, servers that are drained, topics that are deleted. A
        partition whose transfer was withdrawn is not transferred again for a while."""
        for key in changed:
            old, partition = before.partition(*key), state.partition(*key)
            if partition is None:
                continue
            if old is None or old.leader_epoch != partition.leader_epoch:
                self._led_since[key] = now
            elif old.successor is not None and partition.successor is None:
                self._rest[key] = now + REST_TIMEOUTS * self._settings.transfer_timeout_s
            if old is None or old.successor != partition.successor:
                self._running.pop(key, None)
            self._track(state, key, partition, now)
        match command:
            case SetSuccessor():
                self._in_flight.pop(TopicPartition(command.topic_id, command.partition), None)
            case SetDraining():
                for key, partition in _partitions(state):
                    self._track(state, key, partition, now)
            case RemoveTopic():
                for known in (self._running, self._needed, self._wished, self._rest, self._led_since):
                    for key in [key for key in known if key.topic_id == command.topic_id]:
                        del known[key]
            case _:
                return

    def _track(self, state: MetadataState, key: TopicPartition, partition: PartitionState, now: float) -> None:
        """Record whether a partition has a transfer under way, and until when, and whether it needs another
        leader."""
        if partition.successor is not None:
            self._running.setdefault(key, now + self._settings.transfer_timeout_s)
        else:
            self._running.pop(key, None)
        if _needs_other(state, partition):
            if key not in self._needed:
                self._needed[key] = None
                self._next_look = min(self._next_look, now + PAUSE_S)
        else:
            self._needed.pop(key, None)

    # --- time --------------------------------------------------------------------------------------------

    def due(
        self,
        state: MetadataState,
        now: float,
        wall_ms: int,
        slow: Collection[NodeId] = (),
        ranks: Ranks = ALL_ALIKE,
    ) -> list[SetSuccessor]:
        """Return the commands that begin a transfer now, or withdraw one whose time is up; an empty list if there are
        none. At most ``transfers_at_once`` transfers are under way. No leadership returns to a preferred replica on a
        server that is in ``slow`` or has a worse rank than the present leader. Of several servers that could take
        over from a leader that must go, the one with the best rank does."""
        self._slow, self._ranks = slow, ranks
        commands = []
        for key in [key for key, until in self._running.items() if until <= now and key not in self._in_flight]:
            partition = state.partition(*key)
            assert partition is not None and partition.successor is not None
            evidence = {"successor": partition.successor, "waited_s": f"{self._settings.transfer_timeout_s:g}"}
            self._in_flight[key] = None
            commands.append(SetSuccessor(wall_ms, *key, partition.epoch, "", "transfer_timed_out", evidence))
        if self._settings.leader_imbalance_check_interval_s and now >= self._next_check:
            self._next_check = now + self._settings.leader_imbalance_check_interval_s
            self._wished = dict.fromkeys(self._imbalanced(state, now))
            if self._wished:
                self._next_look = now
        if (self._needed or self._wished) and now >= self._next_look:
            self._next_look = now + PAUSE_S
            commands += self._begin(state, now, wall_ms)
        return commands

    def deadline(self) -> float | None:
        """Return the time in seconds at which ``due`` is to be called next, which may then find nothing to do; None
        if nothing is planned."""
        times = [until for key, until in self._running.items() if key not in self._in_flight]
        if self._settings.leader_imbalance_check_interval_s:
            times.append(self._next_check)
        if self._needed or self._wished:
            times.append(self._next_look)
        return min(times, default=None)

    def _begin(self, state: MetadataState, now: float, wall_ms: int) -> list[SetSuccessor]:
        """Return the commands that begin transfers of partitions that need another leader or should return to their
        preferred replica, as many as ``transfers_at_once`` still allows."""
        commands: list[SetSuccessor] = []
        room = self._settings.transfers_at_once - len(self._running) - len(self._in_flight)
        for key in [*self._needed, *self._wished]:
            if len(commands) >= room:
                break
            partition = state.partition(*key)
            if partition is None or key in self._in_flight or partition.successor is not None:
                continue
            if now < self._rest.get(key, now):
                continue
            self._rest.pop(key, None)
            wanted = _needs_other(state, partition, self._ranks) or self._prefers_other(state, key, partition, now)
            self._wished.pop(key, None)
            if wanted is not None and wanted[0]:
                server, cause = wanted
                evidence = {"from": partition.leader or "", "to": server}
                self._in_flight[key] = None
                commands.append(SetSuccessor(wall_ms, *key, partition.epoch, server, cause, evidence))
        return commands

    # --- preferred leaders -------------------------------------------------------------------------------

    def _prefers_other(
        self, state: MetadataState, key: TopicPartition, partition: PartitionState, now: float
    ) -> tuple[NodeId, str] | None:
        """Return the preferred replica and the cause if leadership should return to it. Return None if it leads
        already, may not lead, is slow or has a worse rank, or if the present leader has led for less than
        ``leader_min_term_s``."""
        preferred = partition.replicas[0]
        unfit = partition.target or partition.paused or not _may_lead(state, partition, preferred)
        if partition.leader in (None, preferred) or unfit:
            return None
        if preferred in self._slow or self._ranks.get(preferred, 0) > self._ranks.get(partition.leader, 0):
            return None
        if now < self._led_since.get(key, self._active_at) + self._settings.leader_min_term_s:
            return None
        return preferred, "preferred_leader"

    def _imbalanced(self, state: MetadataState, now: float) -> list[TopicPartition]:
        """Return the partitions whose leadership should return to their preferred replicas. Considered are only
        servers for which more than ``leader_imbalance_percentage`` of the partitions that prefer them are led by
        other servers."""
        prefer: dict[NodeId, int] = {}
        away: dict[NodeId, list[TopicPartition]] = {}
        for key, partition in _partitions(state):
            preferred = partition.replicas[0]
            prefer[preferred] = prefer.get(preferred, 0) + 1
            if partition.leader != preferred:
                away.setdefault(preferred, []).append(key)
        term = self._settings.leader_min_term_s
        self._led_since = {key: since for key, since in self._led_since.items() if now < since + term}
        chosen = []
        for server, keys in away.items():
            if 100 * len(keys) > self._settings.leader_imbalance_percentage * prefer[server]:
                chosen += keys
        found = ((key, state.partition(*key)) for key in chosen)
        return [key for key, p in found if p is not None and self._prefers_other(state, key, p, now) is not None]


def _partitions(state: MetadataState) -> Iterator[tuple[TopicPartition, PartitionState]]:
    """Yield every partition of the metadata with its key."""
    for topic in state.topics.values():
        for number, partition in enumerate(topic.partitions):
            yield TopicPartition(topic.topic_id, number), partition


def _may_lead(state: MetadataState, partition: PartitionState, node: NodeId) -> bool:
    """Return whether the server is a live member of the partition's ISR and is not being drained."""
    return node in partition.isr and state.is_live(node) and not state.servers[node].draining


def _needs_other(
    state: MetadataState, partition: PartitionState, ranks: Ranks = ALL_ALIKE
) -> tuple[NodeId, str] | None:
    """Return the server that is to lead in place of the present leader, and the cause: a reassignment whose target is
    in sync and does not contain the leader, or the draining of the leader's server. The server is "" if none in the
    target is live. Return None if the leader may stay, or if no other can lead."""

    def rank(node: NodeId) -> int:
        return ranks.get(node, 0)

    leader, target = partition.leader, partition.target
    if leader is None or partition.paused:
        return None
    if target and leader not in target and all(node in partition.isr for node in target):
        live = [node for node in target if state.is_live(node)]
        fit = [node for node in live if not state.servers[node].draining]
        return min(fit or live, key=rank, default=""), "reassignment"
    if state.servers[leader].draining:
        fit = [node for node in target or partition.replicas if _may_lead(state, partition, node)]
        return (min(fit, key=rank), "draining") if fit else None
    return None
