"""The options of `python -m local`."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec

import pytest

from local import cli
from local.demo.night import NightlyDemo
from local.demo.view import _night


def test_a_nightly_run_without_pyspark_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def without_pyspark(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "pyspark" else importlib.util.find_spec(name, package)

    monkeypatch.setattr(cli, "find_spec", without_pyspark)
    with pytest.raises(SystemExit):
        cli.main(["--night"])
    assert "PySpark, which is not installed. Run `make night`" in capsys.readouterr().err


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
