"""The settings of scaling: the resource, the default rules, schedules, and timeouts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from shared.settings import fields
from shared.settings.connections import HOST_STORAGE
from shared.settings.fields import Setting, SettingsModel, cron, required, setting
from shared.values.bounds import Bounds, matching
from shared.values.samples import RESOURCES_OF_A_MESSAGE_MAX
from shared.values.text import NAME, UUID

RULES = "rules"
CAPACITY = "`metric_collector`, `scaler`, `reconciler`"

# fmt: off
NamespaceId = Annotated[str, matching(
    rf"(?i:/subscriptions/{UUID.pattern}/resourceGroups/[^/]+/providers/"
    r"Microsoft\.ServiceBus/namespaces/[^/]+)",
    "must look like /subscriptions/…/resourceGroups/…/providers/Microsoft.ServiceBus/namespaces/"
    "NAME")]
HttpsEndpoint = Annotated[str, matching(
    f"{fields.HTTPS}/*", "must look like https://management.azure.com")]
STORAGE = Setting(HOST_STORAGE, "connection string", "",
    "storage account for queues and state: a connection string, or "
    "`AzureWebJobsStorage__accountName` with managed identity", "all", secret=True,
    example="UseDevelopmentStorage=true")
SERVICE_BUS = Setting("ServiceBusConnection", "connection string", "",
    "Service Bus namespace: a connection string, or "
    "`ServiceBusConnection__fullyQualifiedNamespace` with managed identity",
    "`metric_collector`, `telemetry_arrived`, `process_dataset`", secret=True,
    example="Endpoint=sb://NAMESPACE.servicebus.windows.net/;SharedAccessKeyName=NAME;"
    "SharedAccessKey=KEY")


@dataclass(frozen=True)
class SingleResource(SettingsModel):
    """One App Service Plan that is scaled by the backlog of one subscription, without code."""

    azure_subscription_id: Annotated[str, matching(UUID)] = setting("SubscriptionId", "UUID", "",
        "Azure subscription of the plan", CAPACITY, parse=required,
        example="00000000-0000-0000-0000-000000000000")
    resource_group: Annotated[str, matching("[^/]+")] = setting("ResourceGroup", "text", "",
        "resource group of the plan", CAPACITY, parse=required, example="my-resource-group")
    name: Annotated[str, matching(NAME)] = setting("ResourceToScale", "text", "",
        "exact name of the App Service Plan", CAPACITY, parse=required,
        example="my-app-service-plan")
    topic: str = setting("Topic", "text", "", "Service Bus topic of the subscription below",
        parse=required, example="my-topic")
    subscription: str = setting("Subscription", "text", "",
        "subscription whose backlog determines the capacity", parse=required,
        example="my-subscription")
    threshold_up: Annotated[float, Bounds(0)] = setting("ThresholdUp", "messages", 100,
        "before the app has seen any work: scale out while the mean backlog is above this")
    threshold_down: Annotated[float, Bounds(0)] = setting("ThresholdDown", "messages", 10,
        "before the app has seen any work: scale in while the maximum backlog is below this")

    def conflicts(self) -> Iterable[str]:
        if not self.threshold_down < self.threshold_up:
            bound = f"must be below ThresholdUp = {self.threshold_up:g}"
            yield f"ThresholdDown = {self.threshold_down:g}: {bound}"


@dataclass(frozen=True)
class Schedules(SettingsModel):
    """When the functions of the scaler run, and on how many resources at a time."""

    metric_collector_schedule: str = setting("MetricCollectorSchedule", "schedule",
        "*/15 * * * * *", "when to read the metrics", "`metric_collector`", parse=cron)
    resources_per_message: Annotated[int, Bounds(1, RESOURCES_OF_A_MESSAGE_MAX)] = setting(
        "ResourcesPerMessage", "whole number", 1, "for how many resources one message of the queue "
        "`metrics` has samples; raise it once every running copy of the app has this setting: see "
        "[several plans](several-plans.md#executions)", "`metric_collector`")
    reconciler_schedule: str = setting("ReconcilerSchedule", "schedule", "0 * * * * *",
        "when to compare desired and actual capacity, besides each message of a resource with a "
        "change under way", "`reconciler`", parse=cron)
    log_retention_schedule: str = setting("LogRetentionSchedule", "schedule", "0 40 3 * * *",
        "when to delete old entries of the decision log and old trends", "`log_retention`",
        parse=cron)


@dataclass(frozen=True)
class RuleSettings(SettingsModel):
    window_seconds: Annotated[float, Bounds(1, 14_400)] = setting("WindowSeconds", "seconds", 600,
        "time window from which samples are used")
    minimum_samples: Annotated[int, Bounds(1, 1000)] = setting("MinimumSamples", "whole number", 5,
        "number of samples required for a decision")
    scale_out_cooldown_seconds: Annotated[float, Bounds(0, 86_400)] = setting(
        "ScaleOutCooldownSeconds", "seconds", 600,
        "for threshold rules: minimum time from a confirmed change to the next scale-out")
    scale_in_cooldown_seconds: Annotated[float, Bounds(0, 86_400)] = setting(
        "ScaleInCooldownSeconds", "seconds", 600,
        "for threshold rules: minimum time from a confirmed change to the next scale-in")
    scale_out_step: Annotated[int, Bounds(1, 100)] = setting("ScaleOutStep", "instances", 1,
        "for threshold rules: number of instances added at a time")
    scale_in_step: Annotated[int, Bounds(1, 100)] = setting("ScaleInStep", "instances", 1,
        "for threshold rules: number of instances removed at a time")
    scale_changes_per_hour: Annotated[int, Bounds(5, 10_000)] = setting("ScaleChangesPerHour",
        "whole number", 20, "number of changes of a plan that Azure allows within an hour; "
        "scale-in leaves the last four of them for scale-out")
    minimum_capacity: Annotated[int, Bounds(1, 100)] = setting("MinimumCapacity", "instances", 1,
        "lower limit of the capacity")
    maximum_capacity: Annotated[int, Bounds(1, 100)] = setting("MaximumCapacity", "instances", 10,
        "upper limit of the capacity")
    age_limit_minutes: Annotated[float, Bounds(0.01, 1440)] = setting("AgeLimitMinutes", "minutes",
        5, "how long a message may wait before it counts as late")
    switch_cost: Annotated[float, Bounds(0, 1e6)] = setting("SwitchCost", "instance-minutes", 2,
        "cost of adding or removing one instance")
    late_penalty: Annotated[float, Bounds(0, 1e6)] = setting("LatePenalty", "instance-minutes", 10,
        "cost of one instance-minute of late work")
    instance_rate_per_minute: Annotated[float, Bounds(1e-6, 1e12)] | None = setting(
        "InstanceRatePerMinute", "messages", "", "rate per busy instance in a minute, "
        "compared with what is seen; if it is not set, the app [estimates it](learning.md)",
        unset="none (estimated)")
    dead_time_minutes: Annotated[float, Bounds(0, 120)] | None = setting("DeadTimeMinutes",
        "minutes", "", "time from the request of an instance until it processes messages",
        unset="none (three minutes)")
    completed_metric: str = setting("CompletedMetric", "text", "",
        "name of a metric, sent to the event hub, that counts the messages completed since its "
        "last sample; the app learns the rate per instance from it "
        "[within minutes](learning.md), or checks the one that is set")
    service_bus_namespace_ids: tuple[NamespaceId, ...] = setting("ServiceBusNamespaceIds",
        "resource IDs, separated by commas", "", "the Service Bus namespaces that the rules read; "
        "the app learns the rate per instance [within minutes](learning.md) from the "
        "completed messages that Azure Monitor counts there, or checks the one that is set, and "
        "needs the role *Monitoring Reader* on each")
    service_bus_counts_from: Literal["namespace", "resource-manager"] = setting(
        "ServiceBusCountsFrom", "text", "namespace", "where the app reads the counts of Service "
        "Bus: `namespace`, with the role *Azure Service Bus Data Owner*, or `resource-manager`, "
        "with *Monitoring Reader* on the namespaces, which `ServiceBusNamespaceIds` must name: "
        "see [security](security.md#reading-counts)")
    service_bus_credits_per_second: Annotated[float, Bounds(10, 100_000)] = setting(
        "ServiceBusCreditsPerSecond", "credits a second", 500, "what reading counts may take of a "
        "Service Bus namespace: a request costs 10 of the 1,000 credits that a Standard namespace "
        "has a second; a Premium namespace has no credits, but requests are spaced all the same: "
        "see [several plans](several-plans.md#queues-of-one-namespace-or-account)",
        "`metric_collector`")
    planning_step_seconds: Annotated[float, Bounds(0.1, 480)] = setting("PlanningStepSeconds",
        "seconds", 60, "time step in which the default policy plans")
    dry_run: bool = setting("DryRun", "true or false", "false",
        "decide and log, but change nothing; `true` in the example", example="true")

    def conflicts(self) -> Iterable[str]:
        if self.minimum_capacity > self.maximum_capacity:
            bound = f"must be at least MinimumCapacity = {self.minimum_capacity}"
            yield f"MaximumCapacity = {self.maximum_capacity}: {bound}"


@dataclass(frozen=True)
class TimingSettings(SettingsModel):
    resend_seconds: Annotated[float, Bounds(1, 3600)] = setting("ActionResendSeconds",
        "seconds", 60, "time after which an unconfirmed action is sent again", "`reconciler`")
    retry_seconds: Annotated[float, Bounds(0.1, 3600)] = setting("ActionRetrySeconds", "seconds",
        15, "wait before the first retry if the plan is busy or slow; each further wait is twice "
        "as long, up to 16 times this value, unless the service says how long to wait")
    deadline_seconds: Annotated[float, Bounds(1, 86_400)] = setting("ActionDeadlineSeconds",
        "seconds", 600, "time without progress after which an action is abandoned and the "
        "policy decides again")
    failure_hold_seconds: Annotated[float, Bounds(1, 3600)] = setting("FailureHoldSeconds",
        "seconds", 60, "wait after an action that was refused, or of which only a part was reached")


@dataclass(frozen=True)
class ActionSettings(SettingsModel):
    """The timeouts and retries of scale actions, and of the services that they use."""

    source_timeout_seconds: Annotated[float, Bounds(0.1, 60)] = setting("SourceTimeoutSeconds",
        "seconds", 10, "timeout for reading one metric source", "`metric_collector`, `reconciler`")
    timing: TimingSettings = fields.group()
    arm_endpoint: HttpsEndpoint = setting("ArmEndpoint", "https address",
        "https://management.azure.com", "endpoint of Azure Resource Manager, which differs in "
        "sovereign clouds", CAPACITY, parse=fields.address)
    arm_timeout_seconds: Annotated[float, Bounds(1, 180)] = setting("ArmTimeoutSeconds", "seconds",
        120, "timeout for one change of a plan")
    price_per_instance_hour: Annotated[float, Bounds(1e-6, 1e6)] | None = setting(
        "PricePerInstanceHour", "money", "", "what an instance costs an hour; with it, the page, "
        "`status` and the backtest say what was spent", "`dashboard`, `resources`",
        unset="none (instance-hours only)")
    decision_log_days: Annotated[float, Bounds(0.01, 3650)] = setting("DecisionLogDays", "days", 14,
        "how long the decision log is kept", "`log_retention`")
