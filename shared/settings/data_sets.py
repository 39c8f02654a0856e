"""The settings of data sets, which are processed by period."""

from __future__ import annotations

from dataclasses import dataclass

from shared.settings.fields import SettingsModel, entity, number, numbers, setting


# fmt: off
@dataclass(frozen=True)
class DataSetSettings(SettingsModel):
    """``processing_period_hours`` is empty if the app does not listen for telemetry."""

    processing_period_hours: tuple[float, ...] = setting(numbers, "ProcessingPeriodHours",
        "hours, separated by commas", "", "lengths of the periods by which data sets are "
        "processed, such as `24, 2`; empty: the app does not listen for telemetry",
        bounds=(1 / 60, 167))
    processing_delay_minutes: float = setting(number, "ProcessingDelayMinutes", "minutes", 60,
        "time from the end of a period until it is processed", bounds=(0, 10_080))
    processing_lateness_hours: float = setting(number, "ProcessingLatenessHours", "hours", 12,
        "the time after the end of a period is divided into intervals of this length. If data of "
        "the period arrive after it was processed, one further run at the end of the interval "
        "processes all data that arrived in that interval", bounds=(1 / 60, 167))
    processing_queue: str = setting(entity, "ProcessingQueue", "text", "processing",
        "Service Bus queue (of `ServiceBusConnection`) that forwards to `WorkingQueue`; its "
        "duplicate detection must span more than a period plus the lateness or the delay, "
        "whichever is longer")
    working_queue: str = setting(entity, "WorkingQueue", "text", "working",
        "Service Bus queue with sessions", "`telemetry_arrived`, `process_dataset`")
    telemetry_queue: str = setting(entity, "TelemetryQueue", "text", "telemetry",
        "storage queue in which Event Grid reports new blobs")
