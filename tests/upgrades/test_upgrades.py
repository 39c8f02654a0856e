"""An upgrade reads what earlier versions have written, and a rollback what a later one has."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from azure.data.tables.aio import TableServiceClient

from local.azurite import Azurite
from tests.upgrades import __main__ as command
from tests.upgrades import values
from tests.upgrades.fixtures import Fixtures, Row, install, load, versions
from tests.upgrades.store import VARYING, read, stores

NEWEST = versions()[-1]
UNKNOWN = "added_by_a_later_version"
FREE = ("evidence", "dimensions", "samples", "body")
"""JSON objects whose names are those of a rule, of telemetry, of metrics, or of a message."""
MAPPED = {values.DAY.isoformat()}
"""The names in JSON objects that map one thing to another, such as dates."""


@pytest.fixture(scope="module")
def account() -> Iterator[str]:
    """The connection string of a storage account that no other module uses."""
    with Azurite() as running:
        yield running.connection_string


@pytest.fixture
async def storage(account: str) -> str:
    """The connection string of an account without tables."""
    async with TableServiceClient.from_connection_string(account) as service:
        async for table in service.list_tables():
            await service.delete_table(table.name)
    return account


async def found(fixtures: Fixtures, storage: str, folder: Path) -> dict[str, Any]:
    """What this version reads from stores with these fixtures."""
    async with stores(storage, folder) as at:
        await install(fixtures, at)
        return await read(at, fixtures.messages)


def differences(expected: Any, actual: Any, place: str = "") -> Iterator[str]:
    """Where a reader found another value. A field that the version did not have may be there."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for name, value in expected.items():
            yield from differences(value, actual.get(name), f"{place}/{name}")
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for number, pair in enumerate(zip(expected, actual, strict=True)):
            yield from differences(*pair, f"{place}/{number}")
    elif expected != actual:
        yield f"{place}: {str(actual)[:200]} instead of {str(expected)[:200]}"


@pytest.mark.parametrize("version", versions())
async def test_everything_that_a_version_has_written_is_read(
    version: str, storage: str, tmp_path: Path
) -> None:
    fixtures = load(version)
    actual = await found(fixtures, storage, tmp_path)
    assert list(differences(fixtures.expected, actual)) == []


async def test_fields_of_a_later_version_are_ignored(storage: str, tmp_path: Path) -> None:
    fixtures = load(NEWEST)
    later = replace(
        fixtures,
        tables={name: [*map(with_unknown, rows)] for name, rows in fixtures.tables.items()},
        messages={name: with_unknown_field(text) for name, text in fixtures.messages.items()},
        files={name: with_unknown_fields(text) for name, text in fixtures.files.items()},
        database=with_unknown_columns(fixtures.database),
    )
    actual = await found(later, storage, tmp_path)
    assert list(differences(fixtures.expected, actual)) == []


def with_unknown(row: Row) -> Row:
    """The row with another property, and with another field in each JSON object in it."""
    changed = {
        name: with_unknown_field(value) if isinstance(value, str) and name not in FREE else value
        for name, value in row.items()
    }
    return {**changed, UNKNOWN: "x"}


def with_unknown_fields(text: str) -> str:
    """Lines of JSON objects, or one object, each with another field."""
    changed = with_unknown_field(text)
    if changed == text:
        changed = "".join(f"{with_unknown_field(line)}\n" for line in text.splitlines())
    assert UNKNOWN in changed
    return changed


def with_unknown_field(text: str) -> str:
    """The text with another field if it is a JSON object, or in each object of a JSON list."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return json.dumps(_with_field(value)) if isinstance(value, dict | list) else text


def _with_field(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_field(each) for each in value]
    if not isinstance(value, dict):
        return value
    fields = {name: each if name in FREE else _with_field(each) for name, each in value.items()}
    if value.keys() & MAPPED:
        return fields
    return {**fields, UNKNOWN: 1}


def with_unknown_columns(script: str) -> str:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(script)
        tables = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ).fetchall()
        for (table,) in tables:
            connection.execute(f'ALTER TABLE "{table}" ADD COLUMN "{UNKNOWN}" TEXT')
        rows = connection.execute('SELECT "Name", "State" FROM "EventHubBreaker"').fetchall()
        for name, state in rows:
            update = 'UPDATE "EventHubBreaker" SET "State" = ? WHERE "Name" = ?'
            connection.execute(update, (with_unknown_field(state), name))
        return "\n".join(connection.iterdump())


LATER_FIELDS: Sequence[tuple[str, str, tuple[str, ...]]] = (
    ("Scaling", "desired", ("superseded", "changed_out", "changed_by_hand", "retry_at")),
    ("Scaling", "learned", ("claim",)),
    ("Scaling", "profile", ("weeks_0", "weeks")),
    ("Scaling", "rules", ("waiting_since", "other_at")),
    ("Scaling", "decision|", ("counterfactual", "metric", "value", "epoch")),
    ("Ingestion", "outbox|", ("taken",)),
    ("TrendRuns", "2026-03-01|run|0001", ("warning", "log_url", "lease_until")),
    ("Trends", "2026-03-01", ("count_verdict", "sum_verdict", "figure", "late_share")),
    ("Notifications", "", ("lasting_since",)),
)
"""Fields that the app got after the others. Rows of earlier versions lack them."""


async def test_rows_without_the_fields_that_are_new_are_read(storage: str, tmp_path: Path) -> None:
    fixtures = load(NEWEST)
    removed: set[str] = set()

    def earlier(table: str, row: Row) -> Row:
        later = {
            name
            for of, start, names in LATER_FIELDS
            if of == table and row["RowKey"].startswith(start)
            for name in names
        }
        removed.update(later & row.keys())
        return {name: value for name, value in row.items() if name not in later}

    tables = {name: [earlier(name, row) for row in rows] for name, rows in fixtures.tables.items()}
    actual = await found(replace(fixtures, tables=tables), storage, tmp_path)
    changed = list(differences(fixtures.expected, actual))
    assert {line.split(":")[0].rpartition("/")[2] for line in changed} <= removed | {
        "work",
        "recent",
    }
    kinds = [entry["kind"] for entry in (*actual["decision log"], *actual["poison"])]
    assert "unreadable" not in [*kinds, *(trend["verdict"] for trend in actual["trends"])]


async def test_this_version_writes_what_the_newest_fixtures_hold(
    storage: str, tmp_path: Path
) -> None:
    fixtures = await command.written(storage, tmp_path)
    assert shape(fixtures) == shape(load(NEWEST)), (
        "if the format has changed on purpose, write the fixtures of the next version with "
        "`python -m tests.upgrades VERSION`"
    )


def shape(fixtures: Fixtures) -> Mapping[str, Any]:
    """The names and types of all properties, columns and fields."""

    def of(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: of(each) for name, each in value.items()}
        return [of(each) for each in value] if isinstance(value, list) else type(value).__name__

    rows = {
        name: [
            {
                key: value["type"] if isinstance(value, dict) else "text"
                for key, value in row.items()
            }
            for row in rows
        ]
        for name, rows in fixtures.tables.items()
    }
    created = [line for line in fixtures.database.splitlines() if not line.startswith("INSERT")]
    texts = {**fixtures.messages, **fixtures.files}
    parsed = {name: _lines(text) for name, text in texts.items() if not name.startswith("token")}
    return {"rows": rows, "created": created, "texts": of(parsed), "values": of(fixtures.expected)}


def _lines(text: str) -> list[Any]:
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]


NOT_STORED = {
    ("Recommendation", "paced"),
    ("Recommendation", "candidates"),
    ("Recommendation", "missing"),
    ("Override", "exact"),  # excludes a floor
    ("UsualWeek", "absent"),  # excludes the loads
    ("WeekProfile", "absent"),
    ("ScalingState", "override"),  # has its own row, and its own value here
    ("ScalingState", "profile"),
    ("Effect", "ignored"),
    ("Effect", "set_aside"),  # counted in the checkpoint
}
"""Fields that are not stored, or not beside others."""


def test_the_fixtures_give_each_stored_field_a_value_that_is_not_its_default() -> None:
    constants = [each for name, each in vars(values).items() if name.isupper()]
    seen: dict[tuple[str, str], bool] = {}

    def visit(value: Any) -> None:
        if isinstance(value, Mapping):
            visit(list(value.values()))
        elif isinstance(value, list | tuple):
            for each in value:
                visit(each)
        elif is_dataclass(value):
            for field in fields(value):
                given = getattr(value, field.name)
                key = (type(value).__name__, field.name)
                new = field.default is MISSING or given != field.default
                seen[key] = seen.get(key, False) or new
                visit(given)

    visit(constants)
    defaults = {key for key, is_set in seen.items() if not is_set and key[1] not in VARYING}
    of_news = {key for key in defaults if key[0] == "News"}  # which is not stored
    assert defaults - NOT_STORED == of_news
