"""The settings of scaling: the resource, the default rules, schedules, and timeouts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shared.settings import fields
from shared.settings.connections import HOST_STORAGE
from shared.settings.fields import Setting, SettingsModel, cron, number, required, setting, whole
from shared.values.text import NAME, UUID

RULES = "rules"
NAMESPACE_ID = (
    rf"(?i:/subscriptions/{UUID.pattern}/resourceGroups/[^/]+/providers/"
    r"Microsoft\.ServiceBus/namespaces/[^/]+)"
)
CAPACITY = "`metric_collector`, `scaler`, `reconciler`"

# fmt: off
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

    name: str = setting(required, "ResourceToScale", "text", "",
        "exact name of the App Service Plan", CAPACITY, pattern=NAME.pattern,
        example="my-app-service-plan")
    azure_subscription_id: str = setting(required, "SubscriptionId", "UUID", "",
        "Azure subscription of the plan", CAPACITY, pattern=UUID.pattern,
        example="00000000-0000-0000-0000-000000000000")
    resource_group: str = setting(required, "ResourceGroup", "text", "",
        "resource group of the plan", CAPACITY, pattern="[^/]+", example="my-resource-group")
    topic: str = setting(required, "Topic", "text", "",
        "Service Bus topic of the subscription below", example="my-topic")
    subscription: str = setting(required, "Subscription", "text", "",
        "subscription whose backlog determines the capacity", example="my-subscription")
    threshold_up: float = setting(number, "ThresholdUp", "messages", 100,
        "before the app has seen any work: scale out while the mean backlog is above this",
        bounds=(0, fields.NO_LIMIT))
    threshold_down: float = setting(number, "ThresholdDown", "messages", 10,
        "before the app has seen any work: scale in while the maximum backlog is below this",
        bounds=(0, fields.NO_LIMIT))

    def conflicts(self) -> Iterable[str]:
        if not self.threshold_down < self.threshold_up:
            bound = f"must be below ThresholdUp = {self.threshold_up:g}"
            yield f"ThresholdDown = {self.threshold_down:g}: {bound}"


@dataclass(frozen=True)
class Schedules(SettingsModel):
    """When the functions of the scaler run."""

    metric_collector_schedule: str = setting(cron, "MetricCollectorSchedule", "schedule",
        "*/15 * * * * *", "when to read the metrics", "`metric_collector`")
    reconciler_schedule: str = setting(cron, "ReconcilerSchedule", "schedule", "*/30 * * * * *",
        "when to compare desired and actual capacity", "`reconciler`")
    log_retention_schedule: str = setting(cron, "LogRetentionSchedule", "schedule",
        "0 40 3 * * *", "when to delete old lines of the decision log and old trends",
        "`log_retention`")


@dataclass(frozen=True)
class RuleSettings(SettingsModel):
    """The parameters of the default rules."""

    window_seconds: float = setting(number, "WindowSeconds", "seconds", 600,
        "time window from which samples are used", bounds=(1, 14_400))
    minimum_samples: int = setting(whole, "MinimumSamples", "whole number", 5,
        "number of samples required for a decision", bounds=(1, 1000))
    scale_out_cooldown_seconds: float = setting(number, "ScaleOutCooldownSeconds", "seconds", 600,
        "for threshold rules: minimum time from a confirmed change to the next scale-out",
        bounds=(0, 86_400))
    scale_in_cooldown_seconds: float = setting(number, "ScaleInCooldownSeconds", "seconds", 600,
        "for threshold rules: minimum time from a confirmed change to the next scale-in",
        bounds=(0, 86_400))
    scale_out_step: int = setting(whole, "ScaleOutStep", "instances", 1,
        "for threshold rules: number of instances added at a time", bounds=(1, 100))
    scale_in_step: int = setting(whole, "ScaleInStep", "instances", 1,
        "for threshold rules: number of instances removed at a time", bounds=(1, 100))
    minimum_capacity: int = setting(whole, "MinimumCapacity", "instances", 1,
        "lower limit of the capacity", bounds=(1, 100))
    maximum_capacity: int = setting(whole, "MaximumCapacity", "instances", 10,
        "upper limit of the capacity", bounds=(1, 100))
    age_limit_minutes: float = setting(number, "AgeLimitMinutes", "minutes", 5,
        "how long a message may wait before it counts as late", bounds=(0.01, 1440))
    switch_cost: float = setting(number, "SwitchCost", "instance-minutes", 2,
        "cost of adding or removing one instance", bounds=(0, 1e6))
    late_penalty: float = setting(number, "LatePenalty", "instance-minutes", 10,
        "cost of one instance-minute of late work", bounds=(0, 1e6))
    instance_rate_per_minute: float | None = setting(fields.optional_number,
        "InstanceRatePerMinute", "messages", "",
        "throughput of one busy instance in a minute; if it is not set, the app [estimates "
        "it](rules.md#learning)",
        bounds=(1e-6, 1e12), unset="none (estimated)")
    dead_time_minutes: float | None = setting(fields.optional_number, "DeadTimeMinutes",
        "minutes", "", "time from the request of an instance until it processes messages",
        bounds=(0, 120), unset="none (learned)")
    completed_metric: str = setting(fields.text, "CompletedMetric", "text", "",
        "name of a metric, sent to the event hub, that counts the messages finished since its "
        "last sample; the app learns the throughput from it [within minutes](rules.md#learning)")
    service_bus_namespace_ids: tuple[str, ...] = setting(fields.names,
        "ServiceBusNamespaceIds", "resource IDs, separated by commas", "",
        "the Service Bus namespaces that the rules read; the app learns the throughput "
        "[within minutes](rules.md#learning) from the finished messages that Azure Monitor counts "
        "there, and needs the role *Monitoring Reader* on each",
        pattern=NAMESPACE_ID, must="must look like /subscriptions/…/resourceGroups/…/providers/"
        "Microsoft.ServiceBus/namespaces/NAME")
    planning_step_seconds: float = setting(number, "PlanningStepSeconds", "seconds", 60,
        "time step in which the default rule plans", bounds=(0.1, 480))
    dry_run: bool = setting(fields.flag, "DryRun", "true or false", "false",
        "decide and log, but change nothing; `true` in the example", example="true")

    def conflicts(self) -> Iterable[str]:
        if self.minimum_capacity > self.maximum_capacity:
            bound = f"must be at least MinimumCapacity = {self.minimum_capacity}"
            yield f"MaximumCapacity = {self.maximum_capacity}: {bound}"


@dataclass(frozen=True)
class ActionSettings(SettingsModel):
    """The timeouts and retries of scale actions, and of the services that they use."""

    source_timeout_seconds: float = setting(number, "SourceTimeoutSeconds", "seconds", 10,
        "timeout for reading one metric source", "`metric_collector`, `reconciler`", (0.1, 60))
    action_resend_seconds: float = setting(number, "ActionResendSeconds", "seconds", 60,
        "time after which an unconfirmed action is sent again", "`reconciler`", (1, 3600))
    action_retry_seconds: float = setting(number, "ActionRetrySeconds", "seconds", 15,
        "wait before the first retry if the plan is busy or slow; each further wait is twice as "
        "long, up to 16 times this value, unless the service says how long to wait",
        bounds=(0.1, 3600))
    action_deadline_seconds: float = setting(number, "ActionDeadlineSeconds", "seconds", 600,
        "time after which an action is abandoned and the rule decides again", bounds=(1, 86_400))
    failure_hold_seconds: float = setting(number, "FailureHoldSeconds", "seconds", 60,
        "wait after a refused action", bounds=(1, 3600))
    arm_endpoint: str = setting(fields.address, "ArmEndpoint", "https address",
        "https://management.azure.com",
        "endpoint of Azure Resource Manager, which differs in sovereign clouds",
        CAPACITY, pattern=f"{fields.HTTPS}/*", must="must look like https://management.azure.com")
    arm_timeout_seconds: float = setting(number, "ArmTimeoutSeconds", "seconds", 120,
        "timeout for one change of a plan", bounds=(1, 180))
    arm_polling_seconds: float = setting(number, "ArmPollingSeconds", "seconds", 5,
        "interval at which the app checks whether the change is complete", bounds=(0.05, 60))
    decision_log_days: float = setting(number, "DecisionLogDays", "days", 14,
        "how long the decision log is kept", "`log_retention`", (0.01, 3650))
