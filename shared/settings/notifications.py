"""The settings of notifications and telemetry."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from shared.notifications.news import STYLES, NewsKind, Style
from shared.settings import fields
from shared.settings.fields import HTTPS, LOOPBACK, RawValue, SettingsModel, duration, setting, text

ALL = "all that notify"
ADDRESS = rf"(?:{HTTPS}|{LOOPBACK})(?:/\S*)?"
MUST = "must begin with https://"


def _kinds(raw: RawValue) -> frozenset[str]:
    """An empty setting means all kinds."""
    return frozenset(fields.names(raw) or NewsKind)


# fmt: off
@dataclass(frozen=True)
class NotificationSettings(SettingsModel):
    """If ``webhook_url`` is empty, notifications go to the log only; if ``telemetry`` and
    ``otlp_endpoint`` are empty, no telemetry is exported; if ``app_url`` is empty, links use the
    app's own address in Azure."""

    webhook_url: str = setting(text, "WebhookUrl", "https address", "",
        "webhook to which notifications are sent; empty: they go to the log only", ALL,
        pattern=ADDRESS, must=MUST, secret=True)
    webhook_style: Style = setting(fields.choice(STYLES), "WebhookStyle",
        "one of `cloudevents`, `slack`, `teams`", "cloudevents", "format that the webhook expects",
        ALL)
    kinds: frozenset[str] = setting(_kinds, "Notifications", "kinds, separated by commas", "",
        "kinds of notification that the webhook receives; see "
        "[operations](operations.md#notifications)", ALL,
        pattern="|".join(map(re.escape, NewsKind)), must=f"must be one of {', '.join(NewsKind)}",
        unset="none (all)")
    schedule: str = setting(fields.cron, "NotifierSchedule", "schedule", "30 * * * * *",
        "when the notifier runs", "`notifier`")
    quiet: timedelta = setting(duration, "NotificationQuietMinutes", "minutes", 15,
        "minimum time between two notifications of the same kind and subject", bounds=(0, 1440))
    repeat: timedelta = setting(duration, "NotificationRepeatHours", "hours", 6,
        "interval at which a lasting condition is reported again", bounds=(0.01, 720))
    at_maximum_minutes: float = setting(fields.number, "AtMaximumMinutes", "minutes", 30,
        "a resource is reported when it has been at its maximum for this long, unless its rule "
        "now recommends fewer instances", bounds=(1, 1440))
    telemetry: str = setting(text, "APPLICATIONINSIGHTS_CONNECTION_STRING", "connection string", "",
        "Application Insights resource that receives metrics and traces; see "
        "[operations](operations.md#telemetry)", "all", secret=True)
    telemetry_authentication: str = setting(text, "APPLICATIONINSIGHTS_AUTHENTICATION_STRING",
        "text", "", "`ClientId=…;Authorization=AAD` if the resource accepts no keys", "all")
    otlp_endpoint: str = setting(text, "OTEL_EXPORTER_OTLP_ENDPOINT", "address", "",
        "OpenTelemetry receiver (OTLP over HTTP) of metrics, traces and logs, such as "
        "`http://collector:4318`; see [operations](operations.md#telemetry)", "all")
    app_url: str = setting(fields.address, "AppUrl", "https address", "",
        "address of this app, for links in notifications", "`notifier`, `breaker_status`",
        pattern=ADDRESS, must=MUST, unset="none (in Azure the app's own address)")
