"""The stand-in itself: a server on 127.0.0.1 that ties connections to a broker."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from local.amqp_broker.broker import Broker
from local.amqp_broker.clock import Clock, VirtualClock, utc_now
from local.amqp_broker.connection import AmqpConnection
from local.amqp_broker.faults import FaultSwitches
from local.amqp_broker.greeting import Greeting, MakeProtocol
from local.amqp_broker.model.errors import BrokerError
from local.amqp_broker.model.hub import Reader
from local.amqp_broker.model.namespace import Namespace
from local.amqp_broker.peer import Shared

HOST = "127.0.0.1"
TICK_SECONDS = 0.02
"""How often locks, schedules and lifetimes are looked after when the clock is the machine's."""


class AmqpStandIn:
    """Service Bus and Event Hubs over AMQP, for the length of an `async with`.

    `namespace` has the queues and topics, `broker.declare_hub` makes hubs, `faults` orders
    faults. Without a port it takes a free one. `others` answers on the same port those who
    speak something else than AMQP.
    """

    def __init__(
        self,
        *,
        clock: Clock = utc_now,
        port: int = 0,
        broker: Broker | None = None,
        others: MakeProtocol | None = None,
    ) -> None:
        self.port = port
        self._others = others
        self.broker = broker or Broker(clock)
        self.faults = FaultSwitches()
        self._connections: set[AmqpConnection] = set()
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        self._pump_is_due = False

    @property
    def namespace(self) -> Namespace:
        return self.broker.namespace

    @property
    def connection_string(self) -> str:
        """For the SDKs. `UseDevelopmentEmulator` makes them do without TLS."""
        return (
            f"Endpoint=sb://{HOST}:{self.port};SharedAccessKeyName=stand-in;"
            "SharedAccessKey=stand-in;UseDevelopmentEmulator=true;"
        )

    @property
    def waiting_count(self) -> int:
        """Receivers that wait for a free session."""
        return sum(connection.links.waiting_count for connection in self._connections)

    def drop_connections(self) -> None:
        """Break all connections at once, as a network does."""
        for connection in list(self._connections):
            connection.drop()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._server = await self._loop.create_server(self._greet, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        self._ticker = asyncio.create_task(self._tick())
        if isinstance(self.broker.clock, VirtualClock):
            self._unsubscribe = self.broker.clock.subscribe(self._on_time)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._unsubscribe()
        if self._ticker is not None:
            self._ticker.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticker
        self.drop_connections()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def _greet(self) -> asyncio.Protocol:
        if self._others is None:
            return self._new_connection()
        return Greeting(self._new_connection, self._others)

    def _new_connection(self) -> AmqpConnection:
        shared = Shared(self.broker, self.faults, self._changed, self._later)
        connection = AmqpConnection(shared, self._disconnect, self._connections.discard)
        self._connections.add(connection)
        return connection

    def _changed(self) -> None:
        """Look once for things to send, when the events at hand are done with."""
        if not self._pump_is_due and self._loop is not None:
            self._pump_is_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_is_due = False
        self.broker.advance()
        for connection in list(self._connections):
            connection.links.pump()
            connection.flush()

    def _later(self, seconds: float, action: Callable[[], None]) -> object:
        if self._loop is None:
            raise RuntimeError("the stand-in has not started")
        return self._loop.call_later(seconds, action)

    def _on_time(self) -> None:
        """A virtual clock was moved, perhaps from another thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._changed)

    def _disconnect(self, reader: Reader, error: BrokerError) -> None:
        for connection in list(self._connections):
            connection.disconnect(reader, error)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            seconds = asyncio.get_running_loop().time()
            for connection in list(self._connections):
                connection.tick(seconds)
            self._pump()
