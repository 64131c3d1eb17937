"""The invariants R1-R13 of replication, checked after every step of every process.

A *ghost* of the system is kept beside it: each log as a chain of hashes (one per batch, over the batch and all before
it, so that two logs agree up to a batch if and only if that hash is equal), what leaders had committed, and the
metadata at the highest index that any controller has applied. A step costs what it changed: a log that grew is read
from where it ended.

``INVARIANTS`` lists what each of them demands and which modules keep it; ``docs/invariants.md`` is made from it. R11
(progress) is demanded by ``Cluster.run`` and not after every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from tidelog.batch.format import NO_CHAIN, BatchHeader, chain_after, split, with_sent_crc
from tidelog.feature_levels import DOUBTFUL_TAILS
from tidelog.testing.invariants.deep import STRIDE
from tidelog.testing.invariants.ghost import Before, Chain, Digest, Held, sequence_of
from tidelog.testing.invariants.members import Members
from tidelog.testing.invariants.views import View, glances, last_words
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster
    from tidelog.testing.processes.process import SimProcess


@dataclass(frozen=True, slots=True)
class Invariant:
    """One row of ``INVARIANTS``."""

    title: str
    sentence: str
    kept_by: tuple[str, ...]
    """The modules of the product that keep the invariant."""


INVARIANTS = {
    "R1": Invariant(
        "One leader",
        "At most one replica appends in a leader epoch.",
        ("tidelog_controller.metadata.rules.leader_election", "tidelog_replica.partition.partition"),
    ),
    "R2": Invariant(
        "Log matching",
        "The same (leader epoch, offset) names the same bytes and the same prefix on every replica.",
        (
            "tidelog_replica.replication.leader_epochs",
            "tidelog_replica.replication.follower_state",
            "tidelog_replica.storage.log",
        ),
    ),
    "R3": Invariant(
        "Leader completeness",
        "A new leader, and every live member of ISR and ELR, holds everything committed (with commit rule quorum:"
        " every majority that can elect has a replica that does).",
        (
            "tidelog_controller.metadata.rules.leader_election",
            "tidelog_controller.metadata.application",
            "tidelog_replica.replication.leader_state",
        ),
    ),
    "R4": Invariant(
        "Durability",
        "What is committed or acknowledged with acks=all is durable on every live ISR member, and recovery keeps"
        " what was flushed.",
        (
            "tidelog_replica.replication.leader_state",
            "tidelog_replica.storage.log",
            "tidelog_replica.storage.recovery.recovery",
        ),
    ),
    "R5": Invariant(
        "Monotonic",
        "Epochs, high watermarks and last stable offsets never go back, and offsets have no gaps.",
        (
            "tidelog_controller.metadata.rules.leader_election",
            "tidelog_replica.replication.leader_state",
            "tidelog_replica.storage.checkpoints",
        ),
    ),
    "R6": Invariant(
        "Fencing",
        "A follower takes only what the leader of its leader epoch has.",
        (
            "tidelog_replica.replication.follower_state",
            "tidelog_replica.partition.leader_replica",
            "tidelog_replica.partition.partition",
        ),
    ),
    "R7": Invariant(
        "Visibility",
        "A reader sees only what is committed, and keeps its position.",
        ("tidelog_replica.replication.transaction_index", "tidelog_replica.partition.pending_reads"),
    ),
    "R8": Invariant(
        "Quorum superset",
        "A leader's maximal ISR contains the controller's ISR.",
        (
            "tidelog_controller.metadata.application",
            "tidelog_replica.replication.leader_state",
            "tidelog_replica.replication.isr",
        ),
    ),
    "R9": Invariant(
        "Unclean exclusion",
        "A replica server that registers anew is in no ISR beside others, and resumes no leader epoch.",
        (
            "tidelog_controller.metadata.rules.leader_election",
            "tidelog_controller.metadata.application",
            "tidelog_replica.registration.incarnations",
        ),
    ),
    "R10": Invariant(
        "Exactly once",
        "A producer's sequence is in a log at most once.",
        ("tidelog_replica.replication.producer_state", "tidelog_replica.storage.producer_snapshots"),
    ),
    "R11": Invariant(
        "Progress",
        "When the faults are over, all replicas are soon in sync and the same, and every partition takes records.",
        (
            "tidelog_replica.partition.follower_replica",
            "tidelog_replica.replication.idle_followers",
            "tidelog_replica.assignment.controller_reports",
        ),
    ),
    "R12": Invariant(
        "Confirmed leadership",
        "No leadership is confirmed as of a time at which a newer leader had begun.",
        ("tidelog_replica.replication.leadership_confirmation", "tidelog_replica.assignment.leadership"),
    ),
    "R13": Invariant(
        "Reported losses",
        "A replica that cuts what was committed reports it to the controllers, whatever happens to it in between.",
        ("tidelog_replica.storage.recovery.pending_losses", "tidelog_replica.assignment.controller_reports"),
    ),
    "RAFT": Invariant(
        "Raft",
        "One leader per term, log matching, leader completeness, entries durable before they are acknowledged, and"
        " equal state at an equal index.",
        (
            "tidelog_controller.raft.raft",
            "tidelog_controller.storage",
        ),
    ),
}
"""The invariants by id. The text of a violation begins with the id; so do names of tests, ``test_R5_…``."""


class Invariants(Members):
    """The ghost of one run and all its checks. Every failed check is a ``Violation``."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._held, self._before_crash = {}, {}
        self._leaders, self._lost_at_opening = {}, {}
        self._led: dict[tuple[TopicPartition, int], dict[int, Digest]] = {}
        """The prefixes in the log of the leader of a leader epoch: digests by end offset."""
        self._begun: dict[TopicPartition, dict[int, float]] = {}
        """The virtual time at which the leader of each leader epoch began, by partition."""
        self._batches = {}
        self._committed = {}
        self._chains, self._producers, self.may_forget = {}, {}, set()

    def committed_end(self, key: TopicPartition) -> int:
        """Return the offset below which everything was committed by some leader."""
        return self._of(key).end

    # --- entry points ------------------------------------------------------------------------------------

    def after_step(self, process: SimProcess, effects: Sequence[Any]) -> None:
        """Check a process after an input, before its effects are performed, and report the events of the step to the
        faults."""
        if process.name in self.cluster.replicas:
            self._check_replica(process)
        else:
            for key in self._check_controller(process):
                self._check_members(key, f"with index {self.metadata.index}")
        self._trigger_faults()

    def on_stop(self, process: SimProcess, in_mid_step: bool, power: bool) -> None:
        """Remember what must be there when a process that stops returns: everything that it had flushed. A step that
        was interrupted, or came after a disk error, may have cut uncommitted records. After a power loss under
        ``flush=os`` only a prefix of the log is demanded."""
        self._raft_seen.pop(process.name, None)
        healthy = [key for key, _ in glances(process.core)] if process.name in self.cluster.replicas else []
        for name, key in [found for found in self._held if found[0] == process.name]:
            held = self._held.pop((name, key))
            kept = held.durable
            if in_mid_step or key not in healthy:
                kept = min(kept, self._common_end(key, held.chain))
            self._before_crash[name, key] = Before(held.chain, held.durable, kept)
        for (name, key), before in self._before_crash.items():
            topic = self.metadata.topics.get(key.topic_id)
            lazy = power and topic is not None and topic.config.flush == "os"
            if name == process.name and lazy:
                before.kept = 0

    def on_disk_changed(self, process: SimProcess) -> None:
        """Forget the logs of a server that got another disk."""
        for found in [found for found in self._before_crash if found[0] == process.name]:
            del self._before_crash[found]

    def _common_end(self, key: TopicPartition, chain: Chain, limit: int = 1 << 62) -> int:
        """Return the offset, at most ``limit``, up to which a log is what was committed: no step may cut below it. An
        empty log that begins later holds what is committed up to its start."""
        committed = self._of(key).at
        based = committed.get(chain.base) == chain.base_digest
        ends = (end for end in reversed(chain.ends) if end <= limit and committed.get(end) == chain.at[end])
        return next(ends, chain.base if based else 0)

    # --- replica servers ---------------------------------------------------------------------------------

    def _check_replica(self, process: SimProcess) -> None:
        """Check all partitions of a server that the last step changed."""
        name, every = process.name, self._held
        for (node, key), held in every.items():
            if node == name and held.view is not None and held.view.leads:
                self._check_last_words(name, key, held, held.view)
        for key, seen in glances(process.core):
            if seen[4]:
                self._check_confirmed(process, key, seen[5])
            known = every.get((name, key))
            if known is not None and known.view == seen:
                continue
            view = View._make(seen)
            held = known if known is not None and known.log is view.log else self._opened(process, key, view)
            if held.view != view:
                self._check_partition(process, key, view, held)
                held.view, held.durable = view, view.durable
                held.changes += 1
                if held.changes % STRIDE == 1:
                    self._check_deep(name, key, process.core.partitions[key], held.chain)
                    self._check_waiting(name, process.core)

    def _check_confirmed(self, process: SimProcess, key: TopicPartition, leader_epoch: int) -> None:
        """Check that no newer leader had begun at the time for which a leader is confirmed (R12). If an unclean
        election happened that this leader's settings do not allow yet, only a leader that is last in sync must keep
        this."""
        begun, partition = self._begun.get(key), process.core.partitions[key]
        if begun is None or max(begun) <= leader_epoch:
            return
        unclean = max(self.unclean.get(key, ()), default=-1) > leader_epoch
        core = partition.leading.core
        unheard = unclean and not partition.config.unclean_election and self._may_be_unclean(key)
        if unheard and core.needs_voters:
            return
        newer = min(at for epoch, at in begun.items() if epoch > leader_epoch)
        who = f"R12 {process.name} {key.partition}: the leader of {leader_epoch}"
        self.cluster.count("steps of deposed leaders")
        self._demand(unheard or core.needs_voters, f"{who} needs nobody's word, and another has led since {newer}")
        confirmed = core._confirmed_since()
        self._demand(confirmed <= newer, f"{who} is confirmed as of {confirmed}, and another has led since {newer}")

    def _may_be_unclean(self, key: TopicPartition) -> bool:
        topic = self.metadata.topics.get(key.topic_id)
        return topic is not None and topic.config.unclean_election

    def _check_last_words(self, name: str, key: TopicPartition, held: Held, before: View) -> None:
        """Count what a leader committed in the step in which it failed: it may have acked it."""
        view = last_words(held.partition, before)
        if view is not None:
            held.view = view._replace(leads=False)
            if view.high_watermark > before.high_watermark:
                self._lead(name, key, view, held.chain, before.high_watermark)

    def _opened(self, process: SimProcess, key: TopicPartition, view: View) -> Held:
        """Check a log that was just opened: it is a prefix of what was there, with everything flushed (R4).
        Exceptions: the copy was reported as damaged before anything of it went, or nothing relied on it; and a rotten
        tail that no other replica has may be cut down to what is committed. A leader may have appended the first
        batch of its epoch already."""
        log = view.log
        stored_hw, chain = log.read_high_watermark(), self._chain_from(process.name, key, log)
        held = Held(chain, log, log.epochs, process.core.partitions[key], stored_hw=stored_hw)
        self._held[process.name, key] = held
        self._grow(process.name, key, log, held.chain)
        before = self._before_crash.pop((process.name, key), None)
        lost = (process.name, key) in self.lost_copies
        self.lost_copies.discard((process.name, key))
        settled = (process.name, key) in self.settled_tails and self.cluster.replica(process.name).disk.rots
        self.settled_tails.discard((process.name, key))
        if before is not None and (process.name, key) not in self.given_up:
            chain, kept = before.chain, 0 if lost or self._cut_unnoticed(process, key) else before.kept
            if settled:
                kept = min(kept, self._common_end(key, chain))
            text = f"R4 {process.name} {key}: recovered to {log.end}"
            end, last = held.chain.before_control(view.leader_epoch)
            found = end if view.leads else log.end
            if found < kept and self._asked_nobody(process, key):
                kept = 0
            self._demand(found >= kept, f"{text}, but {kept} was durable")
            shorter = chain.agrees(log.end, held.chain.last) or (end >= kept and chain.agrees(end, last))
            longer = held.chain.agrees(chain.end, chain.last)  # by what its last step wrote
            filled = self._shared_end(chain, held.chain) >= kept  # a torn end, by what other replicas held
            self._demand(shorter or longer or filled, f"{text}, which is not what was appended")
        return held

    @staticmethod
    def _shared_end(one: Chain, other: Chain) -> int:
        """Return the end offset up to which two chains are equal."""
        return next((end for end in reversed(one.ends) if other.at.get(end) == one.at[end]), one.base)

    def _cut_unnoticed(self, process: SimProcess, key: TopicPartition) -> bool:
        """Return whether a copy outside of ISR and ELR may have a flipped bit: its last batch then passes for a torn
        write."""
        state = self.metadata.partition(*key)
        member = state is not None and process.name in state.isr + state.elr
        return self.cluster.replica(process.name).disk.rots and not member

    def _asked_nobody(self, process: SimProcess, key: TopicPartition) -> bool:
        """Return whether a copy may have a flipped bit and could ask no other one, because it is alone in ISR and ELR
        or the feature level does not allow it. What it cuts counts as lost then, as by an unclean election that
        begins the leader epoch in which it leads."""
        state = self.metadata.partition(*key)
        if state is None:
            return False
        alone = state.isr + state.elr == (process.name,)
        if not alone and process.core._assignment.image.level >= DOUBTFUL_TAILS:
            return False
        if self.cluster.replica(process.name).disk.rots:
            self.cluster.count("tails of the only member cut" if alone else "tails cut below the feature level")
            epoch = state.leader_epoch + (state.leader != process.name)
            self.unclean.setdefault(key, []).append(epoch)
            self._lost_at_opening.setdefault(key, set()).add(process.name)
        return self.cluster.replica(process.name).disk.rots

    def _chain_from(self, name: str, key: TopicPartition, log: Any) -> Chain:
        """Return an empty chain from the log start on. Checks that the log start is at the edge of a committed
        batch."""
        committed = self._of(key)
        if log.start > committed.start:
            committed.start = log.start
            self.cluster.count("log starts moved")
        digest = committed.before.get((log.epoch_at(log.start), log.start), b"")
        sound = log.start == 0 or bool(digest)
        self._demand(
            sound, f"R3 {name} {key.partition}: the log begins at {log.start}, not at an edge of what is committed"
        )
        return Chain(base=log.start, base_digest=digest)

    def _check_partition(self, process: SimProcess, key: TopicPartition, view: View, held: Held) -> None:
        """Check a partition that changed: cuts and losses, no step back, its role, its new batches and what it takes
        for committed."""
        name, log, chain, before = process.name, view.log, held.chain, held.view
        who = f"{name} {key.partition}"
        hw_digest = chain.at.get(before.high_watermark, chain.base_digest) if before is not None else None
        if log.epochs is not held.epochs or log.start > chain.end:  # overtaken by retention, or on a lost line
            self.cluster.count("copies started over")
            former = before.start if before is not None else 0
            self._check_reported(who, key, log, chain, max(former, log.start))
            chain, held.epochs = self._chain_from(name, key, log), log.epochs
            held.chain = chain
        elif log.start > self._of(key).start:
            self._chain_from(name, key, log)
        if log.end < chain.end:
            self.cluster.count("truncations")
            self.cluster.count("records truncated", chain.end - log.end)
            self._happened("truncated", process)
            self._check_reported(who, key, log, chain, log.end)
            chain.cut(log.end)
            self._demand(chain.end == log.end, f"R5 {who}: cut to {log.end}, not at a batch edge")
        if not (view.start <= view.high_watermark <= view.end and view.durable <= view.end):
            self._fail(f"R5 {who}: start {log.start}, HW {view.high_watermark}, durable {log.durable}, end {log.end}")
        if before is not None:
            if view.high_watermark < before.high_watermark:
                excused = hw_digest in self._of(key).lost or self._leads_anew_alone(key, view, before)
                text = f"R5 {who}: HW went from {before.high_watermark} to {view.high_watermark}"
                self._demand(excused, text)
            if 0 <= view.leader_epoch < before.leader_epoch:
                self._fail(f"R5 {who}: leader epoch went back")
        self._check_stable(who, held, view)
        if view.leads and (before is None or not before.leads or before.leader_epoch != view.leader_epoch):
            self._became_leader(process, key, view, chain)
        if log.end > chain.end:
            self._grew(process, key, view, chain)
        if view.leads:
            known_hw = held.stored_hw if before is None else before.high_watermark
            if view.high_watermark > known_hw and process.core.leadership.lapsed_s(self.cluster.loop.now):
                self.cluster.count("commits without a session")
            self._lead(name, key, view, chain, known_hw)
        if before is None:
            self._check_members(key, f"when {name} had opened its log")
        self._check_below_hw(who, key, view, chain)

    def _grow(self, name: str, key: TopicPartition, log: Any, chain: Chain) -> list[BatchHeader]:
        """Read the new batches of a log into its chain and return their headers. Checks that they are contiguous
        (R5), match those of other logs (R2), and repeat no sequence (R10)."""
        new = []
        disk = self.cluster.replica(name).disk
        while chain.end < log.end:
            with disk.watched():
                buffers = log.read(chain.end, 1 << 20)
            for buffer in buffers:
                for stored, batch in split(buffer):
                    header = with_sent_crc(stored, batch)
                    where = f"{name} {key.partition}: batch at {header.base_offset}"
                    if header.base_offset != chain.end:
                        self._fail(f"R5 {where}, expected {chain.end}")
                    if chain.headers and header.leader_epoch < chain.headers[-1].leader_epoch:
                        self._fail(f"R5 {where}: leader epoch goes back")
                    if header.producer_id and not header.is_control and sequence_of(header) in chain.sequences:
                        self._fail(f"R10 {where}: sequence {sequence_of(header)} is there already")
                    digest = self._digest(key, chain, batch)
                    known = self._batches.setdefault((key, header.leader_epoch, header.base_offset), digest)
                    if known != digest:
                        self._fail(f"R2 {where} of epoch {header.leader_epoch} differs from another's")
                    if header.is_control:
                        taken = self.cluster.history.control.setdefault(self.cluster.partition_name(key), set())
                        taken.update(range(header.base_offset, header.end_offset))
                    chain.add(header, digest)
                    new.append(header)
        return new

    def _digest(self, key: TopicPartition, chain: Chain, batch: memoryview) -> Digest:
        """Return the digest of a log up to a batch: of its bytes or, in a compacted topic, of what compaction
        keeps."""
        topic = self.metadata.topics.get(key.topic_id)
        if topic is not None and "compact" in topic.config.cleanup:
            return chain_after(chain.last or NO_CHAIN, batch)
        return blake2b(chain.last + batch, digest_size=12).digest()

    def _became_leader(self, process: SimProcess, key: TopicPartition, view: View, chain: Chain) -> None:
        """Check a new leader: the only one of its epoch (R1), with everything committed (R3) unless the loss is
        allowed."""
        self.cluster.count("elections")
        self._happened("leader", process)
        first = self._leaders.get((key, view.leader_epoch))  # nobody resumes one, not even in the same life
        self._demand(
            first is None,
            f"R1 {process.name} leads {key.partition} in leader epoch {view.leader_epoch}, after {first}",
        )
        self._leaders[key, view.leader_epoch] = (process.name, process.life)
        self._begun.setdefault(key, {})[view.leader_epoch] = self.cluster.loop.now
        committed = self._of(key)
        late = self._newest_leader(key) > view.leader_epoch
        kept = min(committed.end, view.log.durable)  # the rest it has, but may lose yet: it promises nothing of it
        lacks = kept < committed.end or not chain.agrees(committed.end, committed.digest)
        if not late and lacks and self._may_lose(key, view.leader_epoch):
            start = self._common_end(key, chain, kept)
            committed.lose(view.leader_epoch, start)
            self._allow_loss(key, view.leader_epoch, start)
        self._demand(  # one that hears of its election late cannot hold what later epochs committed
            late or chain.agrees(committed.end, committed.digest),
            f"R3 {process.name} leads {key.partition} in leader epoch {view.leader_epoch} without what was committed"
            f" up to {committed.end}; it ends at {chain.end}",
        )
        self._led[key, view.leader_epoch] = dict(chain.at)

    def _grew(self, process: SimProcess, key: TopicPartition, view: View, chain: Chain) -> None:
        """Check the new batches of a log: a leader appends in its epoch, a follower only what its leader has (R6)."""
        new = self._grow(process.name, key, view.log, chain)
        who = f"{process.name} {key.partition}"
        self.cluster.count("batches appended" if view.leads else "batches replicated", len(new))
        if view.leads:
            fresh = all(header.leader_epoch == view.leader_epoch for header in new)
            self._demand(fresh, f"R6 {who}: a leader of epoch {view.leader_epoch} appended in another")
            self._led[key, view.leader_epoch].update(
                (header.end_offset, chain.at[header.end_offset]) for header in new
            )
        else:
            led = self._led.get((key, view.leader_epoch), {})
            if led.get(chain.end) != chain.last:
                text = f"what it took up to {chain.end} is not in the log of the leader of {view.leader_epoch}"
                self._fail(f"R6 {who}: {text}")

    def _lead(self, name: str, key: TopicPartition, view: View, chain: Chain, high_watermark: int) -> None:
        """Take over what a leader has committed beyond ``high_watermark``, its HW before this step, and check the ISR
        (R8) and the quorum (R4). An unclean leader may bring back lost records: it commits nothing by that."""
        state = self.metadata.partition(*key)
        if state is not None and state.leader_epoch == view.leader_epoch:
            missing = [node for node in state.isr if node not in view.maximal_isr]
            if missing:
                self._fail(f"R8 {name} {key.partition}: {missing} in the ISR {state.isr}, not in {view.maximal_isr}")
        committed = self._of(key)
        successor = self._losing_successor(key, view.leader_epoch)
        if successor >= 0:
            self._committed_in_vain(key, view, chain, successor)
            return
        if view.high_watermark <= committed.end:
            return
        if committed.end < chain.base <= view.high_watermark:
            # All that was committed counts as lost, and a leader with a trimmed copy was elected after that. Its
            # log begins at an edge of what was committed once: all below that edge is committed again.
            committed.end, committed.digest = chain.base, chain.base_digest
            committed.at[chain.base] = chain.base_digest
        for header in chain.headers[self._first_above(chain, committed.end) :]:
            if header.end_offset > view.high_watermark:
                break
            committed.at[header.end_offset] = chain.at[header.end_offset]
            committed.before[header.leader_epoch, header.end_offset] = chain.at[header.end_offset]
            committed.end, committed.digest = header.end_offset, chain.at[header.end_offset]
        edge = committed.end == view.high_watermark
        self._demand(edge, f"R5 {name} {key.partition}: HW {view.high_watermark} is not at a batch edge")
        moved = view.high_watermark > high_watermark
        text = f"R4 {name} {key.partition}: committed with fewer than min_insync_replicas"
        self._demand(view.in_quorum or not moved, text)
        self.cluster.count("commits")
        self._check_members(key, f"after {name} committed {committed.end}", view if moved else None)

    def _committed_in_vain(self, key: TopicPartition, view: View, chain: Chain, successor: int) -> None:
        """Count as lost what a leader commits that does not know its successor, as far as the successor does not have
        it. Records that the successor itself committed stay committed."""
        committed = self._of(key)
        for header in chain.headers[self._first_above(chain, self._common_end(key, chain)) :]:
            digest = chain.at[header.end_offset]
            if header.end_offset <= view.high_watermark and digest not in committed.lost:
                committed.before[header.leader_epoch, header.end_offset] = digest
                committed.lost[digest] = successor
                if not committed.covered(header.leader_epoch, header.base_offset):
                    self._allow_loss(key, successor, header.base_offset)

    @staticmethod
    def _first_above(chain: Chain, end: int) -> int:
        """Return the position of the first batch that ends above ``end``."""
        place = len(chain.ends)
        while place > 0 and chain.ends[place - 1] > end:
            place -= 1
        return place

    def _check_below_hw(self, who: str, key: TopicPartition, view: View, chain: Chain) -> None:
        """Check that what a replica takes for committed was committed (R7)."""
        committed, high_watermark = self._of(key), view.high_watermark
        if high_watermark == 0:
            return
        digest = chain.base_digest if high_watermark == chain.base else chain.at.get(high_watermark)
        if digest is None or (digest != committed.at.get(high_watermark) and digest not in committed.lost):
            text = f"HW {high_watermark}, but below it is not what was committed (up to {committed.end})"
            self._fail(f"R7 {who}: {text}")

    # --- the end -----------------------------------------------------------------------------------------

    def in_sync(self, key: TopicPartition) -> bool:
        """Return whether a partition has a leader and a full ISR, and all replicas have equal logs, all committed;
        False while it is being moved."""
        state = self.metadata.partition(*key)
        if state is None or state.leader is None or set(state.isr) != set(state.replicas):
            return False
        if state.target or state.successor is not None:
            return False  # on the move
        leader = self._held.get((state.leader, key))
        if leader is None or leader.view is None or not leader.view.leads:
            return False
        if leader.view.leader_epoch != state.leader_epoch:
            return False
        for node in state.replicas:
            held = self._held.get((node, key))
            if held is None or held.view is None or held.chain.last != leader.chain.last:
                return False
            if held.view.leader_epoch != state.leader_epoch or held.view.high_watermark != leader.chain.end:
                return False
        return True

    def compare_all(self) -> None:
        """Read all logs again and compare them with what the ghost remembers. Reports violations."""
        for (name, key), held in self._held.items():
            if key not in self.cluster.replica(name).core.partitions:
                continue  # deleted
            fresh = self._chain_from(name, key, held.log)
            self._grow(name, key, held.log, fresh)
            kept = held.chain.digests[len(held.chain.digests) - len(fresh.digests) :]
            self._demand(fresh.digests == kept, f"R2 {name} {key}: the log is not what was appended")
            self._check_deep(name, key, self.cluster.replica(name).core.partitions[key], fresh)

    def rows(self, name: str, key: TopicPartition) -> list[tuple[int, bytes]]:
        """Return all records of a log as (offset, value), in order."""
        held, disk = self._held[name, key], self.cluster.replica(name).disk
        rows = []
        offset = held.log.start
        while offset < held.log.end:
            with disk.watched():
                buffers = held.log.read(offset, 1 << 20)
            for buffer in buffers:
                for header, batch in split(buffer):
                    rows += [(place, value or b"") for place, value in self.cluster.rows(batch)]
                    offset = header.end_offset
        return rows
