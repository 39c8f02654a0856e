"""The settings of what people are told, and where."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from shared.notifications.news import STYLES, NewsKind, Style

if TYPE_CHECKING:
    from shared.settings.reader import Reader

LOOPBACK = re.compile(r"http://(127\.0\.0\.1|localhost)(:\d{1,5})?(/\S*)?")
HTTPS = re.compile(r"https://[A-Za-z0-9.-]+(:\d{1,5})?(/\S*)?")


@dataclass(frozen=True, slots=True)
class NotificationSettings:
    """``webhook_url`` is a secret; empty: only the log is told."""

    webhook_url: str = field(repr=False)
    webhook_style: Style
    app_url: str
    """Where this app answers, for links; empty: its own address in Azure."""
    kinds: frozenset[str]
    schedule: str
    quiet: timedelta
    repeat: timedelta
    at_maximum_minutes: float
    telemetry: str = field(repr=False)
    """Connection string of Application Insights; empty: nothing is measured."""
    telemetry_authentication: str


def read_notifications(reader: Reader) -> NotificationSettings:
    """All of them; what is wrong goes to the reader's problems."""
    return NotificationSettings(
        webhook_url=_url(reader, "WebhookUrl"),
        webhook_style=_style(reader, "WebhookStyle"),
        app_url=_url(reader, "AppUrl").rstrip("/"),
        kinds=_kinds(reader, "Notifications"),
        schedule=reader.schedule("NotifierSchedule"),
        quiet=timedelta(minutes=reader.number("NotificationQuietMinutes")),
        repeat=timedelta(hours=reader.number("NotificationRepeatHours")),
        at_maximum_minutes=reader.number("AtMaximumMinutes"),
        telemetry=reader.text("APPLICATIONINSIGHTS_CONNECTION_STRING"),
        telemetry_authentication=reader.text("APPLICATIONINSIGHTS_AUTHENTICATION_STRING"),
    )


def _url(reader: Reader, key: str) -> str:
    """The value is not repeated: a webhook's address is a secret."""
    url = reader.text(key)
    if url and not HTTPS.fullmatch(url) and not LOOPBACK.fullmatch(url):
        reader.problems.append(f"{key}: must be an address that begins with https://")
    return url


def _style(reader: Reader, key: str) -> Style:
    text = reader.text(key)
    if text not in STYLES:
        reader.problems.append(f"{key} = {text!r}: must be one of {', '.join(STYLES)}")
        return "cloudevents"
    return text  # type: ignore[return-value]


def _kinds(reader: Reader, key: str) -> frozenset[str]:
    """Empty: all of them."""
    asked = {part.strip() for part in reader.text(key).split(",") if part.strip()}
    for kind in sorted(asked - set(NewsKind)):
        reader.problems.append(f"{key}: {kind!r} is none of {', '.join(NewsKind)}")
    return frozenset(asked or NewsKind)
