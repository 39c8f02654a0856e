"""The settings of notifications and telemetry."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from shared.settings import fields
from shared.settings.fields import HTTPS, LOOPBACK, RawValue, SettingsModel, setting
from shared.values.bounds import Bounds, matching, one_of
from shared.values.news import NewsKind, Style

ALL = "all that notify"
HttpsAddress = Annotated[
    str, matching(rf"(?:{HTTPS}|{LOOPBACK})(?:/\S*)?", "must begin with https://")
]
Kind = Annotated[str, one_of(NewsKind)]


def _kinds(raw: RawValue) -> frozenset[str]:
    """An empty setting means all kinds."""
    return frozenset(fields.names(raw) or NewsKind)


# fmt: off
@dataclass(frozen=True)
class NotificationSettings(SettingsModel):
    """If ``webhook_url`` is empty, notifications go to the log only; if ``telemetry`` and
    ``otlp_endpoint`` are empty, no telemetry is exported; if ``app_url`` is empty, links use the
    app's own address in Azure."""

    webhook_url: HttpsAddress = setting("WebhookUrl", "https address", "",
        "webhook to which notifications are sent; empty: they go to the log only", ALL, secret=True)
    webhook_style: Style = setting("WebhookStyle", "one of `cloudevents`, `slack`, `teams`",
        "cloudevents", "format that the webhook expects", ALL)
    kinds: frozenset[Kind] = setting("Notifications", "kinds, separated by commas", "",
        "kinds of notification that the webhook receives; see "
        "[operations](operations.md#notifications)", ALL, parse=_kinds, unset="none (all)")
    schedule: str = setting("NotifierSchedule", "schedule", "30 * * * * *",
        "when the notifier runs", "`notifier`", parse=fields.cron)
    quiet: Annotated[timedelta, Bounds(0, 1440)] = setting("NotificationQuietMinutes", "minutes",
        15, "minimum time between two notifications of the same kind and subject")
    repeat: Annotated[timedelta, Bounds(0.01, 720)] = setting("NotificationRepeatHours", "hours", 6,
        "interval at which a lasting condition is reported again")
    at_maximum_minutes: Annotated[float, Bounds(1, 1440)] = setting("AtMaximumMinutes", "minutes",
        30, "a resource is reported when it has been at its maximum for this long, unless its rule "
        "now recommends fewer instances")
    telemetry: str = setting("APPLICATIONINSIGHTS_CONNECTION_STRING", "connection string", "",
        "Application Insights resource that receives metrics and traces; see "
        "[operations](operations.md#telemetry)", "all", secret=True)
    telemetry_authentication: str = setting("APPLICATIONINSIGHTS_AUTHENTICATION_STRING", "text", "",
        "`ClientId=…;Authorization=AAD` if the resource accepts no keys", "all")
    otlp_endpoint: str = setting("OTEL_EXPORTER_OTLP_ENDPOINT", "address", "",
        "OpenTelemetry receiver (OTLP over HTTP) of metrics, traces and logs, such as "
        "`http://collector:4318`; see [operations](operations.md#telemetry)", "all")
    app_url: HttpsAddress = setting("AppUrl", "https address", "",
        "address of this app, for links in notifications", "`notifier`, `breaker_status`",
        parse=fields.address, unset="none (in Azure the app's own address)")
