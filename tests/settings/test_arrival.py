"""Each setting of the reference arrives where it acts.

The table gives each setting a value that differs from its default, and says what arrives in the
object or the function that acts on it. A setting that is in none of the tables fails a test.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from inspect import isawaitable, signature
from operator import attrgetter
from types import ModuleType
from typing import Any
from unittest.mock import AsyncMock, Mock

import azure.functions as func
import pytest
from sqlalchemy import MetaData

from local.twins.ingestion import MemoryIngestionStore
from shared.autoscaling import (
    AppServicePlan,
    HubMetric,
    Mode,
    ServiceBusQueue,
    ServiceBusSubscription,
)
from shared.autoscaling.azure_monitor.client import AzurePlatformMetrics
from shared.autoscaling.flows import notify
from shared.autoscaling.plans.app_service import AppServiceControl
from shared.autoscaling.plans.permissions import ArmPermissions
from shared.autoscaling.services.clients import AzureReader
from shared.azure import telemetry as export
from shared.azure.queues import StorageQueueSender
from shared.ingestion.events.handling import Handling
from shared.ingestion.hub.client import EventHubReader
from shared.ingestion.hub.receiver import EventHubReceiver
from shared.ingestion.model import Stream
from shared.ingestion.ownership.load_balancing import BalancingTimes
from shared.ingestion.store.sql_engine import Sql
from shared.ingestion.store.tables import EVENTS, TABLE_NAMES, TableRows
from shared.messaging.link import ServiceBusLink
from shared.notifications.notifiers import Webhook
from shared.settings import SETTINGS
from shared.settings.amqp_transport import WEBSOCKETS, AmqpTransport
from shared.storage.tables import Table
from shared.trends.datasets.periods import Period
from shared.trends.datasets.queues import QueueCheck
from shared.trends.submitters.databricks import DatabricksSubmitter
from shared.trends.submitters.inputs import StoredInputs
from shared.trends.submitters.livy import FabricSubmitter, LivySubmitter, SynapseSubmitter
from shared.trends.submitters.local import LocalSubmitter
from shared.values.metering import no_meter
from shared.wiring import ingestion, runner
from shared.wiring.app import App
from shared.wiring.nightly import FABRIC
from tests.bindings.test_functions_and_keys import EVERYTHING
from tests.bindings.test_ingestion_functions import imported
from tests.builders import NOW, set_capacity

KEYS = "SharedAccessKeyName=n;SharedAccessKey=a2V5"
OTHER_ID = f"{'1' * 8}{'-1111' * 3}-{'1' * 12}"
NAMESPACE_ID = (
    f"/subscriptions/{OTHER_ID}/resourceGroups/group/providers/Microsoft.ServiceBus/namespaces/bus"
)
STREAM = Stream("shop.servicebus.windows.net", "metrics", "$Default", "0")
HOOK, INSIGHTS = "https://hook.example/x", "InstrumentationKey=i"
COLLECTOR = "http://collector:4318"
COUNTED = {"ServiceBusNamespaceIds": NAMESPACE_ID}
MINUTES_77, HOURS_77 = timedelta(minutes=77), timedelta(hours=77)
HANDLING = Handling(lambda _stream: Mock(), tables=MetaData())
STORAGE_OF = "AccountName=mine;AccountKey=YQ==;EndpointSuffix=x.example"


class Arguments(dict[str, Any]):
    """The arguments of the last call, by name. ``calls`` has those of all calls."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []


@contextmanager
def noted(owner: Any, name: str, instead: Any = None) -> Iterator[Arguments]:
    """The arguments that ``owner.name`` receives meanwhile. ``instead`` replaces the function."""
    original, seen = getattr(owner, name), Arguments()

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature(original).bind(*args, **kwargs)
        bound.apply_defaults()
        seen.calls.append(bound.arguments)
        seen.update(bound.arguments)
        return (instead or original)(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, call)
        yield seen


def given(cls: Any, build: Callable[[], object], name: str = "__init__") -> Arguments:
    """The arguments with which ``build`` creates an object of the class, or calls a function."""
    with noted(cls, name) as seen:
        build()
    return seen


async def given_to(owner: Any, name: str, act: Callable[[], Awaitable[object]]) -> Arguments:
    """The arguments with which ``act`` calls an async function, which does nothing meanwhile."""
    with noted(owner, name, AsyncMock()) as seen:
        await act()
    return seen


def of(app: App) -> Any:
    """The one resource that the shipped rules declare."""
    (declared,) = app.resources.values()
    return declared


def made(cls: Any, path: str, argument: str) -> Callable[[App], object]:
    """The argument with which the part of the app at a path creates an object of the class."""
    return lambda app: given(cls, lambda: attrgetter(path)(app))[argument]


def webhook(app: App) -> Any:
    return given(Webhook, lambda: app.notifications.notifier)["address"]


def reading_turns(app: App) -> tuple[float, float]:
    turns = given(AzureReader, lambda: app.scaling.reader)["turns"]()
    return turns._spacing, round(turns.seconds, 6)


def backlog(app: App) -> object:
    (source,) = (s for s in of(app).metrics.values() if isinstance(s, ServiceBusSubscription))
    return source


def cooldowns(app: App) -> tuple[float, float]:
    cooldown = of(app).cooldown
    return cooldown.scale_out_seconds, cooldown.scale_in_seconds


def control(app: App) -> Any:
    return given(AppServiceControl, lambda: app.scaling.control)["settings"]


def tables_and_queues(app: App) -> dict[str, bool]:
    """Whether each table and queue is one of the account."""
    with noted(Table, "__init__") as tables, noted(StorageQueueSender, "__init__") as queues:
        built = (
            *(app.scaling.store, app.scaling.metrics_queue, app.scaling.actions_queue),
            *(app.ingestion.send, app.data_sets.claims, app.nightly.store, app.nightly.trends),
            app.notifications.store,
        )
    assert len(built) == len(tables.calls) + len(queues.calls)
    calls = [*tables.calls, *queues.calls]
    names = [call.get("name") or call["queue"] for call in calls]
    ours = ["AccountName=mine" in call["connection"].connection_string for call in calls]
    rows = given(TableRows, lambda: app.ingestion.rows)["connection"]
    of_events = "AccountName=mine" in rows.connection_string
    return dict.fromkeys({EVENTS, *TABLE_NAMES.values()}, of_events) | dict(
        zip(names, ours, strict=True)
    )


def link(app: App) -> Arguments:
    return given(ServiceBusLink, lambda: app.data_sets.processing_sender)


def hub(app: App) -> Arguments:
    return given(EventHubReader, lambda: app.ingestion.hub)


def pipeline(app: App) -> Any:
    return app.ingestion.pipeline_of(STREAM, Mock())


def rule(app: App) -> Any:
    return app.ingestion.breaker_client.rule


def times(app: App) -> list[Any]:
    """The client opens the breaker, and the controller shows when it closes."""
    return [app.ingestion.breaker_client.times, app.ingestion.breaker_controller.times]


def livy(app: App) -> Arguments:
    return given(LivySubmitter, lambda: app.nightly.submitter)


def period(app: App) -> Period:
    (only,) = app.checked.periods
    return only


def job(app: App) -> list[str]:
    run: Any = Mock(token="t", dataset="sales", date=NOW.date())
    return list(app.nightly.run_manager.job(run).arguments)


def exported(app: App) -> Any:
    with noted(export, "export", Mock()) as seen:
        assert app.meter is not no_meter
    return seen["environ"]


def azure_exporter(app: App) -> Any:
    factory: Any = export._azure_monitor(exported(app))["traces"]
    return factory.keywords


def otlp_endpoint(app: App) -> Any:
    return given(export._FirstFailure, lambda: export._otlp(exported(app)))["endpoint"]


def reader(app: App) -> object:
    return runner.Runner(app).processor.times


async def cycle(app: App) -> object:
    run = runner.Runner(app).run
    seen = await given_to(runner, "run_processor", lambda: run(asyncio.Event()))
    return seen["cycle_seconds"]


async def at_maximum(app: App) -> object:
    read = app.notifications.sources["resources"]
    return (await given_to(notify, "collect_news", lambda: read(NOW, NOW)))["at_maximum_minutes"]


async def hub_check(app: App) -> list[object]:
    hub = Mock(partition_ids=AsyncMock(return_value=("0",)), check_group=AsyncMock())
    app.ingestion.hub = hub
    subject = (await app.ingestion.check_hub())[0]["resource"]
    groups = [call.args[0] for call in hub.check_group.await_args_list]
    return [subject.removeprefix("event hub "), *groups]


async def signed(app: App) -> object:
    return await livy(app)["headers"]()


LIVY = {
    "TrendsSubmitter": "livy",
    "TrendsEndpoint": "https://cluster.example/livy",
    "TrendsRequest": '{"file": "abfss://x/y.py"}',
}
JOB = ["--input", "in/sales", "--output", "out", "--date", "2026-03-01", "--tables", "T"]


@dataclass(frozen=True)
class Row:
    """A value, what arrives for it, and where. ``also`` has further settings.

    A path begins at the app, or at ``of``, the resource that the shipped rules declare.
    """

    value: str
    expected: object
    arrives: str | Callable[[App], object]
    also: Mapping[str, str] = field(default_factory=dict)

    def arrived(self, app: App) -> object:
        if not isinstance(self.arrives, str):
            return self.arrives(app)
        path = self.arrives
        if path.startswith("of."):
            return attrgetter(path.removeprefix("of."))(of(app))
        return attrgetter(path)(app)


ROWS = {
    # --- the resource to scale ---
    "AzureWebJobsStorage": Row(
        STORAGE_OF,
        dict.fromkeys(
            [
                *("Scaling", "Ingestion", "Breaker", "Ownership", "Claims", "TrendRuns"),
                *("Trends", "Notifications", "metrics", "actions"),
            ],
            True,
        ),
        tables_and_queues,
    ),
    "ServiceBusConnection": Row(
        f"Endpoint=sb://other.example;{KEYS}",
        ["other.example"] * 3,
        lambda app: [
            link(app)["connection"].host,
            given(QueueCheck, lambda: app.data_sets.queue_check)["connection"].host,
            given(AzureReader, lambda: app.scaling.reader)["service_bus"](
                "ServiceBusConnection"
            ).host,
        ],
    ),
    "AmqpTransport": Row(
        WEBSOCKETS,
        [AmqpTransport(True)] * 2,
        lambda app: [link(app)["connection"].transport, hub(app)["connection"].transport],
    ),
    "SubscriptionId": Row(OTHER_ID, AppServicePlan(OTHER_ID, "group-1", "plan-1"), "of.target"),
    "ResourceGroup": Row("group-9", "group-9", "of.target.resource_group"),
    "ResourceToScale": Row(
        "plan-9", ["plan-9"] * 2, lambda app: [of(app).name, of(app).target.name]
    ),
    "Topic": Row("topic-9", ServiceBusSubscription("topic-9", "billing"), backlog),
    "Subscription": Row("sub-9", ServiceBusSubscription("orders", "sub-9"), backlog),
    # --- the default rules ---
    "ThresholdUp": Row("77", 77, "of.policy.until_known.upper"),
    "ThresholdDown": Row("7", 7, "of.policy.until_known.lower"),
    "WindowSeconds": Row("77", 77, "of.window_seconds"),
    "MinimumSamples": Row("7", 7, "of.policy.until_known.minimum_samples"),
    "ScaleOutCooldownSeconds": Row("77", (77, 600), cooldowns),
    "ScaleInCooldownSeconds": Row("77", (600, 77), cooldowns),
    "ScaleOutStep": Row("7", 7, "of.policy.until_known.step_out"),
    "ScaleInStep": Row("7", 7, "of.policy.until_known.step_in"),
    "ScaleChangesPerHour": Row("7", 7, "of.guards.scale_changes_per_hour"),
    "MinimumCapacity": Row("7", 7, "of.limits.minimum"),
    "MaximumCapacity": Row("77", 77, "of.limits.maximum"),
    "AgeLimitMinutes": Row("77", 77, "of.goal.age_limit_minutes"),
    "SwitchCost": Row("77", 77, "of.goal.switch_cost"),
    "LatePenalty": Row("77", 77, "of.goal.late_penalty"),
    "InstanceRatePerMinute": Row("77", 77, "of.throughput.rate_per_instance_minute"),
    "DeadTimeMinutes": Row("77", 77, "of.throughput.start_up_minutes"),
    "CompletedMetric": Row(
        "done",
        ["done", HubMetric()],
        lambda app: [of(app).throughput.completed_metric, of(app).metrics["done"]],
    ),
    "ServiceBusNamespaceIds": Row(
        NAMESPACE_ID,
        [NAMESPACE_ID],
        lambda app: [s.series.resource_id for s in of(app).metrics.values() if s.series],
    ),
    "ServiceBusCountsFrom": Row(
        "resource-manager",
        ("https://management.azure.com", NAMESPACE_ID),
        lambda app: app.scaling._bus("ServiceBusConnection"),
        COUNTED,
    ),
    "ServiceBusCreditsPerSecond": Row(
        "50", (0.2, 5.6), reading_turns, {"SourceTimeoutSeconds": "7"}
    ),
    "PlanningStepSeconds": Row("77", 77, "of.policy.step_seconds"),
    "DryRun": Row("true", Mode.DRY_RUN, "of.mode"),
    # --- timeouts ---
    "SourceTimeoutSeconds": Row(
        "7", 7, made(AzurePlatformMetrics, "scaling.platform_metrics", "timeout_seconds"), COUNTED
    ),
    "ActionResendSeconds": Row("77", 77, "scaling.timing.resend_seconds"),
    "ActionRetrySeconds": Row("77", 77, "scaling.timing.retry_seconds"),
    "ActionDeadlineSeconds": Row("77", 77, "scaling.timing.deadline_seconds"),
    "FailureHoldSeconds": Row("77", 77, "scaling.timing.failure_hold_seconds"),
    "ArmEndpoint": Row(
        "https://arm.example/",
        ["https://arm.example"] * 3,
        lambda app: [
            control(app).arm_endpoint,
            given(ArmPermissions, lambda: app.scaling.permissions)["endpoint"],
            given(AzurePlatformMetrics, lambda: app.scaling.platform_metrics)["arm_endpoint"],
        ],
        {"ServiceBusNamespaceIds": NAMESPACE_ID},
    ),
    "ArmTimeoutSeconds": Row("77", 77, lambda app: control(app).arm_timeout_seconds),
    # --- notifications and telemetry ---
    "WebhookUrl": Row(HOOK, HOOK, lambda app: webhook(app).url),
    "WebhookStyle": Row("teams", "teams", lambda app: webhook(app).style, {"WebhookUrl": HOOK}),
    "Notifications": Row(
        "scaled",
        frozenset({"scaled"}),
        lambda app: webhook(app).kinds,
        {"WebhookUrl": HOOK},
    ),
    "Webhooks": Row(
        f'[{{"url": "{HOOK}", "style": "json", "headers": {{"A": "b"}}, "severity": "error"}}]',
        (HOOK, "json", {"A": "b"}, "error"),
        lambda app: (*attrgetter("url", "style", "headers", "severity")(webhook(app)),),
    ),
    "DeploymentName": Row(
        "blue",
        "blue",
        made(Webhook, "notifications.notifier", "deployment"),
        {"WebhookUrl": HOOK},
    ),
    "NotificationQuietMinutes": Row("77", MINUTES_77, "notifications.intervals.quiet"),
    "NotificationRepeatHours": Row("77", HOURS_77, "notifications.intervals.repeat"),
    "AtMaximumMinutes": Row("77", 77, at_maximum),
    "APPLICATIONINSIGHTS_CONNECTION_STRING": Row(
        INSIGHTS,
        INSIGHTS,
        lambda app: azure_exporter(app)["connection_string"],
    ),
    "APPLICATIONINSIGHTS_AUTHENTICATION_STRING": Row(
        "Authorization=AAD",
        True,
        lambda app: "credential" in azure_exporter(app),
        {"APPLICATIONINSIGHTS_CONNECTION_STRING": INSIGHTS},
    ),
    "OTEL_EXPORTER_OTLP_ENDPOINT": Row(
        COLLECTOR,
        COLLECTOR,
        otlp_endpoint,
    ),
    "AppUrl": Row(
        "https://app.example/",
        ["https://app.example"] * 2,
        lambda app: [app.ingestion.breaker_controller.app_url, app.notifications.app_url],
    ),
    "PricePerInstanceHour": Row("77", 77, "web.board.price"),
    # --- ingestion ---
    "EventHubConnection": Row(
        f"Endpoint=sb://Other.example/;{KEYS}",
        ["other.example"] * 2,
        lambda app: [
            hub(app)["connection"].namespace,
            given(EventHubReceiver, lambda: app.ingestion.receiver)["connection"].namespace,
        ],
    ),
    "EventHubName": Row("hub-9", ["hub-9", "$Default", "readback"], hub_check),
    "EventHubConsumerGroup": Row(
        "group-9",
        ["group-9", "readback"],
        lambda app: [
            given(EventHubReceiver, lambda: app.ingestion.receiver)["consumer_group"],
            hub(app)["consumer_group"],
        ],
    ),
    "EventHubReadBackConsumerGroup": Row(
        "back-9", "back-9", lambda app: hub(app)["consumer_group"]
    ),
    "EventBytesMaximum": Row(
        "7777", 7777, lambda app: getattr(app.ingestion.handler_of(STREAM), "bytes_max", None)
    ),
    "OwnershipRenewSeconds": Row("7", BalancingTimes(7, 30), reader, {"BalancingSeconds": "1"}),
    "OwnershipExpireSeconds": Row("77", BalancingTimes(10, 77), reader),
    "BalancingSeconds": Row("7", 7, cycle),
    "IngestionDatabaseUrl": Row("sqlite://", "sqlite://", made(Sql, "ingestion.database", "url")),
    "IngestionHandler": Row(
        f"{__name__}:HANDLING",
        [True, HANDLING.handler_of, HANDLING.tables],
        lambda app: [
            app.ingestion.handling is HANDLING,
            app.ingestion.handler_of,
            given(Sql, lambda: app.ingestion.database)["metadata"][-1],
        ],
        {"IngestionDatabaseUrl": "sqlite://"},
    ),
    "HandlerSecondsMaximum": Row(
        "7",
        [7, 7],
        lambda app: [
            given(ingestion, act, "limited")["seconds"]
            for act in (lambda: pipeline(app), lambda: app.ingestion.redriver.handler_of(STREAM))
        ],
    ),
    "EffectsKeptDays": Row("77", timedelta(days=77), "ingestion.effect_retention.keep"),
    "BreakerFailures": Row("77", 77, lambda app: rule(app).failures_max),
    "BreakerFailureRatio": Row("0.25", 0.25, lambda app: rule(app).failure_ratio_max),
    "BreakerSlowRatio": Row("0.25", 0.25, lambda app: rule(app).slow_ratio_max),
    "BreakerSlowSeconds": Row("77", 77, lambda app: rule(app).slow_seconds),
    "BreakerMinimumCalls": Row("77", 77, lambda app: rule(app).throughput_min),
    "BreakerCountsBadEvents": Row("false", False, lambda app: rule(app).counts_bad_events),
    "BreakerWindowSeconds": Row("77", 77, lambda app: rule(app).window_seconds),
    "BreakerBreakSeconds": Row(
        "77", [77] * 2, lambda app: [each.break_seconds for each in times(app)]
    ),
    "BreakerBreakSecondsMaximum": Row(
        "777", [777] * 2, lambda app: [each.break_seconds_max for each in times(app)]
    ),
    "BreakerProbeEvents": Row(
        "77", [77] * 2, lambda app: [each.probe_events for each in times(app)]
    ),
    "BreakerApprovalKey": Row(
        f"{'n' * 32}, {'o' * 32}",
        [b"n" * 32, b"o" * 32],
        lambda app: list(app.ingestion.breaker_controller.keys),
    ),
    "BreakerApprovalHours": Row("77", HOURS_77, "ingestion.breaker_controller.valid_for"),
    # --- data sets ---
    "ProcessingPeriodHours": Row(
        "6", Period(timedelta(hours=6), timedelta(hours=1), timedelta(hours=12)), period
    ),
    "ProcessingDelayMinutes": Row(
        "77",
        Period(timedelta(hours=24), MINUTES_77, timedelta(hours=12)),
        period,
        {"ProcessingPeriodHours": "24"},
    ),
    "ProcessingLatenessHours": Row(
        "7",
        Period(timedelta(hours=24), timedelta(hours=1), timedelta(hours=7)),
        period,
        {"ProcessingPeriodHours": "24"},
    ),
    "ProcessingQueue": Row(
        "queue-9",
        ["queue-9", "queue-9", "working"],
        lambda app: [
            link(app)["entity"],
            app.data_sets.queue_check.processing,
            app.data_sets.queue_check.working,
        ],
    ),
    "WorkingQueue": Row(
        "queue-9",
        ["processing", "queue-9"],
        lambda app: [link(app)["entity"], app.data_sets.queue_check.working],
    ),
    # --- nightly trends ---
    "TrendsEndpoint": Row(
        "https://cluster.example/livy/",
        "https://cluster.example/livy",
        lambda app: livy(app)["url"],
        {key: LIVY[key] for key in ("TrendsSubmitter", "TrendsRequest")},
    ),
    "TrendsRequest": Row(
        '{"file": "abfss://x/y.py", "executorCores": 7}',
        {"file": "abfss://x/y.py", "executorCores": 7},
        lambda app: livy(app)["request"],
        {key: LIVY[key] for key in ("TrendsSubmitter", "TrendsEndpoint")},
    ),
    "TrendsUser": Row("jane", {"Authorization": "Basic amFuZTo="}, signed, LIVY),
    "TrendsPassword": Row(
        "hunter2",
        {"Authorization": "Basic amFuZTpodW50ZXIy"},
        signed,
        {**LIVY, "TrendsUser": "jane"},
    ),
    "TrendsInput": Row(
        "at/{dataset}/x, more",
        [["--input", "at/sales/x", "--input", "more", *JOB[2:]], ("at/{dataset}/x", "more")],
        lambda app: [job(app), given(StoredInputs, lambda: app.nightly.inputs)["places"]],
    ),
    "TrendsOutput": Row("to/{dataset}", [*JOB[:3], "to/sales", *JOB[4:]], job),
    "TrendsArguments": Row("--a 'b c'", [*JOB[:6], "--a", "b c"], job),
    "TrendsAttempts": Row("7", 7, "nightly.run_manager.policy.attempts"),
    "TrendsRetryMinutes": Row("77", MINUTES_77, "nightly.run_manager.policy.retry_delay"),
    "TrendsTimeoutMinutes": Row("77", MINUTES_77, "nightly.run_manager.policy.timeout"),
    "TrendsParallel": Row("7", 7, "nightly.run_manager.policy.parallel"),
    "AZURE_STORAGE_CONNECTION_STRING": Row(
        STORAGE_OF, STORAGE_OF, made(StoredInputs, "nightly.inputs", "connection_string")
    ),
}


@pytest.mark.parametrize("name", ROWS)
async def test_a_setting_arrives_where_it_acts(name: str) -> None:
    row = ROWS[name]
    assert row.value != SETTINGS[name].default
    async with App({**EVERYTHING, **row.also, name: row.value}, lambda: NOW) as app:
        arrived = row.arrived(app)
        assert (await arrived if isawaitable(arrived) else arrived) == row.expected


SUBMITTERS: Mapping[str, tuple[type, Mapping[str, str]]] = {
    "local": (LocalSubmitter, {"TrendsEndpoint": "logs"}),
    "livy": (LivySubmitter, LIVY),
    "livy of Fabric": (FabricSubmitter, {**LIVY, "TrendsEndpoint": f"https://{FABRIC}/v1/w"}),
    "synapse": (
        SynapseSubmitter,
        {**LIVY, "TrendsEndpoint": "https://w.dev.azuresynapse.net/sparkPools/pool1"},
    ),
    "databricks": (
        DatabricksSubmitter,
        {
            "TrendsEndpoint": "https://adb-1.7.azuredatabricks.net",
            "TrendsRequest": '{"spark_python_task": {}}',
        },
    ),
}


@pytest.mark.parametrize("submitter", SUBMITTERS)
async def test_the_setting_trends_submitter_chooses_the_service(submitter: str) -> None:
    cls, also = SUBMITTERS[submitter]
    chosen = {"TrendsSubmitter": submitter.removesuffix(" of Fabric")}
    async with App({**EVERYTHING, **also, **chosen}) as app:
        arguments = given(cls, lambda: app.nightly.submitter).values()
        settings = app.nightly.settings
        if submitter == "synapse":
            assert {"https://w.dev.azuresynapse.net", "pool1"} <= {*map(str, arguments)}
        else:
            assert settings.endpoint in map(str, arguments)
        assert submitter == "local" or settings.request in list(arguments)


@pytest.mark.parametrize(
    ("name", "value", "arrives"),
    [
        ("EffectsKeptDays", "0", lambda app: app.ingestion.effect_retention.keep),
        ("BreakerFailures", "0", lambda app: rule(app).failures_max),
        ("BreakerSlowRatio", "", lambda app: rule(app).slow_ratio_max),
        ("DeadTimeMinutes", "", lambda app: of(app).throughput.start_up_minutes),
        ("CompletedMetric", "", lambda app: of(app).throughput.completed_metric),
    ],
)
async def test_a_limit_that_is_switched_off_arrives_as_none(
    name: str, value: str, arrives: Callable[[App], object]
) -> None:
    async with App({**EVERYTHING, name: value}) as app:
        assert arrives(app) is None


@pytest.mark.parametrize(("value", "seconds"), [("7", 7), ("200", 200), ("3600", 200)])
async def test_the_trigger_cancels_a_call_after_200_seconds_at_the_latest(
    value: str, seconds: float
) -> None:
    async with App({**EVERYTHING, "HandlerSecondsMaximum": value}) as app:
        app.ingestion.store = MemoryIngestionStore(lambda: NOW)
        with noted(ingestion, "limited") as seen:
            app.ingestion.pipeline("0")
        assert seen["seconds"] == seconds


# --- settings that arrive through a function ----------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A function of the app, the flow that it runs, and the argument in which a value arrives."""

    function: str
    flow: str
    argument: str
    value: str
    expected: object


CALLS = {
    "SourceTimeoutSeconds of metric_collector": Call(
        "metric_collector",
        "shared.autoscaling.flows.metric_collector.collect",
        "timeout_seconds",
        "7",
        7,
    ),
    "ResourcesPerMessage": Call(
        "metric_collector",
        "shared.autoscaling.flows.metric_collector.collect",
        "messages",
        "77",
        (77,),
    ),
    "SourceTimeoutSeconds of reconciler": Call(
        "reconciler", "function_app.Reconciler", "timeout_seconds", "7", 7
    ),
    "DecisionLogDays": Call(
        "log_retention", "shared.autoscaling.flows.retention.delete_old_entries", "days", "77", 77
    ),
    "TrendsLateDays": Call(
        "nightly_trends", "shared.wiring.nightly.demand_nightly", "late_days", "7", 7
    ),
    "TrendsDataSets": Call(
        "nightly_trends",
        "shared.wiring.nightly.demand_nightly",
        "datasets",
        "sales",
        ("sales",),
    ),
}
"""By the name of the setting."""


@pytest.fixture
async def module(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ModuleType]:
    """function_app, freshly imported with the given setting."""
    module = imported(monkeypatch, {**EVERYTHING, **request.param})
    assert module.failure is None
    yield module
    sys.modules.pop("function_app", None)
    await module.app.close()


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ({name.partition(" ")[0]: call.value, "TrendsOutput": "out/{dataset}"}, call)
        for name, call in CALLS.items()
    ],
    indirect=["module"],
    ids=list(CALLS),
)
async def test_a_setting_arrives_in_the_flow_of_its_function(
    module: ModuleType, call: Call
) -> None:
    module.app.nightly.run_manager = Mock(run_all=AsyncMock())
    module._send = AsyncMock()  # type: ignore[attr-defined]
    owner, _, name = call.flow.rpartition(".")
    run = getattr(module, call.function)
    result = Mock(metrics=[], __iter__=lambda _self: iter(()))
    flow: Any = AsyncMock(return_value=result)
    if name == "Reconciler":
        flow = Mock(return_value=Mock(reconcile_all=flow))
    with noted(import_module(owner), name, flow) as seen:
        await run(Mock(spec=func.TimerRequest))
    if result.messages.called:
        seen["messages"] = result.messages.call_args.args
    assert seen[call.argument] == call.expected


# --- settings that arrive in a trigger ----------------------------------------------------------

TRIGGERS = {
    "MetricCollectorSchedule": {"metric_collector": "schedule"},
    "ReconcilerSchedule": {"reconciler": "schedule"},
    "LogRetentionSchedule": {"log_retention": "schedule"},
    "NotifierSchedule": {"notifier": "schedule"},
    "IngestTailSchedule": {"ingest_tail": "schedule"},
    "NightlyTrendsSchedule": {"nightly_trends": "schedule"},
    "TrendRunsSchedule": {"trend_runs": "schedule"},
    "EventHubName": {"metric_ingest": "eventHubName"},
    "EventHubConsumerGroup": {"metric_ingest": "consumerGroup"},
    "WorkingQueue": {"process_dataset": "queueName"},
    "TelemetryQueue": {"telemetry_arrived": "queueName", "telemetry_poison": "queueName"},
}
"""The property of the trigger of each function in which a setting arrives."""


DISTINCT = {
    name: f"{number} * * * * *" if name.endswith("Schedule") else f"queue-{number}"
    for number, name in enumerate(TRIGGERS)
}


@pytest.mark.parametrize("module", [DISTINCT], indirect=True, ids=["all"])
async def test_a_setting_arrives_in_the_trigger_of_its_function_and_in_no_other(
    module: ModuleType,
) -> None:
    properties = [
        (name, key, str(value))
        for function in module.functions.get_functions()
        for name in [function.get_function_name()]
        for key, value in function.get_trigger().get_dict_repr().items()
    ]
    for setting, expected in TRIGGERS.items():
        of_poison = f"{DISTINCT[setting]}-poison"
        assert expected == {
            name: key
            for name, key, value in properties
            if value == (of_poison if name.endswith("_poison") else DISTINCT[setting])
        }, setting


def test_it_is_known_of_each_setting_where_it_arrives() -> None:
    through_functions = {name.partition(" ")[0] for name in CALLS}
    assert {*ROWS, *through_functions, *TRIGGERS, "TrendsSubmitter"} == set(SETTINGS)


# --- sovereign clouds ---------------------------------------------------------------------------


class Asked(Exception):
    """Says for which audience a token was requested."""


@pytest.mark.parametrize(
    "use",
    [
        lambda app: app.scaling.control.read(of(app).target),
        lambda app: set_capacity(app.scaling.control, of(app).target, 3),
        lambda app: app.scaling.permissions.lacking(of(app).target),
        lambda app: app.scaling.platform_metrics.read(
            [s for s in of(app).metrics.values() if s.series]
        ),
        lambda app: app.scaling.reader.message_count(ServiceBusQueue("work")),
    ],
    ids=["read", "change", "permissions", "metrics", "counts"],
)
async def test_each_client_of_resource_manager_asks_for_a_token_of_its_own_cloud(
    use: Callable[[App], Awaitable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    class Credential:
        async def get_token(self, *scopes: str, **_options: Any) -> Any:
            asked.extend(scopes)
            raise Asked

        async def close(self) -> None: ...

    modules = (
        "autoscaling.plans.app_service",
        "azure.arm",
        "azure.service_bus",
    )
    for module in modules:
        monkeypatch.setattr(f"shared.{module}.credential_for", lambda *_arguments: Credential())
    cloud = "https://management.chinacloudapi.cn"
    also = {"ServiceBusNamespaceIds": NAMESPACE_ID}
    also |= {"ServiceBusCountsFrom": "resource-manager"}
    async with App({**EVERYTHING, **also, "ArmEndpoint": cloud}) as app:
        with pytest.raises(Asked):
            await use(app)
    assert asked == [f"{cloud}/.default"]
