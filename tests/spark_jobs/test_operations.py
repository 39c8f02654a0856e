"""What operations show: from an export, through the job, to the results and the notification."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import date
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shared.sampling.companions import judge_companions
from shared.sampling.kept_ids import Weights, WeightsSeen
from shared.sampling.operations import (
    AWAY,
    BOTH,
    KEPT,
    LEFT_OUT,
    LOGS,
    OF,
    Counts,
    DayOperations,
    decoded,
    encoded,
    limited_to,
    pairs_of,
)
from shared.sampling.series import Series, Shape
from shared.sampling.trend_rows import trend_row
from shared.sampling.trends import TrendInputs
from shared.trends.nightly.trend_news import trend_notices
from shared.trends.store.trends import trend_of
from spark_jobs.check import Alone, added_up
from spark_jobs.engine import Engine
from spark_jobs.job import run_job
from spark_jobs.options import Options
from spark_jobs.publish.pictures import pictures
from spark_jobs.publish.results import OPERATIONS, SUMS, TRENDS
from spark_jobs.publish.stores import LocalStore
from spark_jobs.read import operations
from spark_jobs.read.files import SourceFile
from spark_jobs.read.lines import batches_of
from spark_jobs.read.sources import ClusterFiles, Files, Source
from spark_jobs.sums import totals
from tests.spark_jobs.sdk_exports import FAMILIES, INSTANCES, write_export
from tests.spark_jobs.telemetry import compute, event, pack, put

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = "2017-05-15"
FILE = f"{date.fromisoformat(DAY):y=%Y/m=%m/d=%d}/h=09/PT1H.json"
CHECKOUT, CONFIRMED = ("event", "checkout"), ("event", "OrderConfirmed")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_loss_reaches_the_row_the_picture_and_the_notification_in_one_text(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    family = FAMILIES[name]
    write_export(tmp_path / "in", family, lost=frozenset({"web-3"}))
    done = compute(
        Engine(spark), tmp_path / "in", tmp_path / "out", shape=Shape(), today=date(2026, 11, 5)
    )
    rows = [trend_of(trend_row(trend)) for trend in done.trends]
    lost = [row for row in rows if row.verdict == "events lost"]
    assert [(row.date, row.event) for row in lost] == [("2026-11-04", "OrderConfirmed")]
    told = "only AppRoleInstance web-3: of 500 kept operations with "
    assert told in lost[0].reason
    assert lost[0].evidence["only"] == "only AppRoleInstance web-3"
    (news,) = trend_notices(rows)
    assert lost[0].reason in news.text
    pages = [page.decode() for file, page in pictures(rows).items() if file.endswith(".html")]
    assert sum(told in page for page in pages) == 1
    corrected = [row for row in rows if row.reason.count("corrected: item counts of")]
    assert len(corrected) == (12 if name == "OpenTelemetry for .NET" else 0)
    for row in corrected:
        low, high = (row.evidence[f"item_count_{name}"] for name in ("low", "high"))
        assert low * 0.995 <= 1 / family.rates[0] <= high * 1.005
        assert row.adjusted_count == pytest.approx(row.records / family.rates[0], rel=0.01)
        factor = row.evidence["item_count_factor"]
        alone = (row.records * factor * (factor - 1)) ** 0.5
        assert row.adjusted_count_se > alone


def test_an_input_that_spark_reads_gives_the_bytes_of_one_that_the_job_reads(
    spark: SparkSession, tmp_path: Path
) -> None:
    """With corrected item counts, a loss, a compressed file, a body and a bad line."""
    lost = frozenset({"web-3"})
    write_export(tmp_path / "in", FAMILIES["OpenTelemetry for .NET"], lost=lost)
    lines = [*shop(300), "{", json.dumps({"records": list(map(json.loads, shop(3)))})]
    put(tmp_path / "in", DAY, lines, hour=9)
    pack(put(tmp_path / "in", DAY, shop(300), hour=10))
    places: dict[str, Source] = {
        "job": Files([str(tmp_path / "in")]),
        "spark": ClusterFiles(spark, [(tmp_path / "in").as_uri()]),
    }
    request = Options(Shape(), "run", date(2026, 11, 5))
    found = {}
    for name, source in places.items():
        done = run_job(source, LocalStore(tmp_path / name), Engine(spark), request)
        assert any(trend.verdict == "events lost" for trend in done.trends)
        assert any("corrected: item counts of" in trend.reason for trend in done.trends)
        results, files = tmp_path / name / "results" / "run", (SUMS, OPERATIONS, TRENDS)
        manifest = tmp_path / name / "manifests" / "000000001.json"
        found[name] = [path.read_bytes() for path in (manifest, *(results / f for f in files))]
    assert found["spark"] == found["job"]


def read(lines: Iterable[str], path: str = FILE) -> Alone:
    file = SourceFile(path, 0)
    return added_up([file], batches_of([(file, "\n".join(lines).encode())], Shape()))


def shop(count: int = 3_000, **columns: Any) -> Iterator[str]:
    """Operations of one, two or three events, on several instances."""
    rng = random.Random(8)
    for number in range(count):
        operation, at = (
            f"{rng.getrandbits(128):032x}",
            f"{DAY}T{number % 20 + 2:02d}:00:{number % 60:02d}",
        )
        for name, share in (("checkout", 0.9), ("OrderConfirmed", 0.6), ("Email", 0.3)):
            if rng.random() < share:
                sender = {"AppRoleInstance": rng.choice(INSTANCES), "Id": str(number)}
                yield event(at, name, OperationId=operation, **sender, **columns)


def by_hand(lines: Iterable[str]) -> Counts:
    """Counts without slices, one operation after the other."""
    events: dict[str, set[tuple[str, str]]] = {}
    for line in map(json.loads, lines):
        events.setdefault(line["OperationId"], set()).add(("event", line["Name"]))
    found = Counts({(KEPT,): len(events)})
    for names in events.values():
        found.update((OF, name) for name in names)
        found.update((BOTH, *pair) for pair in permutations(names, 2))
    return found


def without_slices(counts: Counts) -> Mapping[Any, int]:
    return {key: n for key, n in counts.items() if len(key) <= 3 and n}


@pytest.mark.parametrize("bucket_records", [500, 1 << 16])
def test_operations_are_counted_once_in_any_order_and_number_of_buckets(
    bucket_records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(totals, "BUCKET_RECORDS", bucket_records)
    lines = list(shop())
    copies = [*lines, *lines[::7]]
    found = read(copies, "any.json").operations[DAY].counts
    assert without_slices(found) == without_slices(by_hand(lines))
    random.Random(2).shuffle(copies)
    assert encoded(read(copies, "any.json").operations[DAY].counts) == encoded(found)
    assert decoded(encoded(found)) == found


def test_operations_near_midnight_or_with_late_records_are_left_out_and_counted() -> None:
    def pair(number: int, at: str, other: str) -> list[str]:
        operation = f"{number:032x}"
        return [
            event(f"{DAY}T{at}", "checkout", OperationId=operation),
            event(f"{DAY}T{other}", "OrderConfirmed", OperationId=operation),
        ]

    usual = [line for n in range(1, 11) for line in pair(n, "09:00:00", "09:30:00")]
    midnight = pair(11, "23:54:00", "23:56:00") + pair(12, "00:06:00", "00:04:59")
    late = pair(13, "09:00:00", "07:00:00")
    counts = read([*usual, *midnight, *late]).operations[DAY].counts
    assert (counts[KEPT,], counts[LEFT_OUT,], counts[BOTH, CHECKOUT, CONFIRMED]) == (10, 3, 10)


@pytest.mark.parametrize(
    ("checkout", "confirmed", "away"),
    [
        ((1, None), [(1, None)], 0),
        ((1, None), [(3, None)], 20),  # two more of three
        ((3, None), [(1, None)], 0),  # each operation with it has the other, too
        ((1, None), [(1, 80)], 2),
        ((1, None), [(1, 99.9)], 0),
        ((3, None), [(3, 30)], 0),  # 100 / 30, rounded to 3
        ((2, None), [(3, None)], 5),
        ((1, None), [(3, None), (1, None)], 0),  # one of its records is kept as often
    ],
)
def test_an_event_is_sampled_away_from_operations_whose_other_events_are_kept_more_often(
    checkout: tuple[int, float | None], confirmed: list[tuple[int, float | None]], away: int
) -> None:
    def record(name: str, operation: int, second: int, count: int, rate: float | None) -> str:
        columns = {"ItemCount": count, "OperationId": f"{operation:032x}"}
        properties = {"microsoft.sample_rate": f"{rate}"} if rate else {}
        return event(f"{DAY}T09:00:{second:02d}", name, **columns, Properties=properties)

    lines = [record("checkout", n, 0, *checkout) for n in range(1, 11)]
    for second, weight in enumerate(confirmed, 1):
        lines += [record("OrderConfirmed", n, second, *weight) for n in range(1, 11)]
    counts = read(lines).operations[DAY].counts
    assert counts[AWAY, CONFIRMED, CHECKOUT] == away
    of = pairs_of(counts)[Series(*CONFIRMED), Series(*CHECKOUT)].of
    assert of == (0 if away else 10)


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("AppVersion", "2.1", "only AppVersion 2.1"),
        ("SDKVersion", "aspnet5c:2.23.0", "only SDKVersion aspnet5c:2.23.0"),
        ("AppRoleInstance", "web-2", "only AppRoleInstance web-2"),
        ("time", "T14", "only hour 14:00 UTC"),
    ],
)
def test_a_loss_names_the_slice_to_which_it_is_limited(column: str, value: str, told: str) -> None:
    usual = {
        "AppVersion": ["2.0", "2.1"],
        "SDKVersion": ["aspnet5c:2.22.0", "aspnet5c:2.23.0"],
        "AppRoleInstance": ["web-1", "web-2", "web-3"],
    }

    def export(day: str, lost: str) -> Iterator[str]:
        rng = random.Random(day)
        for number in range(2_000):
            sender = {name: rng.choice(values) for name, values in usual.items()}
            at = f"{day}T{number % 8 + 10:02d}:00:{number % 60:02d}"
            columns = {**sender, "OperationId": f"{rng.getrandbits(128):032x}"}
            yield event(at, "checkout", **columns)
            if rng.random() < 0.95 and (not lost or lost not in {"time": at, **sender}[column]):
                yield event(at, "OrderConfirmed", **columns)

    counts = [
        read(export(f"2017-05-{day}", value if day == 14 else ""), "a.json")
        .operations[f"2017-05-{day}"]
        .counts
        for day in range(10, 15)
    ]
    days = list(map(pairs_of, counts))
    (seen,) = [each for each in judge_companions(days[-1], days[:-1]).values() if each.lost]
    assert limited_to(seen.test, counts[-1]) == told


@pytest.mark.parametrize(("operations", "trusted"), [(None, True), (12, True), (500, False)])
def test_few_events_are_kept_as_requests_are(operations: int | None, trusted: bool) -> None:
    """On a day of a loss, too few may be left to show it by their own ids."""
    sdk = "py3.11.9:otel1.28.2:ext1.0.0b33"
    weights = {sdk: WeightsSeen(Weights.RIGHT, 500, 1.0, unsampled=True)}
    if operations:
        weights[f"{sdk}{LOGS}"] = WeightsSeen(Weights.UNKNOWN, operations)
    expected = {sdk: 1.0, f"{sdk}{LOGS}": 1.0} if trusted else {sdk: 1.0}
    assert DayOperations(weights=weights).factors == expected


def test_records_without_an_operation_and_metrics_form_no_pairs() -> None:
    lines = [event(f"{DAY}T09:00:{n:02d}", name) for n in range(9) for name in ("a", "b")]
    metrics = [event(f"{DAY}T09:00:00", "a", Type="AppMetrics", OperationId="7" * 32)]
    assert not any(key[0] == BOTH for key in read([*lines, *metrics]).operations[DAY].counts)


def test_the_sample_of_ids_is_the_same_in_any_order_and_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operations, "OPERATIONS_MAX", 400)
    lines = list(shop())
    pieces = [(SourceFile(FILE, 0), "\n".join(lines[n::5]).encode()) for n in range(5)]
    first, second = (
        [row for b in batches_of(each, Shape()) for row in b.to_pylist() if row["text"]]
        for each in (pieces, pieces[::-1])
    )
    assert [row["text"] for row in first] == [row["text"] for row in second]
    assert [len(json.loads(row["text"])) for row in first] == [400]


def test_a_date_whose_weights_ids_do_not_tell_is_doubted_after_corrected_ones() -> None:
    wrong = WeightsSeen(Weights.WRONG, 500, factor=4.9, low=4.8, high=5.0)
    few, right = WeightsSeen(Weights.UNKNOWN, 150), WeightsSeen(Weights.RIGHT, 500)
    seen = {1: few, 2: wrong, 3: few, 4: right, 5: wrong, 20: few}
    by_date = {f"2026-11-{n:02}": DayOperations(weights={"java": s}) for n, s in seen.items()}
    inputs = TrendInputs(Shape(), {}, date(2026, 12, 1), operations=by_date)
    assert inputs.untold == {"2026-11-03"}


def test_a_loss_is_limited_to_instances_of_one_version(tmp_path: Path, spark: SparkSession) -> None:
    java = FAMILIES["Java"]
    new = replace(java, sdk_version="java:3.6.3")
    write_export(tmp_path / "in" / "old", java)
    write_export(tmp_path / "in" / "new", new, lost=frozenset(INSTANCES))
    done = compute(
        Engine(spark), tmp_path / "in", tmp_path / "out", shape=Shape(), today=date(2026, 11, 5)
    )
    (lost,) = [trend for trend in done.trends if trend.verdict == "events lost"]
    assert lost.evidence["only"] == "only SDKVersion java:3.6.3"
