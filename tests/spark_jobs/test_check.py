"""``python -m spark_jobs.check``, as a stranger runs it on an export of each family of SDKs."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from shared.sampling.operations import LOGS
from shared.sampling.series import Shape
from spark_jobs import check
from spark_jobs.check import added_up
from spark_jobs.read.files import Chunk
from spark_jobs.read.lines import batches_of
from spark_jobs.read.sources import Files, pieces_of_chunks
from tests.spark_jobs.sdk_exports import FAMILIES, Family, write_export

ROOT = Path(__file__).parents[2]
TOLD = {
    "classic .NET": "right",
    "JavaScript": "right",
    "OpenTelemetry for .NET": r"wrong: too low by a factor of 4\.\d+, from 4\.\d+ to 4\.\d+ \("
    r"most say 1; the hash of the id in capitals shows it\)",
    "OpenTelemetry for .NET, rate-limited": r"wrong: too low by a factor of at least [23]\.\d,"
    r" as rates change \(most say 1; the hash of the id in capitals shows it\)",
    "OpenTelemetry for Python": "right",
    "OpenTelemetry for Python, unsampled": "right: every operation was kept",
    "Java": "right",
}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_page_says_whether_item_counts_are_right(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_export(tmp_path, FAMILIES[name])
    assert check.main([str(tmp_path)]) == 0
    page = capsys.readouterr().out
    counts = page.partition("ItemCounts\n")[2].partition("\n\n")[0].splitlines()
    span = f"{FAMILIES[name].sdk_version}, 2026-11-01 to 2026-11-04"
    assert [line.strip().partition(": ")[0] for line in counts] == [span], page
    told = counts[0].strip().partition(": ")[2]
    assert re.fullmatch(TOLD[name], told), told
    assert "none is seen to be incomplete" in page


@pytest.mark.parametrize("name", FAMILIES)
def test_the_page_names_the_event_that_is_incomplete_and_the_instance(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_export(tmp_path, FAMILIES[name], lost=frozenset({"web-3"}))
    assert check.main([str(tmp_path)]) == 0
    lost = capsys.readouterr().out.partition("Events\n")[2].strip().splitlines()
    assert len(lost) == 1, lost
    assert lost[0].startswith(
        "2026-11-04 OrderConfirmed: events lost: only AppRoleInstance web-3: of 500 kept"
    )


FUNCTIONS = replace(
    FAMILIES["classic .NET"],
    sdk_version="azurefunctions: 4.1037.1",
    rates=(1.0,),
    exempt=frozenset({"AppRequests"}),
)
"""Its host.json excludes requests from sampling."""
PYTHON_LOGS = replace(
    FAMILIES["OpenTelemetry for Python"], rates=(0.8,), exempt=frozenset({"AppEvents"})
)
"""It keeps the logs of traces that it drops, unless told otherwise."""


@pytest.mark.parametrize("family", [FUNCTIONS, PYTHON_LOGS], ids=["functions", "python"])
def test_events_that_are_sampled_apart_from_requests_are_not_called_lost(
    family: Family, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_export(tmp_path, family, last_rates=(0.5,))
    for file in tmp_path.glob("insights-logs-appdependencies/**/*.json"):
        file.unlink()  # they are sampled as events, so each has a companion
    assert check.main([str(tmp_path)]) == 0
    assert "none is seen to be incomplete" in capsys.readouterr().out


def test_events_that_are_all_kept_do_not_hide_that_requests_are_sampled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lying = replace(FAMILIES["OpenTelemetry for .NET"], rates=(0.45,))
    write_export(tmp_path, replace(lying, exempt=frozenset({"AppEvents"})), days=2)
    assert check.main([str(tmp_path)]) == 0
    page = capsys.readouterr().out
    span = f"{lying.sdk_version}, 2026-11-01 to 2026-11-02"
    assert f"{span}: wrong: too low by a factor of 2.2" in page
    assert f"{lying.sdk_version}{LOGS}, 2026-11-01 to 2026-11-02: right: every operation" in page
    of_date = factors(tmp_path)["2026-11-01"]
    assert of_date[lying.sdk_version] == pytest.approx(1 / 0.45, rel=0.03)
    assert of_date[f"{lying.sdk_version}{LOGS}"] == 1.0


@pytest.mark.parametrize(("age", "told"), [(-3, False), (0, True), (1, True), (2, False)])
def test_a_date_whose_files_may_still_be_written_is_told(
    age: int, told: bool, tmp_path: Path
) -> None:
    """One table may lag behind another by minutes, which looks like a loss in the last hour."""
    write_export(tmp_path, FAMILIES["Java"], days=2)
    page = "\n".join(check.page_of(str(tmp_path), date(2026, 11, 2) + timedelta(days=age)))
    assert ("Some files of 2026-11-02 may still be written." in page) is told


def test_the_page_does_not_say_that_nothing_is_lost_where_nothing_was_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_export(tmp_path, FAMILIES["Java"], days=2)
    for file in tmp_path.rglob("*.json"):
        file.write_text(re.sub(r'"OperationId": "\w+"', '"OperationId": ""', file.read_text()))
    assert check.main([str(tmp_path)]) == 0
    page = capsys.readouterr().out
    assert "cannot be told: no event, request or trace has an OperationId" in page
    names = "OrderConfirmed, POST /checkout, SQL: orders"
    assert (
        f"not compared, for want of an event with the same operations and sampling: {names}" in page
    )
    assert "none is seen to be incomplete" not in page


def test_it_runs_in_one_process_without_spark(tmp_path: Path) -> None:
    write_export(tmp_path, FAMILIES["Java"], days=1)
    code = "import sys; from spark_jobs import check; check.main(sys.argv[1:]); "
    code += "assert 'pyspark' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "There is only one date." in done.stdout


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "no telemetry in 1 files: all are empty"),
        ("not json\n", "no telemetry in 1 files: 1 line not read (not_json), such as in "),
        (
            '{"Type": "AppPageViews"}\n',
            "files: 1 record of the table AppPageViews not read, because it has no events",
        ),
        (
            '{"tables": [{"name": "PrimaryResult"}]}',
            "an answer of the query API, which is no export: export telemetry to a storage account",
        ),
        ("a,b\n1,2\n", "files: 1 file not read, such as "),
    ],
)
def test_a_folder_without_telemetry_is_an_error(
    content: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_text(content)
    assert check.main([str(tmp_path)]) == 1
    assert told in capsys.readouterr().err


def test_files_that_are_not_read_because_of_their_names_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "query.csv").write_text("a,b\n")
    assert check.main([str(tmp_path)]) == 1
    unread = f"1 file not read because of the name, such as {tmp_path}/query.csv: "
    assert f"no telemetry in 0 files: {unread}" in capsys.readouterr().err
    write_export(tmp_path, FAMILIES["Java"], days=1)
    assert check.main([str(tmp_path)]) == 0
    assert f"  {unread}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("cap", "share", "told"),
    [
        (9999, 0.2, r"2026-11-24 Order: uncertain: \d+% of what was expected.* may be sampling"),
        (250, 1, "2026-11-29 Order: uncertain: collection ends at about the same number"),
        (
            9999,
            1,
            "not compared, for want of an event with the same operations and sampling: Order",
        ),
    ],
)
def test_what_may_be_incomplete_and_records_without_operations_are_told(
    cap: int, share: float, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first ``cap`` records of each day are kept, and a share of them on the 24th."""
    chance, lines = Random(1), list[str]()
    for day in range(30):
        midnight = datetime(2026, 11, 1, tzinfo=UTC) + timedelta(days=day)
        times = sorted(chance.random() for _ in range(int(chance.gauss(600, 25))))[:cap]
        for time in times[:: int(1 / share) if day == 23 else 1]:
            record = {"Type": "AppEvents", "Name": "Order", "SDKVersion": "py3.9:oc0.11"}
            at = (midnight + timedelta(days=time)).isoformat()
            lines.append(json.dumps({**record, "time": at, "ItemCount": 1}))
    (tmp_path / "a.json").write_text("\n".join(lines))
    assert check.main([str(tmp_path)]) == 0
    page = capsys.readouterr().out
    assert "ItemCounts\n  cannot be told: no event, request or trace has an OperationId" in page
    assert re.search(told, page), page
    assert page.count(" Order: uncertain") == (cap != 9999 or share != 1)


def test_metrics_alone_prove_nothing_about_events(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metric = {"time": "2026-11-01T12:00:00Z", "Type": "AppMetrics", "Name": "m", "Sum": 1}
    (tmp_path / "a.json").write_text(json.dumps(metric))
    assert check.main([str(tmp_path)]) == 0
    told = "Events\n  cannot be told: the files hold metrics, but no event, request or trace"
    assert told in capsys.readouterr().out


def factors(folder: Path) -> dict[str, dict[str, float]]:
    """By date and SDKVersion."""
    source = Files([str(folder)])
    files = source.files()
    chunks = [Chunk(file, 0, file.size_bytes) for file in files]
    found = added_up(files, batches_of(pieces_of_chunks(source, chunks), Shape()))
    return {day: dict(each.factors) for day, each in found.operations.items()}


@pytest.mark.parametrize("name", FAMILIES)
def test_weights_are_trusted_or_corrected_where_the_ids_show_the_rate(
    name: str, tmp_path: Path
) -> None:
    write_export(tmp_path, FAMILIES[name], days=2)
    by_date = factors(tmp_path)
    assert list(by_date) == ["2026-11-01", "2026-11-02"]
    for of_date in by_date.values():
        match name:
            case "OpenTelemetry for .NET":
                assert of_date[FAMILIES[name].sdk_version] == pytest.approx(4.9, rel=0.02)
            case "OpenTelemetry for .NET, rate-limited":
                assert math.isnan(of_date[FAMILIES[name].sdk_version])
            case "OpenTelemetry for Python, unsampled":
                sdk = FAMILIES[name].sdk_version
                assert of_date == {sdk: 1.0, f"{sdk}{LOGS}": 1.0}
            case _:
                assert of_date == {}


@pytest.mark.parametrize(
    "sdk_version", ["", "py3.9:oc0.11", "otelc-0.104", "py3.11.9:otel1.28.2:ext1.0.0b34"]
)
def test_one_sender_does_not_prove_the_weights_of_another(sdk_version: str, tmp_path: Path) -> None:
    """Neither collectors nor OpenCensus prove anything by ids, nor does a sampler that hides it."""
    unsampled = FAMILIES["OpenTelemetry for Python, unsampled"]
    write_export(tmp_path / "a", unsampled, days=1)
    hidden = replace(
        unsampled, sdk_version=sdk_version, rates=(0.2 if "otel1" in sdk_version else 1.0,)
    )
    write_export(tmp_path / "b", hidden, days=1)
    ((_, of_date),) = factors(tmp_path).items()
    for sampler in (unsampled.sdk_version, f"{unsampled.sdk_version}{LOGS}"):
        assert of_date.pop(sampler) == 1.0
    assert all(factor > 1 for factor in of_date.values())


def test_a_missing_folder_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["/no/such/folder"]) == 1
    assert "/no/such/folder: No such file or directory" in capsys.readouterr().err
