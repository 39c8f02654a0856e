"""Common mistakes of new users. Each error says what is wrong, where, and what to do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared import settings
from shared.autoscaling.deciding.validation import failing_policies
from shared.cli import command
from shared.cli.command import DONE, FAILED, WRONG, Answer
from shared.cli.main import main
from shared.ingestion.errors import HubUnavailable
from shared.settings import SettingsError
from shared.wiring.app import App
from tests.builders import resource

Validated = Callable[..., tuple[int, str]]


@pytest.fixture
def validated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Validated:
    """What ``validate`` answers and prints about the rules of a folder without settings."""
    environ = {"AzureWebJobsStorage": "UseDevelopmentStorage=true"}
    monkeypatch.setattr(os, "environ", environ)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "scaling_rules", None)
    monkeypatch.delitem(sys.modules, "scaling_rules")

    def validate(rules: str, *options: str) -> tuple[int, str]:
        (tmp_path / "scaling_rules.py").write_text(rules)
        code = main(["validate", *options])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return validate


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            "x = 1\ndef resources(settings:\n    return []\n",
            "scaling_rules.py, line 2: SyntaxError: '(' was never closed: def resources(settings:",
        ),
        (
            "import not_installed_here\n",
            "scaling_rules.py, line 1: ModuleNotFoundError: No module named 'not_installed_here'. "
            "Correct the name, or add the package to requirements/app.in and run `make lock`\n",
        ),
        (
            "def resource(settings): return []\n",
            "scaling_rules.py has no function resources(settings). Define one that returns a list",
        ),
        (
            "from shared.autoscaling import Resource, StablePanic\n",
            "scaling_rules.py, line 1: ImportError: StablePanic was removed. Use QueueAge(metric, "
            "until_known=ValuePerInstance(metric, target_per_instance)); if",
        ),
        (
            "from shared.autoscaling import *\nRULE = StablePanic('q', 50)\n",
            "line 2: NameError: name 'StablePanic' is not defined. StablePanic was removed. Use",
        ),
        (
            "from shared.autoscaling import ServiceBusQueu\n",
            "line 1: ImportError: There is no ServiceBusQueu. Did you mean ServiceBusQueue?",
        ),
        (
            "from shared.autoscaling import *\nRULE = Treshold('q', 50, 5)\n",
            "line 2: NameError: name 'Treshold' is not defined. There is no Treshold. Did you mean "
            "Threshold?",
        ),
        (
            "def fifty_each(seen): ...\ndef resources(settings): return [fifty_each()]\n",
            "positional argument: 'seen'. Pass a policy without parentheses: policy=fifty_each",
        ),
        ("raise SystemExit('key=c2VjcmV0')\n", "scaling_rules.py, line 1: SystemExit: key="),
    ],
)
def test_an_error_in_the_rules_names_the_line_and_the_remedy(
    rules: str, message: str, validated: Validated
) -> None:
    code, told = validated(rules)
    assert (code, message in told) == (WRONG, True)


@pytest.mark.parametrize(
    ("encoding", "place"),
    [("utf-16", "scaling_rules.py: "), ("cp1252", "scaling_rules.py, line 1")],
)
def test_rules_that_an_editor_of_windows_has_written_are_refused_with_the_remedy(
    encoding: str, place: str, validated: Validated, tmp_path: Path
) -> None:
    """Such as those of PowerShell's ``>``."""
    (tmp_path / "rules.py").write_bytes("NAME = 'Geschäft'\n".encode(encoding))
    code, told = validated("", "--rules", "rules.py")
    assert code == WRONG
    assert place.replace("scaling_", "") in told
    assert "Save the file as UTF-8" in told


def test_validate_names_the_line_of_each_name_that_was_replaced(validated: Validated) -> None:
    rules = """from shared.autoscaling import *
WORKERS = Throughput(60, dead_time_minutes=2)
NIGHT = Profile("night", 1, 2)
def resources(settings):
    late = Rule(NIGHT, weekdays=WORKDAYS)
    policy = Schedule([late], default=NIGHT)
    plan = AppServicePlan(ONE, "group", "plan")
    return [Resource("plan", plan, {"backlog": StorageQueue("jobs")}, policy, throughput=WORKERS)]
""".replace("ONE", repr("00000000-0000-0000-0000-000000000001"))
    code, told = validated(rules)
    assert code == DONE
    assert "scaling_rules.py, line 5: Rule was renamed: use ScheduleEntry" in told
    assert "scaling_rules.py, line 2: dead_time_minutes" in told


def test_validate_warns_of_a_policy_that_returns_something_else() -> None:
    answers: Any = lambda _: "scale out"  # noqa: E731
    (warning,) = failing_policies([resource(policy=answers), resource()])
    assert "'scale out' instead of a Recommendation whose capacity is a whole number" in warning
    assert warning.endswith("A policy must return Recommendation(capacity, reason)")


def test_a_missing_settings_file_is_named_when_settings_are_missing(validated: Validated) -> None:
    _, told = validated("def resources(settings): return []\n")
    assert "No settings file was read: there is no local.settings.json in this folder" in told


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "", "there is no such file. Copy local.settings.json.example, or name another"),
        ("a.json", '{"Topic": "orders"}', 'has no "Values". Write {"Values": {…}}'),
        (".local/a.json", "", "there is no such file. Start the demo with `make run`, or name"),
    ],
)
def test_a_wrong_settings_file_is_explained(
    name: str, content: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    if content:
        file.write_text(content)
    with pytest.raises(SettingsError) as raised:
        settings.add_file(file)
    (problem,) = raised.value.problems
    assert problem.startswith(f"{file}: {message}")


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (
            OSError("Cannot connect to host 127.0.0.1:10002 ssl:default [Connect call failed]"),
            ". Nothing listens there: start Azurite, or name the settings of a running demo "
            "(`make run` starts one)\n",
        ),
        (
            OSError("[Errno 111] Connect call failed ('127.0.0.1', 5671)"),
            ". Nothing listens there: start the service, or name the settings of a running demo "
            "(`make run` starts one)\n",
        ),
        (
            OSError("[Errno -2] Name or service not known."),
            "known. Check the spelling of the host in the settings, and the network\n",
        ),
        (
            OSError("This request is not authorized to perform this operation.\nTime: 12:00"),
            "operation. The login works but lacks a role: `az account show` names the account, and "
            "docs/security.md the roles\n",
        ),
        *[
            (
                HubUnavailable(text),
                ". If the network blocks port 5671, set AmqpTransport=amqpWebSockets, which needs "
                "port 443 only (docs/security.md)\n",
            )
            for text in (
                "[Errno 111] Connect call failed ('20.1.2.3', 5671)",
                "metrics/partitions, consumer group g: no answer within 30 s. Check that …",
                "partition 0: the hub sent neither a batch nor an error for 20 s: check that …",
                "OperationTimeoutError: Timed out waiting for the AMQP link to open.",
            )
        ],
        (
            HubUnavailable("407, message='Login required', url='http://proxy.example:8080'"),
            ". The proxy refuses: check the user and password in HTTPS_PROXY, and what it allows\n",
        ),
        (OSError("Cannot connect to host account.table.core.windows.net:443"), ":443\n"),
    ],
)
def test_an_error_without_a_remedy_gets_one(
    error: Exception, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(_app: App) -> Answer:
        raise error

    assert command.run_action(fail) == FAILED
    assert capsys.readouterr().err.endswith(advice)
