"""What is scaled, by which rules, when, and with how much patience."""

from __future__ import annotations

from shared.settings.declared.setting import Bounds, Section, Setting, number, schedule

RULES = "rules"
CAPACITY = "`metric_collector`, `scaler`, `reconciler`"

SCALED = Section(
    "What is scaled",
    "`metric_collector`",
    (
        Setting(
            "AzureWebJobsStorage",
            "connection string",
            "",
            "storage of queues and state: a connection string, or "
            "`AzureWebJobsStorage__accountName` with managed identity",
            "all",
            secret=True,
            example="UseDevelopmentStorage=true",
        ),
        Setting(
            "ServiceBusConnection",
            "connection string",
            "",
            "a connection string, or `ServiceBusConnection__fullyQualifiedNamespace` with managed "
            "identity",
            "`metric_collector`, `telemetry_arrived`, `process_dataset`",
            secret=True,
            example="Endpoint=sb://NAMESPACE.servicebus.windows.net/;SharedAccessKeyName=NAME;"
            "SharedAccessKey=KEY",
        ),
        Setting(
            "SubscriptionId",
            "UUID",
            "",
            "Azure subscription of the plan",
            CAPACITY,
            example="00000000-0000-0000-0000-000000000000",
        ),
        Setting(
            "ResourceGroup", "text", "", "its resource group", CAPACITY, example="my-resource-group"
        ),
        Setting(
            "ResourceToScale",
            "text",
            "",
            "the plan's exact name",
            CAPACITY,
            example="my-app-service-plan",
        ),
        Setting("Topic", "text", "", "with the next: whose backlog to watch", example="my-topic"),
        Setting(
            "Subscription", "text", "", "the subscription of that topic", example="my-subscription"
        ),
    ),
)

THE_RULES = Section(
    "The rules that come with it",
    RULES,
    (
        number(
            "ThresholdUp",
            "messages",
            "100",
            Bounds(0),
            "until the rate is learned: mean backlog above this → scale out",
        ),
        number(
            "ThresholdDown",
            "messages",
            "10",
            Bounds(0),
            "until the rate is learned: maximum backlog below this → scale in",
        ),
        number("WindowSeconds", "seconds", "600", Bounds(1, 14_400), "how far back samples count"),
        number(
            "MinimumSamples",
            "whole number",
            "5",
            Bounds(1, 1000),
            "fewer samples than this: no decision",
        ),
        number(
            "ScaleOutCooldownSeconds",
            "seconds",
            "600",
            Bounds(0, 86_400),
            "rest of the thresholds after a confirmed change, before more instances",
        ),
        number(
            "ScaleInCooldownSeconds",
            "seconds",
            "600",
            Bounds(0, 86_400),
            "the same, before fewer instances",
        ),
        number("ScaleOutStep", "instances", "1", Bounds(1, 100), "so many more at a time"),
        number("ScaleInStep", "instances", "1", Bounds(1, 100), "so many fewer at a time"),
        number("MinimumCapacity", "instances", "1", Bounds(1, 100), "capacity is never below"),
        number("MaximumCapacity", "instances", "10", Bounds(1, 100), "capacity is never above"),
        number(
            "AgeLimitMinutes",
            "minutes",
            "5",
            Bounds(0.01, 1440),
            "no message should wait for longer",
        ),
        number(
            "SwitchCost",
            "instance-minutes",
            "2",
            Bounds(0, 1e6),
            "what one instance more or less costs",
        ),
        number(
            "LatePenalty",
            "instance-minutes",
            "10",
            Bounds(0, 1e6),
            "what one instance-minute of late work costs",
        ),
        number(
            "InstanceRatePerMinute",
            "messages",
            "",
            Bounds(1e-6, 1e12),
            "what one busy instance finishes in a minute: set it if you can",
            unset="none (learned, slowly)",
        ),
        number(
            "DeadTimeMinutes",
            "minutes",
            "",
            Bounds(0, 120),
            "from the order of an instance until it works",
            unset="none (learned)",
        ),
        Setting(
            "CompletedMetric",
            "text",
            "",
            "name of a metric, sent to the event hub, that counts the messages finished since its "
            "last sample: the rate is learned from it [within minutes](rules.md#learning)",
        ),
        number(
            "PlanningStepSeconds",
            "seconds",
            "60",
            Bounds(0.1, 600),
            "the step in which the default rule plans",
        ),
        Setting(
            "DryRun",
            "true or false",
            "false",
            "decide and log, change nothing; the example begins with `true`",
            example="true",
        ),
    ),
)

PATIENCE = Section(
    "When the functions run, and how patient they are",
    "`scaler`",
    (
        schedule(
            "MetricCollectorSchedule",
            "*/15 * * * * *",
            "when to read the metrics",
            "`metric_collector`",
        ),
        schedule(
            "ReconcilerSchedule",
            "*/30 * * * * *",
            "when to compare desired and actual capacity",
            "`reconciler`",
        ),
        schedule(
            "LogRetentionSchedule",
            "0 40 3 * * *",
            "when to delete old decisions",
            "`log_retention`",
        ),
        number(
            "SourceTimeoutSeconds",
            "seconds",
            "10",
            Bounds(0.1, 60),
            "patience with one metric source",
            "`metric_collector`, `reconciler`",
        ),
        number(
            "ActionResendSeconds",
            "seconds",
            "60",
            Bounds(1, 3600),
            "an action without confirmation is sent again after this",
            "`reconciler`",
        ),
        number(
            "ActionRetrySeconds",
            "seconds",
            "15",
            Bounds(0.1, 3600),
            "first wait after a busy or slow plan; doubles up to 16 times, unless the service says "
            "how long",
        ),
        number(
            "ActionDeadlineSeconds",
            "seconds",
            "600",
            Bounds(1, 86_400),
            "an action is given up after this, and the rule decides anew",
        ),
        number(
            "FailureHoldSeconds",
            "seconds",
            "60",
            Bounds(1, 3600),
            "pause after a refused action",
        ),
        Setting(
            "ArmEndpoint",
            "https address",
            "https://management.azure.com",
            "Azure Resource Manager; another in sovereign clouds",
            CAPACITY,
        ),
        number(
            "ArmTimeoutSeconds",
            "seconds",
            "120",
            Bounds(1, 180),
            "patience with one change of a plan",
        ),
        number(
            "ArmPollingSeconds",
            "seconds",
            "5",
            Bounds(0.05, 60),
            "how often to ask whether the change is done",
        ),
        number(
            "DecisionLogDays",
            "days",
            "14",
            Bounds(0.01, 3650),
            "how long decisions are kept",
            "`log_retention`",
        ),
    ),
)
