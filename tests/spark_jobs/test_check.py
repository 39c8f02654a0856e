"""``python -m spark_jobs.check``, as a stranger runs it on an export of each family of SDKs."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from spark_jobs import check
from spark_jobs.read.ids import unsampled_dates
from spark_jobs.read.sources import LocalFiles
from tests.spark_jobs.sdk_exports import FAMILIES, write_export

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
        "2026-11-04 OrderConfirmed: only AppRoleInstance web-3; events lost: of 500 kept"
    )


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
        ("", "no telemetry in 1 files (all are empty)"),
        ("not json\n", "no telemetry in 1 files (1 lines (not_json))"),
        ('{"Type": "AppPageViews"}\n', "(1 records of the table AppPageViews)"),
        ("a,b\n1,2\n", "file: CSV"),
    ],
)
def test_a_folder_without_telemetry_is_an_error(
    content: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_text(content)
    assert check.main([str(tmp_path)]) == 1
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("name", FAMILIES)
def test_the_job_trusts_a_sender_only_if_its_ids_show_that_it_drops_nothing(
    name: str, tmp_path: Path
) -> None:
    write_export(tmp_path, FAMILIES[name], days=2)
    source = LocalFiles(str(tmp_path))
    expected = {"2026-11-01", "2026-11-02"} if "unsampled" in name else set()
    assert unsampled_dates(source, source.files()) == expected


@pytest.mark.parametrize(
    "sdk_version", ["", "py3.9:oc0.11", "otelc-0.104", "py3.11.9:otel1.28.2:ext1.0.0b34"]
)
def test_a_date_is_not_trusted_for_one_sender_that_proves_it_beside_another(
    sdk_version: str, tmp_path: Path
) -> None:
    """Neither collectors nor OpenCensus prove anything by ids, nor does a sampler that hides it."""
    unsampled = FAMILIES["OpenTelemetry for Python, unsampled"]
    write_export(tmp_path / "a", unsampled, days=1)
    hidden = replace(
        unsampled, sdk_version=sdk_version, rates=(0.2 if "otel1" in sdk_version else 1.0,)
    )
    write_export(tmp_path / "b", hidden, days=1)
    source = LocalFiles(str(tmp_path))
    assert unsampled_dates(source, source.files()) == set()


def test_a_missing_folder_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["/no/such/folder"]) == 1
    assert "/no/such/folder: No such file or directory" in capsys.readouterr().err
