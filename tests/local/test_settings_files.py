"""The settings files of a demo, and what happens to them after it is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from local.demo.settings_files import (
    AlreadyRunning,
    SettingsFileExists,
    local_settings_file,
    refuse_second_demo,
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
    """The id of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    return ended.pid


def test_settings_of_a_process_that_has_ended_are_refused_with_an_explanation(
    file: Path,
) -> None:
    process = gone()
    written_by(process, file)
    ended = f"process {process}, to which its settings lead, has ended"
    with pytest.raises(SettingsError, match=ended):
        settings.add_file(file)
    assert "Topic" not in os.environ


def test_settings_of_a_running_demo_are_used(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    with running_settings_file({"Topic": "orders"}, file):
        settings.add_file(file)
    assert settings.load().environ["Topic"] == "orders"
    assert not file.exists()


def test_a_second_demo_is_refused_while_the_first_runs(file: Path) -> None:
    refuse_second_demo(file)
    written_by(os.getppid(), file)
    with pytest.raises(
        AlreadyRunning, match=f"Process {os.getppid()} already runs a demo in this folder"
    ):
        refuse_second_demo(file)
    with running_settings_file({"Topic": "mine"}, file):
        pass
    assert "orders" in file.read_text(), "the file of the first demo is kept"
    written_by(gone(), file)
    refuse_second_demo(file)
    with running_settings_file({"Topic": "mine"}, file):
        assert "mine" in file.read_text()


def test_a_local_settings_file_is_replaced_only_if_its_demo_has_ended(file: Path) -> None:
    for theirs in ('{"Values": {}}', "not JSON", "[1]"):
        file.write_text(theirs)
        with pytest.raises(SettingsFileExists), local_settings_file({}, file):
            pass
        assert file.read_text() == theirs
    written_by(gone(), file)
    with local_settings_file({"Topic": "mine"}, file):
        assert "mine" in file.read_text()
    assert not file.exists()
