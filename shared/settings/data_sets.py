"""The settings of data sets, which are processed by period."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from shared.settings.fields import SettingsModel, entity, setting
from shared.values.bounds import Bounds, StorageQueueName


# fmt: off
@dataclass(frozen=True)
class DataSetSettings(SettingsModel):
    """``processing_period_hours`` is empty if the app does not listen for telemetry."""

    processing_period_hours: tuple[Annotated[float, Bounds(1 / 60, 167)], ...] = setting(
        "ProcessingPeriodHours", "hours, separated by commas", "",
        "lengths of the periods by which data sets are processed, such as `24, 2`; empty: the app "
        "does not listen for telemetry")
    processing_delay: Annotated[timedelta, Bounds(0, 10_080)] = setting("ProcessingDelayMinutes",
        "minutes", 60, "time from the end of a period until it is processed")
    processing_lateness: Annotated[timedelta, Bounds(1 / 60, 167)] = setting(
        "ProcessingLatenessHours", "hours", 12, "the time after the end of a period is divided "
        "into intervals of this length. If data of the period arrive after it was processed, one "
        "further run at the end of the interval processes all data that arrived in that interval")
    processing_queue: str = setting("ProcessingQueue", "text", "processing",
        "Service Bus queue (of `ServiceBusConnection`) that forwards to `WorkingQueue`; its "
        "duplicate detection must span more than a period plus the lateness or the delay, "
        "whichever is longer", parse=entity)
    working_queue: str = setting("WorkingQueue", "text", "working",
        "Service Bus queue with sessions", "`telemetry_arrived`, `process_dataset`", parse=entity)
    telemetry_queue: StorageQueueName = setting("TelemetryQueue", "text", "telemetry",
        "storage queue in which Event Grid reports new blobs", parse=entity)
