"""A loopback TCP proxy that can drop all bytes, as a broken network does.

Both ends keep their sockets open and receive nothing, neither an end of file nor a reset.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
CHUNK_BYTES = 65_536


class HalfOpenProxy:
    """Forwards connections to ``port`` while ``swallow`` does not prevent it."""

    def __init__(self, port: int) -> None:
        self._to_port = port
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._swallowed_up_to = 0
        self._swallows_new = False
        self.accepted = 0
        """The number of accepted connections."""

        self.swallowed_bytes = 0

    @property
    def port(self) -> int:
        assert self._server is not None, "the proxy is not started"
        return int(self._server.sockets[0].getsockname()[1])

    def through(self, connection_string: str) -> str:
        """The connection string with this proxy's port."""
        return connection_string.replace(f":{self._to_port};", f":{self.port};", 1)

    def swallow(self, *, new: bool = False) -> None:
        """From now on, drop all bytes of existing connections, and of new ones if ``new``."""
        self._swallowed_up_to = self.accepted
        self._swallows_new = new

    def forward(self) -> None:
        """Forward new connections again. The existing ones stay dead."""
        self.swallow()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for pipe in self._pipes:
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        number = self.accepted
        far_reader, far_writer = await asyncio.open_connection(HOST, self._to_port)
        self._writers += [writer, far_writer]
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            pipe = asyncio.create_task(self._pipe(number, source, sink))
            self._pipes.add(pipe)
            pipe.add_done_callback(self._pipes.discard)

    async def _pipe(
        self, number: int, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        """Forward one direction of a connection. The end of a stream is dropped like its bytes."""
        try:
            while chunk := await source.read(CHUNK_BYTES):
                if self._swallows(number):
                    self.swallowed_bytes += len(chunk)
                    continue
                sink.write(chunk)
                await sink.drain()
        except ConnectionError:
            pass
        finally:
            if not self._swallows(number):
                sink.close()

    def _swallows(self, number: int) -> bool:
        return number <= self._swallowed_up_to or self._swallows_new
