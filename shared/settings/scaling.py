"""What is scaled, by which rules, when, and with how much patience."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shared.settings import fields
from shared.settings.fields import Setting, SettingsModel, cron, number, required, setting, whole
from shared.values.text import NAME, UUID

RULES = "rules"
CAPACITY = "`metric_collector`, `scaler`, `reconciler`"

# fmt: off
STORAGE = Setting("AzureWebJobsStorage", "connection string", "",
    "storage of queues and state: a connection string, or `AzureWebJobsStorage__accountName` with "
    "managed identity", "all", secret=True, example="UseDevelopmentStorage=true")
SERVICE_BUS = Setting("ServiceBusConnection", "connection string", "",
    "a connection string, or `ServiceBusConnection__fullyQualifiedNamespace` with managed identity",
    "`metric_collector`, `telemetry_arrived`, `process_dataset`", secret=True,
    example="Endpoint=sb://NAMESPACE.servicebus.windows.net/;SharedAccessKeyName=NAME;"
    "SharedAccessKey=KEY")


@dataclass(frozen=True)
class SingleResource(SettingsModel):
    """One App Service Plan, one subscription: the settings of the original, no code needed."""

    name: str = setting(required, "ResourceToScale", "text", "", "the plan's exact name", CAPACITY,
        pattern=NAME.pattern, example="my-app-service-plan")
    azure_subscription_id: str = setting(required, "SubscriptionId", "UUID", "",
        "Azure subscription of the plan", CAPACITY, pattern=UUID.pattern,
        example="00000000-0000-0000-0000-000000000000")
    resource_group: str = setting(required, "ResourceGroup", "text", "", "its resource group",
        CAPACITY, pattern="[^/]+", example="my-resource-group")
    topic: str = setting(required, "Topic", "text", "", "with the next: whose backlog to watch",
        example="my-topic")
    subscription: str = setting(required, "Subscription", "text", "",
        "the subscription of that topic", example="my-subscription")
    threshold_up: float = setting(number, "ThresholdUp", "messages", 100,
        "until the rate is learned: mean backlog above this → scale out",
        bounds=(0, fields.NO_LIMIT))
    threshold_down: float = setting(number, "ThresholdDown", "messages", 10,
        "until the rate is learned: maximum backlog below this → scale in",
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
        "0 40 3 * * *", "when to delete old decisions", "`log_retention`")


@dataclass(frozen=True)
class RuleSettings(SettingsModel):
    """What the rules that come with the app go by."""

    window_seconds: float = setting(number, "WindowSeconds", "seconds", 600,
        "how far back samples count", bounds=(1, 14_400))
    minimum_samples: int = setting(whole, "MinimumSamples", "whole number", 5,
        "fewer samples than this: no decision", bounds=(1, 1000))
    scale_out_cooldown_seconds: float = setting(number, "ScaleOutCooldownSeconds", "seconds", 600,
        "rest of the thresholds after a confirmed change, before more instances",
        bounds=(0, 86_400))
    scale_in_cooldown_seconds: float = setting(number, "ScaleInCooldownSeconds", "seconds", 600,
        "the same, before fewer instances", bounds=(0, 86_400))
    scale_out_step: int = setting(whole, "ScaleOutStep", "instances", 1, "so many more at a time",
        bounds=(1, 100))
    scale_in_step: int = setting(whole, "ScaleInStep", "instances", 1, "so many fewer at a time",
        bounds=(1, 100))
    minimum_capacity: int = setting(whole, "MinimumCapacity", "instances", 1,
        "capacity is never below", bounds=(1, 100))
    maximum_capacity: int = setting(whole, "MaximumCapacity", "instances", 10,
        "capacity is never above", bounds=(1, 100))
    age_limit_minutes: float = setting(number, "AgeLimitMinutes", "minutes", 5,
        "no message should wait for longer", bounds=(0.01, 1440))
    switch_cost: float = setting(number, "SwitchCost", "instance-minutes", 2,
        "what one instance more or less costs", bounds=(0, 1e6))
    late_penalty: float = setting(number, "LatePenalty", "instance-minutes", 10,
        "what one instance-minute of late work costs", bounds=(0, 1e6))
    instance_rate_per_minute: float | None = setting(fields.optional_number,
        "InstanceRatePerMinute", "messages", "",
        "what one busy instance finishes in a minute: set it if you can",
        bounds=(1e-6, 1e12), unset="none (learned, slowly)")
    dead_time_minutes: float | None = setting(fields.optional_number, "DeadTimeMinutes",
        "minutes", "", "from the order of an instance until it works", bounds=(0, 120),
        unset="none (learned)")
    completed_metric: str = setting(fields.text, "CompletedMetric", "text", "",
        "name of a metric, sent to the event hub, that counts the messages finished since its "
        "last sample: the rate is learned from it [within minutes](rules.md#learning)")
    planning_step_seconds: float = setting(number, "PlanningStepSeconds", "seconds", 60,
        "the step in which the default rule plans", bounds=(0.1, 600))
    dry_run: bool = setting(fields.flag, "DryRun", "true or false", "false",
        "decide and log, change nothing; the example begins with `true`", example="true")

    def conflicts(self) -> Iterable[str]:
        if self.minimum_capacity > self.maximum_capacity:
            bound = f"must be at least MinimumCapacity = {self.minimum_capacity}"
            yield f"MaximumCapacity = {self.maximum_capacity}: {bound}"


@dataclass(frozen=True)
class ActionSettings(SettingsModel):
    """How patient the functions of the scaler are."""

    source_timeout_seconds: float = setting(number, "SourceTimeoutSeconds", "seconds", 10,
        "patience with one metric source", "`metric_collector`, `reconciler`", (0.1, 60))
    action_resend_seconds: float = setting(number, "ActionResendSeconds", "seconds", 60,
        "an action without confirmation is sent again after this", "`reconciler`", (1, 3600))
    action_retry_seconds: float = setting(number, "ActionRetrySeconds", "seconds", 15,
        "first wait after a busy or slow plan; doubles up to 16 times, unless the service says how "
        "long", bounds=(0.1, 3600))
    action_deadline_seconds: float = setting(number, "ActionDeadlineSeconds", "seconds", 600,
        "an action is given up after this, and the rule decides anew", bounds=(1, 86_400))
    failure_hold_seconds: float = setting(number, "FailureHoldSeconds", "seconds", 60,
        "pause after a refused action", bounds=(1, 3600))
    arm_endpoint: str = setting(fields.address, "ArmEndpoint", "https address",
        "https://management.azure.com", "Azure Resource Manager; another in sovereign clouds",
        CAPACITY, pattern=f"{fields.HTTPS}/*", must="must look like https://management.azure.com")
    arm_timeout_seconds: float = setting(number, "ArmTimeoutSeconds", "seconds", 120,
        "patience with one change of a plan", bounds=(1, 180))
    arm_polling_seconds: float = setting(number, "ArmPollingSeconds", "seconds", 5,
        "how often to ask whether the change is done", bounds=(0.05, 60))
    decision_log_days: float = setting(number, "DecisionLogDays", "days", 14,
        "how long decisions are kept", "`log_retention`", (0.01, 3650))
