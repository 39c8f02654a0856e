"""Reads the records in lines of exported telemetry, in any of three formats.

The formats are the diagnostic-settings export, the classic continuous export, and the body of an
event, ``{"records": […]}`` or ``[…]``. Reading never raises an error and drops no record: a record
that cannot be read is returned as Quarantined, with its place and the reason. Unknown columns are
ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from shared.sampling.classic_export import is_classic, read_classic
from shared.sampling.diagnostic_export import is_diagnostic, read_diagnostic
from shared.sampling.fields import BadField
from shared.sampling.model import Ignored, Outcome, Quarantined, Reason, Record

NO_SHAPE = "neither a known Type nor a known payload"
QUERY_COLUMNS = {
    "tables": "an answer of the query API",
    "TableName": "a row of `az monitor log-analytics query`",
    "itemType": "a row of a query of Application Insights",
}
REMEDY = "which is no export: export telemetry to a storage account with diagnostic settings"
TEXT_MAX = 200
"""The number of characters of a quarantined line that are kept. The file has the rest."""


def read_lines(lines: Iterable[str | bytes], source: str = "") -> Iterator[Outcome]:
    """The records of all lines of a file. Blank lines are skipped. Bytes are UTF-8."""
    for line_number, line in enumerate(lines, start=1):
        yield from read_line(line, source, line_number)


def read_line(line: str | bytes, source: str = "", line_number: int = 1) -> Iterator[Outcome]:
    """The records of one line. A blank line has none; the body of an event can have several."""

    def quarantined(reason: Reason, detail: str, shown: str, field: str = "") -> Quarantined:
        return Quarantined(source, line_number, reason, detail, shown[:TEXT_MAX], field)

    try:
        text = line.decode("utf-8-sig") if isinstance(line, bytes) else line.removeprefix("\ufeff")
        decoded = json.loads(text) if text.strip() else {"records": []}
    except UnicodeDecodeError as error:
        yield quarantined(Reason.NOT_TEXT, str(error), repr(line))
        return
    except (ValueError, RecursionError) as error:
        yield quarantined(Reason.NOT_JSON, str(error), text)
        return
    for part in parts_of(decoded):
        shown = text
        try:
            shown = text if part is decoded else json.dumps(part)
            outcome = _read(part)
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


def _read(part: Any) -> Record | Ignored | None:
    if not isinstance(part, dict) or part.get("TableName") is not None:
        return None
    if is_diagnostic(part):
        return read_diagnostic(part)
    return read_classic(part) if is_classic(part) else None


def _shape(part: Any) -> str:
    """What a record is that has no known form."""
    names = (part if isinstance(part, dict) else {}).keys()
    known = [told for name, told in QUERY_COLUMNS.items() if name in names]
    return f"{known[0]}, {REMEDY}" if known else NO_SHAPE
