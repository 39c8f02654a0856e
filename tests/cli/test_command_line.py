"""The common behavior of the command lines: exit codes, one-line errors, help, and settings."""

from __future__ import annotations

import getpass
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.text import Text

from shared import settings
from shared.autoscaling.errors import ReadFailed, UnknownResource
from shared.cli import command
from shared.cli.command import DONE, FAILED, INTERRUPTED, WRONG, Answer, Misused
from shared.cli.main import app, main
from shared.settings import SettingsError
from shared.values.text import last_such_time
from shared.wiring.app import App
from tests.builders import NOW


def run(answer: Any, json: bool = True) -> int:
    async def act(_app: App) -> Answer:
        if isinstance(answer, BaseException):
            raise answer
        return answer, print

    return command.run_action(act, as_json=json)


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
def test_the_exit_code_is_failed_if_the_result_reports_a_failure(answer: Any, code: int) -> None:
    assert run(answer) == code
    assert run(answer, json=False) == code


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (TimeoutError(), FAILED, "error: TimeoutError:\n"),
        (OSError("gone\nand more"), FAILED, "error: OSError: gone\n"),
        (ReadFailed("shop: no answer"), FAILED, "error: shop: no answer\n"),
        (UnknownResource("shop is not declared"), WRONG, "error: shop is not declared\n"),
        (Misused("say --all"), WRONG, "say --all\n"),
        (SettingsError(["a: bad", "b: bad"]), WRONG, "a: bad"),
    ],
)
def test_an_error_is_printed_as_one_line(
    capsys: pytest.CaptureFixture[str], error: Exception, code: int, message: str
) -> None:
    assert run(error) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("11:58", "2026-03-01T11:58:00Z"),
        ("12:00:01", "2026-02-28T12:00:01Z"),
        ("13:30+02:00", "2026-03-01T11:30:00Z"),
        ("14:30+02:00", "2026-02-28T12:30:00Z"),
        ("00:30-12:00", "2026-02-28T12:30:00Z"),
        ("00:30+14:00", "2026-03-01T10:30:00Z"),
        ("11:58z", "2026-03-01T11:58:00Z"),
        ("2026-02-20", "2026-02-20T00:00:00Z"),
        ("2026-02-20T08:00+02:00", "2026-02-20T06:00:00Z"),
    ],
)
def test_a_time_without_a_date_is_the_last_such_time(text: str, found: str) -> None:
    assert last_such_time(text, NOW) == datetime.fromisoformat(found)


@pytest.mark.parametrize("text", ["noon", "25:00", "2026-13-01"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a time such as 14:03"):
        last_such_time(text, NOW)


def test_ctrl_c_has_an_exit_code_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(KeyboardInterrupt()) == INTERRUPTED == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(
    ("program", "imported"),
    [
        ("shared", "shared.values.text"),
        ("local", "local.azurite"),
    ],
)
def test_ctrl_c_during_the_imports_prints_no_traceback(program: str, imported: str) -> None:
    command = [sys.executable, "-X", "importtime", "-m", program, "status"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as starting:
        assert starting.stderr is not None
        for line in starting.stderr:
            if line.endswith(f" {imported}\n"):
                break
        starting.send_signal(signal.SIGINT)
        rest = starting.stderr.read()
    assert starting.returncode == -signal.SIGINT
    assert "Traceback" not in rest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing command"),
        (["pause"], "Missing option '--reason'"),
        (["override", "set", "--reason", "x", "--mode", "off"], "'active', 'dry_run', 'paused'"),
        (["run", "--json"], "No such option: --json"),
        (
            ["dead-letters", "purge", "--older-than", "3"],
            "'--older-than': '3': must be a duration such as 90m, 2h",
        ),
        (["dead-letters", "show", "0", "x"], "'SEQUENCE'"),
        (["dead-letters", "list", "--after", "-1"], "must be at least 0"),
        (["decisions", "--limit", "1_0"], "'1_0' is not a whole number"),
        (["send-reading", "shop", "load", "1_0"], "'1_0' is not a number"),
        (
            ["replay", "0", "--into", "a", "--from-time", "noon"],
            "must be a time such as 14:03 or 2026-03-01T12",
        ),
        (
            ["replay", "0", "--into", "a", "--from-time", "2026-03-01", "--from-sequence", "4"],
            "either --from-sequence or --from-time",
        ),
        (
            ["replay", "0", "--into", "a", "--from-sequence", "5", "--to-sequence", "1"],
            "--to-sequence 1 is before --from-sequence 5",
        ),
        (["dead-letters", "show", "hub/0", "1"], "PARTITION or HUB/GROUP/PARTITION"),
        (["send-messages", "f", "--queue", "a", "--topic", "b"], "either --queue or --topic"),
        (["send-messages", "f", "--queue", "a", "--order", "x"], "'kept', 'per-key', 'free'"),
    ],
)
def test_a_wrong_command_line_is_reported_in_one_line(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == WRONG
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_the_value_of_a_reading_may_be_negative(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["send-reading", "shop", "load", "-5", "--settings", "nowhere.json"]) == WRONG
    assert "nowhere.json" in capsys.readouterr().err, "the arguments were accepted"


def all_commands(group: typer.Typer, *before: str) -> Iterator[tuple[str, ...]]:
    """The names that select each command and each group of commands."""
    yield before
    for each in group.registered_groups:
        assert each.typer_instance is not None
        yield from all_commands(each.typer_instance, *before, *([each.name] if each.name else []))
    for command_info in group.registered_commands:
        yield (*before, str(command_info.name))


@pytest.mark.parametrize("names", sorted(set(all_commands(app))))
def test_help_fits_into_80_columns_when_written_to_a_file(
    names: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*names, "--help"]) == DONE
    text = Text.from_ansi(capsys.readouterr().out).plain
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text, "a text was truncated"
    assert "--settings" in text
    assert "completion" not in text
    assert ("--json" in text) == (names not in {(), ("run",), ("override",), ("dead-letters",)})


@pytest.mark.parametrize(
    "arguments",
    [
        ["--settings", "a.json", "override", "set", "--reason", "x"],
        ["override", "set", "--reason", "x", "--settings", "a.json"],
        ["override", "--settings", "a.json", "set", "--reason", "x"],
        ["--settings", "b.json", "override", "set", "--reason", "x", "--settings", "a.json"],
    ],
)
def test_settings_may_precede_or_follow_the_command_and_the_last_one_is_used(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def add_file(path: Path) -> None:
        read.append(path)
        raise SettingsError([f"{path}: stop here"])

    read: list[Path] = []
    monkeypatch.setattr(settings, "add_file", add_file)
    monkeypatch.chdir(tmp_path)  # no local.settings.json here
    assert main(arguments) == WRONG
    assert read == [Path("a.json")]
    main(["status"])
    assert len(read) == 1


def test_a_user_without_a_user_name_can_run_commands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def nameless() -> str:
        raise OSError("no username set in the environment")

    monkeypatch.setattr(getpass, "getuser", nameless)
    nowhere = str(tmp_path / "none.json")
    assert main(["--settings", nowhere, "status"]) == WRONG
