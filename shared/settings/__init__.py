"""The only reader of the environment: defaults → parse → validate once, all problems together."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from shared.settings.connections import (
    ServiceBusConnection,
    StorageConnection,
    service_bus_connection,
    storage_connection,
)
from shared.settings.ingestion import IngestionSettings, read_ingestion
from shared.settings.nightly import NightlySettings, read_nightly
from shared.settings.notifications import NotificationSettings, read_notifications
from shared.settings.reader import Reader, SettingsError
from shared.values.names import NAME, UUID
from shared.values.redaction import redacted

__all__ = ["Settings", "SettingsError", "SingleResource", "add_file", "load", "parse"]

T = TypeVar("T")
NO_SLASHES = re.compile(r"[^/]+")


@dataclass(frozen=True, slots=True)
class SingleResource:
    """One App Service Plan, one subscription: the settings of the original, no code needed."""

    name: str
    azure_subscription_id: str
    resource_group: str
    topic: str
    subscription: str
    threshold_up: float
    threshold_down: float


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting, parsed and checked. Durations are in seconds."""

    environ: Mapping[str, str] = field(repr=False)
    metric_collector_schedule: str
    reconciler_schedule: str
    log_retention_schedule: str
    window_seconds: float
    minimum_samples: int
    scale_out_cooldown_seconds: float
    scale_in_cooldown_seconds: float
    scale_out_step: int
    scale_in_step: int
    minimum_capacity: int
    maximum_capacity: int
    age_limit_minutes: float
    switch_cost: float
    late_penalty: float
    instance_rate_per_minute: float | None
    dead_time_minutes: float | None
    completed_metric: str
    """Empty: nobody counts what is finished."""

    planning_step_seconds: float
    dry_run: bool
    source_timeout_seconds: float
    action_resend_seconds: float
    action_retry_seconds: float
    action_deadline_seconds: float
    failure_hold_seconds: float
    arm_endpoint: str
    arm_timeout_seconds: float
    arm_polling_seconds: float
    decision_log_days: float
    processing_period_hours: tuple[float, ...]
    """Empty: no telemetry is listened to, and no data set is processed."""

    processing_delay_minutes: float
    processing_lateness_hours: float
    processing_queue: str
    working_queue: str
    telemetry_queue: str
    ingestion: IngestionSettings
    notifications: NotificationSettings
    nightly: NightlySettings

    def single_resource(self) -> SingleResource:
        """The resource that the settings of the original describe. Raises SettingsError."""
        reader = Reader(self.environ)
        single = SingleResource(
            name=reader.required("ResourceToScale", NAME),
            azure_subscription_id=reader.required("SubscriptionId", UUID),
            resource_group=reader.required("ResourceGroup", NO_SLASHES),
            topic=reader.required("Topic"),
            subscription=reader.required("Subscription"),
            threshold_up=reader.number("ThresholdUp"),
            threshold_down=reader.number("ThresholdDown"),
        )
        if not single.threshold_down < single.threshold_up:
            reader.problems.append(
                f"ThresholdDown = {single.threshold_down:g}: must be below ThresholdUp = "
                f"{single.threshold_up:g}"
            )
        reader.connection(service_bus_connection(self.environ, "ServiceBusConnection"))
        reader.raise_problems()
        return single

    def storage(self, name: str) -> StorageConnection:
        """The storage connection of that name. Raises SettingsError where it is not one."""
        return _valid(storage_connection(self.environ, name))

    def service_bus(self, name: str) -> ServiceBusConnection:
        """The Service Bus connection of that name. Raises SettingsError where it is not one."""
        return _valid(service_bus_connection(self.environ, name))


def _valid(connection: T | str) -> T:
    if isinstance(connection, str):
        raise SettingsError([connection])
    return connection


def add_file(path: Path) -> None:
    """Add the ``Values`` of a local.settings.json to the environment, which counts before them.

    Raises SettingsError where the file is not one.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        pairs = {str(key): str(value) for key, value in document["Values"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        form = 'a JSON object {"Values": {"Name": "text"}} is needed'
        raise SettingsError([f"{path}: {type(error).__name__}: {error}; {form}"]) from error
    if (writer := writer_of(document)) and not is_running(writer):
        ended = f"{path}: what it leads to ended with process {writer}, which wrote it"
        raise SettingsError([f"{ended}: start it again, or delete the file"])
    for key, value in pairs.items():
        os.environ.setdefault(key, value)


def override(name: str, value: str) -> None:
    """An option of the command line stands in for a setting, in this process."""
    os.environ[name] = value


def writer_of(document: Mapping[str, Any]) -> int | None:
    """The process that a settings file leads to, where it says so."""
    process = document.get("Process")
    return process if isinstance(process, int) and process > 0 else None


def is_running(process: int) -> bool:
    if os.name != "posix":  # a signal that is none is a blow there
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's
    return True


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from the environment. Raises SettingsError with every problem at once."""
    settings, problems = parse(environ)
    if problems:
        raise SettingsError(problems)
    return settings


def parse(environ: Mapping[str, str] | None = None) -> tuple[Settings, list[str]]:
    """Settings, and what is wrong with them; defaults stand where a value does not parse."""
    reader = Reader(os.environ if environ is None else environ)
    settings = Settings(
        environ=reader.environ,
        metric_collector_schedule=reader.schedule("MetricCollectorSchedule"),
        reconciler_schedule=reader.schedule("ReconcilerSchedule"),
        log_retention_schedule=reader.schedule("LogRetentionSchedule"),
        window_seconds=reader.number("WindowSeconds"),
        minimum_samples=reader.whole("MinimumSamples"),
        scale_out_cooldown_seconds=reader.number("ScaleOutCooldownSeconds"),
        scale_in_cooldown_seconds=reader.number("ScaleInCooldownSeconds"),
        scale_out_step=reader.whole("ScaleOutStep"),
        scale_in_step=reader.whole("ScaleInStep"),
        minimum_capacity=reader.whole("MinimumCapacity"),
        maximum_capacity=reader.whole("MaximumCapacity"),
        age_limit_minutes=reader.number("AgeLimitMinutes"),
        switch_cost=reader.number("SwitchCost"),
        late_penalty=reader.number("LatePenalty"),
        instance_rate_per_minute=reader.optional("InstanceRatePerMinute"),
        dead_time_minutes=reader.optional("DeadTimeMinutes"),
        completed_metric=reader.text("CompletedMetric"),
        planning_step_seconds=reader.number("PlanningStepSeconds"),
        dry_run=reader.flag("DryRun"),
        source_timeout_seconds=reader.number("SourceTimeoutSeconds"),
        action_resend_seconds=reader.number("ActionResendSeconds"),
        action_retry_seconds=reader.number("ActionRetrySeconds"),
        action_deadline_seconds=reader.number("ActionDeadlineSeconds"),
        failure_hold_seconds=reader.number("FailureHoldSeconds"),
        arm_endpoint=reader.endpoint("ArmEndpoint"),
        arm_timeout_seconds=reader.number("ArmTimeoutSeconds"),
        arm_polling_seconds=reader.number("ArmPollingSeconds"),
        decision_log_days=reader.number("DecisionLogDays"),
        processing_period_hours=reader.numbers("ProcessingPeriodHours"),
        processing_delay_minutes=reader.number("ProcessingDelayMinutes"),
        processing_lateness_hours=reader.number("ProcessingLatenessHours"),
        processing_queue=reader.text("ProcessingQueue"),
        working_queue=reader.text("WorkingQueue"),
        telemetry_queue=reader.text("TelemetryQueue"),
        ingestion=read_ingestion(reader),
        notifications=read_notifications(reader),
        nightly=read_nightly(reader),
    )
    if settings.minimum_capacity > settings.maximum_capacity:
        reader.problems.append(
            f"MaximumCapacity = {settings.maximum_capacity}: must be at least MinimumCapacity = "
            f"{settings.minimum_capacity}"
        )
    return settings, [redacted(problem) for problem in reader.problems]
