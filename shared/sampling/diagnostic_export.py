"""Reads records of the diagnostic-settings export, such as insights-logs-app*/…/PT1H.json.

The columns are those of the Azure Monitor tables AppEvents, AppRequests, AppDependencies and
AppTraces, with ``time`` instead of TimeGenerated. The stream to an event hub has the same records.
"""

from __future__ import annotations

from shared.sampling import fields as f
from shared.sampling.model import Ignored, Record, RecordKind
from shared.sampling.natural_key import natural_key
from shared.sampling.weights import weigh

KINDS = {
    "AppEvents": RecordKind.EVENT,
    "AppRequests": RecordKind.REQUEST,
    "AppDependencies": RecordKind.DEPENDENCY,
    "AppTraces": RecordKind.TRACE,
    "AppMetrics": RecordKind.METRIC,
}
OTHER_TABLES = frozenset(
    {
        "AppAvailabilityResults",
        "AppBrowserTimings",
        "AppExceptions",
        "AppPageViews",
        "AppPerformanceCounters",
        "AppSystemEvents",
    }
)
KEY_COLUMNS = (
    "Type",
    "time",
    "TimeGenerated",
    "Name",
    "Message",
    "OperationId",
    "ParentId",
    "Id",
    "SessionId",
    "UserId",
    "AppRoleName",
    "AppRoleInstance",
    "ItemCount",
    "DurationMs",
    "Measurements",
    "Properties",
)
SAMPLE_RATE = "microsoft.sample_rate"
TEMPLATES = ("{OriginalFormat}", "MessageTemplate", "prop__{OriginalFormat}")


def is_diagnostic(line: f.Fields) -> bool:
    table = line.get("Type")
    return isinstance(table, str) and (table in KINDS or table in OTHER_TABLES)


def read_diagnostic(line: f.Fields) -> Record | Ignored:
    """The record of one line. Raises BadField."""
    table = f.text(line, "Type")
    if table not in KINDS:
        return Ignored(table)
    properties = f.texts(f.mapping(line, "Properties"))
    return Record(
        kind=KINDS[table],
        time=f.utc_time(line, "time" if "time" in line else "TimeGenerated"),
        name=_name(KINDS[table], line, properties),
        weight=weigh(
            f.item_count(line, "ItemCount"),
            f.rate_percent(properties, SAMPLE_RATE),
            f.text(line, "SDKVersion"),
        ),
        key=natural_key([line.get(column) for column in KEY_COLUMNS]),
        operation_id=f.operation_id(line, "OperationId"),
        measurements=_measurements(line),
        properties=properties,
        role_name=f.text(line, "AppRoleName"),
    )


def _name(kind: RecordKind, line: f.Fields, properties: f.Fields) -> str:
    """The name of a record. For a trace it is the message template, so that messages that differ
    only in their arguments form one series."""
    if kind is not RecordKind.TRACE:
        name = f.text(line, "Name")
        if kind is RecordKind.EVENT and not name:
            raise f.BadField("Name", "the event's name", name)
        return name
    templates = [f.text(properties, name) for name in TEMPLATES]
    return next(filter(None, templates), "") or f.text(line, "Message")


def _measurements(line: f.Fields) -> dict[str, float]:
    measurements = f.numbers(f.mapping(line, "Measurements"), "Measurements")
    duration_ms = f.number(line, "DurationMs")
    return measurements if duration_ms is None else {"DurationMs": duration_ms, **measurements}
