"""The webhook over HTTP: its content, its retries, its time limit, and no leak of its address."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pytest
from aiohttp import web

from local.twins.notifications import MemoryNotificationStore
from shared.cli.main import main
from shared.ingestion.breaker.announcement import opening_news
from shared.ingestion.breaker.state import Breaker, BreakerMode
from shared.notifications import flow
from shared.notifications.notifiers import LogNotifier, Webhook
from shared.notifications.ports import NotSent, Observed, Source
from shared.notifications.selection import NotificationIntervals
from shared.values.concurrency import JitteredRetrying
from shared.values.news import OVER, Address, News, NewsKind, Severity, Style
from shared.wiring.app import App
from tests.builders import NOW
from tests.notifications.test_notifications import Recipient
from tests.settings.test_settings import SINGLE

OPEN = Breaker(BreakerMode.OPEN, 3, NOW, "too much failed")
SECRET = "secret-signature"
RANGE = "?resource={}&hours=1&before=2026-03-01T12%3A30%3A00Z"


@dataclass
class Receiver:
    """A server that answers with the given statuses, and then with 202."""

    codes: list[int] = field(default_factory=list)
    retry_after: str = ""
    bodies: list[str] = field(default_factory=list)
    content_types: list[str] = field(default_factory=list)
    elsewhere: int = 0
    hangs: bool = False
    accepts: Callable[[Any], bool] = lambda _body: True
    tokens: list[str | None] = field(default_factory=list)
    url: str = ""

    async def hook(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.text())
        self.content_types.append(request.headers["Content-Type"])
        if self.hangs:
            await asyncio.sleep(60)
        self.tokens.append(request.headers.get("X-Token"))
        usual = 202 if self.accepts(json.loads(self.bodies[-1])) else 400
        code = self.codes.pop(0) if self.codes else usual
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


async def announce(url: str, seconds: float = 5) -> None:
    hook = Webhook(Address(url), JitteredRetrying(3, 0.001, 0.001), "", seconds)
    await LogNotifier([hook]).tell(opening_news("b", OPEN, "https://l"))


async def test_a_cloud_event_is_posted_and_a_transient_failure_is_retried(
    receiver: Receiver,
) -> None:
    receiver.codes = [503, 429]
    await announce(receiver.url)
    assert [json.loads(body)["data"]["link"] for body in receiver.bodies] == ["https://l"] * 3
    assert set(receiver.content_types) == {"application/cloudevents+json; charset=utf-8"}


@pytest.mark.parametrize(("asked", "waits"), [("0.1", True), ("30", False)])
async def test_a_webhook_is_not_asked_again_before_the_time_that_it_names(
    receiver: Receiver, asked: str, waits: bool
) -> None:
    receiver.codes, receiver.retry_after = [429], asked
    started = asyncio.get_running_loop().time()
    if waits:
        await announce(receiver.url)
        assert asyncio.get_running_loop().time() - started >= float(asked)
    else:
        with pytest.raises(NotSent, match="answered 429 and asks to wait 30 s"):
            await announce(receiver.url)
    assert len(receiver.bodies) == 1 + waits


@pytest.mark.parametrize(("codes", "attempts"), [([503] * 9, 3), ([404], 1), ([302], 1)])
async def test_the_final_error_of_the_webhook_contains_no_secret(
    receiver: Receiver, codes: list[int], attempts: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    receiver.codes = codes
    with pytest.raises(NotSent, match=f"127.0.0.1 answered {codes[0]}") as raised:
        await announce(receiver.url)
    assert (len(receiver.bodies), receiver.elsewhere) == (attempts, 0)
    assert SECRET not in str(raised.value) + caplog.text
    assert "[breaker_opened] Circuit breaker b is open: too much failed" in caplog.text


async def test_an_unreachable_or_hanging_webhook_fails_within_a_time_limit(
    receiver: Receiver,
) -> None:
    with pytest.raises(NotSent, match="ClientConnectorError"):
        await announce(f"http://127.0.0.1:9/{SECRET}")
    receiver.hangs = True
    with pytest.raises(NotSent, match="TimeoutError"):
        await announce(receiver.url, 0.05)


STALE = News("1", NewsKind.SOURCE_STALE, "a", NOW, "no sample", severity=Severity.ERROR)
STALE_OVER = replace(
    STALE, kind=f"source.stale{OVER}", severity=Severity.INFO, ended=STALE.severity
)


def is_event_of_pager_duty(body: Any) -> bool:
    """The rules of the Events API v2."""
    if body["routing_key"] != SECRET or len(body["dedup_key"]) > 255:
        return False
    payload = body.get("payload", {})
    return body["event_action"] == "resolve" or (
        body["event_action"] == "trigger"
        and {"summary", "source"} <= payload.keys()
        and payload["severity"] in {"critical", "error", "warning", "info"}
    )


def is_list_of_alerts(body: Any) -> bool:
    """The rules of the API v2 of Alertmanager."""
    return all(
        each["labels"]["alertname"] and each.get("startsAt", "") <= each["endsAt"] for each in body
    )


ACCEPTS: Mapping[Style, Callable[[Any], bool]] = {
    "cloudevents": lambda body: {"specversion", "id", "source", "type"} <= body.keys(),
    "slack": lambda body: isinstance(body["text"], str),
    "teams": lambda body: body["type"] == "message",
    "pagerduty": is_event_of_pager_duty,
    "alertmanager": is_list_of_alerts,
    "json": lambda body: body["kind"] and body["subject"],
}


@pytest.mark.parametrize("style", ACCEPTS)
async def test_each_service_accepts_a_condition_of_several_subjects_and_its_ending(
    receiver: Receiver, style: Style, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.accepts, receiver.codes = ACCEPTS[style], [429]
    key = SECRET if style == "pagerduty" else ""
    address = Address(receiver.url, style, key, {"X-Token": SECRET})
    hooks = LogNotifier([Webhook(address, JitteredRetrying(3, 0.001, 0.001), "blue")])
    long = "b" * 300
    for news in (STALE, STALE_OVER):
        await hooks.tell(replace(news, others=(long,)))
    assert set(receiver.tokens) == {SECRET}
    assert SECRET not in caplog.text + repr(address)
    first, *bodies = map(json.loads, receiver.bodies)
    assert bodies[0] == first
    assert "blue" in str(first)
    if style == "pagerduty":
        keys = [body["dedup_key"] for body in bodies]
        assert keys[:2] == keys[2:]
        assert keys[0] == "blue/source.stale/a"
    if style == "alertmanager":
        began, ended = ([each["labels"] for each in body] for body in bodies)
        assert began == ended
        assert [each["subject"] for each in began] == ["a", long]


async def test_deployments_send_different_ids_and_sources_and_their_name(
    receiver: Receiver,
) -> None:
    for name in ("staging", "production", ""):
        hook = Webhook(Address(receiver.url), JitteredRetrying(1, 0.001, 0.001), name)
        await LogNotifier([hook]).tell(STALE)
    sent = [json.loads(body) for body in receiver.bodies]
    assert [event["id"] for event in sent] == ["staging/1", "production/1", "1"]
    assert sent[0]["source"] == "//staging/api/resources"
    assert sent[2]["source"] == "/api/resources"
    assert sent[0]["data"]["text"] == "[staging] no sample."


async def test_one_address_that_fails_does_not_keep_the_others_from_being_told(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    retry = JitteredRetrying(1, 0.001, 0.001)
    broken, good = (Address(f"http://127.0.0.1:9/{SECRET}"), Address(receiver.url))
    errors = replace(good, severity=Severity.ERROR)
    hooks = [Webhook(address, retry) for address in (broken, good, errors)]
    await LogNotifier(hooks).tell(replace(STALE, severity=Severity.WARNING))
    assert len(receiver.bodies) == 1
    assert "[notification_failed] a: webhook at 127.0.0.1: ClientConnectorError" in caplog.text
    with pytest.raises(NotSent, match="ClientConnectorError"):
        await LogNotifier(hooks[:1]).tell(STALE)
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({}, ""),
        ({"WEBSITE_SITE_NAME": "app"}, "app"),
        ({"WEBSITE_SITE_NAME": "app", "WEBSITE_SLOT_NAME": "Production"}, "app"),
        ({"WEBSITE_SITE_NAME": "app", "WEBSITE_SLOT_NAME": "staging"}, "app-staging"),
        ({"WEBSITE_SITE_NAME": "app", "DeploymentName": "blue"}, "blue"),
        ({"WEBSITE_SITE_NAME": "app", "DeploymentName": "-"}, ""),
    ],
)
async def test_a_deployment_has_the_name_of_its_app_and_slot_unless_one_is_set(
    environ: dict[str, str], name: str
) -> None:
    storage = {"AzureWebJobsStorage": "UseDevelopmentStorage=true"}
    async with App({**SINGLE, **storage, **environ}) as app:
        assert app.notifications.deployment == name


@pytest.mark.parametrize(
    ("subject", "link"),
    [
        (SINGLE["ResourceToScale"], RANGE),
        (f"{SINGLE['ResourceToScale']}/backlog", RANGE),
        ("several resources: cannot be read", ""),
    ],
)
async def test_a_notification_carries_the_link_to_the_hour_around_it(
    subject: str, link: str
) -> None:
    storage = {"AzureWebJobsStorage": "UseDevelopmentStorage=true"}
    news = News("id", NewsKind.SCALED, subject, NOW, "2 → 5")
    for address in ({"AppUrl": "https://app.example"}, {"WEBSITE_HOSTNAME": "app.example"}, {}):
        async with App({**SINGLE, **storage, **address}) as app:
            inbox, records = Recipient(), MemoryNotificationStore(lambda: NOW)
            told = (records, {"": inbox}, NotificationIntervals(), app.notifications.link_of)
            await flow.send_due_notifications({"world": happened(news)}, *told)
            query = link.format(SINGLE["ResourceToScale"])
            expected = f"https://app.example/api/dashboard{query}" if address else ""
            assert [each.link for each in inbox.received] == [expected]


def happened(news: News) -> Source:
    async def source(_since: datetime, _now: datetime) -> Observed:
        return Observed([news])

    return source


async def test_each_webhook_and_the_log_have_a_record_of_their_own() -> None:
    addresses = [
        {"style": "json", "url": f"https://b/{SECRET}", "kinds": kinds, "severity": severity}
        for kinds, severity in (
            (["scaled"], "info"),
            (["scaled"], "error"),
            (["at.maximum"], "info"),
        )
    ]
    storage = {"AzureWebJobsStorage": "UseDevelopmentStorage=true"}
    given = {**SINGLE, **storage, "Webhooks": json.dumps(addresses)}
    async with App(given) as app, App(given) as restarted:
        receivers = app.notifications.receivers
        assert len(receivers) == 4
        assert isinstance(receivers[""], LogNotifier)
        assert SECRET not in "".join(receivers)
        assert receivers.keys() == restarted.notifications.receivers.keys()


def test_notify_sends_a_test_and_its_ending_to_each_address_and_names_what_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = list[tuple[str, str]]()

    async def tell(webhook: Webhook, news: News) -> None:
        if webhook.address.style == "json":
            raise NotSent("webhook at b answered 404")
        told.append((webhook.address.style, news.kind))

    monkeypatch.setattr(Webhook, "post", tell)
    for name, value in {**SINGLE, "AzureWebJobsStorage": "UseDevelopmentStorage=true"}.items():
        monkeypatch.setenv(name, value)
    assert main(["notify", "--test"]) == 2
    assert "there is no webhook: set WebhookUrl or Webhooks" in capsys.readouterr().err
    others = [
        {"style": "pagerduty", "key": SECRET, "kinds": ["scaled"], "severity": "error"},
        {"style": "json", "url": f"https://b/{SECRET}"},
    ]
    monkeypatch.setenv("Webhooks", json.dumps(others))
    assert main(["notify", "--test"]) == 1
    shown = capsys.readouterr()
    assert "events.pagerduty.com (pagerduty): accepted" in shown.out
    assert "b (json): webhook at b answered 404" in shown.out
    assert SECRET not in shown.out + shown.err
    assert told == [
        ("pagerduty", "notification.test"),
        ("pagerduty", "notification.test.over"),
    ]
