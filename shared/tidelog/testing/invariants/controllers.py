"""The invariants of the controllers: Raft, and how the metadata may change (R1, R3, R5, R9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog_controller.metadata.application import MetadataState
from tidelog_controller.raft.log import Entry, RaftLog
from tidelog_controller.raft.membership import Configuration, decode_members
from tidelog_controller.rescue import replay

from tidelog.sansio.effects import Send
from tidelog.testing.invariants.ghost import Checks
from tidelog.types import PartitionState, TopicPartition
from tidelog.wire.messages import AppendResult, Vote

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster
    from tidelog.testing.processes.controller import RaftStore
    from tidelog.testing.processes.process import SimProcess


class ControllerInvariants(Checks):
    """The checks of the controllers, and the newest metadata that any of them has applied."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.metadata = MetadataState(cluster.name)
        """The newest metadata that any controller has applied."""
        self.commit_rules: dict[str, str] = {}
        """The commit rule by topic id, also of deleted topics: a server may still act on older metadata."""
        self.unclean: dict[TopicPartition, list[int]] = {}
        """The leader epochs that unclean elections began, by partition."""
        self.given_up: set[tuple[str, TopicPartition]] = set()
        """The copies (server, partition) that were no replica or learner for a while: the server may have deleted
        them."""
        self.lost_copies: set[tuple[str, TopicPartition]] = set()
        """The copies that a server reported as damaged, so that nothing relies on them: the server may cut or replace
        such a copy until it has opened it again."""
        self.settled_tails: set[tuple[str, TopicPartition]] = set()
        """The copies whose doubtful tail the controllers have settled: until the server has opened such a copy again
        it may cut records that no other replica has."""
        self._states: dict[int, MetadataState] = {}
        self._raft_leaders: dict[int, str] = {}
        self._raft_start = 0
        """The index of the last entry before those of ``_raft_committed``."""
        self._raft_committed: list[tuple[Entry, int]] = []
        """Each committed entry, with the term in which it was committed."""
        self._raft_seen: dict[str, tuple[int, int, int]] = {}
        self._votes: dict[tuple[str, int], str] = {}
        """The candidate that each store voted for, by store and term."""
        self.members = Configuration()
        """The newest committed configuration of the Raft group."""

    def _check_controller(self, process: SimProcess) -> list[TopicPartition]:
        """Check a controller after a step: one leader per term, no step back, equal committed entries, equal state.
        Returns the partitions that its new state changed, [] if none."""
        core = process.core
        raft, name = core.metadata_log.raft, process.name
        seen = (raft.term, raft.commit_index, core.state.index)
        before = self._raft_seen.get(name, (0, 0, 0))
        if raft.role == "leader":
            first = self._raft_leaders.get(raft.term)
            if first is None:
                self._raft_leaders[raft.term] = name
                self.cluster.count("controller elections")
                self._check_leader_completeness(name, raft)
                self._demand(raft.is_voter, f"RAFT {name} leads term {raft.term} without a vote in {raft.members}")
                self._check_founded(name, raft)
                self._happened("active", process)
            else:
                self._demand(first == name, f"RAFT {name} leads term {raft.term}, after {first}")
        if seen == before:
            return []
        self._raft_seen[name] = seen
        back = any(now < then for now, then in zip(seen, before, strict=True))
        self._demand(not back, f"RAFT {name}: term, commit, applied went from {before} to {seen}")
        self._check_committed_entries(name, raft, before[1])
        self._check_compaction(name, raft)
        if not self.members.all and raft.log.base.index == 0:
            self.members = raft.log.base.members
        return self._check_state(process, core.state) if core.state.index > before[2] else []

    def _check_founded(self, name: str, raft: Any) -> None:
        """Check that a majority of the voters, with this leader, has a configuration on disk, so that any majority
        that survives the leader can elect another one."""
        voters = [voter.node for voter in raft.members.voters]
        stores = {node: self.cluster.controller(node).store.stored for node in voters if node != name}
        founded = [node for node, stored in stores.items() if RaftLog(stored.entries, stored.base).members.all]
        text = f"RAFT {name} leads term {raft.term}, and of the other voters only {founded} have a configuration"
        self._demand(len(founded) + 1 >= raft.members.majority, text)

    def _check_leader_completeness(self, name: str, raft: Any) -> None:
        """Check that a new leader has all entries committed in earlier terms (not in later ones: its votes may have
        come late)."""
        earlier = [entry for entry, term in self._raft_committed if term < raft.term]
        end = self._raft_start + len(earlier)
        here = list(raft.log.slice(self._raft_start + 1, end))
        gone = max(0, raft.log.base.index - self._raft_start)
        same = max(raft.log.base.index, self._raft_start) + len(here) >= end and here == earlier[gone:]
        self._demand(same, f"RAFT {name} leads term {raft.term} without the {len(earlier)} entries committed before")

    def _check_committed_entries(self, name: str, raft: Any, before: int) -> None:
        """Check that the entries that this controller committed are the same as those of all others, and without
        gaps."""
        start = self._raft_start
        for entry in raft.log.slice(max(before, start) + 1, raft.commit_index):
            end = start + len(self._raft_committed)
            if entry.index > end:
                self._demand(entry.index == end + 1, f"RAFT nobody saw what is before {entry}")
                self._raft_committed.append((entry, raft.term))
                if entry.is_members:
                    self._check_change(decode_members(entry.data))
            same = self._raft_committed[entry.index - start - 1][0] == entry
            self._demand(same, f"RAFT {name} committed another entry {entry.index}")

    def on_restore(self, store: RaftStore) -> None:
        """Start again from the content of one store, while all controllers are down: all of it counts as committed,
        and nothing else ever was."""
        log = RaftLog(store.stored.entries, store.stored.base)
        self._raft_start = log.base.index
        self._raft_committed = [(entry, entry.term) for entry in store.stored.entries]
        self._raft_leaders.clear()
        self._states.clear()
        self._votes.clear()
        self.metadata, self.members = replay(store.stored, self.cluster.name).metadata, log.members
        self.commit_rules |= {id: topic.config.commit_rule for id, topic in self.metadata.topics.items()}

    def on_rescue(self, store: RaftStore) -> None:
        """Continue with one controller alone: everything in its store counts as committed, and nothing else. Check
        that every number that must not be given twice is beyond those given before (R5)."""
        before = self.metadata
        self.on_restore(store)
        after = self.metadata
        self._demand(after.index > before.index, f"R5 the index goes from {before.index} to {after.index}")
        ids = before.next_producer_id, after.next_producer_id
        self._demand(ids[1] > ids[0], f"R5 the next producer id goes from {ids[0]} to {ids[1]}")
        for node, server in after.servers.items():
            was = before.servers.get(node)
            again = was is not None and was.broker_epoch >= server.broker_epoch
            self._demand(not again, f"R5 the broker epoch of {node} goes back to {server.broker_epoch}")
        for topic_id, topic in after.topics.items():
            for number, now in enumerate(topic.partitions):
                then = before.partition(topic_id, number)
                if then is not None:
                    far = now.epoch > then.epoch and now.leader_epoch > then.leader_epoch
                    text = f"{(then.epoch, then.leader_epoch)} to {(now.epoch, now.leader_epoch)}"
                    self._demand(far, f"R5 {topic.name}/{number}: epoch and leader epoch go from {text}")

    def _check_change(self, members: Configuration) -> None:
        """Check that the Raft group changed by at most one voter, so that any two majorities overlap."""
        old, new = set(self.members.voters), set(members.voters)
        names = {(voter.node, voter.store) for voter in old} ^ {(voter.node, voter.store) for voter in new}
        self._demand(len(names) <= 1, f"RAFT the group went from {self.members} to {members} at once")
        self.members = members
        self.cluster.count("group changes")

    def _check_compaction(self, name: str, raft: Any) -> None:
        """Check that a snapshot covers the compacted entries, and that the remaining ones are bounded: a few behind
        the snapshot, and those since it until the next snapshot is asked for."""
        base, snapshot = raft.log.base.index, raft.snapshots.newest
        covered = base == 0 or (snapshot is not None and base <= snapshot.index <= raft.commit_index)
        self._demand(
            covered, f"RAFT {name} has compacted up to {base}, its snapshot is {snapshot and snapshot.index}"
        )
        most = raft.settings.snapshot_threshold
        behind = 0 if snapshot is None else snapshot.index - base
        self._demand(behind <= most // 2, f"RAFT {name} keeps {behind} entries behind its snapshot")
        since = raft.commit_index - raft.snapshots.asked_index  # however many became committed at once
        founded = raft.log.members_at(raft.commit_index).all
        text = f"RAFT {name} has committed {since} entries since it asked for a snapshot"
        self._demand(since < most or not founded, text)

    def _check_state(self, process: SimProcess, state: MetadataState) -> list[TopicPartition]:
        """Check that the state equals that of other controllers at the same index, and take it as the newest
        metadata. Returns the partitions that it changed."""
        known = self._states.get(state.index)
        if known is not None:
            same = known == state
            self._demand(same, f"RAFT {process.name} holds another state at index {state.index}")
        else:
            self._states[state.index] = state
        if state.index <= self.metadata.index:
            return []
        before, self.metadata = self.metadata, state
        return self._check_transition(process, before, state)

    def _check_transition(
        self, process: SimProcess, before: MetadataState, after: MetadataState
    ) -> list[TopicPartition]:
        """Check the changes between two states, with one or several commands between them, and report topics and
        events to the cluster. Returns the changed partitions."""
        partitions: list[TopicPartition] = []
        for topic_id, topic in before.topics.items():
            if topic_id not in after.topics:
                self.cluster.on_topic_deleted(topic)
        for topic_id, topic in after.topics.items():
            if topic_id not in before.topics:
                self.commit_rules[topic_id] = topic.config.commit_rule
                self.cluster.on_topic(topic)
        for topic_id, topic in after.topics.items():
            old = before.topics.get(topic_id)
            if old is topic:
                continue
            if old is not None and len(old.partitions) < len(topic.partitions):
                self.cluster.on_topic_grown(topic, len(old.partitions))
            for number, now in enumerate(topic.partitions):
                key = TopicPartition(topic_id, number)
                where = f"{topic.name}/{number} at index {after.index}"
                self._check_members_named(where, now)
                if now.leader is not None:
                    self._demand(after.is_live(now.leader), f"R9 {where}: the leader {now.leader} is fenced")
                if old is None or number >= len(old.partitions) or old.partitions[number] == now:
                    continue
                was = old.partitions[number]
                copies = now.replicas + now.learners
                gone = [n for n in was.replicas + was.learners + now.departed if n not in copies]
                self.given_up.update((node, key) for node in gone)
                self._note_lost_copies(key, was, after)
                self._demand(now.epoch > was.epoch, f"R5 {where}: changed within epoch {now.epoch}")
                self._demand(now.leader_epoch >= was.leader_epoch, f"R5 {where}: leader epoch went back")
                changed = now.leader != was.leader
                self._demand(
                    not changed or now.leader_epoch > was.leader_epoch, f"R1 {where}: another leader in one epoch"
                )
                if not now.isr and was.isr and not was.sealing:
                    self._check_nobody_left(where, key, was, before, after)
                if now.unclean_epoch > was.unclean_epoch:
                    self.cluster.count("unclean elections")
                    self.unclean.setdefault(key, []).append(now.unclean_epoch)
                    self._demand(
                        topic.config.unclean_election, f"R3 {where}: an unclean election that nobody allowed"
                    )
                self._check_restarts(where, key, before, after)
                self.cluster.count("isr changes" if now.isr != was.isr else "leader changes")
                self._happened("isr" if now.isr != was.isr else "fenced", process)
                partitions.append(key)
        return partitions

    def _note_lost_copies(self, key: TopicPartition, was: PartitionState, after: MetadataState) -> None:
        """Remember the copies that the new history entries of a partition call lost or settled."""
        for entry in after.history[key.topic_id][key.partition]:
            causes = (entry.cause, entry.evidence.get("trigger"))
            if entry.epoch > was.epoch and ("data_lost" in causes or "tail_given_up" in causes):
                self.cluster.count("copies said to be lost")
                self.lost_copies.add((entry.evidence["node"], key))
            elif entry.epoch > was.epoch and entry.cause == "tail_settled":
                self.settled_tails.add((entry.evidence["node"], key))

    def _check_members_named(self, where: str, now: PartitionState) -> None:
        """Check that ISR and ELR are disjoint sets of replicas, and the leader and a successor are in the ISR."""
        isr, elr, replicas = set(now.isr), set(now.elr), set(now.replicas)
        sound = isr <= replicas and elr <= replicas and not isr & elr
        sound &= now.leader is None or now.leader in isr
        sound &= now.successor is None or (now.successor in isr and now.leader is not None)
        sound &= bool(now.target) == bool(now.origin) and not replicas & set(now.learners)
        self._demand(sound, f"R3 {where}: leader {now.leader}, ISR {now.isr}, ELR {now.elr}, of {now.replicas}")

    def _check_nobody_left(
        self, where: str, key: TopicPartition, was: PartitionState, before: MetadataState, after: MetadataState
    ) -> None:
        """Check that the last member leaves the ISR only if it may have lost data: it registered an incarnation after
        a power loss under a flush policy that does not outlast one, or with a new disk. Members that left before it,
        in commands of their own, may have lost nothing: the partition's history shows which."""
        self.cluster.count("partitions without members")
        flush = after.topics[key.topic_id].config.flush
        last = was.isr
        for entry in after.history[key.topic_id][key.partition]:
            if entry.epoch > was.epoch and entry.isr:
                last = entry.isr
        for node in last:
            renewed = before.servers[node].broker_epoch != after.servers[node].broker_epoch
            lost = self.cluster.replica(node).lost
            unsafe = lost == "disk" or (lost == "power" and flush != "fsync")
            self._demand(not renewed or unsafe, f"R3 {where}: {node} left as the last, and lost nothing")

    def _check_restarts(self, where: str, key: TopicPartition, before: MetadataState, after: MetadataState) -> None:
        """Check that a new incarnation of a leader leads only in a new leader epoch (R9)."""
        was, now = before.partition(*key), after.partition(*key)
        assert was is not None and now is not None
        for node, server in after.servers.items():
            old = before.servers.get(node)
            if old is not None and old.broker_epoch != server.broker_epoch and was.leader == node:
                renewed = now.leader_epoch > was.leader_epoch
                self._demand(renewed, f"R9 {where}: {node} registered anew and its leader epoch goes on")

    def on_send(self, process: SimProcess, effect: Send) -> None:
        """Check that what a controller is about to send (a vote, an acknowledgement) is durable."""
        message, stored = effect.message, process.store.stored  # type: ignore[attr-defined]
        if isinstance(message, AppendResult) and message.ok:
            last = stored.base.index + len(stored.entries)
            kept = last >= message.match and stored.term >= message.term
            self._demand(kept, f"RAFT {process.name} confirms {message.match}, stored {last}")
        if isinstance(message, Vote) and message.granted and not message.pre:
            voted = (stored.term, stored.voted_for) == (message.term, effect.to)
            first = self._votes.setdefault((stored.store, message.term), effect.to)
            self._demand(
                first == effect.to, f"RAFT {stored.store} votes for {first} and {effect.to} in {message.term}"
            )
            self._demand(voted, f"RAFT {process.name} votes for {effect.to} in {message.term}, stored {stored.term}")
