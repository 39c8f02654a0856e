"""Data sets that are processed once a period."""

from __future__ import annotations

from dataclasses import dataclass

from shared.settings.fields import SettingsModel, number, numbers, setting, text


# fmt: off
@dataclass(frozen=True)
class DataSetSettings(SettingsModel):
    """``processing_period_hours`` is empty where no telemetry is listened to."""

    processing_period_hours: tuple[float, ...] = setting(numbers, "ProcessingPeriodHours",
        "hours between commas", "", "lengths of the periods that data sets are processed by, such "
        "as `24, 2`; empty: no telemetry is listened to", bounds=(1 / 60, 167))
    processing_delay_minutes: float = setting(number, "ProcessingDelayMinutes", "minutes", 60,
        "a period is processed so long after its end", bounds=(0, 10_080))
    processing_lateness_hours: float = setting(number, "ProcessingLatenessHours", "hours", 12,
        "what comes later has it processed again, once for all data that come within so long",
        bounds=(1 / 60, 167))
    processing_queue: str = setting(text, "ProcessingQueue", "text", "processing",
        "queue of Service Bus (`ServiceBusConnection`) that detects duplicates for longer than "
        "period and lateness (or delay, if that is longer), and forwards to the next")
    working_queue: str = setting(text, "WorkingQueue", "text", "working",
        "queue of Service Bus that has sessions", "`telemetry_arrived`, `process_dataset`")
    telemetry_queue: str = setting(text, "TelemetryQueue", "text", "telemetry",
        "storage queue with Event Grid's events of new blobs")
