"""Reads the records in lines of exported telemetry.

A line is a record of the diagnostic-settings export, or the body of an event, ``{"records": […]}``
or ``[…]``. Reading never raises an error and drops no record: a record
that cannot be read is returned as Quarantined, with the reason. Columns that are
neither needed nor part of the key are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from typing import Any

from shared.sampling.diagnostic_export import read_diagnostic
from shared.sampling.model import BadField, Ignored, Outcome, Quarantined, Reason, Record

REMEDY = "export telemetry to a storage account with diagnostic settings"
NO_SHAPE = f"neither a known Type nor a known payload: {REMEDY}"
QUERY_COLUMNS = {
    "tables": "an answer of the query API",
    "TableName": "a row of `az monitor log-analytics query`",
    "itemType": "a row of a query of Application Insights",
}
DAMAGED = "damaged gzip"
"""The beginning of the line that stands for the rest of a damaged file."""
DAYS_BEFORE, DAYS_AFTER = 31, 2
"""The days between a record's time and the date of its file. Late records are some days older. A
time outside these limits is a default value, or comes from a clock that is not set.
"""
YEARS = range(1980, 3000)
"""The years of records in files without a date."""
TEXT_MAX = 200
"""The number of characters of a quarantined line that are kept. The file has the rest."""


def read_lines(lines: Iterable[str | bytes]) -> Iterator[Outcome]:
    """The records of all lines of a file. Blank lines are skipped. Bytes are UTF-8."""
    for line in lines:
        yield from read_line(line)


def read_line(line: str | bytes, received: date | None = None) -> Iterator[Outcome]:
    """The records of one line. A blank line has none; the body of an event can have several.

    ``received`` is the date of the file, if it has one.
    """

    def quarantined(reason: Reason, detail: str, shown: str, field: str = "") -> Quarantined:
        return Quarantined(reason, detail, shown[:TEXT_MAX], field)

    try:
        text = line.decode("utf-8-sig") if isinstance(line, bytes) else line.removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        yield quarantined(Reason.NOT_TEXT, str(error), repr(line))
        return
    try:
        decoded = json.loads(text) if text.strip() else {"records": []}
    except (ValueError, RecursionError) as error:
        damaged = text.startswith(DAMAGED)
        reason = Reason.DAMAGED if damaged else Reason.NOT_JSON
        yield quarantined(reason, text if damaged else str(error), text)
        return
    for part in parts_of(decoded):
        shown = text
        try:
            shown = text if part is decoded else json.dumps(part)
            outcome = _read(part, received)
        except BadField as error:
            yield quarantined(Reason.BAD_FIELD, str(error), shown, error.field)
        except RecursionError as error:
            yield quarantined(Reason.NOT_JSON, str(error), shown)
        else:
            yield outcome or quarantined(Reason.OTHER_PRODUCT, _shape(part), shown)


def parts_of(decoded: Any) -> list[Any]:
    """The records in a decoded line: those in the body of an event or in a list, otherwise the line
    itself."""
    if isinstance(decoded, dict) and isinstance(decoded.get("records"), list):
        return list(decoded["records"])
    return decoded if isinstance(decoded, list) else [decoded]


def plausible(time: datetime, received: date | None) -> bool:
    """Whether a record of this time, in UTC, can be in a file of this date."""
    if received is None:
        return time.year in YEARS
    return -DAYS_BEFORE <= (time.date() - received).days <= DAYS_AFTER


def _read(part: Any, received: date | None) -> Record | Ignored | None:
    if not isinstance(part, dict) or part.get("TableName") is not None:
        return None
    outcome = read_diagnostic(part)
    if isinstance(outcome, Record) and not plausible(outcome.time, received):
        near = f"a time from {DAYS_BEFORE} days before to {DAYS_AFTER} days after {received}"
        years = f"a time from {YEARS.start} to {YEARS.stop - 1}"
        raise BadField("time", near if received else years, outcome.time)
    return outcome


def _shape(part: Any) -> str:
    """What a record is that has no known form."""
    names = (part if isinstance(part, dict) else {}).keys()
    known = [told for name, told in QUERY_COLUMNS.items() if name in names]
    return f"{known[0]}, which is no export: {REMEDY}" if known else NO_SHAPE
