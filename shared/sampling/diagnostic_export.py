"""Reads records of the diagnostic-settings export, such as insights-logs-app*/…/PT1H.json.

The columns are those of the Azure Monitor tables AppEvents, AppRequests, AppDependencies and
AppTraces, with ``time`` instead of TimeGenerated. The stream to an event hub has the same records,
and the data export rules of a workspace have them with TimeGenerated. Only the time and the name
must be readable: a column with another wrong value counts as missing.

Azure exports records more than once, in the same file after a retry, in a later file or by a second
export rule, and gives them no unique ID. Copies agree in all columns that the application sent, in
any order, including a time with a resolution of 0.1 µs. Columns that are added on delivery, such as
_BilledSize or an ingestion time, may differ between copies and are left out.

A client that writes times in whole milliseconds can send distinct records that look like copies. To
distinguish them, add a property such as a message ID.
"""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import Any

from shared.sampling import fields as f
from shared.sampling.model import BadField, Ignored, Record, RecordKind, Sender, Weight
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
    "AppRoleInstance",
    "AppRoleName",
    "AppVersion",
    "ClientBrowser",
    "ClientCity",
    "ClientCountryOrRegion",
    "ClientIP",
    "ClientModel",
    "ClientOS",
    "ClientStateOrProvince",
    "ClientType",
    "OperationName",
    "OperationId",
    "ParentId",
    "SDKVersion",
    "SessionId",
    "SyntheticSource",
    "UserAccountId",
    "UserAuthenticatedId",
    "UserId",
    "Properties",
    "Measurements",
    "Id",
    "ReferencedItemId",
    "ReferencedType",
    "Target",
    "DependencyType",
    "Name",
    "Data",
    "Source",
    "Url",
    "Success",
    "ResultCode",
    "DurationMs",
    "Message",
    "SeverityLevel",
    "Sum",
    "Min",
    "Max",
    "ItemCount",
)
"""The documented columns of the tables in KINDS that an application sends, besides the time."""
DELIVERY_COLUMNS = frozenset(
    {
        "IKey",
        "MG",
        "ManagementGroupName",
        "PerformanceBucket",
        "ResourceGUID",
        "SourceSystem",
        "TenantId",
        "_BilledSize",
        "_Internal_WorkspaceResourceId",
        "_IsBillable",
        "_ItemId",
        "_ResourceId",
        "_SubscriptionId",
        "_TimeReceived",
        "resourceId",
    }
)
"""The documented columns that are added on delivery. They do not count for the key."""
TIMES = ("time", "TimeGenerated")
"""The export of diagnostic settings has the first, a data export rule of a workspace the second."""
TIME_ENDING = "0.Z"
"""Characters at the end of a time that do not change it: exports differ in the zeros they write."""
DURATION = "DurationMs"
SAMPLE_RATE = "microsoft.sample_rate"
METRIC_ID = "_MS.MetricId"
"""SDKs name a standard metric here, such as requests/duration. Its name differs between them."""
TEMPLATES = ("{OriginalFormat}", "MessageTemplate", "prop__{OriginalFormat}")


def read_diagnostic(line: f.Fields) -> Record | Ignored | None:
    """The record of one line; None if it is of no known table. Raises BadField."""
    table = line.get("Type")
    if not isinstance(table, str):
        return None
    if table not in KINDS:
        return Ignored(table) if table in OTHER_TABLES else None
    time_column, time = time_of(line)
    properties = f.texts(f.or_else({}, f.mapping, line, "Properties"))
    measurements, unreadable = _measurements(line)
    rate, sdk_version = f.rate_percent(properties, SAMPLE_RATE), f.any_text(line, "SDKVersion")
    items = f.or_else(None, f.item_count, line, "ItemCount")
    is_unreadable = items is None and line.get("ItemCount") is not None and rate is None
    return Record(
        kind=KINDS[table],
        time=time,
        name=_name(KINDS[table], line, properties),
        weight=Weight(1.0, trusted=False) if is_unreadable else weigh(items, rate, sdk_version),
        key=_key_of(key_columns(line, time_column)),
        operation_id=f.operation_id(line, "OperationId"),
        measurements=measurements,
        properties=properties,
        role_name=f.any_text(line, "AppRoleName"),
        sender=Sender(*(f.any_text(line, name) for name in Sender._fields)),
        item_count=items or 1.0,
        unreadable=unreadable,
    )


def key_columns(line: f.Fields, time_column: str) -> dict[str, Any]:
    """The columns by which copies are recognized, in the form that all exports share."""
    columns = {name: line[name] for name in KEY_COLUMNS if line.get(name) is not None}
    for name in ("Properties", "Measurements"):  # some exports write JSON in a text
        if name in columns:
            columns[name] = f.or_else(columns[name], f.mapping, columns, name)
    return {**columns, "time": line[time_column].rstrip(TIME_ENDING)}


def _key_of(columns: f.Fields) -> str:
    """A hash of 32 hexadecimal digits. The order of names is ignored."""
    canonical = json.dumps([columns], sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(canonical.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def unknown_columns(line: f.Fields) -> set[str]:
    """The columns of a record that are not documented, for example because they are new."""
    if line.get("Type") not in KINDS:
        return set()
    return set(line).difference(KEY_COLUMNS, DELIVERY_COLUMNS, TIMES, {"records", "TableName"})


def time_of(line: f.Fields) -> tuple[str, datetime]:
    """The first column with a time that can be read, and this time."""
    errors = []
    for name in [name for name in TIMES if line.get(name) is not None] or TIMES[:1]:
        try:
            return name, f.utc_time(line, name)
        except BadField as error:
            errors.append(error)
    raise errors[0]


def _name(kind: RecordKind, line: f.Fields, properties: f.Fields) -> str:
    """The name of a record. For a trace it is the message template, so that messages that differ
    only in their arguments form one series."""
    if kind is RecordKind.METRIC and (standard := f.text(properties, METRIC_ID)):
        return standard
    if kind is not RecordKind.TRACE:
        name = f.text(line, "Name")
        if kind is RecordKind.EVENT and not name:
            raise BadField("Name", "the event's name", name)
        return name
    templates = [f.text(properties, name) for name in TEMPLATES]
    return next(filter(None, templates), "") or f.text(line, "Message")


def _measurements(line: f.Fields) -> tuple[dict[str, float], dict[str | None, BadField]]:
    """The numbers by name, and the errors of values that are not. Null values are left out. A
    custom measurement takes precedence over the column of the same name."""
    values = {DURATION: (line.get(DURATION), DURATION)}
    numbers: dict[str, float] = {}
    errors: dict[str | None, BadField] = {}
    try:
        custom = f.mapping(line, "Measurements")
        values |= {n: (v, f"Measurements.{n}") for n, v in custom.items() if v is not None}
    except BadField as error:
        errors[None] = error
    for name, (value, field) in values.items():
        try:
            if value is not None:
                numbers[name] = f.as_number(value, field)
        except BadField as error:
            errors[name] = error
    return numbers, errors
