"""What the command lines have in common: exit codes, and one line for what went wrong."""

from __future__ import annotations

import argparse
import getpass
from pathlib import Path
from typing import Any

import pytest

from shared import command_line
from shared.autoscaling import __main__ as autoscaling
from shared.command_line import DONE, FAILED, WRONG, Misused
from shared.settings import SettingsError


def run(answer: Any, json: bool = True) -> int:
    async def act(_options: argparse.Namespace) -> Any:
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


def test_who_has_no_name_on_this_machine_may_still_look(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def nameless() -> str:
        raise OSError("no username set in the environment")

    monkeypatch.setattr(getpass, "getuser", nameless)
    nowhere = str(tmp_path / "none.json")
    assert autoscaling.main(["--settings", nowhere, "status"]) == WRONG
