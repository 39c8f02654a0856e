"""What people are told, and where."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from shared.notifications.news import STYLES, NewsKind, Style
from shared.settings import fields
from shared.settings.fields import HTTPS, LOOPBACK, RawValue, SettingsModel, duration, setting, text

ALL = "all that have news"
ADDRESS = rf"(?:{HTTPS}|{LOOPBACK})(?:/\S*)?"
MUST = "must be an address that begins with https://"


def _kinds(raw: RawValue) -> frozenset[str]:
    """Empty: all of them."""
    return frozenset(fields.names(raw) or NewsKind)


# fmt: off
@dataclass(frozen=True)
class NotificationSettings(SettingsModel):
    """``webhook_url`` is empty where only the log is told, ``telemetry`` where nothing is measured,
    and ``app_url`` where links lead to the app's own address in Azure."""

    webhook_url: str = setting(text, "WebhookUrl", "https address", "",
        "is told what happens; empty: only the log is", ALL, pattern=ADDRESS, must=MUST,
        secret=True)
    webhook_style: Style = setting(fields.choice(STYLES), "WebhookStyle",
        "one of `cloudevents`, `slack`, `teams`", "cloudevents", "how it likes to be told", ALL)
    kinds: frozenset[str] = setting(_kinds, "Notifications", "kinds between commas", "",
        "what the webhook is told of: see [operations](operations.md#notifications)", ALL,
        pattern="|".join(map(re.escape, NewsKind)), must=f"must be one of {', '.join(NewsKind)}",
        unset="none (all)")
    schedule: str = setting(fields.cron, "NotifierSchedule", "schedule", "30 * * * * *",
        "when to look for news", "`notifier`")
    quiet: timedelta = setting(duration, "NotificationQuietMinutes", "minutes", 15,
        "at most one message of a kind and subject within so long", bounds=(0, 1440))
    repeat: timedelta = setting(duration, "NotificationRepeatHours", "hours", 6,
        "what lasts is told again after so long", bounds=(0.01, 720))
    at_maximum_minutes: float = setting(fields.number, "AtMaximumMinutes", "minutes", 30,
        "so long at the maximum, while the rule wants no less, is worth a message",
        bounds=(1, 1440))
    telemetry: str = setting(text, "APPLICATIONINSIGHTS_CONNECTION_STRING", "connection string", "",
        "Application Insights: metrics and traces go there, see "
        "[operations](operations.md#telemetry)", "all", secret=True)
    telemetry_authentication: str = setting(text, "APPLICATIONINSIGHTS_AUTHENTICATION_STRING",
        "text", "", "`ClientId=…;Authorization=AAD` where it takes no keys", "all")
    app_url: str = setting(fields.address, "AppUrl", "https address", "",
        "where this app answers, for links", "`notifier`, `breaker_status`", pattern=ADDRESS,
        must=MUST, unset="none (in Azure its own)")
