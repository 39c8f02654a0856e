"""The scripts and workflows that need Azure, Docker or Core Tools, as far as they go without.

`az` and the Python that sends messages are replaced by a program that answers like them and records
how it was called. Whether Azure accepts the calls is not tested by this.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCRIPTS = [ROOT / "infra/check.sh", ROOT / "infra/try.sh", ROOT / "tests/emulators/run.sh"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))

FAKE = """#!{python}
import json, pathlib, sys
here, arguments = pathlib.Path({folder!r}), sys.argv[1:]
with (here / "calls").open("a") as calls:
    calls.write(json.dumps([pathlib.Path(sys.argv[0]).name, *arguments]) + "\\n")
text = " ".join(arguments)
for file in [a.removeprefix("@") for a in arguments if a.endswith((".json", ".jsonl"))]:
    copied = pathlib.Path(file)
    (here / copied.name).write_bytes(copied.read_bytes())
if {failing!r} and {failing!r} in text:
    sys.exit("refused")
if "appservice plan create" in text:
    print("/subscriptions/s/resourceGroups/g/providers/Microsoft.Web/serverfarms/workers")
elif "appservice plan show" in text:
    looks = here / "looks"
    looks.write_text(looks.read_text() + "." if looks.exists() else ".")
    print(2 if 3 <= len(looks.read_text()) < 5 else 1)
elif "functionapp function list" in text:
    print(4)
elif "role definition list" in text:
    print("role-1")
elif "--query" in text:
    print("answer")
"""


def fake_tools(folder: Path, failing: str = "") -> dict[str, str]:
    for name in ("az", "python"):
        tool = folder / name
        tool.write_text(FAKE.format(python=sys.executable, folder=str(folder), failing=failing))
        tool.chmod(0o755)
    return os.environ | {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHON": str(folder / "python"),
        "POLL_SECONDS": "0",
        "LOOKS_MAX": "5",
    }


def tried(folder: Path, failing: str = "", **more: str) -> tuple[int, list[str]]:
    """The exit code of infra/try.sh, and the calls that it made."""
    done = subprocess.run(
        ["sh", str(ROOT / "infra/try.sh"), "westeurope"],
        env=fake_tools(folder, failing) | more,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    calls = (folder / "calls").read_text().splitlines()
    return done.returncode, [" ".join(json.loads(call)) for call in calls]


def position(calls: list[str], *parts: str) -> int:
    (place, *_) = [i for i, call in enumerate(calls) if all(part in call for part in parts)]
    return place


def test_a_try_deploys_sends_watches_both_directions_and_removes_the_group(tmp_path: Path) -> None:
    code, calls = tried(tmp_path)
    assert code == 0
    steps = [
        position(calls, "az group create", "westeurope"),
        position(calls, "az deployment group create", "infra/main.bicep"),
        position(calls, "python -m local.package"),
        position(calls, "config-zip", "--build-remote true"),
        position(calls, "functionapp function list"),
        position(calls, "role assignment create", "Azure Service Bus Data Sender"),
        position(calls, "send-messages", "--topic orders"),
        position(calls, "appservice plan show"),
        position(calls, "topic subscription delete"),
        position(calls, "role definition delete"),
        position(calls, "az group delete", "--yes"),
    ]
    assert steps == sorted(steps)
    assert len((tmp_path / "looks").read_text()) == 5, "1, 1, 2 until it scaled out; 2, 1 until in"
    messages = (tmp_path / "messages.jsonl").read_text().splitlines()
    assert len(messages) == 1000
    assert all(json.loads(line)["body"] for line in messages)


def test_the_parameters_of_a_try_fit_the_template(tmp_path: Path) -> None:
    tried(tmp_path)
    given = json.loads((tmp_path / "parameters.json").read_text())["parameters"]
    template = (ROOT / "infra/main.bicep").read_text()
    assert set(given) <= set(re.findall(r"^param (\w+)", template, re.MULTILINE))
    example = json.loads((ROOT / "local.settings.json.example").read_text())["Values"]
    assert set(given["settings"]["value"]) <= set(example)
    assert given["settings"]["value"]["DryRun"] == "false"
    assert given["planIds"]["value"][0].endswith("/serverfarms/workers")


@pytest.mark.parametrize(
    "failing", ["appservice plan create", "deployment group create", "send-messages"]
)
def test_the_group_of_a_failed_try_is_removed(failing: str, tmp_path: Path) -> None:
    code, calls = tried(tmp_path, failing)
    assert code != 0
    assert calls[-1].startswith("az group delete")


def test_a_plan_that_never_scales_fails_the_try(tmp_path: Path) -> None:
    code, calls = tried(tmp_path, LOOKS_MAX="2")
    assert code != 0
    assert not any("subscription delete" in call for call in calls)
    assert calls[-1].startswith("az group delete")


def test_the_group_can_be_kept(tmp_path: Path) -> None:
    code, calls = tried(tmp_path, KEEP="1")
    assert code == 0
    assert not any("group delete" in call for call in calls)


COMPILER = """#!{python}
import pathlib, sys
arguments = [each for each in sys.argv[1:] if each not in ("bicep", "--file")]
if arguments[0] == "format":
    text = pathlib.Path(arguments[1]).read_text()
    sys.stdout.write(text.replace("param", "param ") if {fault!r} == "format" else text)
elif arguments[0] == "build":
    sys.stderr.write("WARNING: A remark of the Azure CLI, not of the compiler.\\n")
    if {fault!r} == "warning":
        sys.stderr.write("main.bicep(1,2) : Warning BCP037: The property is not allowed.\\n")
    sys.exit({fault!r} == "error")
"""


def checked(folder: Path, name: str, fault: str) -> subprocess.CompletedProcess[str]:
    """Run infra/check.sh with no other compiler on the PATH than `name`."""
    for tool in ("dirname", "cmp", "grep"):
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    if name:
        compiler = folder / name
        compiler.write_text(COMPILER.format(python=sys.executable, fault=fault))
        compiler.chmod(0o755)
    sh = shutil.which("sh")
    assert sh is not None
    return subprocess.run(
        [sh, str(ROOT / "infra/check.sh")],
        env={"PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("name", ["bicep", "az"])
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("", ""),
        ("warning", "BCP037"),
        ("error", "remark of the Azure CLI"),
        ("format", "main.bicep is not formatted"),
    ],
    ids=["clean", "warning", "error", "format"],
)
def test_a_warning_an_error_or_a_wrong_format_fails_the_check_of_templates(
    name: str, fault: str, said: str, tmp_path: Path
) -> None:
    done = checked(tmp_path, name, fault)
    assert (done.returncode == 0) == (not fault), done.stderr
    assert said in done.stderr


def test_without_a_compiler_the_check_says_how_to_install_one(tmp_path: Path) -> None:
    done = checked(tmp_path, "", "")
    assert done.returncode == 1
    assert "az bicep install" in done.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.parent.name + "-" + path.stem)
def test_a_script_is_valid_executable_and_stops_at_the_first_error(script: Path) -> None:
    subprocess.run(["sh", "-n", str(script)], check=True)
    assert os.access(script, os.X_OK)
    assert "set -eu" in script.read_text()


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.parent.name + "-" + path.stem)
def test_shellcheck_has_no_remark(script: Path) -> None:
    done = subprocess.run(
        ["shellcheck", str(script)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == ""


def steps_of(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_only_targets_and_scripts_that_exist(workflow: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = [step["run"] for step in steps_of(workflow) if "run" in step]
    for command in commands:
        if command.startswith("make "):
            assert command.split()[1] in targets, command
        if command.startswith("infra/"):
            assert (ROOT / command.split()[0]).is_file(), command
    assert any(command.startswith(("make ", "infra/")) for command in commands)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_pins_actions_and_limits_rights_and_time(workflow: Path) -> None:
    document = yaml.safe_load(workflow.read_text())
    for step in steps_of(workflow):
        assert "run" in step or re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"])
    assert document["permissions"]["contents"] == "read"
    assert all(job["timeout-minutes"] <= 120 for job in document["jobs"].values())


def test_a_deployment_is_started_by_hand_only() -> None:
    document = yaml.safe_load((ROOT / ".github/workflows/deployment.yml").read_text())
    assert set(document[True]) == {"workflow_dispatch"}  # YAML reads the key `on` as true


def test_every_check_that_cannot_run_everywhere_has_a_workflow_which_contributing_explains() -> (
    None
):
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    commands = [step.get("run", "") for path in WORKFLOWS for step in steps_of(path)]
    for needed in ("make test", "make infra", "make emulators", "make core-tools", "infra/try.sh"):
        assert any(command.startswith(needed) for command in commands), needed
        assert needed in page
    for workflow in WORKFLOWS:
        for job in yaml.safe_load(workflow.read_text())["jobs"]:
            assert f"`{job}`" in page, job
