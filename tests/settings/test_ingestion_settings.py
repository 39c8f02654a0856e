"""The settings of the event hub and its breaker: parsed, checked, and never shown."""

from __future__ import annotations

import pytest

from shared import settings
from shared.settings import SettingsError
from shared.wiring.ingestion import rule, times

HUB = "Endpoint=sb://Shop.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=hunter2"


def test_without_a_connection_no_hub_is_listened_to() -> None:
    assert settings.load({}).ingestion.hub is None


def test_a_hub_is_found_by_connection_string_or_by_address() -> None:
    by_string = settings.load({"EventHubConnection": f"{HUB};EntityPath=metrics"}).ingestion.hub
    environ = {
        "EventHubConnection__fullyQualifiedNamespace": "shop.servicebus.windows.net",
        "EventHubConnection__clientId": "client-1",
        "EventHubName": "other",
    }
    by_address = settings.load(environ).ingestion.hub
    assert by_string is not None
    assert by_address is not None
    assert by_string.namespace == by_address.namespace == "shop.servicebus.windows.net"
    assert (by_string.hub, by_address.hub, by_address.client_id) == ("metrics", "other", "client-1")


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"EventHubConnection": "hunter2"}, "EventHubConnection: must be an Event Hubs connection"),
        (
            {"EventHubConnection": f"{HUB};EntityPath=b"},
            "EventHubConnection: its EntityPath is 'b', but EventHubName is 'metrics'",
        ),
        (
            {"EventHubConnection": HUB, "EventHubReadBackConsumerGroup": "$Default"},
            "EventHubReadBackConsumerGroup = '$Default': must be another than",
        ),
        ({"IngestTailSchedule": "often"}, "IngestTailSchedule = 'often': must be 6 cron fields"),
        ({"BreakerFailureRatio": "2"}, "BreakerFailureRatio = 2: must be 0 to 1"),
        ({"WebhookUrl": "http://hunter2"}, "WebhookUrl: must be an address that"),
        ({"WebhookUrl": "https://a b"}, "WebhookUrl: must be an address that"),
        ({"WebhookStyle": "fax"}, "WebhookStyle = 'fax': must be one of cloudevents"),
        ({"BreakerApprovalKey": "hunter2"}, "BreakerApprovalKey: must have 32 or more random"),
        ({"IngestionDatabaseUrl": "hunter2"}, "IngestionDatabaseUrl: must be a URL such as"),
        ({"BreakerDisablesApp": "my-app"}, "BreakerDisablesApp = 'my-app': must be a resource ID"),
    ],
)
def test_what_is_wrong_is_named_and_no_secret_is(environ: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError) as raised:
        settings.load(environ)
    (problem,) = raised.value.problems
    assert problem.startswith(said)
    assert "hunter2" not in problem


def test_secrets_do_not_show() -> None:
    environ = {
        "EventHubConnection": HUB,
        "WebhookUrl": "https://example.org/hunter2",
        "BreakerApprovalKey": "hunter2" * 5,
        "IngestionDatabaseUrl": "postgresql+psycopg://user:hunter2@host/db",
    }
    assert "hunter2" not in repr(settings.load(environ))


def test_the_breakers_settings_open_it_at_a_hundred_failures_in_half_a_minute_by_default() -> None:
    found = settings.load({"BreakerSlowRatio": "0.5"}).ingestion.breaker
    trip, breaks = rule(found), times(found)
    assert (trip.failures_max, trip.window_seconds, trip.throughput_min) == (100, 30, 20)
    assert (trip.failure_ratio_max, trip.slow_ratio_max, trip.slow_seconds) == (None, 0.5, 10)
    assert (breaks.break_seconds, breaks.break_seconds_max, breaks.probe_events) == (30, 900, 10)
    assert rule(settings.load({"BreakerFailures": "0"}).ingestion.breaker).failures_max is None
