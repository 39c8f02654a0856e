"""The files by which other terminals find a demo, and what is left of them when it is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from local.demo.settings_files import (
    RunningAlready,
    SettingsInTheWay,
    local_settings_file,
    refuse_a_second,
    running_settings_file,
)
from shared import settings
from shared.settings import SettingsError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.json"


def written_by(process: int, file: Path) -> None:
    file.write_text(json.dumps({"Process": process, "Values": {"Topic": "orders"}}))


def gone() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    return ended.pid


def test_settings_that_lead_to_a_process_that_is_gone_are_refused_and_explained(
    file: Path,
) -> None:
    process = gone()
    written_by(process, file)
    with pytest.raises(SettingsError, match=f"ended with process {process}, which wrote it"):
        settings.add_file(file)
    assert "Topic" not in os.environ


def test_settings_of_what_runs_are_taken(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    with running_settings_file({"Topic": "orders"}, file):
        settings.add_file(file)
    assert settings.load().environ["Topic"] == "orders"
    assert not file.exists()


def test_a_second_demo_is_refused_while_the_first_runs(file: Path) -> None:
    refuse_a_second(file)
    written_by(os.getppid(), file)
    with pytest.raises(
        RunningAlready, match=f"process {os.getppid()} runs the demo of this folder"
    ):
        refuse_a_second(file)
    with running_settings_file({"Topic": "mine"}, file):
        pass
    assert "orders" in file.read_text(), "the first one's file is its own"
    written_by(gone(), file)
    refuse_a_second(file)
    with running_settings_file({"Topic": "mine"}, file):
        assert "mine" in file.read_text()


def test_a_local_settings_file_is_taken_from_the_dead_only(file: Path) -> None:
    for theirs in ('{"Values": {}}', "not JSON", "[1]"):
        file.write_text(theirs)
        with pytest.raises(SettingsInTheWay), local_settings_file({}, file):
            pass
        assert file.read_text() == theirs
    written_by(gone(), file)
    with local_settings_file({"Topic": "mine"}, file):
        assert "mine" in file.read_text()
    assert not file.exists()
