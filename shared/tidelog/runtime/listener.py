"""A port that is open before its service serves: the service needs the URL of the port to register."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Protocol

import trio

from tidelog.errors import TidelogError, refuse
from tidelog.net.http_pages import METRICS_PATH
from tidelog.net.link import Link, OnRefused, serve_links
from tidelog.net.transport import Page, Transport
from tidelog.runtime.health import NotReady, health_pages
from tidelog.runtime.metrics import RecentMetrics, metrics_answer
from tidelog.wire.messages import (
    DescribeMetrics,
    DifferingCopies,
    Hello,
    Message,
    MetricsAnswer,
    UnreadablePlace,
    Welcome,
)


class Shell(Protocol):
    """The methods of a service's shell that a listener calls: when a link opens, when it closes, and for each of its
    messages."""

    def on_open(self, link: Link) -> None: ...
    def on_close(self, link: Link) -> None: ...
    def on_message(self, link: Link, id: int | None, message: Message) -> None: ...


class Listener:
    """The port of the service ``node``, from its start to its end. It refuses every hello with ``OFFLINE`` until
    ``open`` is called; from then on ``welcome`` decides about each hello. It answers HTTP pages and
    ``describe_metrics`` itself; all other messages go to the shell."""

    def __init__(
        self, node: str, welcome: Callable[[Hello], Welcome | TidelogError], with_metrics: bool = True
    ) -> None:
        self._with_metrics = with_metrics
        self._node = node
        self._welcome = welcome
        self._serving: tuple[Shell, Callable[[str], Page]] | None = None
        self._on_refused: OnRefused = lambda link, message, error: None
        self._reasons_not_ready: NotReady = lambda: (f"{node} is starting",)
        self._recent: RecentMetrics | None = None
        self._unreadable: Callable[[], tuple[UnreadablePlace, ...]] = tuple
        self._differing: Callable[[], tuple[DifferingCopies, ...]] = tuple

    def open(
        self,
        shell: Shell,
        metrics: Callable[[str], Page],
        reasons_not_ready: NotReady,
        on_refused: OnRefused = lambda link, message, error: None,
        unreadable: Callable[[], tuple[UnreadablePlace, ...]] = tuple,
        differing: Callable[[], tuple[DifferingCopies, ...]] = tuple,
        recent: RecentMetrics | None = None,
    ) -> None:
        """Accept hellos from now on, and hand links and their messages to ``shell``.

        ``metrics`` returns the metrics page, and ``reasons_not_ready`` the reasons for the page ``/readyz``.
        ``on_refused`` is called for each hello or message that a link refuses. ``unreadable`` and ``differing``
        complete the answers to ``describe_metrics``: they return the batches that no reader can decode, and the
        partitions whose copies differ. So does ``recent``, whose ``run`` the caller runs."""
        self._serving = shell, metrics
        self._reasons_not_ready = reasons_not_ready
        self._on_refused = on_refused
        self._unreadable = unreadable
        self._differing = differing
        self._recent = recent

    async def serve(
        self,
        transport: Transport,
        host: str,
        port: int,
        allowed: Mapping[str, frozenset[str]],
        own_urls: Collection[str] = (),
        *,
        hosts: Collection[str] = (),
        role: str,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Open the port at ``host`` and accept links until cancelled. The URL is reported through ``task_status``.
        ``allowed``: the ops that each role of a peer may send. ``role``: that of this service. Web pages may not
        connect. Raises ``ConfigError`` if the port is in use."""
        await serve_links(
            transport,
            host,
            port,
            self._admit,
            self._on_message,
            allowed=allowed,
            on_open=lambda link: self._shell.on_open(link),
            on_close=lambda link: self._shell.on_close(link),
            on_refused=lambda link, message, error: self._on_refused(link, message, error),
            own_urls=own_urls,
            browsers=False,
            pages={
                **({METRICS_PATH: self._show_metrics} if self._with_metrics else {}),
                **health_pages(lambda: self._reasons_not_ready()),
            },
            hosts=hosts,
            flow_control=True,
            role=role,
            task_status=task_status,
        )

    @property
    def _shell(self) -> Shell:
        assert self._serving is not None, "the port is not open"
        return self._serving[0]

    def _on_message(self, link: Link, id: int | None, message: Message) -> None:
        if not isinstance(message, DescribeMetrics):
            self._shell.on_message(link, id, message)
        elif id is not None:
            link.answer(id, self._metrics_of(message.node))

    def _metrics_of(self, node: str) -> MetricsAnswer | TidelogError:
        """Return the answer to ``describe_metrics``, or the error for a request that names another node or if metrics
        are off."""
        if node not in ("", self._node):
            return refuse("UNKNOWN_SERVER", f"this is {self._node}, not {node}")
        if not self._with_metrics:
            return refuse("UNSUPPORTED", f"{node} shows no metrics: metrics = false")
        shown = metrics_answer(self._show_metrics, self._recent)
        return replace(shown, unreadable=self._unreadable(), differing=self._differing())

    def _admit(self, hello: Hello) -> Welcome | TidelogError:
        """Return the answer to a peer's hello: ``OFFLINE`` before ``open``, then what ``welcome`` returns."""
        if self._serving is None:
            return refuse("OFFLINE", f"{self._node} is starting")
        return self._welcome(hello)

    def _show_metrics(self, accept: str) -> Page:
        """Return the metrics page; before ``open`` a page with status 503."""
        if self._serving is None:
            return Page(b"starting\n", status=503)
        return self._serving[1](accept)
