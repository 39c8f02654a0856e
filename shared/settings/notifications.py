"""The settings of notifications and telemetry."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, get_args

from shared.settings import fields
from shared.settings.fields import HTTPS, LOOPBACK, RawValue, SettingsModel, setting
from shared.values.bounds import Bounds, Check, declared_by, matching, one_of
from shared.values.news import Address, NewsKind, Severity, Style

ALL = "all that notify"
Deployment = Annotated[
    str,
    matching(r"-|[A-Za-z0-9][A-Za-z0-9._-]{0,99}", "must be letters, digits and .-_ (at most 100)"),
]
HttpsAddress = Annotated[
    str, matching(rf"(?:{HTTPS}|{LOOPBACK})(?:/\S*)?", "must begin with https://")
]
Kind = Annotated[str, one_of(NewsKind)]
STYLES = get_args(Style)
PAGER_DUTY = "https://events.pagerduty.com/v2/enqueue"
ADDRESSES_MAX = 20
HEADER_NAME = matching(r"[A-Za-z0-9-]+")
HEADER = matching(r"[ -~]*")
CHECKS: Mapping[str, Check] = {
    "url": declared_by(HttpsAddress)[2] or one_of(()),
    "style": one_of(STYLES),
    "key": matching(r"[!-~]+", "must be text without spaces"),
    "severity": one_of(Severity),
    "kinds": lambda kinds: (
        ""
        if _all_of(list, kinds, one_of(NewsKind))
        else f"must be a list of kinds: {', '.join(NewsKind)}"
    ),
    "headers": lambda headers: (
        ""
        if _all_of(dict, headers, HEADER_NAME) and _all_of(list, list(headers.values()), HEADER)
        else "must be an object of names and texts"
    ),
}


def _kinds(raw: RawValue) -> frozenset[str]:
    """An empty setting means all kinds."""
    return frozenset(fields.names(raw) or NewsKind)


def _all_of(kind: Any, values: Any, check: Check) -> bool:
    return isinstance(values, kind) and not any(check(each) for each in values)


def _addresses(raw: RawValue) -> tuple[Address, ...]:
    """The addresses of a JSON list. No problem repeats a value, because it may be a secret."""
    try:
        given = json.loads(raw.text or "[]")
    except (ValueError, RecursionError):
        given = None
    if not _all_of(list, given, lambda each: "" if isinstance(each, dict) else "no object"):
        raw.refuse('must be a JSON list of objects, such as [{"url": "https://…"}]')
        return ()
    if len(given) > ADDRESSES_MAX:
        raw.refuse(f"must have at most {ADDRESSES_MAX} addresses")
        return ()
    problems = [f"address {n}: {p}" for n, each in enumerate(given, 1) for p in _wrong(each)]
    for problem in problems:
        raw.refuse(problem)
    return () if problems else tuple(map(_address, given))


def _address(given: Mapping[str, Any]) -> Address:
    severity = Severity(given.get("severity", Severity.INFO))
    kinds = frozenset(given.get("kinds") or NewsKind)
    return Address(**{"url": PAGER_DUTY, **given, "severity": severity, "kinds": kinds})


def _wrong(given: Mapping[str, Any]) -> Iterator[str]:
    unknown = sorted(given.keys() - CHECKS.keys())
    if unknown:
        yield f"has {len(unknown)} unknown names; the names are {', '.join(CHECKS)}"
    for name, check in CHECKS.items():
        if name in given and (must := check(given[name])):
            yield f"{name} {must}"
    is_pager = given.get("style") == "pagerduty"
    if is_pager != ("key" in given):
        yield "key must be set for pagerduty, and for no other style"
    if not is_pager and "url" not in given:
        yield "url must be set"


# fmt: off
@dataclass(frozen=True)
class NotificationSettings(SettingsModel):
    """Without ``addresses``, notifications go to the log only; if ``telemetry`` and
    ``otlp_endpoint`` are empty, no telemetry is exported; if ``app_url`` is empty, links use the
    app's own address in Azure."""

    webhook_url: HttpsAddress = setting("WebhookUrl", "https address", "",
        "webhook to which notifications are sent; if it and `Webhooks` are empty, they go to the "
        "log only", ALL, secret=True)
    webhook_style: Style = setting("WebhookStyle",
        f"one of {', '.join(f'`{each}`' for each in STYLES)}", "cloudevents",
        "format that the webhook expects; `pagerduty` needs `Webhooks`", ALL)
    webhooks: tuple[Address, ...] = setting("Webhooks", "JSON list", "",
        "more webhooks, each with its own format, headers, kinds and severity; see "
        "[webhooks](monitoring.md#webhooks)", ALL, parse=_addresses, secret=True)
    deployment_name: Deployment = setting("DeploymentName", "letters, digits and `.-_`", "",
        "name of this deployment in notifications; `-` leaves it out", ALL,
        unset="none (in Azure the app's name, and its slot)")
    kinds: frozenset[Kind] = setting("Notifications", "kinds, separated by commas", "",
        "kinds of notification that the webhook receives; see "
        "[notifications](monitoring.md#notifications)", ALL, parse=_kinds, unset="none (all)")
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
        "[telemetry](monitoring.md#telemetry)", "all", secret=True)
    telemetry_authentication: str = setting("APPLICATIONINSIGHTS_AUTHENTICATION_STRING", "text", "",
        "`ClientId=…;Authorization=AAD` if the resource accepts no keys", "all")
    otlp_endpoint: str = setting("OTEL_EXPORTER_OTLP_ENDPOINT", "address", "",
        "OpenTelemetry receiver (OTLP over HTTP) of metrics, traces and logs, such as "
        "`http://collector:4318`; see [telemetry](monitoring.md#telemetry)", "all")
    app_url: HttpsAddress = setting("AppUrl", "https address", "",
        "address of this app, for links in notifications", "`notifier`, `breaker_status`",
        parse=fields.address, unset="none (in Azure the app's own address)")

    @property
    def addresses(self) -> tuple[Address, ...]:
        first = Address(self.webhook_url, self.webhook_style, kinds=self.kinds)
        return (first, *self.webhooks) if self.webhook_url else self.webhooks

    def conflicts(self) -> Iterator[str]:
        if self.webhook_url and self.webhook_style == "pagerduty":
            yield "WebhookStyle = 'pagerduty': needs a key, so use Webhooks instead"
