"""One controller: Raft, the metadata it agrees on, and the decisions of the active one, as one sync state machine.

    request -> refused, or a command -> Raft -> applied -> answer to whoever asked, deltas to all watchers

- Only the active controller (``metadata_log.py``) serves requests; ``Watch`` and ``DescribeQuorum`` are served by
  all.
- A request that changes something is answered when its command is applied, by what the command came to then; a read
  when it is sure that nobody else led when it came.
- Watchers get the whole image once, then every change in commit order. A change is posted before the request that
  made it is answered: who asked and watches over one link never sees its own change missing.
- Sessions, leader reports and seals are volatile (``active/failure_detection.py``); a new active controller grants
  everybody a full session.
- What happens is written to the topic ``__timeline`` (``active/timeline_writer.py``, ``active/timeline_topic.py``),
  what is refused too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

from tidelog.errors import TidelogError, refuse
from tidelog.feature_levels import ALL, POSSIBLE_LOSSES, RANKING, RECOVERY, REQUEST_DIGESTS, Levels
from tidelog.request_names import LONGEST_NAME
from tidelog.sansio.counters import count
from tidelog.sansio.effects import Event, Post
from tidelog.types import (
    GROUPS,
    PRODUCER_IDS_END,
    REPORTED_IDS_END,
    SHARE_IDS,
    SHARES,
    TRANSACTIONS,
    NodeId,
    TopicPartition,
)
from tidelog.wire.messages import (
    AddController,
    AdminRequest,
    AllocateProducerIds,
    AlterIsr,
    AlterLearners,
    AlterTopic,
    ConfirmLeader,
    CreateTopic,
    DeleteTopic,
    DescribeQuorum,
    Done,
    HandOver,
    Heartbeat,
    History,
    HistoryAnswer,
    HistoryEntry,
    Message,
    MetadataUpdate,
    PauseTopic,
    PrepareGroups,
    PrepareTransactions,
    Produced,
    Register,
    Registered,
    RemoveController,
    ReportDoubt,
    ReportLeader,
    ReportLoss,
    RotateTicketKeys,
    Seal,
    SequencedRequest,
    SetReadOnly,
    Watch,
)
from tidelog.wire.metadata_image import encode_image

from tidelog_controller.active.failure_detection import FailureDetection, why_not_reported
from tidelog_controller.active.leader_balancer import LeaderBalancer
from tidelog_controller.active.reassignment_scheduler import ReassignmentScheduler
from tidelog_controller.active.refusal_log import refusal_of
from tidelog_controller.active.server_ranks import ServerRanks
from tidelog_controller.active.slow_servers import SlowServers
from tidelog_controller.active.timeline_topic import Group, TimelineTopic
from tidelog_controller.active.timeline_writer import TimelineWriter
from tidelog_controller.metadata.application import apply
from tidelog_controller.metadata.client_sessions import RequestId, digest_of, fitting
from tidelog_controller.metadata.cluster_events import delta_of, events_of
from tidelog_controller.metadata.commands import (
    AddPartitions,
    ChangeIsr,
    Command,
    ConfirmLeadership,
    FenceServer,
    LeaveParts,
    NoteControllers,
    RankedServer,
    RecordLoss,
    RemoveTopic,
    TakeProducerIds,
)
from tidelog_controller.metadata.rules.access import AccessWish, plan_access
from tidelog_controller.metadata.rules.doubtful_tails import plan_doubt
from tidelog_controller.metadata.rules.feature_level import FeatureWish
from tidelog_controller.metadata.rules.leader_election import is_recovering, ranks_by_server
from tidelog_controller.metadata.rules.owners import bounded_partitions, bounded_topic
from tidelog_controller.metadata.rules.placement import Random
from tidelog_controller.metadata.rules.reassignment import MoveRequest, plan_move
from tidelog_controller.metadata.rules.recovery import awaited, first_free_id, first_of_share
from tidelog_controller.metadata.rules.servers import plan_registration, went_back
from tidelog_controller.metadata.rules.suspension import plan_suspension
from tidelog_controller.metadata.rules.ticket_keys import plan_rotation
from tidelog_controller.metadata.rules.topics import (
    plan_change,
    plan_coordinated,
    plan_learners,
    plan_topic,
    why_internal,
)
from tidelog_controller.metadata.state import Applied, MetadataState
from tidelog_controller.metadata_log import Consensus, ControllerEffect, ControllerSettings, answer_to
from tidelog_controller.raft.effects import Persist
from tidelog_controller.raft.log import Entry, Stored

__all__ = ["Controller", "ControllerEffect", "ControllerSettings", "Entry", "Persist", "Stored"]

MAX_PRODUCER_IDS = 1_000_000
"""Most producer ids that one request may take."""


class Controller(Consensus):
    """A controller as one state machine. ``wall_ms`` is the wall clock in milliseconds; it only goes into the
    histories."""

    def __init__(
        self,
        node_id: NodeId,
        peers: Mapping[NodeId, str],
        cluster: str,
        settings: ControllerSettings,
        stored: Stored,
        rng: Random,
        now: float,
        *,
        join: bool = False,
        levels: Levels = ALL,
    ) -> None:
        """``peers``: the URLs of the controllers that found the cluster, this one included, or with ``join`` of those
        that there are. ``levels``: the feature levels that it understands. ``stored``: what its last life left."""
        super().__init__(node_id, peers, cluster, settings, stored, rng, now, join, levels)
        self.elections = FailureDetection(
            settings.session_timeout_s, settings.broken_link_grace_s, settings.leader_report_window_s
        )
        self.balance = LeaderBalancer(settings.balance)
        balance = settings.balance
        self.turns = ReassignmentScheduler(balance.moves_per_server)
        self.lags = SlowServers(balance.lag_threshold_s, balance.lag_patience_s, balance.leader_min_term_s)
        self.ranking = ServerRanks(settings.session_timeout_s)
        self.scribe = TimelineWriter(settings.timeline)
        self.upkeep = TimelineTopic(settings.timeline, rng)
        self.newer: TidelogError | None = None
        """The refusal of everything, once a replica server has seen newer metadata than there are here."""
        self._group_asker = ""
        """Who asked for the last change of the controllers."""

    # --- inputs ------------------------------------------------------------------------------------------

    def on_request(
        self, source: int, id: int | None, message: Message, now: float, *, wall_ms: int = 0, peer: str = ""
    ) -> list[ControllerEffect]:
        """A request that came over link ``source``, of ``peer``. ``id`` None: nobody waits for the answer."""
        count(self.counts.requests, message.OP)
        if unfit := self.features.why_unfit(source, self.state.level):
            self._watchers.pop(source, None)
            return answer_to(source, id, unfit)
        match message:
            case Watch():
                self._watchers[source] = None
                return [*answer_to(source, id, Done()), self._image_for(source)]
            case DescribeQuorum():
                return answer_to(source, id, self.quorum(now))
        if not self.active:
            return answer_to(source, id, self.not_active(unknown_outcome=False))
        effects = self._on_report(message, now, wall_ms)
        return effects + self._on_active_request(source, id, message, now, wall_ms, peer)

    def _on_active_request(
        self, source: int, id: int | None, message: Message, now: float, wall_ms: int, peer: str
    ) -> list[ControllerEffect]:
        refusal: TidelogError | None
        if self.newer is not None and not isinstance(message, History):
            refusal = self.newer
        elif isinstance(message, Heartbeat | ReportLeader | Seal):
            refusal = self._why_dead(message)
            if refusal is None:
                return self._on_sign_of_life(source, id, message, now, wall_ms)
        elif id is not None and self.waiting >= self.settings.max_pending:
            refusal = refuse("OVERLOADED", f"{self.waiting} requests wait for a majority")
        else:
            done = self._serve(source, id, message, now, wall_ms, peer)
            if not isinstance(done, TidelogError):
                return done
            refusal = done
        self.on_refused(message, refusal, now, wall_ms=wall_ms, peer=peer)
        return answer_to(source, id, refusal)

    def on_refused(
        self, request: Message | Command, error: TidelogError, now: float, *, wall_ms: int, peer: str = ""
    ) -> None:
        """Something was refused, here or on the way here: the timeline tells of it."""
        if self.active:
            count(self.counts.refused, error.code)
            self.scribe.refusals.note(refusal_of(request, error, self.state, wall_ms, peer), self.state, now)

    def _serve(
        self, source: int, id: int | None, message: Message, now: float, wall_ms: int, peer: str
    ) -> list[ControllerEffect] | TidelogError:
        """Begin what is asked for; or why not. The very same request that was answered before is answered again."""
        if isinstance(message, AddController | RemoveController):
            if isinstance(message, AddController):
                index, effects = self.raft.add_member(message.node, message.url, now)
            else:
                index, effects = self.raft.remove_member(message.node, now)
            if isinstance(index, TidelogError):
                return index
            self._group_asker = message.asker
            return self._change_group(index, effects, source, id, now)
        if isinstance(message, History | ConfirmLeader):
            return [] if id is None else self._begin_read(source, id, message, now, wall_ms, peer)
        request = self._request_id(message)
        if isinstance(request, TidelogError):
            return request
        known = None if request is None else self.replicated.once.find(request)
        if known is not None:
            return answer_to(source, id, fitting(known, message.ANSWER))
        command = self._command(message, now, wall_ms)
        if isinstance(command, TidelogError):
            return command
        if not isinstance(command, Command):
            return answer_to(source, id, command)
        if isinstance(message, AdminRequest) and message.asker:
            command = replace(command, asker=message.asker)
        return self._propose(command, now, source, id, request, message.ANSWER)

    def _request_id(self, message: Message) -> RequestId | TidelogError | None:
        """Under which name a request is to be done once; None: it has none. Or why it is refused."""
        if not isinstance(message, SequencedRequest) or not message.client or not message.sequence:
            return None
        if len(message.client.encode()) > LONGEST_NAME:
            return refuse("MALFORMED", f"a client's name has at most {LONGEST_NAME} bytes")
        digest = digest_of(message) if self.state.level >= REQUEST_DIGESTS else b""
        return RequestId(message.client, message.sequence, digest)

    def on_link_closed(self, source: int, now: float) -> list[ControllerEffect]:
        """Nobody watches or waits on that link any more. What was proposed may still be applied. A server that
        heartbeats over it must soon do so over another."""
        self.elections.on_link_closed(source, now)
        self.features.on_link_closed(source)
        self._watchers.pop(source, None)
        self._pending = {index: p for index, p in self._pending.items() if p.source != source}
        self._reads = {token: r for token, r in self._reads.items() if r.source != source}
        return []

    def on_tick(self, now: float, *, wall_ms: int = 0) -> list[ControllerEffect]:
        """Time has passed. Afterwards ``deadline()`` is None or later than ``now``."""
        effects = self._absorb(self.founding.on_tick(now), now)
        effects += self._absorb(self.raft.on_tick(now), now)
        effects += self._give_up(now)
        if self.active and self.newer is None:
            for fence in self.elections.expired(self.state, now, wall_ms):
                effects += self._propose(replace(fence, ranks=self._ranks(now)), now)
            ranks = ranks_by_server(self._ranks(now))
            for transfer in self.balance.due(self.state, now, wall_ms, self.lags.slow(now), ranks):
                effects += self._propose(transfer, now)
            for move in self.turns.due(self.state, now, wall_ms):
                effects += self._propose(move, now)
            for command in self.upkeep.due(self.state, self.scribe.confirmed, self._group, now, wall_ms):
                if isinstance(command, NoteControllers):
                    command, self._group_asker = replace(command, asker=self._group_asker), ""
                effects += self._propose(command, now)
            if self.settings.timeline.replication_factor:
                effects += self.scribe.act(self.state, now, wall_ms)
        deadline = self.deadline()
        assert deadline is None or deadline > now, (deadline, now)
        return effects

    def deadline(self) -> float | None:
        """When ``on_tick`` has something to do."""
        deadlines = [self.founding.deadline(), self.raft.deadline(), self._waiting_until()]
        if self.active and self.newer is None:
            deadlines += [self.elections.deadline(self.state), self.balance.deadline(), self.turns.deadline()]
            if self.settings.timeline.replication_factor:
                deadlines += [self.upkeep.deadline(self.scribe.confirmed, self._group)]
                deadlines += [self.scribe.deadline(self.state)]
        due = min((d for d in deadlines if d is not None), default=None)
        return None if due == math.inf else due

    # --- the timeline ------------------------------------------------------------------------------------

    @property
    def _group(self) -> Group:
        return Group(self.node_id, self.raft.term, self.raft.members.all)

    def on_server_answer(self, token: int, answer: Message | Exception, now: float) -> list[ControllerEffect]:
        """The answer to a ``Call``, or why there is none."""
        self.scribe.on_answer(token, answer, self.state, now)
        return []

    def on_server_message(self, node: NodeId, message: Message, now: float) -> list[ControllerEffect]:
        """A replica server sent something by itself."""
        if isinstance(message, Produced):
            self.scribe.on_produced(message, now)
        return []

    def on_server_down(self, node: NodeId, now: float) -> list[ControllerEffect]:
        """There is no link to this replica server, or none any more."""
        self.scribe.on_server_down(node, now)
        return []

    # --- requests ----------------------------------------------------------------------------------------

    def _command(self, message: Message, now: float, wall_ms: int) -> Command | Message | TidelogError:
        """The command that a request asks for, as far as the present state lets it; the log has the last word. Or the
        answer, where nothing is to be changed."""
        refusal = why_internal(message)
        if refusal is not None:
            return refusal
        if isinstance(message, AccessWish):
            return plan_access(self.state, message, self._dice, wall_ms)
        if isinstance(message, FeatureWish):
            return self.features.plan(self.state, message, [m.node for m in self.raft.members.all], wall_ms)
        if isinstance(message, RotateTicketKeys):
            return plan_rotation(self.state, message, self._dice, wall_ms)
        if isinstance(message, MoveRequest):
            planned = plan_move(self.state, message, self._dice, wall_ms, self.lags.slow(now))
            if isinstance(planned, AddPartitions):
                return bounded_partitions(self.state, planned, self.settings.owners)
            return planned
        match message:
            case Register():
                known = partial(self.elections.is_live, self.state, now=now)
                return plan_registration(self.state, message, wall_ms, known)
            case AlterIsr():
                return ChangeIsr(wall_ms, **_fields(message))
            case HandOver():
                return LeaveParts(wall_ms, **_fields(message), ranks=() if message.ready else self._ranks(now))
            case ReportLoss():
                if message.end <= message.start:
                    return refuse("MALFORMED", f"no records from {message.start} to {message.end}")
                loss = message if self.state.level >= POSSIBLE_LOSSES else replace(message, possible=False)
                return RecordLoss(wall_ms, **_fields(loss))
            case ReportDoubt():
                return plan_doubt(self.state, message, wall_ms)
            case CreateTopic():
                topic = plan_topic(self.state, message, self._dice, wall_ms, self.lags.slow(now))
                if isinstance(topic, TidelogError):
                    return topic
                return bounded_topic(self.state, topic, message.principal, self.settings.owners)
            case PrepareGroups() | PrepareTransactions():
                name = GROUPS if isinstance(message, PrepareGroups) else TRANSACTIONS
                like = self.settings.groups if name == GROUPS else self.settings.transactions
                return plan_coordinated(name, self.state, like, self._dice, wall_ms, self.lags.slow(now))
            case AlterTopic():
                return plan_change(self.state, message, wall_ms)
            case SetReadOnly() | PauseTopic():
                return plan_suspension(self.state, message, wall_ms)
            case AlterLearners():
                return plan_learners(self.state, message, wall_ms)
            case DeleteTopic():
                topic_id = self.state.names.get(message.name)
                if topic_id is None:
                    return refuse("UNKNOWN_TOPIC", f"there is no topic named {message.name!r}")
                return RemoveTopic(wall_ms, topic_id)
            case AllocateProducerIds():
                if not 1 <= message.count <= MAX_PRODUCER_IDS:
                    return refuse("INVALID_CONFIG", f"count is {message.count}; it must be 1 to {MAX_PRODUCER_IDS}")
                if message.share >= 0 and (message.share >= SHARES or message.count > SHARE_IDS):
                    return refuse("INVALID_CONFIG", f"a share is below {SHARES}, and gives {SHARE_IDS} ids at a time")
                return self._take_ids(message.count, message.share, wall_ms)
            case _:
                return refuse("UNSUPPORTED", f"a controller does not know {message.OP or type(message).__name__}")

    def _take_ids(self, count: int, share: int, wall_ms: int) -> TakeProducerIds | TidelogError:
        """The command that gives a block of producer ids, of this share unless it is -1. A block that is given at the
        same time can push it out of its share: the gateway asks again then."""
        if self.state.level < RECOVERY:
            return TakeProducerIds(wall_ms, count)
        first = first_free_id(self.state.next_producer_id, wall_ms)
        if share >= 0:
            first = first_of_share(first, count, share)
        if first + count > PRODUCER_IDS_END:
            return refuse("INVALID_CONFIG", f"all producer ids below {PRODUCER_IDS_END} are used up")
        return TakeProducerIds(wall_ms, count, first)

    def _on_report(self, message: Message, now: float, wall_ms: int) -> list[ControllerEffect]:
        """What a server knows that these metadata do not. Newer metadata: then they have gone back, and nothing is
        decided by them any more. Producer ids in its logs: then none up to there is given from now on."""
        if not isinstance(message, Register | Heartbeat):
            return []
        if self.newer is None and self._lacks(message.index, message.term):
            self.newer = went_back(self.state, message.node, message.index)
            fields = {"server": message.node, "seen": message.index, "index": self.state.index}
            return [Event("metadata_went_back", fields)]
        if self.newer is not None or self.state.level < RECOVERY:
            return []
        if not self.state.next_producer_id <= message.producer_id < REPORTED_IDS_END:
            return []  # beyond: nobody was given that one
        return self._propose(TakeProducerIds(wall_ms, 0, message.producer_id + 1), now)

    def _lacks(self, index: int, term: int) -> bool:
        """Whether somebody has seen an entry of the metadata log that is not in this one. The active controller has
        all that was ever committed; and one (index, term) names one entry (Raft 5.3)."""
        own = self.raft.log.term_at(index)  # None: compacted away, or beyond the end
        return index > self.state.index or (term != 0 and own not in (None, term))

    def _why_dead(self, message: Heartbeat | ReportLeader | Seal) -> TidelogError | None:
        """Why this counts for nothing."""
        if not self.state.in_life(message.node, message.broker_epoch):
            text = f"broker epoch {message.broker_epoch} of {message.node} is over, or unknown here: register"
            return refuse("FENCED_BROKER_EPOCH", text)
        return why_not_reported(self.state, message) if isinstance(message, ReportLeader) else None

    def _on_sign_of_life(
        self, source: int, id: int | None, message: Heartbeat | ReportLeader | Seal, now: float, wall_ms: int
    ) -> list[ControllerEffect]:
        """Heartbeats, leader reports and seals are answered at once: they change nothing but what is volatile here.
        What is decided from them goes through Raft on its own account."""
        decision: Command | None
        if isinstance(message, Heartbeat):
            decision = self.elections.on_heartbeat(self.state, message.node, source, now, wall_ms)
            self.ranking.on_heartbeat(message.node, message.lags, now)
            if message.lags:
                self.lags.on_heartbeat(self.state, message.node, message.lags, now)
        elif isinstance(message, Seal):
            decision = self.elections.on_seal(self.state, message, now, wall_ms, ranks_by_server(self._ranks(now)))
        else:
            decision = self.elections.on_report(self.state, message, now, wall_ms)
            decision = None if decision is None else replace(decision, ranks=self._ranks(now))
        effects = answer_to(source, id, Done())
        return effects if decision is None else effects + self._propose(decision, now)

    def _ranks(self, now: float) -> tuple[RankedServer, ...]:
        """How the servers rank as leaders now; empty below the feature level, where replica order decides."""
        if self.state.level < RANKING:
            return ()
        return self.ranking.ranks(self.state, self.lags.slow(now), now)

    def _read_now(self, request: Message) -> Message | TidelogError:
        match request:
            case History():
                if self.state.partition(request.topic_id, request.partition) is None:
                    return refuse("UNKNOWN_TOPIC", f"no partition {request.partition} of topic id {request.topic_id}")
                refused = self.scribe.refusals.recent(TopicPartition(request.topic_id, request.partition))
                entries = (
                    *self.state.history[request.topic_id][request.partition],
                    *refused,
                    *self._awaited(request),
                    *self._held_back(request),
                )
                return HistoryAnswer(tuple(sorted(entries, key=lambda entry: entry.time_ms)))
            case _:
                command = ConfirmLeadership(0, **_fields(request))  # changes nothing: only its answer is wanted
                return apply(self.state, command, self.state.index).answer

    def _awaited(self, request: History) -> list[HistoryEntry]:
        """For whose report a partition waits after a rescue, as the last entry of its history."""
        key = TopicPartition(request.topic_id, request.partition)
        partition, config = self.state.partition(*key), self.state.topics[key.topic_id].config
        if partition is None or not is_recovering(partition, config):
            return []
        seals = self.elections.seals(self.state, key)
        missing = awaited(partition, seals)
        down = [node for node in missing if not self.state.is_live(node)]
        told = {"reported": " ".join(seals), "awaited": " ".join(missing), "down": " ".join(down)}
        time_ms = max((e.time_ms for e in self.state.history[key.topic_id][key.partition]), default=0)
        return [
            HistoryEntry(
                time_ms, partition.epoch, partition.leader_epoch, "awaiting", "rescue", "", partition.isr, told
            )
        ]

    def _held_back(self, request: History) -> list[HistoryEntry]:
        """The entry of a partition's history for an election that is held back because there were too many recently.
        Its time is that of the newest entry, so that it is shown last."""
        key = TopicPartition(request.topic_id, request.partition)
        partition, evidence = self.state.partition(*key), self.elections.held_back(self.state, key)
        if partition is None or not evidence:
            return []
        time_ms = max((e.time_ms for e in self.state.history[key.topic_id][key.partition]), default=0)
        leader, isr = partition.leader or "", partition.isr
        return [
            HistoryEntry(
                time_ms, partition.epoch, partition.leader_epoch, "held_back", "damping", leader, isr, evidence
            )
        ]

    # --- what was agreed on --------------------------------------------------------------------------------

    def _on_active(self, now: float) -> None:
        self.elections.become_active(self.state, now)
        self.ranking.become_active(self.state, now)
        self.balance.become_active(self.state, now)
        self.turns.become_active(self.state, now)
        self.scribe.become_active(now)
        self.upkeep.become_active(self.state, now)

    def _on_inactive(self) -> None:
        self.newer = None
        self.elections.clear()
        self.ranking.clear()
        self.balance.clear()
        self.turns.clear()
        self.lags.clear()
        self.scribe.clear()
        self.upkeep.clear()

    def _on_applied(self, before: MetadataState, applied: Applied, command: Command, now: float) -> list[Event]:
        changed = [key for key, _ in applied.changes if before.partition(*key) != applied.state.partition(*key)]
        self.counts.on_applied(applied)
        if isinstance(applied.answer, TidelogError) and (command.asker or hasattr(command, "node")):
            self.on_refused(command, applied.answer, now, wall_ms=command.time_ms)
        self.counts.fences += isinstance(command, FenceServer) and bool(applied.servers)
        self.elections.on_applied(applied.state, command, changed, now)
        self.ranking.on_applied(before, command, changed, now)
        self.balance.on_applied(before, applied.state, command, changed, now)
        self.turns.on_applied(applied.state, command, changed, now)
        self.upkeep.on_applied(before, applied.state, now)
        return events_of(before, applied)

    def _on_news(self, before: MetadataState, applied: Applied | None) -> list[ControllerEffect]:
        if applied is None:
            return [self._image_for(source) for source in self._watchers]
        if not applied.visible or not self._watchers:
            return []
        index = applied.state.index
        update = MetadataUpdate(index, term=self.raft.log.term_at(index) or 0)
        told = replace(update, payload=delta_of(before, applied))
        secret = told
        if applied.ticket_keys is not None:
            secret = replace(update, payload=delta_of(before, applied, secrets=True))
        return [Post(source, secret if self.features.is_gateway(source) else told) for source in self._watchers]

    def _image_for(self, source: int) -> Post:
        image = self.state.image(secrets=self.features.is_gateway(source))
        term = self.raft.log.term_at(image.index) or 0
        return Post(source, MetadataUpdate(image.index, whole=True, term=term, payload=encode_image(image)))

    def _with_settings(self, answer: Message | TidelogError) -> Message | TidelogError:
        """The metadata does not know this controller's settings; the answer to a registration tells one."""
        if isinstance(answer, Registered):
            timeout_ms = round(self.settings.session_timeout_s * 1000)
            return replace(answer, session_timeout_ms=timeout_ms, term=self.raft.log.term_at(answer.index) or 0)
        return answer


def _fields(message: Message) -> dict[str, Any]:
    """A message's values by name: the command that it asks for has the same names."""
    return {known.name: getattr(message, known.name) for known in fields(message)}
