"""The formats of webhooks: CloudEvents 1.0 in structured mode, Slack's incoming webhooks, Adaptive
Cards of Teams, PagerDuty's Events API v2, Alertmanager's API v2, and the plain fields as JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from shared.values.news import News, Severity, Style, stamp

TYPE_PREFIX = "app-service-autoscaler"
DEDUP_LENGTH_MAX = 255
SUMMARY_LENGTH_MAX = 1024
OCCURRENCE_LASTS = timedelta(hours=1)
"""An Alertmanager shows an occurrence, which has no ending, for this long."""

Bodies = Sequence[Any]
"""What is sent one after the other."""


def _cloud_event(news: News, _key: str) -> Bodies:
    """https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md"""
    text = f"{news.headline}. {news.text}".rstrip()
    event = {
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
    return [event]


def _slack(news: News, _key: str) -> Bodies:
    text = f"*{_escaped(news.headline)}*\n{_escaped(news.text)}".rstrip()
    return [{"text": f"{text}\n<{news.link}|{_escaped(news.link_text)}>" if news.link else text}]


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _teams(news: News, _key: str) -> Bodies:
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
    return [{"type": "message", "attachments": [{"contentType": content_type, "content": card}]}]


def _pager_duty(news: News, key: str) -> Bodies:
    """https://developer.pagerduty.com/docs/send-alert-event; an alert for each subject."""
    text = f"{news.headline}. {news.text}".rstrip()
    alert = {
        "client": TYPE_PREFIX,
        "links": [{"href": news.link, "text": news.link_text}] if news.link else [],
        "payload": {
            "summary": news.headline[:SUMMARY_LENGTH_MAX],
            "source": news.deployment or TYPE_PREFIX,
            "severity": str(news.severity),
            "timestamp": stamp(news.time),
            "component": news.subject,
            "class": news.kind,
            "custom_details": {"text": text, **news.data},
        },
    }
    action = {"event_action": "resolve"} if news.is_over else {"event_action": "trigger", **alert}
    return [
        {"routing_key": key, "dedup_key": _alert_key(news, subject), **action}
        for subject in (news.subject, *news.others)
    ]


def _alert_key(news: News, subject: str) -> str:
    """The same for a condition and its ending."""
    key = "/".join(filter(None, [news.deployment, news.condition, subject]))
    if len(key) <= DEDUP_LENGTH_MAX:
        return key
    digest = hashlib.sha256(key.encode()).hexdigest()
    return f"{key[: DEDUP_LENGTH_MAX - len(digest) - 1]}/{digest}"


def _alertmanager(news: News, _key: str) -> Bodies:
    """https://prometheus.io/docs/alerting/latest/clients/; an ending has the labels of its
    condition. Without ``endsAt`` an alert would end after five minutes."""
    severity = (news.ended or Severity.INFO) if news.is_over else news.severity
    labels = {"alertname": news.condition, "severity": str(severity), "service": TYPE_PREFIX}
    labels |= {"deployment": news.deployment} if news.deployment else {}
    ends_at = news.time if news.is_over else news.ends_at or news.time + OCCURRENCE_LASTS
    alert = {
        "annotations": {"summary": news.headline, "description": news.text},
        "endsAt": stamp(ends_at),
        **({} if news.is_over else {"startsAt": stamp(news.time)}),
        **({"generatorURL": news.link} if news.link else {}),
    }
    subjects = (news.subject, *news.others)
    return [[{"labels": {**labels, "subject": subject}, **alert} for subject in subjects]]


def _plain(news: News, _key: str) -> Bodies:
    names = ("kind", "subject", "headline", "text", "deployment", "source", "link")
    fields = {name: getattr(news, name) for name in names}
    more = {"id": news.news_id, "severity": str(news.severity), "time": stamp(news.time)}
    return [{**fields, **more, "others": list(news.others), "data": dict(news.data)}]


FORMATS: Mapping[Style, Callable[[News, str], Bodies]] = {
    "cloudevents": _cloud_event,
    "slack": _slack,
    "teams": _teams,
    "pagerduty": _pager_duty,
    "alertmanager": _alertmanager,
    "json": _plain,
}
"""The bodies of some news, which get the key of the address."""
CONTENT_TYPES: Mapping[Style, str] = {"cloudevents": "application/cloudevents+json; charset=utf-8"}
JSON = "application/json; charset=utf-8"
"""The content type of all others."""
