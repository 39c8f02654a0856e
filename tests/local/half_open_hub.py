"""A loopback proxy that can make a connection half-open: it stays open but carries no bytes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self

HOST = "127.0.0.1"
READ_BYTES = 65_536


class HalfOpenProxy:
    """Forwards bytes to a local port during an `async with`.

    After `swallow`, connections stay open but nothing passes in either direction, as behind a
    firewall that dropped their state. New connections behave the same.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._swallows = False
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def port(self) -> int:
        assert self._server is not None, "not started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def through(self, connection_string: str) -> str:
        """The connection string with this proxy's port."""
        return connection_string.replace(f":{self._target_port};", f":{self.port};", 1)

    def swallow(self) -> None:
        self._swallows = True

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward_writer = await asyncio.open_connection(HOST, self._target_port)
        self._writers |= {writer, onward_writer}
        pumps = self._pump(reader, onward_writer), self._pump(onward_reader, writer)
        with suppress(OSError):
            await asyncio.gather(*pumps)
        for each in (writer, onward_writer):
            each.close()
            self._writers.discard(each)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one direction. Once bytes were dropped, the stream stays silent."""
        lost = False
        while chunk := await reader.read(READ_BYTES):
            lost = lost or self._swallows
            if not lost:
                writer.write(chunk)
                await writer.drain()
        if not lost:
            writer.close()
