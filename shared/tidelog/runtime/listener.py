"""A port that is open before there is anything behind it: what is behind it must be told the URL first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Protocol

import trio

from tidelog.errors import TidelogError, refuse
from tidelog.net.http_pages import METRICS_PATH
from tidelog.net.link import Link, OnRefused, serve_links
from tidelog.net.transport import Page, Transport
from tidelog.runtime.health import WhyNot, health_pages
from tidelog.runtime.metrics import told
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
    """What is behind it."""

    def on_open(self, link: Link) -> None: ...
    def on_close(self, link: Link) -> None: ...
    def on_message(self, link: Link, id: int | None, message: Message) -> None: ...


class Listener:
    """Refuses everybody with ``OFFLINE`` until ``open``, then asks ``welcome``. ``node`` is whose port it is. It
    answers pages, and ``describe_metrics``; all else is for who is behind it."""

    def __init__(
        self, node: str, welcome: Callable[[Hello], Welcome | TidelogError], with_metrics: bool = True
    ) -> None:
        self._with_metrics = with_metrics
        self._node = node
        self._welcome = welcome
        self._behind: tuple[Shell, Callable[[str], Page]] | None = None
        self._on_refused: OnRefused = lambda link, message, error: None
        self._why_not_ready: WhyNot = lambda: (f"{node} is starting",)
        self._unreadable: Callable[[], tuple[UnreadablePlace, ...]] = tuple
        self._differing: Callable[[], tuple[DifferingCopies, ...]] = tuple

    def open(
        self,
        shell: Shell,
        metrics: Callable[[str], Page],
        why_not_ready: WhyNot,
        on_refused: OnRefused = lambda link, message, error: None,
        unreadable: Callable[[], tuple[UnreadablePlace, ...]] = tuple,
        differing: Callable[[], tuple[DifferingCopies, ...]] = tuple,
    ) -> None:
        """From now on ``shell`` is behind it, and ``metrics`` shows its counts. ``on_refused`` hears of hellos and of
        messages that came no further than here. ``unreadable`` gives the batches that answers to ``describe_metrics``
        name as ones that no reader can decode, and ``differing`` the partitions whose copies differ."""
        self._behind = shell, metrics
        self._why_not_ready = why_not_ready
        self._on_refused = on_refused
        self._unreadable = unreadable
        self._differing = differing

    async def serve(
        self,
        transport: Transport,
        host: str,
        port: int,
        allowed: Mapping[str, frozenset[str]],
        own_urls: Collection[str] = (),
        *,
        hosts: Collection[str] = (),
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen until cancelled; reports the URL. No web page may connect. See ``serve_links``."""
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
                **health_pages(lambda: self._why_not_ready()),
            },
            hosts=hosts,
            flow_control=True,
            task_status=task_status,
        )

    @property
    def _shell(self) -> Shell:
        assert self._behind is not None, "nobody was admitted yet"
        return self._behind[0]

    def _on_message(self, link: Link, id: int | None, message: Message) -> None:
        if not isinstance(message, DescribeMetrics):
            self._shell.on_message(link, id, message)
        elif id is not None:
            link.answer(id, self._metrics_of(message.node))

    def _metrics_of(self, node: str) -> MetricsAnswer | TidelogError:
        if node not in ("", self._node):
            return refuse("UNKNOWN_SERVER", f"this is {self._node}, not {node}")
        if not self._with_metrics:
            return refuse("UNSUPPORTED", f"{node} shows no metrics: metrics = false")
        shown = told(self._show_metrics)
        return replace(shown, unreadable=self._unreadable(), differing=self._differing())

    def _admit(self, hello: Hello) -> Welcome | TidelogError:
        if self._behind is None:
            return refuse("OFFLINE", f"{self._node} is starting")
        return self._welcome(hello)

    def _show_metrics(self, accept: str) -> Page:
        if self._behind is None:
            return Page(b"starting\n", status=503)
        return self._behind[1](accept)
