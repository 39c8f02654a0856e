"""Lines of the diagnostic export, many at once in DuckDB: all that are beyond doubt.

What is not plainly a well-formed record of the usual types is left to ``shared.sampling``, line by
line, so that both ways give the same: strictness here costs time at most. DuckDB's JSON reader is
lenient (it takes NaN, and commas before a closing bracket): lines in which such a thing could hide
are left, too.
"""

from __future__ import annotations

from shared.sampling.diagnostic_export import (
    KEY_COLUMNS,
    KINDS,
    OTHER_TABLES,
    SAMPLE_RATE,
    TEMPLATES,
)
from shared.sampling.weights import ROUNDING, WEIGHT_MAX
from spark_jobs.shape import ROLE, Shape

NEEDED = (*KEY_COLUMNS, "SDKVersion", "records")
"""Of a line's columns; all that make up the natural key are among them."""
TEXTS = ("OperationId", "ParentId", "Id", "SessionId", "UserId", "AppRoleName", "AppRoleInstance")
COMMA_AT_END = r",\s*[}\]]"
NO_NUMBER = r"[:\[,-]\s*(?:nan|inf)\s*[,}\]]"
"""What DuckDB takes and a stricter reader does not."""
NO_NUMBER_HINTS = (b":nan", b":inf")
DURATION = "DurationMs"
LINE_LENGTH_MAX = 100_000
"""Strict readers give up on deep nesting, which takes a long line."""

_NUMBER = r"-?\d{1,15}(?:\.\d{1,20})?(?:[eE][-+]?\d\d?)?"
_TIME = (  # from 1970 on, when zones had begun to differ by quarters of hours
    r'"(?:19[789]|2\d\d)\d-\d\d-\d\dT(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d\.\d{1,7}Z"'
)
_ENTRY = rf'"(?:[^"\\]|\\.)*":(?:{_NUMBER}|null)'
_MEASUREMENTS = rf"\{{(?:{_ENTRY}(?:,{_ENTRY})*)?\}}"
_RATE = r"\d{1,3}(?:\.\d{1,15})?"


def may_hold_no_number(piece: bytes) -> bool:
    """True where nan or inf could stand for a number; a quick look at many lines at once."""
    return b'": ' in piece[:1_000] or any(hint in piece for hint in NO_NUMBER_HINTS)


def lines_sql(shape: Shape, strict: bool, doubtful_numbers: bool = False) -> str:
    """From ``lines`` (line, place) and ``places`` (place, late_before): a row a line.

    ``plain`` tells whether the row is one; ``ignored`` whether it is of a table without events.
    Lines that a strict reader has written need no look at what a lenient one may pass over.
    """
    good = "json_valid(line)"
    if not strict:
        good += f" and length(line) < {LINE_LENGTH_MAX}"
        good += f" and not regexp_matches(line, {_text(COMMA_AT_END)})"
    if doubtful_numbers:
        good += f" and not regexp_matches(line, {_text(NO_NUMBER)})"
    structure = "{" + ",".join(f'"{name}":"JSON"' for name in NEEDED) + "}"
    kinds = " ".join(f"when '\"{t}\"' then '{kind}'" for t, kind in KINDS.items())
    others = ", ".join(f"'\"{table}\"'" for table in sorted(OTHER_TABLES))
    return f"""
with parsed as (
    select line, place,
        unnest(json_transform(case when {good} then line end, '{structure}'))
    from lines
), typed as (
    select *,
        case Type {kinds} end as kind,
        coalesce(Type in ({others}) and records is null, false) as ignored,
        coalesce(time, case when not contains(line, '"time"') then TimeGenerated end) as stamp,
        try_cast(rtrim(substr(stamp, 2, 26), 'Z"') as timestamp) as moment,
        ItemCount::varchar as items,
        {_rate()} as rate_text,
        contains(lower(SDKVersion), 'otel')
            and regexp_matches(lower(SDKVersion->>'$'), '(^|:)otel') is true as open_telemetry
    from parsed
), checked as (
    select *, kind is not null and ({_is_plain(shape)}) as plain,
        case when items is null then null else try_cast(items as double) end as n,
        100.0 / try_cast(rate_text as double) as by_rate
    from typed
), weighed as (
    select *,
        case when rate_text is not null then case
                when n is null or n = 1 or abs(n - by_rate) < {ROUNDING} then by_rate
                else greatest(n, by_rate) end
            else coalesce(n, 1.0) end as k,
        case when rate_text is not null then n is null or n = 1 or abs(n - by_rate) < {ROUNDING}
            else not ((n is null or n = 1) and open_telemetry) end as known
    from checked
)
select
    weighed.place,
    plain,
    ignored,
    case when not plain and not ignored then line end as line,
    case when plain then epoch_us(moment) // 900000000 end as quarter,
    case when plain then kind end as kind,
    case when plain then {_name()} end as name,
    case when plain then {_dims(shape)} end as dims,
    case when plain then {_key()} end as key,
    case when plain then coalesce(OperationId->>'$', '') end as op,
    case when plain then k end as k,
    case when plain then known and k <= {WEIGHT_MAX} end as trusted,
    case when plain then coalesce(epoch_us(moment) < late_before, false) end as late,
    case when plain then {_value(shape)} end as x
from weighed join places on weighed.place = places.place
"""


def _is_plain(shape: Shape) -> str:
    """No condition may be null: coalesce where a column may be missing."""
    texts = [f"({name} is null or {name} like '\"%')" for name in TEXTS]
    properties = [
        _missing_or_text(name)
        for name in (*[d for d in shape.dimensions if d != ROLE], SAMPLE_RATE)
    ]
    templates = " and ".join(_missing_or_text(name) for name in TEMPLATES)
    return " and ".join(
        [
            *texts,
            f"coalesce(regexp_full_match(stamp, {_text(_TIME)}), false)",
            "moment is not null and records is null",
            "(SDKVersion is null or SDKVersion like '\"%')",
            "(case when kind = 'trace' then Name is null or Name like '\"%'"
            " when kind = 'event' then coalesce(Name like '\"%' and Name != '\"\"', false)"
            " else Name is null or Name like '\"%' end)",
            "(Message is null or Message like '\"%')",
            r"(items is null or regexp_full_match(items, '[1-9]\d{0,14}'))",
            f"(DurationMs is null or regexp_full_match(DurationMs, {_text(_NUMBER)}))",
            f"(Measurements is null or regexp_full_match(Measurements, {_text(_MEASUREMENTS)}))",
            "(Properties is null or Properties like '{%')",
            *properties,
            f"(rate_text is null or (regexp_full_match(rate_text, {_text(_RATE)})"
            " and try_cast(rate_text as double) > 0 and try_cast(rate_text as double) <= 100))",
            f"(kind != 'trace' or ({templates}))",
        ]
    )


def _missing_or_text(name: str) -> str:
    """Cheap where no property is called like that."""
    found = f"json_type(Properties, {_pointer(name)})"
    return (
        f"(Properties is null or not contains(Properties, {_text(_inner(name))})"
        f" or coalesce({found}, 'NULL') in ('VARCHAR', 'NULL'))"
    )


def _inner(name: str) -> str:
    """A part of the name that JSON writes as it is, so that searching for it is safe."""
    pieces = "".join(c if c.isascii() and (c.isalnum() or c in "._- ") else "\n" for c in name)
    return max(pieces.split("\n"), key=len)


def _rate() -> str:
    return (
        f"case when contains(Properties, {_text(SAMPLE_RATE)})"
        f" then json_extract_string(Properties, {_pointer(SAMPLE_RATE)}) end"
    )


def _name() -> str:
    templates = ", ".join(
        f"nullif(json_extract_string(Properties, {_pointer(name)}), '')" for name in TEMPLATES
    )
    return (
        f"case when kind = 'trace' then coalesce({templates}, Message->>'$', '')"
        " else coalesce(Name->>'$', '') end"
    )


def _dims(shape: Shape) -> str:
    found = [
        "coalesce(AppRoleName->>'$', '')"
        if name == ROLE
        else f"coalesce(json_extract_string(Properties, {_pointer(name)}), '')"
        for name in shape.dimensions
    ]
    return f"[{', '.join(found)}]::varchar[]"


def _value(shape: Shape) -> str:
    """A custom measurement goes before the column of the same name."""
    if not shape.measurement:
        return "1.0::double"
    name = _text(_inner(shape.measurement))
    value = f"json_extract_string(Measurements, {_pointer(shape.measurement)})"
    found = f"try_cast({value} as double)"
    custom = f"case when contains(Measurements, {name}) then {found} end"
    return (
        f"coalesce({custom}, try_cast(DurationMs as double))"
        if shape.measurement == DURATION
        else custom
    )


def _key() -> str:
    """Equal for copies. Entries may come in any order: their texts are sorted."""
    columns = [name for name in NEEDED if name not in ("Properties", "Measurements", "SDKVersion")]
    entries = [
        f"list_sort(string_split(substr({name}, 3, length({name}) - 3), ',\"'))"
        for name in ("Properties", "Measurements")
    ]
    return f"hash({', '.join([*columns, *entries])})"


def _pointer(name: str) -> str:
    """JSON pointer (RFC 6901) to an entry, whatever its name holds."""
    return _text("/" + name.replace("~", "~0").replace("/", "~1"))


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
