"""Two protocols on one port, told apart by the first bytes that a client writes.

A namespace has one name, and a connection string says no more than that name: messages go there
over AMQP, administration over HTTP.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from local.amqp_broker.frames import PROTOCOL_HEADER

MakeProtocol = Callable[[], asyncio.BaseProtocol]


class Greeting(asyncio.Protocol):
    """Waits for the first bytes and hands the connection over, those bytes first."""

    def __init__(self, amqp: MakeProtocol, others: MakeProtocol) -> None:
        self._amqp = amqp
        self._others = others
        self._network: asyncio.Transport | None = None
        self._first = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._network = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._first += data
        if self._network is None or len(self._first) < len(PROTOCOL_HEADER):
            return
        make = self._amqp if self._first.startswith(PROTOCOL_HEADER) else self._others
        protocol = cast(asyncio.Protocol, make())
        self._network.set_protocol(protocol)
        protocol.connection_made(self._network)
        protocol.data_received(self._first)
