"""The webhook over HTTP: its content, its retries, its time limit, and no leak of its address."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from shared.azure.retry import JitteredRetrying
from shared.ingestion.breaker.announcement import NotifierAnnouncer
from shared.ingestion.breaker.state import Breaker, BreakerMode
from shared.notifications.notifiers import LogNotifier, Webhook
from shared.notifications.ports import NotSent
from tests.builders import NOW

OPEN = Breaker(BreakerMode.OPEN, 3, NOW, "too much failed")
SECRET = "secret-signature"


@dataclass
class Receiver:
    """A server that answers with the given statuses, and then with 202."""

    codes: list[int] = field(default_factory=list)
    retry_after: str = ""
    bodies: list[str] = field(default_factory=list)
    content_types: list[str] = field(default_factory=list)
    elsewhere: int = 0
    hangs: bool = False
    url: str = ""

    async def hook(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.text())
        self.content_types.append(request.headers["Content-Type"])
        if self.hangs:
            await asyncio.sleep(60)
        code = self.codes.pop(0) if self.codes else 202
        headers = {"Location": "/elsewhere", "Retry-After": self.retry_after}
        return web.Response(status=code, headers=headers)

    async def other(self, _request: web.Request) -> web.Response:
        self.elsewhere += 1
        return web.Response()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/hook", receiver.hook)
    app.router.add_route("*", "/elsewhere", receiver.other)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook?sig={SECRET}"
    yield receiver
    await runner.cleanup()


def announcer(url: str, seconds: float = 5) -> NotifierAnnouncer:
    hook = Webhook(url, "cloudevents", JitteredRetrying(3, 0.001, 0.001), seconds)
    return NotifierAnnouncer(LogNotifier(hook), "b", lambda _: "https://l")


async def test_a_cloud_event_is_posted_and_a_transient_failure_is_retried(
    receiver: Receiver,
) -> None:
    receiver.codes = [503, 429]
    await announcer(receiver.url).announce(OPEN)
    assert [json.loads(body)["data"]["link"] for body in receiver.bodies] == ["https://l"] * 3
    assert set(receiver.content_types) == {"application/cloudevents+json; charset=utf-8"}


@pytest.mark.parametrize(("asked", "waits"), [("0.1", True), ("30", False)])
async def test_a_webhook_is_not_asked_again_before_the_time_that_it_names(
    receiver: Receiver, asked: str, waits: bool
) -> None:
    receiver.codes, receiver.retry_after = [429], asked
    started = asyncio.get_running_loop().time()
    if waits:
        await announcer(receiver.url).announce(OPEN)
        assert asyncio.get_running_loop().time() - started >= float(asked)
    else:
        with pytest.raises(NotSent, match="answered 429 and asks to wait 30 s"):
            await announcer(receiver.url).announce(OPEN)
    assert len(receiver.bodies) == 1 + waits


@pytest.mark.parametrize(("codes", "attempts"), [([503] * 9, 3), ([404], 1), ([302], 1)])
async def test_the_final_error_of_the_webhook_contains_no_secret(
    receiver: Receiver, codes: list[int], attempts: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    receiver.codes = codes
    with pytest.raises(NotSent, match=f"127.0.0.1 answered {codes[0]}") as raised:
        await announcer(receiver.url).announce(OPEN)
    assert (len(receiver.bodies), receiver.elsewhere) == (attempts, 0)
    assert SECRET not in str(raised.value) + caplog.text
    assert "[breaker_opened] Circuit breaker b is open: too much failed" in caplog.text


async def test_an_unreachable_or_hanging_webhook_fails_within_a_time_limit(
    receiver: Receiver,
) -> None:
    with pytest.raises(NotSent, match="ClientConnectorError"):
        await announcer(f"http://127.0.0.1:9/{SECRET}").announce(OPEN)
    receiver.hangs = True
    with pytest.raises(NotSent, match="TimeoutError"):
        await announcer(receiver.url, 0.05).announce(OPEN)
