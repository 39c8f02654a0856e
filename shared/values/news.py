"""`News`, the content of a notification, and its formats for webhooks. Pure.

``cloudevents`` is a CloudEvent 1.0 in structured mode (for Logic Apps, Event Grid, or your own
function). ``slack`` is the body of a Slack incoming webhook. ``teams`` is an Adaptive Card for the
webhook of a Teams workflow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal

Style = Literal["cloudevents", "slack", "teams"]
TYPE_PREFIX = "app-service-autoscaler"
CONTENT_TYPES: Mapping[Style, str] = {
    "cloudevents": "application/cloudevents+json; charset=utf-8",
    "slack": "application/json; charset=utf-8",
    "teams": "application/json; charset=utf-8",
}


class NewsKind(StrEnum):
    """The kinds of news. When a condition ends, its kind is sent with the suffix ``.over``."""

    SCALED = "scaled"
    SCALING_REFUSED = "scaling.refused"
    SCALING_INCOMPLETE = "scaling.incomplete"
    AT_MAXIMUM = "at.maximum"
    BACKLOG_UNFALLEN = "backlog.not.falling"
    ENTITY_DISABLED = "entity.disabled"
    POLICY_UNANSWERED = "policy.unanswered"
    PLAN = "plan.unfit"
    SOURCE_STALE = "source.stale"
    UNREADABLE = "state.unreadable"
    RULES_DIFFER = "rules.differ"
    POISON = "message.poison"
    OVERRIDE = "override.changed"
    MANUAL_CHANGE = "capacity.changed.by.hand"
    BREAKER_OPENED = "breaker.opened"
    BREAKER_CLOSED = "breaker.closed"
    DEAD_LETTERS = "dead.letters.growing"
    EVENTS_GONE = "events.gone"
    HUB_HELD = "hub.held"
    TRENDS_FAILED = "trends.failed"
    TREND_ALARM = "trend.alarm"


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class News:
    """An event or a condition of which operators are notified.

    ``news_id`` stays the same if the same news is sent again. ``subject`` is the resource, metric,
    hub or series concerned. ``link`` leads to a page where the operator can act.
    """

    news_id: str
    kind: str
    subject: str
    time: datetime
    headline: str
    text: str = ""
    severity: Severity = Severity.INFO
    source: str = "/api/resources"
    link: str = ""
    link_text: str = "Show"
    data: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def shaped(style: Style, news: News) -> dict[str, Any]:
    """The news in the format of the webhook, as the JSON body of the request."""
    if style == "slack":
        return _slack(news)
    return _teams(news) if style == "teams" else _cloud_event(news)


def stamp(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _cloud_event(news: News) -> dict[str, Any]:
    """https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md"""
    text = f"{news.headline}. {news.text}".rstrip()
    return {
        "specversion": "1.0",
        "id": news.news_id,
        "source": news.source,
        "type": f"{TYPE_PREFIX}.{news.kind}.v1",
        "subject": news.subject,
        "time": stamp(news.time),
        "datacontenttype": "application/json",
        "data": {"severity": str(news.severity), "text": text, "link": news.link or None}
        | dict(news.data),
    }


def _slack(news: News) -> dict[str, Any]:
    text = f"*{_escaped(news.headline)}*\n{_escaped(news.text)}".rstrip()
    return {"text": f"{text}\n<{news.link}|{_escaped(news.link_text)}>" if news.link else text}


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _teams(news: News) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = [
        {"type": "TextBlock", "text": text, "wrap": True}
        for text in (news.headline, news.text)
        if text
    ]
    blocks[0]["weight"] = "Bolder"
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": blocks,
    }
    if news.link:
        card["actions"] = [{"type": "Action.OpenUrl", "title": news.link_text, "url": news.link}]
    content_type = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": content_type, "content": card}]}
