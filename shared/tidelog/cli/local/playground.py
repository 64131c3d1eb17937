"""The nodes of ``tidelog dev``, and the faults that can be injected into them through a network that this process
owns.

A paused node neither receives nor sends, while its connections stay open, like a process that hangs; messages under
way arrive when it is healed. A node that is cut off loses its connections, and no new ones reach it. A killed node is
cut off first, so that it hands nothing over, and then ended; what it had on disk is found again when it is healed."""

from __future__ import annotations

import secrets
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import trio

from tidelog.cli.local.message_tap import ConnectionTap, MessageTap
from tidelog.errors import refuse
from tidelog.testing.real.faulty_network import FaultyTransport
from tidelog.wire.messages import PlayAnswer, PlayedMessage, PlayedNode
from tidelog.wire.proof import MIN_SECRET_BYTES

if TYPE_CHECKING:
    from tidelog_controller.config import ControllerConfig
    from tidelog_replica.config import ReplicaConfig

    from tidelog.testing.real.service_tasks import ServiceTask


class _Node:
    """One service of the playground: its configuration, with the port that it listens on once it has started, its
    network, its task, and its state: running, paused, cut or killed."""

    def __init__(self, config: ControllerConfig | ReplicaConfig) -> None:
        self.config = config
        self.transport: FaultyTransport
        self.task: ServiceTask
        self.state = "running"


class LocalPlayground:
    """The services of ``tidelog dev``, which run in one nursery, each behind a network of its own, and the faults
    that the console injects into them. The services share a secret, which is only in memory."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._nodes: dict[str, _Node] = {}
        self._playing = trio.Lock()
        self._recorder = MessageTap()
        self._secret = secrets.token_bytes(MIN_SECRET_BYTES)

    def transport(self, name: str) -> FaultyTransport:
        """Return a new network for the node ``name``, with the secret and the recorder of this playground."""
        return FaultyTransport(self._secret, partial(ConnectionTap, self._recorder, name))

    async def start(self, config: ControllerConfig | ReplicaConfig) -> str:
        """Add a service to the playground: run it as a task in the nursery, wait until it listens, and return its
        URL. Raises the error with which its start fails. If the service is killed and healed later (``play``), it
        listens at the same URL again. Called once for each node."""
        node = self._nodes[config.node] = _Node(config)
        url = await self._run(node)
        node.config = replace(config, port=int(url.rpartition(":")[2]))
        return url

    async def _run(self, node: _Node) -> str:
        """Run a service as a task over a new network, wait until it listens, and return its URL."""
        from tidelog.testing.real.service_tasks import ServiceTask

        node.transport = self.transport(node.config.node)
        node.task = ServiceTask(self._nursery, node.config, node.transport)
        return await node.task.start()

    async def play(self, name: str, act: str) -> PlayAnswer:
        """Carry out one action that the console requests with the message ``Play``: ``kill``, ``pause``, ``cut`` or
        ``heal`` the named node, ``record`` messages, ``stop`` recording, or "" for none. Return the state of all
        nodes, with the recorded messages after ``stop``. Raises ``UNKNOWN_SERVER`` for an unknown node, ``MALFORMED``
        for an action that is unknown or not possible now."""
        messages: tuple[PlayedMessage, ...] = ()
        if act == "record":
            self._recorder.start_recording()
        elif act == "stop":
            messages = self._recorder.stop_recording()
        elif act:
            if name not in self._nodes:
                raise refuse("UNKNOWN_SERVER", f"no node {name!r}: there are {', '.join(self._nodes)}")
            async with self._playing:
                await self._do(self._nodes[name], act)
        nodes = tuple(PlayedNode(known, node.state) for known, node in self._nodes.items())
        return PlayAnswer(nodes, messages)

    async def _do(self, node: _Node, act: str) -> None:
        """Carry out an action on one node, and change its state. Raises ``MALFORMED`` if the action is unknown, or if
        the node is killed and the action is not ``heal``."""
        match act, node.state:
            case (("kill" | "pause" | "cut"), "killed"):
                raise refuse("MALFORMED", "it is killed: heal it first")
            case "kill", _:
                node.state = "killed"
                node.transport.cut()
                node.transport.gate.open()
                node.task.cancel()
            case "pause", _:
                node.state = "paused"
                node.transport.heal()
                node.transport.gate.close()
            case "cut", _:
                node.state = "cut"
                node.transport.gate.open()
                node.transport.cut()
            case "heal", "killed":
                await node.task.wait_ended()
                await self._run(node)
                node.state = "running"
            case "heal", _:
                node.transport.heal()
                node.state = "running"
            case _:
                raise refuse("MALFORMED", f"{act!r} is not kill, pause, cut, heal, record or stop")
