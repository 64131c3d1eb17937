"""One controller: the way of a request, and the decisions of the active controller, as one sync state machine.

    request -> refused, or a command -> metadata log -> applied -> answer, and deltas to all watchers

It owns a ``MetadataLog`` (``metadata_log.py``), gives it commands, and acts on its events in one place
(``Controller._perform``).

- Only the active controller serves requests. ``Watch`` and ``DescribeQuorum`` are served by every controller.
- A request that changes something is answered when its command is applied, with the outcome of the command then. A
  read is answered once it is certain that no other controller led when it came.
- Watchers get the whole image once, then every change in commit order. A change is posted before the request that
  made it is answered: a client that asks and watches over one link never misses its own change.
- Sessions (``active/server_sessions.py``), leader reports and seals (``active/leader_replacement.py``) are volatile.
  A new active controller grants every server a full session.
- Events and refusals are written to the topic ``__timeline`` (``active/timeline_writer.py``,
  ``active/timeline_topic.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

from tidelog.errors import TidelogError, refuse
from tidelog.feature_levels import ALL, RANKING, RECOVERY, REQUEST_DIGESTS, Levels
from tidelog.request_names import LONGEST_NAME
from tidelog.sansio.counters import count
from tidelog.sansio.effects import Answer, Call, Event, Post
from tidelog.types import REPORTED_IDS_END, NodeId, TopicPartition
from tidelog.wire.messages import (
    AddController,
    AdminRequest,
    AllocateProducerIds,
    AlterIsr,
    AlterLearners,
    AlterTopic,
    AnnounceGateway,
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
    PrepareStreams,
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

from tidelog_controller.active.gateway_directory import GatewayDirectory
from tidelog_controller.active.leader_balancer import LeaderBalancer
from tidelog_controller.active.leader_replacement import LeaderReplacement, refuse_report
from tidelog_controller.active.reassignment_scheduler import ReassignmentScheduler
from tidelog_controller.active.refusal_log import refusal_of
from tidelog_controller.active.server_ranks import ServerRanks
from tidelog_controller.active.slow_servers import SlowServers
from tidelog_controller.active.timeline_topic import ControllerGroup, TimelineTopic
from tidelog_controller.active.timeline_writer import TimelineWriter, ToServer
from tidelog_controller.config import ControllerSettings
from tidelog_controller.counters import ControllerCounts
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
    TakeProducerIds,
)
from tidelog_controller.metadata.rules.access import AccessRequest, plan_access
from tidelog_controller.metadata.rules.doubtful_tails import plan_doubt
from tidelog_controller.metadata.rules.feature_level import FeatureRequest, Features
from tidelog_controller.metadata.rules.leader_election import is_recovering, ranks_by_server
from tidelog_controller.metadata.rules.losses import plan_loss
from tidelog_controller.metadata.rules.owners import bounded_partitions, bounded_topic
from tidelog_controller.metadata.rules.placement import Random
from tidelog_controller.metadata.rules.producer_ids import plan_producer_ids
from tidelog_controller.metadata.rules.reassignment import MoveRequest, plan_move
from tidelog_controller.metadata.rules.recovery import awaited
from tidelog_controller.metadata.rules.servers import plan_registration, went_back
from tidelog_controller.metadata.rules.suspension import plan_suspension
from tidelog_controller.metadata.rules.ticket_keys import plan_rotation, with_first_key
from tidelog_controller.metadata.rules.topics import (
    plan_change,
    plan_coordinated,
    plan_deletion,
    plan_learners,
    plan_topic,
    refuse_internal,
)
from tidelog_controller.metadata.state import Applied, MetadataState
from tidelog_controller.metadata_log import (
    BecameActive,
    BecameInactive,
    CommandApplied,
    LogEffect,
    LogOutput,
    MetadataLog,
    ReadConfirmed,
    Request,
    StateRestored,
)
from tidelog_controller.raft.log import PersistentState

ControllerEffect = LogEffect | Post | Call | ToServer


class Controller:
    """One controller of the cluster as a state machine: a method for each input (a request, a message, an answer,
    time), which returns the effects that the shell must perform in order. It lives as long as the process and does no
    I/O. The wall clock in milliseconds (``wall_ms``) is written into histories and the timeline and bounds new
    producer ids from below; nothing else depends on it."""

    def __init__(
        self,
        node_id: NodeId,
        peers: Mapping[NodeId, str],
        cluster: str,
        settings: ControllerSettings,
        stored: PersistentState,
        rng: Random,
        now: float,
        *,
        join: bool = False,
        levels: Levels = ALL,
    ) -> None:
        """Restore the controller from ``stored``, the content of its disk when the process began. ``peers`` are the
        URLs, by name, of the controllers that found the cluster, this one included; with ``join``, those of a cluster
        that exists already. ``levels`` are the feature levels that this release supports. Raises ``ConfigError`` if
        this release cannot read what is stored."""
        self.node_id = node_id
        self.settings = settings
        self.counts = ControllerCounts()
        self.features = Features(node_id, levels)
        self.metadata_log = MetadataLog(
            node_id, peers, cluster, settings, stored, rng, now, join=join, levels=levels, counts=self.counts
        )
        self.leader_replacement = LeaderReplacement(
            settings.session_timeout_s, settings.broken_link_grace_s, settings.leader_report_window_s
        )
        self.balance = LeaderBalancer(settings.balance)
        balance = settings.balance
        self.scheduler = ReassignmentScheduler(balance.moves_per_server)
        self.slow_servers = SlowServers(balance.lag_threshold_s, balance.lag_patience_s, balance.leader_min_term_s)
        self.ranking = ServerRanks(settings.session_timeout_s)
        self.timeline_writer = TimelineWriter(settings.timeline)
        self.timeline_topic = TimelineTopic(settings.timeline, rng)
        self.gateways = GatewayDirectory()
        self.newer: TidelogError | None = None
        """The refusal ``METADATA_WENT_BACK`` of all requests but reads, once a replica server has seen newer metadata
        than this controller has; None before."""
        self._random = rng
        self._watchers: dict[int, None] = {}
        """The links over which every change of the metadata is sent."""
        self._images: dict[bool, bytes] = {}
        """The encoded metadata image, with and without secrets, as far as a watcher has asked for it since the last
        visible change. All watchers ask for the same image when a controller becomes active."""
        self._group_asker = ""
        """The principal that asked for the last change of the group of controllers; "" if none did."""

    # --- what others read --------------------------------------------------------------------------------

    @property
    def state(self) -> MetadataState:
        """Return the metadata after the last committed command that this controller has applied."""
        return self.metadata_log.state

    @property
    def active(self) -> bool:
        """Return whether this is the active controller, the only one that serves requests and decides."""
        return self.metadata_log.active

    @property
    def watcher_count(self) -> int:
        """Return the number of links whose peers asked (``Watch``) for every change of the metadata."""
        return len(self._watchers)

    # --- requests ----------------------------------------------------------------------------------------

    def on_request(
        self, source: int, id: int | None, message: Message, now: float, *, wall_ms: int = 0, peer: str = ""
    ) -> list[ControllerEffect]:
        """Serve or refuse a request that the process ``peer`` sent over the link ``source``. Return the effects: the
        answer with number ``id``, or a proposal that is answered later, once it is applied. With ``id`` None no
        answer is sent. Every controller answers ``Watch`` and ``DescribeQuorum``; everything else is refused with
        ``NOT_ACTIVE_CONTROLLER`` unless this controller is active. A registration or heartbeat may also show that the
        metadata of this controller are out of date."""
        count(self.counts.requests, message.OP)
        request = Request(source, id, message, wall_ms, peer)
        if unfit := self.features.refuse_unfit(source, self.state.level):
            self._watchers.pop(source, None)
            return [*request.answer(unfit)]
        match message:
            case Watch():
                self._watchers[source] = None
                return [*request.answer(Done()), self._image_for(source, self.state)]
            case DescribeQuorum():
                return [*request.answer(self.metadata_log.quorum(now))]
        if not self.active:
            return [*request.answer(self.metadata_log.refuse_inactive(unknown_outcome=False))]
        effects = self._on_report(message, now, wall_ms)
        return effects + self._on_active_request(request, now)

    def _on_active_request(self, request: Request, now: float) -> list[ControllerEffect]:
        """Serve a request as the active controller, and return the effects. If it is refused, record the refusal and
        answer with it: ``METADATA_WENT_BACK`` once ``newer`` is set, ``OVERLOADED`` if too many requests wait, or the
        error that the checks of this kind of request return."""
        message, waiting = request.message, self.metadata_log.waiting
        refusal: TidelogError | None
        if self.newer is not None and not isinstance(message, History):
            refusal = self.newer
        elif isinstance(message, Heartbeat | ReportLeader | Seal):
            refusal = self._refuse_sign_of_life(message)
            if refusal is None:
                return self._on_sign_of_life(request, message, now)
        elif request.id is not None and waiting >= self.settings.max_pending:
            refusal = refuse("OVERLOADED", f"{waiting} requests wait for a majority")
        else:
            done = self._serve(request, now)
            if not isinstance(done, TidelogError):
                return done
            refusal = done
        self.on_refused(message, refusal, now, wall_ms=request.wall_ms, peer=request.peer)
        return [*request.answer(refusal)]

    def on_refused(self, request: Message, error: TidelogError, now: float, *, wall_ms: int, peer: str = "") -> None:
        """Record for the timeline that the request of ``peer`` was refused with ``error``, by this object or by the
        shell before. Does nothing on a controller that is not active."""
        if self.active:
            self._record_refusal(request, error, self.state, now, wall_ms, peer)

    def _record_refusal(
        self,
        request: Message | Command,
        error: TidelogError,
        state: MetadataState,
        now: float,
        wall_ms: int,
        peer: str,
    ) -> None:
        """Count a refusal by its code, and put it into the refusal log, from which the timeline gets it."""
        count(self.counts.refused, error.code)
        self.timeline_writer.refusals.record(refusal_of(request, error, state, wall_ms, peer), state, now)

    def _serve(self, request: Request, now: float) -> list[ControllerEffect] | TidelogError:
        """Begin the work on a request and return the effects; or return the error with which it is refused. A read
        waits for the proof that this controller still leads. A request that was answered before gets the same answer
        again. A request that changes something is proposed as a command, or answered at once if nothing is to be
        changed."""
        message = request.message
        if isinstance(message, AddController | RemoveController):
            return self._change_controllers(request, message, now)
        if isinstance(message, History | ConfirmLeader):
            return [] if request.id is None else self._perform(self.metadata_log.read(request, now), now)
        if isinstance(message, AnnounceGateway):
            found = self.gateways.announce(request.source, request.peer, message.url)
            return found if isinstance(found, TidelogError) else [*request.answer(found)]
        request_id = self._request_id(message)
        if isinstance(request_id, TidelogError):
            return request_id
        known = None if request_id is None else self.metadata_log.replicated.sessions.find(request_id)
        if known is not None:
            return [*request.answer(fitting(known, message.ANSWER))]
        command = self._command(message, now, request.wall_ms)
        if isinstance(command, TidelogError):
            return command
        if not isinstance(command, Command):
            return [*request.answer(command)]
        if isinstance(message, AdminRequest) and message.asker:
            command = replace(command, asker=message.asker)
        return self._propose(command, now, request, request_id)

    def _change_controllers(
        self, request: Request, message: AddController | RemoveController, now: float
    ) -> list[ControllerEffect] | TidelogError:
        """Begin to add a controller to the group or to remove one, and return the effects; or return the refusal of
        the change. Remembers the principal that asked for it."""
        outputs: Iterable[LogOutput] | TidelogError = (
            self.metadata_log.add_controller(message.node, message.url, request, now)
            if isinstance(message, AddController)
            else self.metadata_log.remove_controller(message.node, request, now)
        )
        if isinstance(outputs, TidelogError):
            return outputs
        self._group_asker = message.asker
        return self._perform(outputs, now)

    def _request_id(self, message: Message) -> RequestId | TidelogError | None:
        """Return the client, sequence number and digest by which a repeated request is recognised; None for a request
        without a client or a number. Return the error ``MALFORMED`` if the client's name is too long."""
        if not isinstance(message, SequencedRequest) or not message.client or not message.sequence:
            return None
        if len(message.client.encode()) > LONGEST_NAME:
            return refuse("MALFORMED", f"a client's name has at most {LONGEST_NAME} bytes")
        digest = digest_of(message) if self.state.level >= REQUEST_DIGESTS else b""
        return RequestId(message.client, message.sequence, digest)

    # --- the other controllers, links and time -----------------------------------------------------------

    def on_message(self, sender: NodeId, message: Message, now: float) -> list[ControllerEffect]:
        """Pass a message of Raft or of the founding, which the controller ``sender`` sent, to the metadata log, and
        return the effects. Raises ``ProtocolError`` for a message that no correct controller sends."""
        return self._perform(self.metadata_log.on_message(sender, message, now), now)

    def on_peer_lost(self, peer: NodeId, now: float) -> list[ControllerEffect]:
        """Handle a broken link to the controller ``peer``, and return the effects. If ``peer`` was the leader of
        Raft, this controller stands for election soon."""
        return self._perform(self.metadata_log.on_peer_lost(peer, now), now)

    def on_snapshot(self, index: int, data: bytes, now: float) -> list[ControllerEffect]:
        """Store ``data``, the encoded state after entry ``index`` that a ``MakeSnapshot`` effect asked for, as Raft's
        snapshot, and compact the log. Return the effects."""
        return self._perform(self.metadata_log.on_snapshot(index, data, now), now)

    def on_stop(self, now: float) -> list[ControllerEffect]:
        """Stop serving at once, hand the leadership of Raft to another controller, and return the effects. The
        process may end when ``metadata_log.may_stop`` is true, or when it has waited long enough."""
        return self._perform(self.metadata_log.on_stop(now), now)

    def on_link_closed(self, source: int, now: float) -> list[ControllerEffect]:
        """Forget the link ``source``, which has closed, with its requests; commands that it asked for may still be
        applied. If the last heartbeat of a server came over it, the server's session ends soon. Returns an empty list
        of effects."""
        self.leader_replacement.sessions.on_link_closed(source, now)
        self.features.on_link_closed(source)
        self.gateways.on_link_closed(source)
        self._watchers.pop(source, None)
        self.metadata_log.on_link_closed(source)
        return []

    def on_tick(self, now: float, *, wall_ms: int = 0) -> list[ControllerEffect]:
        """Do everything whose time has come, and return the effects: run Raft's timers; as the active controller also
        fence servers whose sessions ended, transfer leaderships, begin queued reassignments, and maintain the
        timeline's topic and append to it. Afterwards ``deadline()`` is None or later than ``now``."""
        effects = self._perform(self.metadata_log.on_tick(now), now)
        if self.active and self.newer is None:
            for fence in self.leader_replacement.sessions.expired(self.state, now, wall_ms):
                effects += self._propose(replace(fence, ranks=self._ranks(now)), now)
            ranks = ranks_by_server(self._ranks(now))
            for transfer in self.balance.due(self.state, now, wall_ms, self.slow_servers.slow(now), ranks):
                effects += self._propose(transfer, now)
            for move in self.scheduler.due(self.state, now, wall_ms):
                effects += self._propose(move, now)
            for command in self.timeline_topic.due(
                self.state, self.timeline_writer.confirmed, self._group, now, wall_ms
            ):
                if isinstance(command, NoteControllers):
                    command, self._group_asker = replace(command, asker=self._group_asker), ""
                effects += self._propose(command, now)
            if self.settings.timeline.replication_factor:
                effects += self.timeline_writer.act(self.state, now, wall_ms)
        deadline = self.deadline()
        assert deadline is None or deadline > now, (deadline, now)
        return effects

    def deadline(self) -> float | None:
        """Return the time in seconds of the monotonic clock at which ``on_tick`` has something to do; None if it has
        nothing to do before another input comes."""
        deadlines = [self.metadata_log.deadline()]
        if self.active and self.newer is None:
            deadlines += [self.leader_replacement.sessions.deadline(self.state)]
            deadlines += [self.balance.deadline(), self.scheduler.deadline()]
            if self.settings.timeline.replication_factor:
                deadlines += [self.timeline_topic.deadline(self.timeline_writer.confirmed, self._group)]
                deadlines += [self.timeline_writer.deadline(self.state)]
        due = min((d for d in deadlines if d is not None), default=None)
        return None if due == math.inf else due

    # --- the timeline ------------------------------------------------------------------------------------

    @property
    def _group(self) -> ControllerGroup:
        """Return the group of controllers as the timeline records it: this one as the active controller, the term and
        the members."""
        return ControllerGroup(self.node_id, self.metadata_log.term, self.metadata_log.members.all)

    def on_server_answer(self, token: int, answer: Message | Exception, now: float) -> list[ControllerEffect]:
        """Pass the answer of a replica server to a request of the timeline writer (where the timeline ends, or its
        last record), or the error in place of an answer, to the timeline writer. ``token`` is the number of the
        request. Returns an empty list of effects."""
        self.timeline_writer.on_answer(token, answer, self.state, now)
        return []

    def on_server_message(self, node: NodeId, message: Message, now: float) -> list[ControllerEffect]:
        """Pass a ``Produced`` message of a replica server, the outcome of an append to the timeline, to the timeline
        writer. Other messages are ignored. Returns an empty list of effects."""
        if isinstance(message, Produced):
            self.timeline_writer.on_produced(message, now)
        return []

    def on_server_down(self, node: NodeId, now: float) -> list[ControllerEffect]:
        """Report to the timeline writer that there is no link to the replica server ``node``, so that it does not
        wait for the server's answers. Returns an empty list of effects."""
        self.timeline_writer.on_server_down(node, now)
        return []

    # --- what a request comes to -------------------------------------------------------------------------

    def _command(self, message: Message, now: float, wall_ms: int) -> Command | Message | TidelogError:
        """Return the command that a request asks for, as far as the present state allows it; the rules decide again
        when the command is applied. Return the answer itself if nothing is to be changed, or the error with which the
        request is refused."""
        refusal = refuse_internal(message)
        if refusal is not None:
            return refusal
        if isinstance(message, AccessRequest):
            return plan_access(self.state, message, self._random, wall_ms)
        if isinstance(message, FeatureRequest):
            return self.features.plan(self.state, message, [m.node for m in self.metadata_log.members.all], wall_ms)
        if isinstance(message, RotateTicketKeys):
            return plan_rotation(self.state, message, self._random, wall_ms)
        if isinstance(message, MoveRequest):
            planned = plan_move(self.state, message, self._random, wall_ms, self.slow_servers.slow(now))
            if isinstance(planned, AddPartitions):
                return bounded_partitions(self.state, planned, self.settings.owners)
            return planned
        match message:
            case Register():
                known = partial(self.leader_replacement.sessions.is_live, self.state, now=now)
                return plan_registration(self.state, message, wall_ms, known)
            case AlterIsr():
                return ChangeIsr(wall_ms, **_fields(message))
            case HandOver():
                return LeaveParts(wall_ms, **_fields(message), ranks=() if message.ready else self._ranks(now))
            case ReportLoss():
                return plan_loss(self.state, message, wall_ms)
            case ReportDoubt():
                return plan_doubt(self.state, message, wall_ms)
            case CreateTopic():
                topic = plan_topic(self.state, message, self._random, wall_ms, self.slow_servers.slow(now))
                if isinstance(topic, TidelogError):
                    return topic
                return bounded_topic(self.state, topic, message.principal, self.settings.owners)
            case PrepareGroups() | PrepareTransactions() | PrepareStreams():
                slow = self.slow_servers.slow(now)
                return plan_coordinated(message, self.state, self.settings, self._random, wall_ms, slow)
            case AlterTopic():
                return plan_change(self.state, message, wall_ms)
            case SetReadOnly() | PauseTopic():
                return plan_suspension(self.state, message, wall_ms)
            case AlterLearners():
                return plan_learners(self.state, message, wall_ms)
            case DeleteTopic():
                return plan_deletion(self.state, message, wall_ms)
            case AllocateProducerIds():
                return plan_producer_ids(self.state, message, wall_ms)
            case _:
                return refuse("UNSUPPORTED", f"a controller does not know {message.OP or type(message).__name__}")

    def _on_report(self, message: Message, now: float, wall_ms: int) -> list[ControllerEffect]:
        """Compare a registration or heartbeat with the metadata of this controller, and return the effects. If the
        server has seen metadata that this controller lacks, set ``newer``, so that everything but reads of the
        history is refused from then on, and log it. If the server's logs have producer ids that the metadata have not
        given yet, propose to skip all ids up to there. Returns an empty list for other messages."""
        if not isinstance(message, Register | Heartbeat):
            return []
        if self.newer is None and self._lacks(message.index, message.term):
            self.newer = went_back(self.state, message.node, message.index)
            fields = {"server": message.node, "seen": message.index, "index": self.state.index}
            return [Event("metadata_went_back", fields)]
        if self.newer is not None or self.state.level < RECOVERY:
            return []
        if not self.state.next_producer_id <= message.producer_id < REPORTED_IDS_END:
            return []  # beyond the end no id was ever given to a producer
        return self._propose(TakeProducerIds(wall_ms, 0, message.producer_id + 1), now)

    def _lacks(self, index: int, term: int) -> bool:
        """Return whether the metadata log of this controller lacks the entry (``index``, ``term``), which a server
        has seen. The active controller has everything that was ever committed, and one (index, term) names one entry
        (Raft 5.3). With ``term`` 0 only the index is compared."""
        own = self.metadata_log.term_at(index)  # None: compacted away, or beyond the end
        return index > self.state.index or (term != 0 and own not in (None, term))

    def _refuse_sign_of_life(self, message: Heartbeat | ReportLeader | Seal) -> TidelogError | None:
        """Return why a heartbeat, leader report or seal is refused: ``FENCED_BROKER_EPOCH`` if it is not from the
        present incarnation of its server, ``NOT_REPLICA`` if it reports partitions of which the sender has no copy.
        Return None if it is to be served."""
        if not self.state.is_incarnation(message.node, message.broker_epoch):
            text = f"broker epoch {message.broker_epoch} of {message.node} is over, or unknown here: register"
            return refuse("FENCED_BROKER_EPOCH", text)
        return refuse_report(self.state, message) if isinstance(message, ReportLeader) else None

    def _on_sign_of_life(
        self, request: Request, message: Heartbeat | ReportLeader | Seal, now: float
    ) -> list[ControllerEffect]:
        """Handle a heartbeat, leader report or seal, and return the effects: the answer ``Done`` at once, since only
        volatile state changes, and the proposal of a decision if one follows: to end a fence, to replace leaders, or
        to elect the leader of a sealed partition."""
        wall_ms = request.wall_ms
        decision: Command | None
        if isinstance(message, Heartbeat):
            decision = self.leader_replacement.sessions.on_heartbeat(
                self.state, message.node, request.source, now, wall_ms
            )
            self.ranking.on_heartbeat(message.node, message.lags, now)
            if message.lags:
                self.slow_servers.on_heartbeat(self.state, message.node, message.lags, now)
        elif isinstance(message, Seal):
            decision = self.leader_replacement.on_seal(
                self.state, message, now, wall_ms, ranks_by_server(self._ranks(now))
            )
        else:
            decision = self.leader_replacement.on_report(self.state, message, now, wall_ms)
            decision = None if decision is None else replace(decision, ranks=self._ranks(now))
        answer = request.answer(Done())
        return [*answer] if decision is None else [*answer, *self._propose(decision, now)]

    def _ranks(self, now: float) -> tuple[RankedServer, ...]:
        """Return the servers that are not of the best rank as leaders, each with its rank and the reason; an empty
        tuple below feature level ``RANKING``, where only the order of the replicas decides."""
        if self.state.level < RANKING:
            return ()
        return self.ranking.ranks(self.state, self.slow_servers.slow(now), now)

    def _read(self, request: Message, state: MetadataState) -> Message | TidelogError:
        """Return the answer to a read, now that this controller provably led when it came. For ``History``: the
        history of a partition, recent refusals, and what an election waits for now. For ``ConfirmLeader``: whether
        the server leads the partition. Return the error ``UNKNOWN_TOPIC`` if the partition does not exist."""
        if isinstance(request, History):
            key = TopicPartition(request.topic_id, request.partition)
            if state.partition(*key) is None:
                return refuse("UNKNOWN_TOPIC", f"no partition {request.partition} of topic id {request.topic_id}")
            entries = (
                *state.history[request.topic_id][request.partition],
                *self.timeline_writer.refusals.recent(key),
                *self._awaited(key, state),
                *self._held_back(key, state),
            )
            return HistoryAnswer(tuple(sorted(entries, key=lambda entry: entry.time_ms)))
        command = ConfirmLeadership(0, **_fields(request))  # changes nothing: only its answer is wanted
        return apply(state, command, state.index).answer

    def _awaited(self, key: TopicPartition, state: MetadataState) -> list[HistoryEntry]:
        """Return one history entry that names the replicas whose reports a partition still needs after a rescue of
        the controllers; an empty list if it needs none. The entry is sorted behind the others."""
        partition, config = state.partition(*key), state.topics[key.topic_id].config
        if partition is None or not is_recovering(partition, config):
            return []
        seals = self.leader_replacement.seals(state, key)
        missing = awaited(partition, seals)
        down = [node for node in missing if not state.is_live(node)]
        evidence = {"reported": " ".join(seals), "awaited": " ".join(missing), "down": " ".join(down)}
        epochs = (partition.epoch, partition.leader_epoch)
        return [HistoryEntry(_newest(key, state), *epochs, "awaiting", "rescue", "", partition.isr, evidence)]

    def _held_back(self, key: TopicPartition, state: MetadataState) -> list[HistoryEntry]:
        """Return one history entry with the reason why the election of a new leader is delayed after too many
        elections; an empty list if none is delayed. The entry is sorted behind the others."""
        partition, evidence = state.partition(*key), self.leader_replacement.held_back(state, key)
        if partition is None or not evidence:
            return []
        epochs, leader = (partition.epoch, partition.leader_epoch), partition.leader or ""
        return [HistoryEntry(_newest(key, state), *epochs, "held_back", "damping", leader, partition.isr, evidence)]

    # --- the metadata log --------------------------------------------------------------------------------

    def _propose(
        self, command: Command, now: float, request: Request | None = None, request_id: RequestId | None = None
    ) -> list[ControllerEffect]:
        """Propose a command to the metadata log, and return the effects. ``request``, if any, is answered with the
        outcome. The first command of a cluster also sets its feature level. While the cluster has no ticket key, the
        command also carries one, if the feature level allows it."""
        if not self.state.level:
            command = replace(command, level=self.features.own.newest)
        command = with_first_key(self.state, command, self._random)
        return self._perform(self.metadata_log.propose(command, now, request, request_id), now)

    def _perform(self, outputs: Iterable[LogOutput], now: float) -> list[ControllerEffect]:
        """Act on the events of the metadata log in their order, and return the effects: those of the log unchanged,
        and the answers, updates of watchers and log lines that follow from the events. Becoming active or inactive
        begins or clears everything volatile."""
        effects: list[ControllerEffect] = []
        for output in outputs:
            match output:
                case CommandApplied():
                    if output.active:
                        effects += self._on_applied(output, now)
                    effects += self._updates(output.before, output.applied)
                case StateRestored(state):
                    self._images.clear()
                    effects += [self._image_for(source, state) for source in self._watchers]
                case BecameActive(state):
                    self._become_active(state, now)
                case BecameInactive():
                    self._become_inactive()
                case ReadConfirmed(request, state):
                    answer = self._read(request.message, state)
                    if isinstance(answer, TidelogError) and output.active:
                        self._record_refusal(request.message, answer, state, now, request.wall_ms, request.peer)
                    effects += request.answer(answer)
                case Answer(message=Registered() as registered):
                    effects.append(replace(output, message=self._complete(registered)))
                case _:
                    effects.append(output)
        return effects

    def _become_active(self, state: MetadataState, now: float) -> None:
        """Begin all volatile state of the active controller from the metadata ``state``."""
        self.leader_replacement.become_active(state, now)
        self.ranking.become_active(state, now)
        self.balance.become_active(state, now)
        self.scheduler.become_active(state, now)
        self.timeline_writer.become_active(now)
        self.timeline_topic.become_active(state, now)

    def _become_inactive(self) -> None:
        """Forget all volatile state of the active controller, and the refusal in ``newer``."""
        self.newer = None
        self.leader_replacement.clear()
        self.ranking.clear()
        self.balance.clear()
        self.scheduler.clear()
        self.slow_servers.clear()
        self.timeline_writer.clear()
        self.timeline_topic.clear()

    def _on_applied(self, event: CommandApplied, now: float) -> list[Event]:
        """Report an applied command to every part of the active controller, count it, and return the events to log.
        If the outcome of a command of a server or principal is an error, record it like the refusal of a request."""
        before, applied, command = event.before, event.applied, event.command
        changed = [key for key, _ in applied.changes if before.partition(*key) != applied.state.partition(*key)]
        self.counts.on_applied(applied)
        if isinstance(applied.answer, TidelogError) and (command.asker or hasattr(command, "node")):
            self._record_refusal(command, applied.answer, applied.state, now, command.time_ms, "")
        self.counts.fences += isinstance(command, FenceServer) and bool(applied.servers)
        self.leader_replacement.on_applied(applied.state, command, changed, now)
        self.ranking.on_applied(before, command, changed, now)
        self.balance.on_applied(before, applied.state, command, changed, now)
        self.scheduler.on_applied(applied.state, command, changed, now)
        self.timeline_topic.on_applied(before, applied.state, now)
        return events_of(before, applied)

    def _updates(self, before: MetadataState, applied: Applied) -> list[ControllerEffect]:
        """Return for each watcher a message with the change that an applied command made; an empty list if the
        command changed nothing that watchers see. Only gateways get ticket keys."""
        if applied.visible:
            self._images.clear()
        if not applied.visible or not self._watchers:
            return []
        index = applied.state.index
        update = MetadataUpdate(index, term=self.metadata_log.term_at(index) or 0)
        public = replace(update, payload=delta_of(before, applied))
        secret = public
        if applied.ticket_keys is not None:
            secret = replace(update, payload=delta_of(before, applied, secrets=True))
        return [Post(source, secret if self.features.is_gateway(source) else public) for source in self._watchers]

    def _image_for(self, source: int, state: MetadataState) -> Post:
        """Return a message with all metadata for the watcher at link ``source``. Ticket keys are in it only if the
        watcher is a gateway."""
        secrets = self.features.is_gateway(source)
        if secrets not in self._images:
            self._images[secrets] = encode_image(state.image(secrets=secrets))
        term = self.metadata_log.term_at(state.index) or 0
        return Post(source, MetadataUpdate(state.index, whole=True, term=term, payload=self._images[secrets]))

    def _complete(self, answer: Registered) -> Registered:
        """Return a copy of the answer to a registration with the fields that are not in the metadata: the session
        timeout in milliseconds, and the term of its log entry."""
        timeout_ms = round(self.settings.session_timeout_s * 1000)
        term = self.metadata_log.term_at(answer.index) or 0
        return replace(answer, session_timeout_ms=timeout_ms, term=term)


def _newest(key: TopicPartition, state: MetadataState) -> int:
    """Return the wall-clock time in milliseconds of the newest entry in a partition's history; 0 if the history is
    empty."""
    return max((entry.time_ms for entry in state.history[key.topic_id][key.partition]), default=0)


def _fields(message: Message) -> dict[str, Any]:
    """Return the fields of a message by name, as arguments for a command that has fields of the same names."""
    return {known.name: getattr(message, known.name) for known in fields(message)}
