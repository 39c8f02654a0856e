"""Lines of the diagnostic export, many at once in DuckDB: all that are beyond doubt.

What is not plainly a well-formed record of the usual types is left to ``shared.sampling``, line by
line, so that both ways give the same: strictness here costs time at most. Lines in which something
could hide that only a lenient reader takes are left, too (see ``duck_strict``).
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
from spark_jobs.read.duck_blocks import BUCKETS, DIM
from spark_jobs.read.duck_strict import is_strict_sql
from spark_jobs.shape import ROLE, Shape

NEEDED = (*KEY_COLUMNS, "SDKVersion", "records")
"""Of a line's columns; all that make up the natural key are among them."""
TEXTS = (
    "OperationId", "ParentId", "Id", "SessionId", "UserId", "AppRoleName", "AppRoleInstance",
    "SDKVersion", "Name", "Message",
)  # fmt: skip
OBJECTS = ("Properties", "Measurements")
DURATION = "DurationMs"

_NUMBER = r"-?\d{1,15}(?:\.\d{1,20})?(?:[eE][-+]?\d\d?)?"
_ENTRY = rf'"(?:(?:[^"\\]|\\.)*(?:[^"\\,]|\\.))?":(?:{_NUMBER}|null)'
_MEASUREMENTS = rf"\{{(?:{_ENTRY}(?:,{_ENTRY})*)?\}}"
_NESTED = r'(?:^|[^\\])(?:\\\\)*":[{\[]'
_OPEN_TELEMETRY = (
    "contains(lower(SDKVersion), 'otel')"
    " and regexp_matches(lower(SDKVersion->>'$'), '(^|:)otel') is true"
)
_RATE = r"\d{1,3}(?:\.\d{1,15})?"


def lines_sql(shape: Shape, lenient: bool, careful: bool) -> str:
    """From ``lines`` (line, number): a row of each line that may be read, in any order.

    ``plain`` tells whether the rest of the row counts, ``ignored`` whether the line is of a table
    without events. The caller is to check ``stamp``, the time as JSON. The key counts for all
    records that are ``flat``, plain or not: entries within entries are not told apart.

    Where no line may hold what only a ``lenient`` reader takes, none is searched for it. DuckDB
    raises where a line is cut, unless it is ``careful`` and looks twice at each.
    """
    good = [is_strict_sql(lenient), *(["json_valid(line)"] if careful else [])]
    structure = "{" + ",".join(f'"{name}":"JSON"' for name in NEEDED) + "}"
    kinds = " ".join(f"when '\"{t}\"' then '{kind}'" for t, kind in KINDS.items())
    # `in` with more than a few values becomes a hash join, whose table is made anew for each batch
    others = " ".join(f"when '\"{table}\"' then records is null" for table in sorted(OTHER_TABLES))
    return f"""
with parsed as (
    select number, line, json_transform(line, '{structure}') as found
    from lines where {" and ".join(good)}
), columns as (
    select number, line, found.* from parsed
), typed as (
    select *,
        case Type {kinds} end as kind,
        case Type {others} else false end as ignored,
        coalesce(time, case when not contains(line, '"time"') then TimeGenerated end) as stamp,
        ItemCount::varchar as items,
        {_rate()} as rate_text
    from columns
), checked as (
    select *, {_is_flat()} as flat
    from typed
), judged as (
    select *, kind is not null and flat and ({_is_plain(shape)}) as plain,
        try_cast(items as double) as n, 100.0 / try_cast(rate_text as double) as by_rate
    from checked
), weighed as (
    select *,
        case when rate_text is not null then case
                when n is null or n = 1 or abs(n - by_rate) < {ROUNDING} then by_rate
                else greatest(n, by_rate) end
            else coalesce(n, 1.0) end as k,
        case when rate_text is not null then n is null or n = 1 or abs(n - by_rate) < {ROUNDING}
            when n is null or n = 1 then not ({_OPEN_TELEMETRY}) else true end as known,
        {_key()} as key,
        {op_sql("OperationId")} as op
    from judged
)
select number, plain, flat, ignored, kind, key, op, k, known and k <= {WEIGHT_MAX} as trusted,
    stamp::varchar as stamp,
    {_name()} as name,
    {_value(shape)} as x,
    {", ".join([*_dims(shape), f"{bucket_sql()} as bucket"])}
from weighed
"""


def op_sql(operation_id: str) -> str:
    """Of a text as JSON; 0 where there is none."""
    return (
        f"case when coalesce({operation_id}, '\"\"') = '\"\"' then 0 else hash({operation_id}) end"
    )


def bucket_sql() -> str:
    """All records of an operation, and so all copies, share one."""
    return f"(case when op = 0 then key else op end % {BUCKETS})::integer"


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
            "records is null",
            "(kind != 'event' or coalesce(Name != '\"\"', false))",
            "case when items is null then true when strlen(items) = 1"
            r" then items between '1' and '9' else regexp_full_match(items, '[1-9]\d{0,14}') end",
            f"(DurationMs is null or regexp_full_match(DurationMs, {_text(_NUMBER)}))",
            "(Properties is null or Properties like '{%')",
            *properties,
            f"(rate_text is null or (regexp_full_match(rate_text, {_text(_RATE)})"
            " and try_cast(rate_text as double) > 0 and try_cast(rate_text as double) <= 100))",
            f"case when kind = 'trace' then {templates} else true end",
        ]
    )


def _is_flat() -> str:
    """Nothing in Properties and Measurements is split where no entry begins: no value has entries
    of its own, no name ends with a comma. Brackets in texts do no harm. Never null."""
    return f"""
        (Measurements is null or regexp_full_match(Measurements, {_text(_MEASUREMENTS)}))
        and not coalesce(contains(Properties, ',":')
            or case when contains(Properties, ':{{') or contains(Properties, ':[')
                then regexp_matches(Properties, {_text(_NESTED)}) else false end, false)"""


def _missing_or_text(name: str) -> str:
    """Looked for only where some name or text is like it: `or` would look for it everywhere."""
    found = f"json_type(Properties, {_pointer(name)})"
    return (
        f"case when contains(Properties, {_text(_inner(name))})"
        f" then coalesce({found}, 'NULL') in ('VARCHAR', 'NULL') else true end"
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
    """As JSON: it is the same text for the same name, and to read it is left for its sums."""
    templates = ", ".join(
        f"nullif(json_extract_string(Properties, {_pointer(name)}), '')" for name in TEMPLATES
    )
    message = f"to_json(coalesce({templates}, Message->>'$', ''))"
    return f"case when kind = 'trace' then {message} else coalesce(Name, '\"\"') end::varchar"


def _dims(shape: Shape) -> list[str]:
    found = [
        "AppRoleName->>'$'"
        if name == ROLE
        else f"json_extract_string(Properties, {_pointer(name)})"
        for name in shape.dimensions
    ]
    return [f"coalesce({text}, '') as {DIM}{number}" for number, text in enumerate(found)]


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
    """Equal for copies. Entries may come in any order: the digests of their texts are added. Of an
    empty object the text is its last bracket, which is none of any entry."""
    columns = [name for name in NEEDED if name not in (*OBJECTS, "SDKVersion")]
    entries = [f"string_split({_inner_text(name)}, ',\"')" for name in OBJECTS]
    digests = [f"list_sum(list_transform({texts}, lambda text: hash(text)))" for texts in entries]
    return f"hash({', '.join([*columns, *digests])})"


def _inner_text(name: str) -> str:
    """Without what comes before the first entry's name and behind the last entry; a slice takes
    longer."""
    return f"substr({name}, 3, length({name}) - 3)"


def _pointer(name: str) -> str:
    """JSON pointer (RFC 6901) to an entry, whatever its name holds."""
    return _text("/" + name.replace("~", "~0").replace("/", "~1"))


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
