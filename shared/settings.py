"""The only reader of the environment: defaults → parse → validate once, all problems together."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from croniter import croniter

from shared.connections import (
    ServiceBusConnection,
    StorageConnection,
    service_bus_connection,
    storage_connection,
)
from shared.names import NAME, UUID
from shared.settings_ingestion import IngestionSettings, read_ingestion
from shared.settings_nightly import NightlySettings, read_nightly
from shared.settings_notifications import NotificationSettings, read_notifications

T = TypeVar("T")
NO_SLASHES = re.compile(r"[^/]+")
INTERVAL = re.compile(r"(\d+\.)?\d{1,2}:[0-5]\d:[0-5]\d")


class SettingsError(Exception):
    """The app cannot start: the settings or scaling_rules.py are wrong."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"{len(self.problems)} problem(s) in settings and rules:\n{lines}")


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
            threshold_up=reader.number("ThresholdUp", 100, 0),
            threshold_down=reader.number("ThresholdDown", 10, 0),
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
        values = json.loads(path.read_text(encoding="utf-8"))["Values"]
        pairs = {str(key): str(value) for key, value in values.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        form = 'a JSON object {"Values": {"Name": "text"}} is needed'
        raise SettingsError([f"{path}: {type(error).__name__}: {error}; {form}"]) from error
    for key, value in pairs.items():
        os.environ.setdefault(key, value)


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
        metric_collector_schedule=reader.schedule("MetricCollectorSchedule", "*/15 * * * * *"),
        reconciler_schedule=reader.schedule("ReconcilerSchedule", "*/30 * * * * *"),
        log_retention_schedule=reader.schedule("LogRetentionSchedule", "0 40 3 * * *"),
        window_seconds=reader.number("WindowSeconds", 600, 1, 14_400),
        minimum_samples=reader.whole("MinimumSamples", 5, 1, 1000),
        scale_out_cooldown_seconds=reader.number("ScaleOutCooldownSeconds", 600, 0, 86_400),
        scale_in_cooldown_seconds=reader.number("ScaleInCooldownSeconds", 600, 0, 86_400),
        scale_out_step=reader.whole("ScaleOutStep", 1, 1, 100),
        scale_in_step=reader.whole("ScaleInStep", 1, 1, 100),
        minimum_capacity=reader.whole("MinimumCapacity", 1, 1, 100),
        maximum_capacity=reader.whole("MaximumCapacity", 10, 1, 100),
        age_limit_minutes=reader.number("AgeLimitMinutes", 5, 0.01, 1440),
        switch_cost=reader.number("SwitchCost", 2, 0, 1e6),
        late_penalty=reader.number("LatePenalty", 10, 0, 1e6),
        instance_rate_per_minute=reader.optional("InstanceRatePerMinute", 1e-6, 1e12),
        dead_time_minutes=reader.optional("DeadTimeMinutes", 0, 120),
        completed_metric=reader.text("CompletedMetric", ""),
        planning_step_seconds=reader.number("PlanningStepSeconds", 60, 0.1, 600),
        dry_run=reader.flag("DryRun", default=False),
        source_timeout_seconds=reader.number("SourceTimeoutSeconds", 10, 0.1, 60),
        action_resend_seconds=reader.number("ActionResendSeconds", 60, 1, 3600),
        action_retry_seconds=reader.number("ActionRetrySeconds", 15, 0.1, 3600),
        action_deadline_seconds=reader.number("ActionDeadlineSeconds", 600, 1, 86_400),
        failure_hold_seconds=reader.number("FailureHoldSeconds", 60, 1, 3600),
        arm_endpoint=reader.endpoint("ArmEndpoint", "https://management.azure.com"),
        arm_timeout_seconds=reader.number("ArmTimeoutSeconds", 120, 1, 180),
        arm_polling_seconds=reader.number("ArmPollingSeconds", 5, 0.05, 60),
        decision_log_days=reader.number("DecisionLogDays", 14, 0.01, 3650),
        processing_period_hours=reader.numbers("ProcessingPeriodHours", 1 / 60, 167),
        processing_delay_minutes=reader.number("ProcessingDelayMinutes", 60, 0, 10_080),
        processing_lateness_hours=reader.number("ProcessingLatenessHours", 12, 1 / 60, 167),
        processing_queue=reader.text("ProcessingQueue", "processing"),
        working_queue=reader.text("WorkingQueue", "working"),
        telemetry_queue=reader.text("TelemetryQueue", "telemetry"),
        ingestion=read_ingestion(reader),
        notifications=read_notifications(reader),
        nightly=read_nightly(reader),
    )
    if settings.minimum_capacity > settings.maximum_capacity:
        reader.problems.append(
            f"MaximumCapacity = {settings.maximum_capacity}: must be at least MinimumCapacity = "
            f"{settings.minimum_capacity}"
        )
    return settings, reader.problems


class Reader:
    """Parses values and collects what is wrong with them instead of stopping at the first."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.problems: list[str] = []

    def raise_problems(self) -> None:
        if self.problems:
            raise SettingsError(self.problems)

    def connection(self, found: object) -> None:
        if isinstance(found, str):
            self.problems.append(found)

    def required(self, key: str, pattern: re.Pattern[str] | None = None) -> str:
        value = self.environ.get(key, "").strip()
        if not value:
            self.problems.append(f"{key} = '': must be set")
        elif pattern is not None and not pattern.fullmatch(value):
            self.problems.append(f"{key} = {value!r}: must match {pattern.pattern}")
        return value

    def text(self, key: str, default: str) -> str:
        return self.environ.get(key, "").strip() or default

    def numbers(self, key: str, low: float, high: float) -> tuple[float, ...]:
        """Any number of numbers between commas."""
        parts = [part for part in self.environ.get(key, "").split(",") if part.strip()]
        each = [Reader({key: part}) for part in parts]
        found = tuple(reader.number(key, low, low, high) for reader in each)
        self.problems += [problem for reader in each for problem in reader.problems]
        return found

    def number(self, key: str, default: float, low: float, high: float = float("inf")) -> float:
        return self._bounded(key, default, low, high, float, "a number")

    def optional(self, key: str, low: float, high: float) -> float | None:
        """A number that may be left out: then it is not known."""
        return self.number(key, 0, low, high) if self.environ.get(key, "").strip() else None

    def whole(self, key: str, default: int, low: int, high: int) -> int:
        return self._bounded(key, default, low, high, int, "a whole number")

    def flag(self, key: str, *, default: bool) -> bool:
        text = self.environ.get(key, "").strip().lower()
        if text in ("true", "1", "false", "0", ""):
            return default if not text else text in ("true", "1")
        self.problems.append(f"{key} = {text!r}: must be true or false")
        return default

    def schedule(self, key: str, default: str) -> str:
        text = self.environ.get(key, "").strip() or default
        six_fields = len(text.split()) == 6 and croniter.is_valid(text, second_at_beginning=True)
        if not six_fields and not INTERVAL.fullmatch(text):
            bound = f"must be 6 cron fields, seconds first, such as {default!r}, or hh:mm:ss"
            self.problems.append(f"{key} = {text!r}: {bound}")
        return text

    def endpoint(self, key: str, default: str) -> str:
        text = (self.environ.get(key, "").strip() or default).rstrip("/")
        if not re.fullmatch(r"https://[A-Za-z0-9.-]+(:\d{1,5})?", text):
            self.problems.append(f"{key} = {text!r}: must look like {default}")
        return text

    def _bounded(
        self,
        key: str,
        default: Any,
        low: float,
        high: float,
        parse: Callable[[str], T],
        kind: str,
    ) -> T:
        text = self.environ.get(key, "").strip()
        try:
            value: Any = parse(text) if text else default
        except ValueError:
            self.problems.append(f"{key} = {text!r}: must be {kind}")
            return default  # type: ignore[no-any-return]
        if not low <= value <= high:  # false for NaN too
            bound = f"{low:g} to {high:g}" if high < float("inf") else f"at least {low:g}"
            self.problems.append(f"{key} = {text}: must be {bound}")
        return value  # type: ignore[no-any-return]
