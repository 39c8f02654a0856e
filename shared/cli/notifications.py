"""The command ``notify``, which tests the webhooks."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated, Any

import typer

from shared.cli.command import Answer, Misused, command
from shared.notifications.ports import NotSent
from shared.values.news import OVER, News, Severity
from shared.wiring.app import App

commands = typer.Typer()
KIND = "notification.test"


@command(commands, "notify")
async def notify(
    app: App,
    test: Annotated[
        bool, typer.Option("--test", help="Send a test notification and its ending.")
    ] = False,
) -> Answer:
    """Send a test notification to each webhook, whatever kinds and severity it takes, and then the
    ending of that notification.

    Exit codes: 0, all webhooks accepted both; 1, at least one did not; 2, none is set.
    """
    if not test:
        raise Misused("give --test; all other notifications are sent by the app itself")
    if not (webhooks := app.notifications.webhooks):
        raise Misused("there is no webhook: set WebhookUrl or Webhooks")
    now = app.now()
    results = []
    for webhook in webhooks:
        result = {"webhook": webhook.host, "style": webhook.address.style, "error": ""}
        try:
            for news in test_news(webhook.address.severity, now):
                await webhook.post(news)
        except NotSent as error:
            result["error"] = str(error)
        results.append(result)
    return {"failed": sum(bool(each["error"]) for each in results), "webhooks": results}, show


def test_news(severity: Severity, now: datetime) -> list[News]:
    news_id, text = f"{KIND}/{now:%Y%m%dT%H%M%S}", "Nothing has to be done."
    began = News(news_id, KIND, "test", now, "This is a test", text, severity)
    over = News(f"{news_id}/over", f"{KIND}{OVER}", "test", now, "The test is over", ended=severity)
    return [began, over]


def show(result: dict[str, Any]) -> None:
    for each in result["webhooks"]:
        answer = each["error"] or "accepted"
        sys.stdout.write(f"{each['webhook']} ({each['style']}): {answer}\n")
