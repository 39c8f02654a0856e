"""What the local host reads: app settings, connections, host.json, routes and function.json."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from local.functions_host.app_settings import AppSettings, read_app_settings
from local.functions_host.connections import Connection
from local.functions_host.errors import HostStartFailed
from local.functions_host.functions import (
    EVENT_HUB_TRIGGER,
    FIXED_DELAY,
    QUEUE_TRIGGER,
    SERVICE_BUS_TRIGGER,
    Binding,
    Function,
    RetryPolicy,
)
from local.functions_host.host_json import (
    EventHubOptions,
    QueueOptions,
    ServiceBusOptions,
    parse_host_json,
)
from local.functions_host.listeners import create_listeners
from local.functions_host.retries import acting_policy, with_default_retry
from local.functions_host.routes import compile_route
from local.functions_host.service_bus_listener import ServiceBusListener
from local.functions_host.services import Services
from local.functions_host.storage_queues import MessageEncoding


def test_the_environment_takes_precedence_over_local_settings(tmp_path: Path) -> None:
    file = tmp_path / "local.settings.json"
    file.write_text('{"Values": {"A": "file", "B": "file", "Number": 5}}')
    settings = read_app_settings(tmp_path, {"B": "environment"})
    assert settings.values == {"A": "file", "B": "environment", "Number": "5"}
    file.write_text("{")
    with pytest.raises(HostStartFailed, match=r"local\.settings\.json"):
        read_app_settings(tmp_path, {})


def test_the_most_literal_route_ranks_first() -> None:
    templates = ["plans/{name}", "plans/{name}.{kind}", "plans/today"]
    ranked = sorted(templates, key=lambda template: compile_route("api", template).rank)
    assert ranked == templates[::-1]


@pytest.mark.parametrize(
    ("values", "use", "problem"),
    [
        ({}, lambda _: None, "function f: setting S is missing"),
        (
            {"S__tableServiceUri": "https://a.example"},
            lambda connection: connection.storage_url("blob"),
            "S is identity-based, but S__blobServiceUri or S__accountName is missing",
        ),
        (
            {"S__accountName": "a"},
            lambda connection: connection.namespace,
            "S is identity-based, but S__fullyQualifiedNamespace is missing",
        ),
        ({"S__credential": "x"}, lambda _: None, "S__credential = 'x': must be managedidentity"),
    ],
)
def test_the_error_for_an_incomplete_connection_names_function_and_setting(
    values: dict[str, str], use: Callable[[Connection], object], problem: str
) -> None:
    with pytest.raises(HostStartFailed, match=re.escape(problem)):
        use(AppSettings(values).connection("S", function="f"))


# --- host.json ------------------------------------------------------------------------------------


RETRY = {"strategy": "fixedDelay", "maxRetryCount": 2, "delayInterval": "00:00:03"}


def test_values_and_defaults_equal_those_of_the_real_host() -> None:
    default = parse_host_json({"version": "2.0"})
    assert default.queues == QueueOptions(16, 8, 5, 0, 60.0, MessageEncoding.BASE64)
    assert default.event_hubs == EventHubOptions(100, 300, 1, 10.0, from_start=True)
    assert default.service_bus == ServiceBusOptions(16, 8, True, 300.0, 60.0)
    assert (default.route_prefix, default.function_timeout_seconds) == ("api", 1800)
    extensions = {"queues": {"batchSize": 5}, "http": {"routePrefix": "/v1/"}}
    given = parse_host_json({"functionTimeout": "-1", "extensions": extensions, "retry": RETRY})
    assert (given.queues.batch_size, given.queues.new_batch_threshold) == (5, 2)
    assert (given.route_prefix, given.function_timeout_seconds) == ("v1", None)
    assert given.retry == RetryPolicy(FIXED_DELAY, 2, 3.0)


def test_settings_that_the_local_host_ignores_are_named() -> None:
    document = {
        "logging": {"logLevel": {"default": "Information"}},
        "extensions": {"queues": {"batchSize": 5, "batchSise": 5}, "cosmosDB": {}},
        "singleton": {"lockPeriod": "00:00:15"},
    }
    assert parse_host_json(document).ignored == (
        "logging",
        "extensions.queues.batchSise",
        "extensions.cosmosDB",
        "singleton.lockPeriod",
    )


def test_all_mistakes_are_reported_together() -> None:
    document = {
        "functionTimeout": 5,
        "singleton": {"listenerLockRecoveryPollingInterval": "00:00:14"},
        "retry": {"strategy": "exponentialBackoff"},
        "extensions": {
            "queues": {"batchSize": 33, "maxPollingInterval": "soon", "messageEncoding": "hex"},
            "eventHubs": {"loadBalancingUpdateInterval": "00:00:20"},
        },
    }
    with pytest.raises(HostStartFailed) as caught:
        parse_host_json(document)
    for expected in (
        "extensions.queues.batchSize is 33, expected a whole number from 1 to 32",
        "extensions.queues.maxPollingInterval: 'soon' is not a time span such as 00:05:00",
        "extensions.queues.messageEncoding: 'hex' is neither base64 nor none",
        "functionTimeout: 5 is not a string",
        "singleton.listenerLockRecoveryPollingInterval is 0:00:14, expected at least 00:00:15",
        "retry.strategy: 'exponentialBackoff' is not supported by the local host, only fixedDelay",
        "extensions.eventHubs.partitionOwnershipExpirationInterval is 0:00:30, expected at least",
    ):
        assert expected in str(caught.value)


# --- functions ------------------------------------------------------------------------------------


def function(kind: str, retry: RetryPolicy | None = None, **properties: str) -> Function:
    return Function("f", "id", Binding(kind, "events", properties), (), {}, retry)


def test_host_json_retries_apply_to_supported_triggers_without_their_own_policy() -> None:
    own, apps = RetryPolicy(FIXED_DELAY, 1, 0), RetryPolicy(FIXED_DELAY, -1, 1)
    assert acting_policy(with_default_retry(function(EVENT_HUB_TRIGGER), apps)) == apps
    assert acting_policy(with_default_retry(function(EVENT_HUB_TRIGGER, own), apps)) == own
    assert acting_policy(with_default_retry(function(QUEUE_TRIGGER), apps)) is None


@pytest.mark.parametrize(
    ("unsupported", "expected"),
    [
        (
            function(EVENT_HUB_TRIGGER, RetryPolicy("exponential_backoff", 3, 0)),
            "f: exponential_backoff retries are not supported locally",
        ),
        (
            function(QUEUE_TRIGGER, RetryPolicy(FIXED_DELAY, 3, 0)),
            "f: retries of this trigger are not supported by the Functions host, here or in Azure",
        ),
        (
            replace(function(QUEUE_TRIGGER), outputs={"row": Binding("table", "row", {})}),
            "f: an invocation that sets row (table) fails",
        ),
        (
            function("blobtrigger"),
            "f is indexed but does not run: the local host does not support blobtrigger",
        ),
    ],
)
def test_unsupported_features_are_logged_at_the_start(
    unsupported: Function, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        create_listeners(cast(Services, None), [unsupported], {})
    assert expected in caplog.messages


def test_a_service_bus_trigger_of_cardinality_many_is_refused() -> None:
    many = function(SERVICE_BUS_TRIGGER, cardinality="many")
    with pytest.raises(HostStartFailed, match="Remove cardinality many"):
        ServiceBusListener(cast(Services, None), many)


@pytest.mark.parametrize("template", ["plans/{name", "plans/{day:int}", "plans/{*rest}"])
def test_unsupported_route_templates_are_refused(template: str) -> None:
    with pytest.raises(ValueError, match="the local host does not support the route part"):
        compile_route("api", template)
