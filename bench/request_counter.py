"""Counts requests on the wire, between the client library and storage."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from urllib.parse import urlsplit

from aiohttp import ClientSession, web
from yarl import URL

HOST = "127.0.0.1"
OF_ONE_CONNECTION = frozenset({"connection", "content-length", "keep-alive", "transfer-encoding"})
"""Headers that apply to one connection only and are not forwarded."""


class RequestCounter:
    """A loopback proxy in front of a table endpoint. It also counts retries."""

    def __init__(self, port: int, session: ClientSession) -> None:
        self._target = f"http://{HOST}:{port}"
        self._session = session
        self._kinds: Counter[str] = Counter()

    @contextmanager
    def counting(self) -> Iterator[Counter[str]]:
        """Count the requests of the block by kind: read, transaction, other."""
        self._kinds = counted = Counter[str]()
        try:
            yield counted
        finally:
            self._kinds = Counter()

    async def forward(self, request: web.BaseRequest) -> web.Response:
        """Count a request, forward it unchanged, and return the answer."""
        self._kinds[_kind(request)] += 1
        url = URL(self._target + request.raw_path, encoded=True)
        sent = self._session.request(
            request.method, url, headers=_passed_on(request.headers), data=await request.read()
        )
        async with sent as answer:
            return web.Response(
                status=answer.status, body=await answer.read(), headers=_passed_on(answer.headers)
            )


@asynccontextmanager
async def request_counter(connection_string: str) -> AsyncIterator[tuple[RequestCounter, str]]:
    """Yield a running counter, and a connection string whose table endpoint is the counter."""
    endpoint = _table_endpoint(connection_string)
    # A content type that the client did not sign would invalidate the signature.
    async with ClientSession(auto_decompress=False, skip_auto_headers=["Content-Type"]) as session:
        counter = RequestCounter(_port(endpoint), session)
        runner = web.ServerRunner(web.Server(counter.forward))
        await runner.setup()
        await web.TCPSite(runner, HOST, 0).start()
        counted = endpoint.replace(f":{_port(endpoint)}", f":{runner.addresses[0][1]}")
        try:
            yield counter, connection_string.replace(endpoint, counted)
        finally:
            await runner.cleanup()


def _table_endpoint(connection_string: str) -> str:
    return connection_string.partition("TableEndpoint=")[2].partition(";")[0]


def _port(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None, f"{url} names no port"
    return port


def _kind(request: web.BaseRequest) -> str:
    if request.method == "GET":
        return "read"
    return "transaction" if request.path.endswith("/$batch") else "other"


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in headers.items() if name.lower() not in OF_ONE_CONNECTION}
