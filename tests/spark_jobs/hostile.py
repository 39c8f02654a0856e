"""Makes hostile telemetry from a seed, which the job must read as ``shared.sampling`` reads it."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.spark_jobs.telemetry import pack, put

START = datetime(2017, 5, 14, 20, tzinfo=UTC)
HOURS = 40
NAMES = [
    "OrderPlaced",
    'quote"d',
    "tab\there",
    "naïve ☃ 😀",
    "a/b#c?d",
    "nul\u0000l",
    " ",
    "Order\ud800",
]
OPERATIONS = ["", "", "a1", "b2", "c3", "operation é", "4bf92f3577b34da6a3ce929d0e0e4736"]
ODD: list[Any] = [None, "", "x", 0, -1, 1.5, "3", True, [], {}, [1], {"a": 1}, 10**25, 1e300, "NaN"]
TWICE, ECIWT = '"tenant":"t1","tenant":5', '"tenant":5,"tenant":"t1"'
MORE = ['"Amount":1,"Amount":5', '"Amount":5,"Amount":1', '"Amount":1,"Amount":"x"']


def hostile_files(root: Path, seed: int, lines: int = 400) -> None:
    """Writes an export: uneven files with copies, cut ends, other formats and damage."""
    rng = random.Random(seed)
    known: list[str | bytes] = []
    files: dict[tuple[str, int], list[str | bytes]] = {}
    for _ in range(lines):
        hour = START + timedelta(hours=min(int(rng.expovariate(0.1)), HOURS))
        line = _copy(rng, known) if known and rng.random() < 0.15 else _line(rng, hour)
        known.append(line)
        files.setdefault((hour.date().isoformat(), hour.hour), []).append(line)
    for number, ((day, hour_of_day), found) in enumerate(sorted(files.items())):
        path = put(
            root, day, found, hour_of_day, end=rng.choice(["\n", "", "\n\n", "\r\n", '\n{"ti'])
        )
        if number % 5 == 0:
            packed = pack(path)
            if number % 10 == 0:
                packed.write_bytes(packed.read_bytes()[:-9])
    (root / "other.json").write_bytes(b"\n".join(_bytes(line) for line in rng.sample(known, 20)))
    (root / "empty.json").write_bytes(b"")


def _line(rng: random.Random, hour: datetime) -> str | bytes:
    record = _record(rng, hour)
    kind = rng.random()
    if kind < 0.55:
        return _written(rng, record)
    if kind < 0.75:
        for column in rng.sample(sorted(record), rng.randint(1, 2)):
            record[column] = rng.choice(ODD)
        return _written(rng, record)
    if kind < 0.80:
        return json.dumps({"records": [_record(rng, hour), rng.choice(ODD), _record(rng, hour)]})
    if kind < 0.85:
        return json.dumps(_classic(rng))
    if kind < 0.92:
        return _disputed(rng, _written(rng, record))
    return _damaged(rng, _written(rng, record))


def _record(rng: random.Random, hour: datetime) -> dict[str, Any]:
    late = timedelta(hours=rng.choice([0, 0, 0, 1, 2, 30]))
    moment = hour - late + timedelta(seconds=rng.randint(0, 90) * 40)
    table = rng.choice(["AppEvents"] * 5 + ["AppRequests", "AppTraces", "AppDependencies"])
    record: dict[str, Any] = {
        "time": moment.strftime("%Y-%m-%dT%H:%M:%S") + rng.choice([".1234567Z", ".120000Z", ".5Z"]),
        "Type": table,
        "Name": rng.choice(NAMES[:3] if rng.random() < 0.8 else NAMES),
        "OperationId": rng.choice(OPERATIONS),
        "ItemCount": rng.choice([1, 1, 1, 2, 3, 10, 4000]),
        "SDKVersion": rng.choice(["aspnet5c:2.20.0", "py3.11:otel1.25:ext1.0", "OTELx", ""]),
        "Properties": _properties(rng),
        "Measurements": rng.choice(
            [None, {}, {"Amount": rng.choice([2.5, 3, -1, 0.1])}, {"Amount": None, "Other": 1e-7},
             {"B": 1, "Amount": 7}, {"Amount": 7, "B": 1}, {"Am\"ount,": 1, "Amount": 12.75}]
        ),
        "AppRoleName": rng.choice(["web", "web", "jobs,\"x"]),
        "_BilledSize": rng.randint(1, 9),
    }  # fmt: skip
    if table in ("AppRequests", "AppDependencies"):
        record["DurationMs"] = rng.choice([9.25, 10, None, "3.5", "soon"])
    if table == "AppTraces":
        record["Message"] = rng.choice(["Order 7 placed", "", None, "line\nbreak"])
    for column in rng.sample(sorted(record), rng.choice([0, 0, 1])):
        del record[column]
    return record


def _properties(rng: random.Random) -> Any:
    found: dict[str, Any] = {"tenant": rng.choice(["t1", "t2", 'x,"y', 5])}
    if rng.random() < 0.3:
        found["microsoft.sample_rate"] = rng.choice(
            ["30", "25", "0", "100", "no", 12.5, " 50 ", "101"]
        )
    if rng.random() < 0.3:
        found["{OriginalFormat}"] = rng.choice(["Order {Id} placed", "", None, 7])
    if rng.random() < 0.2:
        found["nested"] = rng.choice(
            [{"b": [1, 2], "a": "}{"}, {"b": ["x", "y"]}, {"b": 1, "c": 2}]
        )
    if rng.random() < 0.1:
        found |= rng.choice(
            [{"c,": "1", "d,": "2"}, {"c,": "2", "d,": "1"}, {"e": 'in\\":{"', "": "1"}]
        )
    return rng.choice([found, found, found, None, json.dumps(found)])


def _written(rng: random.Random, record: dict[str, Any]) -> str:
    """Writes a record compact or spaced, in any order, escaped or not."""
    names = sorted(record)
    if rng.random() < 0.3:
        rng.shuffle(names)
    separators = rng.choice([(",", ":"), (", ", ": "), (" ,", " :")])
    text = json.dumps(
        {name: record[name] for name in names},
        separators=separators,
        ensure_ascii=rng.random() < 0.5 or "\ud800" in str(record),
    )
    return text if rng.random() < 0.95 else f"  {text}\r"


def _copy(rng: random.Random, known: list[str | bytes]) -> str | bytes:
    """Returns a copy of a record: unchanged, with its columns in another order, or in a body."""
    line = rng.choice(known)
    if isinstance(line, str) and rng.random() < 0.3:
        one, other = rng.sample(MORE, 2)
        swapped = line.replace(TWICE, ECIWT).replace(one, other)
        swapped = swapped.replace('"b":1,"c":2', '"c":2,"b":1').replace('"x","y"', '"y","x"')
        return rng.choice([swapped, f'{{"records":[{swapped}]}}'])
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if not isinstance(record, dict) or rng.random() < 0.3:
        return line
    if rng.random() < 0.3:
        return json.dumps({"records": [record]})
    if isinstance(record.get("Properties"), dict):
        record["Properties"] = dict(reversed(record["Properties"].items()))
    return _written(rng, {**record, "_BilledSize": rng.randint(1, 9)})


def _classic(rng: random.Random) -> dict[str, Any]:
    """Returns a classic record. Its key is the number that the service gave it."""
    number = rng.randint(0, 9)
    return {
        "event": [{"name": "OrderPlaced", "count": [1, 3, "x"][number % 3]}],
        "internal": {"data": {"id": f"id{number}"}},
        "context": {
            "data": {
                "eventTime": (START + timedelta(hours=number)).isoformat(),
                "samplingRate": [100.0, 30.0][number % 2],
            },
            "operation": {"id": OPERATIONS[number % len(OPERATIONS)]},
            "custom": {"dimensions": [{"tenant": "t1"}], "metrics": [{"Amount": {"value": 2.0}}]},
        },
    }


def _disputed(rng: random.Random, line: str) -> str:
    """Adds what JSON readers disagree about: NaN and infinity, repeated names, depth."""
    number = rng.choice(["nan", "NaN", "-inf", "Infinity", "-Infinity", "INF", "iNf", "-NAN", "7"])
    depth = rng.choice([3, 400, 400, 2_000])
    inner = '{"a":' * depth
    found = [
        line.replace("{", f'{{"Unread":{number},', 1),
        line.replace("{", f'{{"Unread":[{number}],', 1),
        line.replace("{", f'{{"Unread":[1, {number} ],', 1),
        line.replace("{", f'{{"Unread":{"[" * depth}{"]" * depth},', 1),
        line.replace("{", "{" + f'"Unread":{inner}1{"}" * depth},', 1),
        line.replace("{", '{"Name":"First","ItemCount":5,', 1),
        line.replace('{"tenant"', '{"tenant":"t1","tenant"', 1),
        line.replace('{"tenant"', f'{{{TWICE},"tenant"', 1),
        line.replace('"Amount"', f'{rng.choice(MORE)},"Amount"', 1),
        line.replace('"Amount"', '"Amount":1,"Amount"', 1),
        line.replace('"Amount"', '"Amount":2.5, "amount":3, "Amount"', 1),
    ]
    return rng.choice(found)


def _damaged(rng: random.Random, line: str) -> str | bytes:
    at = rng.randrange(len(line))
    found: list[str | bytes] = [
        line[:at],
        line.replace("}", ",}", 1),
        line.replace(":1", ":NaN", 1),
        line.replace(":1", ":nan", 1),
        line.replace("{", "{ 'x':1,", 1),
        _bytes(line)[:at] + b"\xff" + _bytes(line)[at:],
        line + line,
        "\ufeff" + line,
        "[" * 2_000,
        json.dumps({"Type": "StorageBlobLogs", "time": "2017-05-15T00:00:00Z"}),
        json.dumps({"Type": "AppMetrics", "Name": "m", "Sum": 1}),
        "",
        "null",
    ]
    return rng.choice(found)


def _bytes(line: str | bytes) -> bytes:
    return line if isinstance(line, bytes) else line.encode("utf-8", "surrogatepass")
