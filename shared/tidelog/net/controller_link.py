"""The link to the active controller: find it, keep it, notice when it is no longer the active one.

The controllers are tried in turn. Each is asked which controller is active (``describe_quorum``): if it names itself,
the link is up; if it names another one, that one is tried next. While the link is up the question is repeated
``CHECK_S`` after the last answer, since a controller that was cut off from the others, or paused, does not report it,
and at once when it answers ``NOT_ACTIVE_CONTROLLER``. Only the active controller serves requests other than
``Watch``, so each such answer counts like one to the question: a replica server sends heartbeats, and does not ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from tidelog.errors import TidelogError, Unreachable
from tidelog.net.link import Link, connect_link
from tidelog.net.transport import Transport
from tidelog.wire.messages import DescribeQuorum, Hello, Message, QuorumAnswer, Watch

CONNECT_TIMEOUT_S = 2.0
CHECK_S = 0.75
"""Seconds after the last answer of the connected controller until it is asked whether it is still the active one.
This is more than the time between two heartbeats of a replica server."""
ANSWER_TIMEOUT_S = 1.5
PAUSE_FIRST_S, PAUSE_MAX_S = 0.02, 0.3
MAX_HINTS = 3
"""Most hints followed without a pause: two controllers may each name the other for a moment."""

LOST = ("UNREACHABLE", "REQUEST_TIMED_OUT")
"""Codes of errors after which the request may have been carried out: it was sent, and no answer came."""

Answered = Callable[[Message | TidelogError], None]


class ControllerLink:
    """The link of a process to the active controller: ``link``, or None while there is none. ``run`` finds the active
    controller. ``on_message`` is called with each message that the controller sends by itself (metadata updates),
    ``on_up`` and ``on_down`` when the link is up or lost. ``on_trouble`` is called with the URL of a controller that
    could not be reached or refused, and the error; a second time only if the error changes or the link was up in
    between."""

    def __init__(
        self,
        transport: Transport,
        urls: Sequence[str],
        hello: Hello,
        *,
        on_message: Callable[[Message], None],
        on_up: Callable[[], None],
        on_down: Callable[[], None] = lambda: None,
        on_trouble: Callable[[str, TidelogError], None] = lambda _url, _error: None,
    ) -> None:
        self.link: Link | None = None
        self._transport = transport
        self._urls = list(urls)
        self._hello = hello
        self._on_message = on_message
        self._on_up = on_up
        self._on_down = on_down
        self._on_trouble = on_trouble
        self._troubles: dict[str, str] = {}
        self._missing_disks: dict[str, QuorumAnswer] = {}
        """Answers of controllers that cannot elect a leader since they run on old copies of their disks."""
        self._changed = trio.Event()
        self._doubt = trio.Event()
        self._check = trio.CancelScope()
        """Its deadline is the time of the next question to the connected controller."""

    @property
    def missing_disks(self) -> QuorumAnswer | None:
        """Return the answer of a controller that reports that no controller can become active because disks are
        missing (``disks_needed``). Return None if the link is up or no controller reports that."""
        return None if self.link is not None else next(iter(self._missing_disks.values()), None)

    async def run(self) -> None:
        """Try the controllers in turn until one says that it is active, and keep a link to that one until the link
        breaks or the controller is no longer active; then begin again, behind that one: if its process hangs,
        connecting to it would take all of ``CONNECT_TIMEOUT_S``, in which sessions of servers may end. Ends only when
        cancelled. Pauses grow up to ``PAUSE_MAX_S``."""
        turn, hints, pause_s = 0, 0, PAUSE_FIRST_S
        hint: str | None = None
        while True:
            url = hint or self._urls[turn % len(self._urls)]
            turn += hint is None
            was_up, hint = await self._hold(url)
            if was_up:
                hints, pause_s = 0, PAUSE_FIRST_S
                turn = self._urls.index(url) + 1 if url in self._urls else turn
            hints = hints + 1 if hint else 0
            if hint is None or hints > MAX_HINTS:
                hint, hints = None, 0
                await trio.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_MAX_S)

    def start_call(self, request: Message, timeout_s: float, done: Answered) -> None:
        """Send a request to the active controller, without waiting and without retries. ``done`` is called exactly
        once with the answer or the error; at once with ``Unreachable`` if no active controller is known. After
        ``NOT_ACTIVE_CONTROLLER`` or a timeout the controller is asked at once whether it is still active."""
        link = self.link
        if link is None:
            done(Unreachable("no active controller is known"))
            return

        def check(answer: Message | TidelogError) -> None:
            if isinstance(answer, TidelogError):
                if answer.code in ("NOT_ACTIVE_CONTROLLER", "REQUEST_TIMED_OUT"):
                    self._doubt.set()
            elif link is self.link and not isinstance(request, Watch):
                self._check.deadline = trio.current_time() + CHECK_S
            done(answer)

        link.start_call(request, timeout_s, check)

    async def call(self, request: Message, timeout_s: float) -> Message:
        """Send a request to the active controller, wait for the answer and return it. Waits until a controller is
        found, and retries retriable errors, until ``timeout_s`` seconds have passed. Raises an error that is not
        retriable at once, and at the end the last error. The error has ``unknown_outcome`` if the request may have
        taken effect."""
        end = trio.current_time() + timeout_s
        last: TidelogError = Unreachable("no active controller was found")
        uncertain = False
        while (left_s := end - trio.current_time()) > 0:
            changed = self._changed
            if self.link is None:
                with trio.move_on_after(left_s):
                    await changed.wait()
                continue
            try:
                return await self.link.call(request, left_s)
            except TidelogError as error:
                last = error
                last.unknown_outcome = uncertain = uncertain or error.unknown_outcome or error.code in LOST
                if not error.retriable:
                    raise
                self._doubt.set()
            with trio.move_on_after(min(PAUSE_MAX_S, max(end - trio.current_time(), 0))):
                await changed.wait()
        raise last

    async def _hold(self, url: str) -> tuple[bool, str | None]:
        """Connect to the controller at ``url``, and keep the link as long as that controller says that it is active.
        Calls ``on_up`` and ``on_down``; a refusal or a broken link is reported to ``on_trouble``. Return whether it
        was active, and the URL of the controller that it names as active instead; None if it names none."""

        def handle(_link: Link, _id: int | None, message: Message) -> None:
            self._on_message(message)

        was_up = False
        hint: str | None = None
        try:
            with trio.move_on_after(CONNECT_TIMEOUT_S) as connecting:
                async with connect_link(self._transport, url, self._hello, handle) as link:
                    connecting.deadline = trio.current_time() + 1e9  # the limit is for opening it only
                    while True:
                        active, hint = await self._ask(url, link)
                        if not active:
                            break
                        if not was_up:
                            was_up = True
                            self._troubles.clear()
                            self._missing_disks.clear()
                            self._set(link)
                            self._on_up()
                        await self._wait_doubt(link)
        except TidelogError as error:  # refused or broken: the next one is tried
            hint = None
            self._missing_disks.pop(url, None)
            if self._troubles.get(url) != str(error):
                self._troubles[url] = str(error)
                self._on_trouble(url, error)
        if was_up:
            self._set(None)
            self._on_down()
        return was_up, hint

    async def _ask(self, url: str, link: Link) -> tuple[bool, str | None]:
        """Ask the connected controller which controller is active. Return whether it is itself active, and otherwise
        the URL of the active controller, if the answer has it. Records or forgets its report of missing disks. Raises
        ``TidelogError``."""
        answer = await link.call(DescribeQuorum(), ANSWER_TIMEOUT_S)
        assert isinstance(answer, QuorumAnswer)
        if answer.active == link.peer.node:
            return True, None
        if answer.disks_needed:
            self._missing_disks[url] = answer
        else:
            self._missing_disks.pop(url, None)
        named = [one.url for one in answer.controllers if one.node == answer.active and one.url]
        return False, named[0] if named else None

    async def _wait_doubt(self, link: Link) -> None:
        """Wait until it is time to ask the controller again whether it is active: ``CHECK_S`` after its last answer,
        or at once if an answer or the end of the link casts doubt on that."""
        self._doubt = doubt = trio.Event()
        async with trio.open_nursery() as nursery:

            async def watch_link() -> None:
                await link.wait_closed()
                doubt.set()

            nursery.start_soon(watch_link)
            with trio.CancelScope(deadline=trio.current_time() + CHECK_S) as self._check:
                await doubt.wait()
            nursery.cancel_scope.cancel()

    def _set(self, link: Link | None) -> None:
        """Replace the link, and wake the calls that wait for a link."""
        self.link = link
        self._changed.set()
        self._changed = trio.Event()
