"""What the command lines have in common: exit codes, and one line for what went wrong."""

from __future__ import annotations

import argparse
import getpass
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shared.cli import command_line, main
from shared.cli.command_line import DONE, FAILED, INTERRUPTED, WRONG, Misused
from shared.settings import SettingsError
from shared.wiring.app import App


def run(answer: Any, json: bool = True) -> int:
    async def act(_app: App, _options: argparse.Namespace) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    options = argparse.Namespace(settings=None, json=json, run=act)
    return command_line.run(options, print)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (None, DONE),
        ([], DONE),
        ({"ok": True}, DONE),
        ({"ok": False}, FAILED),
        ({"failed": []}, DONE),
        ({"failed": [1]}, FAILED),
    ],
)
def test_the_exit_code_tells_what_the_answer_does(answer: Any, code: int) -> None:
    assert run(answer) == code
    assert run(answer, json=False) == code


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (TimeoutError(), FAILED, "error: TimeoutError: \n"),
        (OSError("gone\nand more"), FAILED, "error: OSError: gone\n"),
        (Misused("say --all"), WRONG, "say --all\n"),
        (SettingsError(["a: bad", "b: bad"]), WRONG, "a: bad"),
    ],
)
def test_what_went_wrong_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], error: Exception, code: int, said: str
) -> None:
    assert run(error) == code
    assert said in capsys.readouterr().err


def test_ctrl_c_is_no_error_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    async def interrupted(_app: App, _options: argparse.Namespace) -> Any:
        raise KeyboardInterrupt

    options = argparse.Namespace(json=True, run=interrupted)
    assert command_line.run(options, print) == INTERRUPTED == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(
    ("program", "imported"),
    [
        ("shared", "shared.values.names"),
        ("local", "local.azurite"),
        ("backtest", "numpy"),
    ],
)
def test_ctrl_c_while_a_command_line_is_still_being_imported_leaves_no_trace(
    program: str, imported: str
) -> None:
    command = [sys.executable, "-X", "importtime", "-m", program, "status"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as starting:
        assert starting.stderr is not None
        for line in starting.stderr:
            if line.endswith(f" {imported}\n"):
                break
        starting.send_signal(signal.SIGINT)
        said = starting.stderr.read()
    assert starting.returncode == -signal.SIGINT
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "words",
    [
        ["--settings", "a.json", "override", "set", "--reason", "x"],
        ["override", "set", "--reason", "x", "--settings", "a.json"],
        ["override", "--settings", "a.json", "set", "--reason", "x"],
        ["--settings", "b.json", "override", "set", "--reason", "x", "--settings", "a.json"],
    ],
)
def test_settings_may_stand_before_a_command_or_after_it(words: list[str]) -> None:
    assert main.options_of(words).settings == Path("a.json")
    assert not hasattr(main.options_of(["status"]), "settings")


def test_who_has_no_name_on_this_machine_may_still_look(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def nameless() -> str:
        raise OSError("no username set in the environment")

    monkeypatch.setattr(getpass, "getuser", nameless)
    nowhere = str(tmp_path / "none.json")
    assert main.main(["--settings", nowhere, "status"]) == WRONG
