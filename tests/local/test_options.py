"""The options of `python -m local`."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec

import pytest

from local import cli


def test_a_nightly_run_without_pyspark_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def without_pyspark(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "pyspark" else importlib.util.find_spec(name, package)

    monkeypatch.setattr(cli, "find_spec", without_pyspark)
    with pytest.raises(SystemExit):
        cli.main(["--night"])
    assert "PySpark, which is not installed. Run `make night`" in capsys.readouterr().err
