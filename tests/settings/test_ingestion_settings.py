"""The settings of the event hub and its circuit breaker: parsing, checks, and secrets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shared import settings
from shared.ingestion.breaker.failure_window import TripRule
from shared.ingestion.breaker.state import BreakerTimes
from shared.settings import SettingsError

HUB = "Endpoint=sb://Shop.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=hunter2"


def test_without_a_connection_there_is_no_hub() -> None:
    assert settings.load({}).ingestion.hub is None


def test_a_hub_is_given_by_connection_string_or_by_namespace() -> None:
    by_string = settings.load({"EventHubConnection": f"{HUB};EntityPath=Metrics"}).ingestion.hub
    environ = {
        "EventHubConnection__fullyQualifiedNamespace": "shop.servicebus.windows.net",
        "EventHubConnection__clientId": "client-1",
        "EventHubName": "other",
    }
    by_namespace = settings.load(environ).ingestion.hub
    assert by_string is not None
    assert by_namespace is not None
    assert by_string.namespace == by_namespace.namespace == "shop.servicebus.windows.net"
    assert (by_string.hub, by_namespace.hub) == ("metrics", "other")
    assert by_namespace.identity.client_id == "client-1"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"EventHubConnection": "hunter2"}, "EventHubConnection: must be an Event Hubs connection"),
        (
            {"EventHubConnection": f"{HUB};EntityPath=b"},
            "EventHubConnection: its EntityPath is 'b', but EventHubName is 'metrics'",
        ),
        (
            {"EventHubConnection": HUB, "EventHubReadBackConsumerGroup": "$default"},
            "EventHubReadBackConsumerGroup = '$default': must differ by more than case from",
        ),
        ({"IngestTailSchedule": "often"}, "IngestTailSchedule = 'often': must be 6 cron fields"),
        ({"BreakerFailureRatio": "2"}, "BreakerFailureRatio = 2: must be 0 to 1"),
        ({"WebhookUrl": "http://hunter2"}, "WebhookUrl: must begin with https://"),
        ({"WebhookUrl": "https://a b"}, "WebhookUrl: must begin with https://"),
        ({"WebhookStyle": "fax"}, "WebhookStyle = 'fax': must be one of cloudevents"),
        ({"BreakerApprovalKey": "hunter2"}, "BreakerApprovalKey: must have 32 or more random"),
        ({"IngestionDatabaseUrl": "hunter2"}, "IngestionDatabaseUrl: must be a URL such as"),
        ({"BreakerDisablesApp": "my-app"}, "BreakerDisablesApp = 'my-app': must be a resource ID"),
    ],
)
def test_a_problem_names_its_setting_but_no_secret(environ: dict[str, str], expected: str) -> None:
    with pytest.raises(SettingsError) as raised:
        settings.load(environ)
    (problem,) = raised.value.problems
    assert problem.startswith(expected)
    assert "hunter2" not in problem


def test_secrets_do_not_appear_in_the_repr_of_the_settings() -> None:
    environ = {
        "EventHubConnection": HUB,
        "WebhookUrl": "https://example.org/hunter2",
        "BreakerApprovalKey": "hunter2" * 5,
        "IngestionDatabaseUrl": "postgresql+psycopg://user:hunter2@host/db",
    }
    assert "hunter2" not in repr(settings.load(environ))


def test_the_breaker_opens_after_more_than_100_failures_in_30_s_by_default() -> None:
    breaker = settings.load({"BreakerSlowRatio": "0.5"}).ingestion.breaker
    trip, times = breaker.part(TripRule), breaker.part(BreakerTimes)
    assert (trip.failures_max, trip.window_seconds, trip.throughput_min) == (100, 30, 20)
    assert (trip.failure_ratio_max, trip.slow_ratio_max, trip.slow_seconds) == (0.5, 0.5, 10)
    assert (times.break_seconds, times.break_seconds_max, times.probe_events) == (30, 900, 10)
    without = settings.load({"BreakerFailures": "0"}).ingestion.breaker
    assert without.part(TripRule).failures_max is None


@pytest.mark.parametrize("change", [str, str.lower, str.upper])
def test_a_resource_id_is_accepted_as_each_service_writes_it(change: Callable[[str], str]) -> None:
    app = change("/subscriptions/s/resourceGroups/g/providers/Microsoft.Web/sites/my-app")
    assert settings.load({"BreakerDisablesApp": app}).ingestion.breaker.disables_app == app
