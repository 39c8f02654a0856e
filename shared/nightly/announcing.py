"""What a webhook is sent: a CloudEvent 1.0 in structured mode, or what Slack and Teams take."""

from __future__ import annotations

from typing import Any, Literal

from shared.nightly.model import Notice

Style = Literal["cloudevents", "slack", "teams"]

EVENT_TYPE = "app-service-autoscaler.trends.failed.v1"
JSON = "application/json; charset=utf-8"
CLOUD_EVENT = "application/cloudevents+json; charset=utf-8"


def content_type(style: Style) -> str:
    return CLOUD_EVENT if style == "cloudevents" else JSON


def announcement(style: Style, notice: Notice, event_id: str) -> dict[str, Any]:
    """The body."""
    if style == "slack":
        return _slack(notice)
    return _teams(notice) if style == "teams" else _cloud_event(notice, event_id)


def headline(notice: Notice) -> str:
    return f"{notice.subject}: {notice.text}"


def _cloud_event(notice: Notice, event_id: str) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": event_id,
        "source": "/nightly_trends",
        "type": EVENT_TYPE,
        "subject": notice.subject,
        "datacontenttype": "application/json",
        "data": {
            "text": headline(notice),
            "lasting": notice.lasting,
            "log_url": notice.log_url or None,
        },
    }


def _slack(notice: Notice) -> dict[str, Any]:
    text = headline(notice).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": f"{text}\n<{notice.log_url}|Log>" if notice.log_url else text}


def _teams(notice: Notice) -> dict[str, Any]:
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [
            {"type": "TextBlock", "text": notice.subject, "weight": "Bolder", "wrap": True},
            {"type": "TextBlock", "text": notice.text, "wrap": True},
        ],
    }
    if notice.log_url:
        card["actions"] = [{"type": "Action.OpenUrl", "title": "Log", "url": notice.log_url}]
    kind = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": kind, "content": card}]}
