"""What people are told, and where."""

from __future__ import annotations

from shared.settings.declared.setting import Bounds, Section, Setting, number, schedule

TELLING = Section(
    "Telling people",
    "`notifier`",
    (
        Setting(
            "WebhookUrl",
            "https address",
            "",
            "is told what happens; empty: only the log is",
            "all that have news",
            secret=True,
        ),
        Setting(
            "WebhookStyle",
            "one of `cloudevents`, `slack`, `teams`",
            "cloudevents",
            "how it likes to be told",
            "all that have news",
        ),
        Setting(
            "Notifications",
            "kinds between commas",
            "",
            "what the webhook is told of: see [operations](operations.md#notifications)",
            "all that have news",
            unset="none (all)",
        ),
        schedule("NotifierSchedule", "30 * * * * *", "when to look for news", "`notifier`"),
        number(
            "NotificationQuietMinutes",
            "minutes",
            "15",
            Bounds(0, 1440),
            "at most one message of a kind and subject within so long",
        ),
        number(
            "NotificationRepeatHours",
            "hours",
            "6",
            Bounds(0.01, 720),
            "what lasts is told again after so long",
        ),
        number(
            "AtMaximumMinutes",
            "minutes",
            "30",
            Bounds(1, 1440),
            "so long at the maximum, while the rule wants no less, is worth a message",
        ),
        Setting(
            "APPLICATIONINSIGHTS_CONNECTION_STRING",
            "connection string",
            "",
            "Application Insights: metrics and traces go there, see "
            "[operations](operations.md#telemetry)",
            "all",
            secret=True,
        ),
        Setting(
            "APPLICATIONINSIGHTS_AUTHENTICATION_STRING",
            "text",
            "",
            "`ClientId=…;Authorization=AAD` where it takes no keys",
            "all",
        ),
        Setting(
            "AppUrl",
            "https address",
            "",
            "where this app answers, for links",
            "`notifier`, `breaker_status`",
            unset="none (in Azure its own)",
        ),
    ),
)
