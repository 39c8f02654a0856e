"""What people are told when a breaker opens: the same news in the shapes that receivers take.

``cloudevents`` is a CloudEvent 1.0 in structured mode (for Logic Apps, Event Grid, a function),
``slack`` what an incoming webhook of Slack takes, ``teams`` an Adaptive Card as the webhook of a
Teams workflow takes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from shared.ingestion.breaker import Breaker

Style = Literal["cloudevents", "slack", "teams"]

EVENT_TYPE = "app-service-autoscaler.breaker.opened.v1"
CONTENT_TYPES: Mapping[Style, str] = {
    "cloudevents": "application/cloudevents+json; charset=utf-8",
    "slack": "application/json; charset=utf-8",
    "teams": "application/json; charset=utf-8",
}


def announcement(style: Style, name: str, breaker: Breaker, link: str) -> dict[str, Any]:
    """The body; ``link`` shows the state and offers to close it, or is empty."""
    if style == "slack":
        return _slack(name, breaker, link)
    return _teams(name, breaker, link) if style == "teams" else _cloud_event(name, breaker, link)


def headline(name: str, breaker: Breaker) -> str:
    return f"Circuit breaker {name} is {breaker.mode.value.replace('_', ' ')}: {breaker.reason}"


def _what_next(breaker: Breaker, link: str) -> str:
    again = "" if breaker.retry_at is None else f" It tries again at {_stamp(breaker.retry_at)}."
    ask = "" if link else " No link to close it was made: see BreakerApprovalKey and AppUrl."
    return f"Events are held, none is lost.{again}{ask}"


def _cloud_event(name: str, breaker: Breaker, link: str) -> dict[str, Any]:
    """Its id is the same when the same incident is told again."""
    return {
        "specversion": "1.0",
        "id": f"{name}/{breaker.epoch}",
        "source": f"/api/breakers/{name}",
        "type": EVENT_TYPE,
        "subject": name,
        "time": _stamp(breaker.changed_at),
        "datacontenttype": "application/json",
        "data": {
            "breaker": name,
            "epoch": breaker.epoch,
            "mode": breaker.mode.value,
            "reason": breaker.reason,
            "retry_at": _stamp(breaker.retry_at) if breaker.retry_at else None,
            "text": f"{headline(name, breaker)}. {_what_next(breaker, link)}",
            "approval_url": link or None,
        },
    }


def _slack(name: str, breaker: Breaker, link: str) -> dict[str, Any]:
    text = f"*{_escaped(headline(name, breaker))}*\n{_what_next(breaker, link)}"
    return {"text": f"{text}\n<{link}|Show and close>" if link else text}


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _teams(name: str, breaker: Breaker, link: str) -> dict[str, Any]:
    texts = [headline(name, breaker), _what_next(breaker, link)]
    blocks: list[dict[str, Any]] = [
        {"type": "TextBlock", "text": text, "wrap": True} for text in texts
    ]
    blocks[0]["weight"] = "Bolder"
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": blocks,
    }
    if link:
        card["actions"] = [{"type": "Action.OpenUrl", "title": "Show and close", "url": link}]
    content_type = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": content_type, "content": card}]}


def _stamp(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
