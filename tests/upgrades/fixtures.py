"""The fixtures of a version: tables as JSON, the database as SQL, messages, and files."""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from azure.data.tables import EdmType, EntityProperty
from azure.data.tables.aio import TableServiceClient

from tests.upgrades.store import Stores

FOLDER = Path(__file__).parent / "versions"
OUTPUT = "output"

Row = dict[str, Any]


@dataclass(frozen=True)
class Fixtures:
    """What a version of the app has written, and what a reader must find."""

    tables: Mapping[str, list[Row]]
    """The rows of each table. A property that is not text is ``{"type": …, "value": …}``."""
    database: str
    messages: Mapping[str, str]
    files: Mapping[str, str]
    expected: Mapping[str, Any]


def versions() -> list[str]:
    """The versions that have fixtures."""
    return sorted(path.name for path in FOLDER.iterdir())


def load(version: str) -> Fixtures:
    folder = FOLDER / version
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in _JSON}
    tables, messages, files, expected = (json.loads(texts[name]) for name in _JSON)
    database = (folder / "database.sql").read_text(encoding="utf-8")
    return Fixtures(tables, database, messages, files, expected)


_JSON = ("tables.json", "messages.json", "files.json", "expected.json")


def save(version: str, fixtures: Fixtures) -> Path:
    """Write the fixtures of a version. Raises FileExistsError: those of a released version stay."""
    folder = FOLDER / version
    folder.mkdir(parents=True)
    parts = (fixtures.tables, fixtures.messages, fixtures.files, fixtures.expected)
    for name, part in zip(_JSON, parts, strict=True):
        text = json.dumps(part, indent=1, ensure_ascii=False, sort_keys=True)
        (folder / name).write_text(f"{text}\n", encoding="utf-8")
    (folder / "database.sql").write_text(fixtures.database, encoding="utf-8")
    return folder


# --- from stores to fixtures ------------------------------------------------------------------


async def tables_of(connection_string: str) -> dict[str, list[Row]]:
    tables: dict[str, list[Row]] = {}
    async with TableServiceClient.from_connection_string(connection_string) as service:
        async for table in service.list_tables():
            client = service.get_table_client(table.name)
            tables[table.name] = [_row(entity) async for entity in client.list_entities()]
    return tables


def _row(entity: Mapping[str, Any]) -> Row:
    return {name: _property(value) for name, value in entity.items()}


def _property(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, EntityProperty):
        return {"type": EdmType(value.edm_type).value, "value": str(value.value)}
    if isinstance(value, datetime):
        return {"type": EdmType.DATETIME.value, "value": value.isoformat()}
    if isinstance(value, bytes):
        return {"type": EdmType.BINARY.value, "value": base64.b64encode(value).decode()}
    kinds = {bool: EdmType.BOOLEAN, int: EdmType.INT32, float: EdmType.DOUBLE}
    return {"type": kinds[type(value)].value, "value": value}


def database_of(path: Path) -> str:
    with sqlite3.connect(path) as connection:
        return "\n".join(connection.iterdump()) + "\n"


def files_of(folder: Path) -> dict[str, str]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in sorted(found)}


# --- from fixtures to stores ------------------------------------------------------------------


async def install(fixtures: Fixtures, at: Stores) -> None:
    """Fill empty stores with what a version has written."""
    connection_string = at.connection.connection_string
    async with TableServiceClient.from_connection_string(connection_string) as service:
        for name, rows in fixtures.tables.items():
            client = await service.create_table_if_not_exists(name)
            for row in rows:
                await client.upsert_entity(dict(_entity(row)))
    with sqlite3.connect(at.database) as connection:
        connection.executescript(fixtures.database)
    connection.close()
    for name, text in fixtures.files.items():
        at.output.write(name, text.encode())


def _entity(row: Row) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        yield name, value if isinstance(value, str) else _typed(value["type"], value["value"])


def _typed(kind: str, value: Any) -> Any:
    if kind == EdmType.INT64.value:
        return EntityProperty(int(value), EdmType.INT64)
    if kind == EdmType.DATETIME.value:
        return datetime.fromisoformat(value)
    return base64.b64decode(value) if kind == EdmType.BINARY.value else value
