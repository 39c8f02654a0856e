"""The options of `python -m local`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from local import cli
from local.demo.night import NightlyDemo
from local.demo.view import _night


def test_a_failed_nightly_run_is_reported_with_its_reason_and_the_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failed = {"night": {"error": "HistoryFailed: the job ended (signal 9)\nthe end of its log"}}
    assert cli._report(failed, as_json=True) == 1
    assert capsys.readouterr().err == (
        "The nightly run failed: HistoryFailed: the job ended (signal 9)\n"
    )
    night = NightlyDemo({}, "", 1, error=failed["night"]["error"])
    assert str(_night(night)) == failed["night"]["error"]
    assert cli._report({"night": {"error": ""}}, as_json=True) == 0


def test_the_options_of_a_trace_reach_its_reader(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, state = tmp_path / "two.csv", tmp_path / "a file"
    trace.write_text(
        "time,a,b\n2026-11-02T00:00Z,3,4\n2026-11-02T00:02Z,3,4\n2026-11-02T00:03Z,3,4\n"
    )
    state.touch()  # The demo cannot start here.
    arguments = ["--trace", str(trace), "--state", str(state)]
    assert cli.main(arguments) == 2
    assert "Choose one with --series" in capsys.readouterr().err
    assert cli.main([*arguments, "--series", "b"]) == 1
    told = capsys.readouterr().err
    assert "notice: read as CSV, column b, 4 minutes" in told
    assert "1 missing steps of 1 min, the first before line 3: read as no arrivals" in told


def test_a_folder_that_cannot_be_written_or_runs_a_demo_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "state"
    assert cli.main(["--json", "--state", str(folder)]) == 1
    named = f"[Errno 20] Not a directory: '{folder}'. Choose another folder with --state FOLDER\n"
    assert capsys.readouterr() == ("", named)
    (tmp_path / "settings.json").write_text(json.dumps({"Process": os.getppid(), "Values": {}}))
    assert cli.main(["--json", "--state", str(tmp_path)]) == 1
    assert "already runs a demo in this folder" in capsys.readouterr().err
    assert not (tmp_path / cli.LOG_FILE).exists(), "the log belongs to the first demo"
