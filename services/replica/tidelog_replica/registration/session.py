"""This server's session with the controller: registration, broker epoch, heartbeats.

    new          nothing is answered yet: serves no request, ignores all metadata
    registered   has a broker epoch; heartbeats keep the session

Every process start is a new incarnation with a new broker epoch. A heartbeat answered ``FENCED_BROKER_EPOCH`` means
that the incarnation is over (a later one registered): the server gives up every role and begins another.

``live`` says whether the session may last in the eyes of the controller, counted from when the last answered
heartbeat was *sent*. A session that has ended in this sense has *lapsed*: the controllers are dead or out of reach.
This server is registered all the same, and keeps its roles; a leader then serves clients only while its voters
confirm it (``assignment/leadership.py``). A successor may be elected before the session has lapsed, by reports: until
then the old leader may answer with an old HW, and take records that it can never commit.

The registration carries the record of incarnations in the data directory, and whether anything in it may be lost
(``registration/incarnations.py``). A server that registers again without having ended is the same incarnation, and
clean. If a registration is refused because the controller has seen a later incarnation of this server (an old
message that was under way came in between), the incarnation takes another name, or it would be refused for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Protocol

from tidelog.errors import ConfigError, TidelogError
from tidelog.sansio.effects import CONTROLLER
from tidelog.wire.messages import FollowerLag, Heartbeat, Message, Register, Registered, Watch

from tidelog_replica.context import NodeContext
from tidelog_replica.registration.incarnations import Incarnations

LAGS_EVERY_S = 5.0
"""Seconds between two heartbeats that report lags and producer ids. Other heartbeats do not, because collecting them
takes a pass over all followers and producers."""


class UniformRandom(Protocol):
    """A source of random numbers, such as ``random.Random``."""

    def random(self) -> float:
        """Return a random number from 0 (inclusive) to 1 (exclusive), evenly distributed."""


class BrokerSession:
    """This server's session with the controllers: it registers each incarnation, sends heartbeats and watches the
    metadata. It lives as long as the process. ``on_begin(now)`` is called when an incarnation is registered,
    ``on_end(reason)`` when one is over. ``url`` is the URL under which other servers reach this one."""

    def __init__(
        self,
        context: NodeContext,
        url: str,
        incarnations: Incarnations,
        rng: UniformRandom,
        on_begin: Callable[[float], None],
        on_end: Callable[[str], None],
        rack: str = "",
    ) -> None:
        self.registered = False
        """Whether the present incarnation is registered."""
        self.broker_epoch = -1
        """Number of the registered incarnation; -1 before the first registration."""
        self.index = -1
        """Raft index of the registration. Metadata older than it are from before this incarnation."""
        self._node = context.node
        self._url = url
        self._rack = rack
        self._incarnations = incarnations
        self._settings = context.settings
        self._rng = rng
        self._effects = context.effects
        self._timers = context.timers
        self._on_begin = on_begin
        self._on_end = on_end
        self._timeout_s = 0.0
        self._ends_at = 0.0
        self.resumed_at = -inf
        """When the controllers last answered a registration, or a heartbeat after the session had lapsed
        (seconds)."""
        self._due: float | None = None
        self._registering = False
        self._beating = False
        self._watching = False
        self._refused = False
        """Whether the last answer was a refusal that an operator has to resolve, which was then logged."""
        self.lags: Callable[[float], tuple[FollowerLag, ...]] = lambda now: ()
        """Return the lags of the followers of this server, which heartbeats report. Set by the assignment."""
        self._lags_due = -inf
        self.seen: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Return index and Raft term of the newest metadata that are known here. Set by the assignment."""
        self.highest_id: Callable[[], int] = lambda: 0
        """Return the highest producer id in the open logs. Set by the assignment."""

    def start(self, now: float) -> None:
        """Record a new incarnation in the data directory, and send its registration to the controllers. Raises
        ``ConfigError`` if the data directory belongs to another node or cluster, or is damaged; ``OSError`` if the
        disk fails."""
        self._incarnations.begin_incarnation(self._new_name())
        self._register(now)

    def _new_name(self) -> str:
        """Return a random name for an incarnation."""
        return f"{int(self._rng.random() * 2**52):013x}"

    @property
    def began_clean(self) -> bool:
        """Return whether all data that earlier incarnations wrote can be read: the one before ended in order, or the
        operating system has run on since."""
        return self._incarnations.began_clean

    def live(self, now: float) -> bool:
        """Return whether the session surely lasts: this server is registered, and it sent its last answered heartbeat
        less than the session timeout ago, so that the controllers cannot have ended the session."""
        return self.registered and now < self._ends_at

    @property
    def timeout_s(self) -> float:
        """Return the session timeout in seconds: after so long without a heartbeat the controllers end the session.
        Return 0 before the first registration."""
        return self._timeout_s

    def lapsed_s(self, now: float) -> float:
        """Return the seconds since the session timeout expired, counted from the last answered heartbeat: for so long
        the controllers may have considered the session over. Return 0 if it has not expired, or if this server is not
        registered."""
        return max(0.0, now - self._ends_at) if self.registered else 0.0

    def on_controller_up(self, now: float) -> None:
        """Use the new link to the active controller: send a heartbeat with lags and begin the watch of the metadata
        at once, or send the registration if this server is not registered."""
        self._lags_due = now
        if not self.registered:
            self._register(now)
        else:
            self._heartbeat(now)
            self._watch()

    def on_controller_down(self) -> None:
        """Record that the link to the active controller was lost, and with it the watch of the metadata. The next
        heartbeat or link begins the watch again."""
        self._watching = False

    def on_tick(self, now: float) -> None:
        """Send a heartbeat and begin the watch of the metadata again if it was lost, or repeat a failed registration,
        if one of them is due. Then set the timer for the next time."""
        if self._due is not None and self._due <= now:
            self._due = None
            if self.registered:
                self._heartbeat(now)
                if not self._watching:
                    self._watch()
                self._due = now + self._settings.heartbeat_s
            else:
                self._register(now)
        self._timers.set(self, self._due)

    def _wake_at(self, due: float) -> None:
        """Set the time at which ``on_tick`` next has something to send to ``due``, in seconds of the node's clock."""
        self._due = due
        self._timers.set(self, due)

    # --- calls -------------------------------------------------------------------------------------------

    def _register(self, now: float) -> None:
        """Send the registration of this incarnation to the controllers. Does nothing if one is under way."""
        if self._registering:
            return
        self._registering = True
        self._due = None
        incarnations = self._incarnations
        seen = max(incarnations.seen, self.seen())
        message = Register(
            self._node,
            self._url,
            incarnations.cluster,
            incarnations.names,
            incarnations.clean,
            self._rack,
            index=seen[0],
            term=seen[1],
            producer_id=max(incarnations.id_bound, self.highest_id()),
            older_lives=incarnations.older,
            uncertain_lives=incarnations.uncertain,
        )
        self._effects.call(
            CONTROLLER, message, self._settings.controller_timeout_s, partial(self._on_registered, now)
        )

    def _on_registered(self, sent: float, answer: Message | TidelogError, now: float) -> None:
        """Begin the session with the broker epoch that the controllers have assigned: record it in the data
        directory, begin the watch of the metadata, and call ``on_begin``. After an error schedule another attempt,
        with another name for the incarnation if the controllers have fenced the present one. Raises ``ConfigError``
        if the controllers are those of another cluster."""
        self._registering = False
        if not isinstance(answer, Registered):
            if isinstance(answer, TidelogError) and answer.code == "WRONG_CLUSTER":
                raise ConfigError(f"{self._incarnations.directory}: {answer.message}")
            self._wake_at(now + self._settings.controller_retry_s * (0.5 + self._rng.random()))
            self._report_refusal(answer)
            if isinstance(answer, TidelogError) and answer.code == "FENCED_BROKER_EPOCH":
                self._on_disk(lambda: self._incarnations.rename(self._new_name()))
            return
        incarnations = self._incarnations
        if incarnations.cluster not in ("", answer.cluster):
            raise ConfigError(
                f"the controller is of cluster {answer.cluster}, {incarnations.directory} of {incarnations.cluster}:"
                " name the controllers of that cluster, or take an empty directory"
            )
        if not self._on_disk(lambda: incarnations.on_registered(answer.cluster, answer.index, answer.term)):
            return
        self.registered = True
        self.broker_epoch = answer.broker_epoch
        self.index = answer.index
        self._timeout_s = answer.session_timeout_ms / 1000
        self._ends_at, self.resumed_at = sent + self._timeout_s, now
        self._wake_at(now + self._settings.heartbeat_s)
        self._effects.event(
            "registered", broker_epoch=self.broker_epoch, index=self.index, cluster=incarnations.cluster
        )
        self._watch()
        self._on_begin(now)

    def _report_refusal(self, answer: Message | TidelogError) -> None:
        """Log ``registration_refused`` if the controllers refuse this server because another process has its name or
        because the metadata have gone back. Repeated refusals are logged one time."""
        in_use = isinstance(answer, TidelogError) and answer.code in ("NODE_IN_USE", "METADATA_WENT_BACK")
        if in_use and not self._refused and isinstance(answer, TidelogError):
            self._effects.event("registration_refused", reason=answer.message)
        self._refused = in_use

    def _on_disk(self, write: Callable[[], object]) -> bool:
        """Call ``write``, which writes to the data directory, and return True. If it raises ``OSError``, have the
        process end and return False."""
        try:
            write()
        except OSError as error:
            self._effects.stop(f"{self._incarnations.directory}: {error}")
            return False
        return True

    def _watch(self) -> None:
        """Send the controllers a request for the metadata and for all further updates of them."""
        self._watching = True
        self._effects.call(CONTROLLER, Watch(), self._settings.controller_timeout_s, self._on_watched)

    def _on_watched(self, answer: Message | TidelogError, now: float) -> None:
        """Record the watch of the metadata as lost if the controllers answered with an error; the next heartbeat
        begins it again."""
        if isinstance(answer, TidelogError):
            self._watching = False  # tried again with the next heartbeat

    def _heartbeat(self, now: float) -> None:
        """Send a heartbeat to the controllers. Does nothing if one is not answered yet. Every ``LAGS_EVERY_S``
        seconds the heartbeat reports the lags of followers and the highest producer id, whose bound is first raised
        in the data directory; if that write fails, the process ends."""
        if self._beating:
            return
        self._beating = True
        lags: tuple[FollowerLag, ...] = ()
        highest_id = 0
        if now >= self._lags_due:
            lags, self._lags_due = self.lags(now), now + LAGS_EVERY_S
            highest_id = self.highest_id()
            if not self._on_disk(lambda: self._incarnations.know_ids(highest_id)):
                return
        index, term = self.seen()
        message = Heartbeat(self._node, self.broker_epoch, lags, index=index, term=term, producer_id=highest_id)
        done = partial(self._on_heartbeat, now, self.broker_epoch)
        self._effects.call(CONTROLLER, message, self._settings.controller_timeout_s, done)

    def _on_heartbeat(self, sent: float, broker_epoch: int, answer: Message | TidelogError, now: float) -> None:
        """Extend the session by its timeout, counted from ``sent``, when the heartbeat was sent. If the controllers
        have registered a later incarnation, end this one: call ``on_end`` and register again. Other errors change
        nothing. An answer to a heartbeat of an earlier incarnation is ignored."""
        self._beating = False
        if broker_epoch != self.broker_epoch or not self.registered:
            return
        if not isinstance(answer, TidelogError):
            self._refused = False
            if now >= self._ends_at:
                self.resumed_at = now
            self._ends_at = max(self._ends_at, sent + self._timeout_s)
        elif answer.code == "METADATA_WENT_BACK":
            self._report_refusal(answer)
        elif answer.code == "FENCED_BROKER_EPOCH":
            self.registered = False
            self._effects.event("life_ended", broker_epoch=self.broker_epoch)
            self._on_end("a later incarnation of this server has registered")
            self._register(now)
