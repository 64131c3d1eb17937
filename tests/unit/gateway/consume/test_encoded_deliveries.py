"""A delivery that many clients get is encoded once. Tests ``GatewayShell.perform``."""

from __future__ import annotations

from typing import cast

import pytest
import trio
from tidelog.net.link import PROTOCOL_VERSION, Link
from tidelog.net.transport import Outgoing, outgoing
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.sansio.effects import Post
from tidelog.wire.codec import encode
from tidelog.wire.messages import Delivery, Hello, Message, Payload
from tidelog_gateway import shell as shell_module
from tidelog_gateway.settings import RouterSettings, SubscriptionSettings
from tidelog_gateway.shell import GatewayShell


class Receiver:
    """As much of a client's link as a delivery needs."""

    def __init__(self, source: int) -> None:
        self.source = source
        self.got: list[Outgoing] = []

    def post_encoded(self, message: Message, encoded: Outgoing) -> None:
        self.got.append(encoded)


async def test_a_delivery_to_many_clients_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Message] = []

    def counting(message: Message) -> tuple[bytes, Payload]:
        encoded.append(message)
        return encode(message)

    monkeypatch.setattr(shell_module, "encode", counting)
    async with trio.open_nursery() as nursery:
        settings = RouterSettings(), SubscriptionSettings()
        hello = Hello(PROTOCOL_VERSION, "gateway", "g1")
        shell = GatewayShell(WebSocketTransport(), hello, [], *settings, trio.current_time, nursery)
        receivers = [Receiver(source) for source in (1, 2, 3)]
        for receiver in receivers:
            shell.on_open(cast(Link, receiver), "ann")
        shared, other = Delivery(1, 5, payload=b"batch"), Delivery(2, 5, payload=b"batch")
        gone = 9
        shell.perform([Post(1, shared), Post(gone, shared), Post(2, shared), Post(3, other)])
    assert encoded == [shared, other]
    assert receivers[0].got == receivers[1].got == [outgoing(*encode(shared))]
    assert receivers[2].got == [outgoing(*encode(other))]
