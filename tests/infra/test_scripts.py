"""The scripts and workflows that need Azure, Docker or Core Tools, as far as they go without.

`az` and the Python of the proof are replaced by a program (azure_cli.py) that answers like
them and records how it was called. Whether Azure accepts the calls is not tested by this.
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
from azure.eventhub._constants import JWT_TOKEN_SCOPE as EVENT_HUBS_SCOPE
from azure.servicebus._common.constants import JWT_TOKEN_SCOPE

from local.prove import places
from local.prove.places import InAzure
from tests.builders import NOW
from tests.infra import azure_cli

ROOT = Path(__file__).parents[2]
SCRIPTS = [ROOT / "infra/check.sh", ROOT / "infra/prove.sh", ROOT / "tests/emulators/run.sh"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def stand_ins(folder: Path, **state: Any) -> dict[str, str]:
    """Put the stand-in for az, python and sleep into the folder. Returns the environment for it."""
    source = Path(azure_cli.__file__).read_text()
    for name in ("az", "python", "sleep"):
        tool = folder / name
        tool.write_text(f"#!{sys.executable} -IS\n{source}")
        tool.chmod(0o755)
    (folder / "state.json").write_text(json.dumps(azure_cli.NEW | state))
    return os.environ | {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHON": str(folder / "python"),
        "LOOKS_MAX": "5",
    }


def state_of(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((folder / "state.json").read_text())
    return state


def calls_of(folder: Path) -> list[str]:
    return [" ".join(json.loads(call)) for call in (folder / "calls").read_text().splitlines()]


def proved(folder: Path, *arguments: str, more: Any = (), **state: Any) -> tuple[int, list[str]]:
    """The exit code of infra/prove.sh, which a user runs, and the calls that it made."""
    done = subprocess.run(
        ["sh", str(ROOT / "infra/prove.sh"), *(arguments or ("westeurope",))],
        env=stand_ins(folder, user=True, **state) | dict(more),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        start_new_session=True,
    )
    (folder / "output").write_text(done.stdout + done.stderr)
    return done.returncode, calls_of(folder) if (folder / "calls").exists() else []


def position(calls: list[str], *parts: str) -> int:
    (place, *_) = [i for i, call in enumerate(calls) if all(part in call for part in parts)]
    return place


def nothing_is_left(folder: Path) -> bool:
    state = state_of(folder)
    return not any(state[kind] for kind in ("groups", "resources", "assignments", "roles"))


def test_a_proof_deploys_loads_reports_and_removes_its_group(tmp_path: Path) -> None:
    code, calls = proved(tmp_path, "--anonymous", "westeurope")
    assert code == 0, (tmp_path / "output").read_text()
    steps = [
        position(calls, "python -m local.prove --what-if"),
        position(calls, "az group create", "westeurope", "--tags proof="),
        position(calls, "az deployment group create", "infra/main.bicep"),
        position(calls, "python -m local.package"),
        position(calls, "config-zip", "--build-remote true"),
        position(calls, "functionapp function list"),
        position(calls, "role assignment create", "Azure Service Bus Data Sender"),
        position(calls, "role assignment create", "Azure Event Hubs Data Sender"),
        position(calls, "python -m local.prove", "--plan", "--settings", "--anonymous"),
        position(calls, "role definition delete"),
        position(calls, "az group delete", "--yes"),
        position(calls, "az group wait", "--deleted"),
    ]
    assert steps == sorted(steps)
    assert nothing_is_left(tmp_path)
    values = json.loads((tmp_path / "settings.json").read_text())["Values"]
    assert values["EventHubConnection__fullyQualifiedNamespace"] == "new.servicebus.windows.net"
    assert values["Topic"] == "orders"


def test_the_parameters_of_a_proof_fit_the_template(tmp_path: Path) -> None:
    proved(tmp_path)
    given = json.loads((tmp_path / "parameters.json").read_text())["parameters"]
    template = (ROOT / "infra/main.bicep").read_text()
    assert set(given) <= set(re.findall(r"^param (\w+)", template, re.MULTILINE))
    example = json.loads((ROOT / "local.settings.json.example").read_text())["Values"]
    assert set(given["settings"]["value"]) <= set(example)
    assert given["settings"]["value"]["DryRun"] == "false"
    assert 2 <= len(given["name"]["value"]) <= 12
    assert re.fullmatch(
        r"/subscriptions/[\w-]+/resourceGroups/autoscaler-prove-\w+/providers/Microsoft.Web/serverfarms/workers",
        given["planIds"]["value"][0],
    )


LOADING = "local.prove --minutes 120 --plan"


@pytest.mark.parametrize(
    "refused", ["appservice plan create", "deployment group create", "config-zip", LOADING]
)
def test_whatever_fails_in_a_proof_its_group_roles_and_assignments_are_removed(
    refused: str, tmp_path: Path
) -> None:
    code, _ = proved(tmp_path, refused=refused)
    assert code != 0
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize("command", ["deployment group create", LOADING])
def test_a_proof_that_is_interrupted_removes_what_it_made(command: str, tmp_path: Path) -> None:
    code, _ = proved(tmp_path, interrupted=command)
    assert code == 130
    assert nothing_is_left(tmp_path)


GIVEN = "/subscriptions/subscription-id/resourceGroups/ours"
THEIRS = {
    "groups": {"ours": ""},
    "roles": {"theirs": "Somebody's role"},
    "assignments": {"theirs": [GIVEN, "built-in"]},
}


@pytest.mark.parametrize("fault", [{}, {"interrupted": LOADING}, {"refused": "config-zip"}])
def test_a_given_group_is_kept_and_only_what_the_proof_made_in_it_is_removed(
    fault: dict[str, str], tmp_path: Path
) -> None:
    busy = [f"{GIVEN}/providers/Microsoft.Web/serverfarms/workers"]
    given = {"GROUP": "ours"}
    code, calls = proved(tmp_path, more=given, extra=True, busy=busy, **THEIRS, **fault)
    assert (code == 0) == (not fault)
    assert not any(call.startswith("az group delete") for call in calls)
    state = state_of(tmp_path)
    assert {kind: state[kind] for kind in THEIRS} == THEIRS
    assert list(state["resources"]) == [f"{GIVEN}/untagged"]
    assert "resources that this run did not make" in (tmp_path / "output").read_text()


def test_a_given_group_that_is_not_empty_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    resources = {f"{GIVEN}/providers/Microsoft.Web/sites/shop": ""}
    code, calls = proved(tmp_path, more={"GROUP": "ours"}, resources=resources, **THEIRS)
    assert code != 0
    assert "is not empty" in (tmp_path / "output").read_text()
    state = state_of(tmp_path)
    assert {kind: state[kind] for kind in THEIRS} == THEIRS
    assert state["resources"] == resources
    assert not any(" create " in call or " delete " in call for call in calls)


def test_a_group_of_the_same_name_that_the_run_did_not_make_is_kept(tmp_path: Path) -> None:
    groups = {"autoscaler-prove-7": "8"}
    for step in ("deploy", "remove"):
        arguments = (step, *(["westeurope"] if step == "deploy" else []))
        code, _ = proved(tmp_path, *arguments, more={"RUN": "7"}, groups=groups)
        assert code != 0
        assert state_of(tmp_path)["groups"] == groups


def test_everything_can_be_kept(tmp_path: Path) -> None:
    code, calls = proved(tmp_path, more={"KEEP": "1"})
    assert code == 0
    assert not any(" delete " in call for call in calls)


@pytest.mark.parametrize(
    "arguments",
    [[""], ["deploy"], ["load"], ["remove"], ["westeurope", "more"], ["--what", "westeurope"]],
    ids=str,
)
def test_a_wrong_call_changes_nothing(arguments: list[str], tmp_path: Path) -> None:
    code, calls = proved(tmp_path, *arguments)
    assert (code != 0, calls) == (True, [])
    output = (tmp_path / "output").read_text()
    assert "REGION" in output or "RUN" in output


def test_what_if_prints_what_a_proof_uses_and_may_do_and_asks_azure_nothing(tmp_path: Path) -> None:
    code, calls = proved(tmp_path, "--what-if", "westeurope", more={"MINUTES": "30"})
    output = (tmp_path / "output").read_text()
    assert code == 0
    assert [call for call in calls if call.startswith("az ")] == []
    assert "for 30 minutes" in output
    template = (ROOT / "infra/modules/monitoring.bicep").read_text()
    alerts = len(re.findall(r"^    name: '", template, re.MULTILINE))
    for used in ("App Service plan S1", "Event Hubs namespace", "assign roles", f"{alerts} alert"):
        assert used in output, used


def test_the_tokens_of_a_load_are_those_that_the_client_libraries_ask_for() -> None:
    """The Azure CLI keeps a token for each resource, as it was written."""
    assert JWT_TOKEN_SCOPE.removesuffix("/.default") == azure_cli.SERVICES[0]
    assert EVENT_HUBS_SCOPE.removesuffix("/.default") == azure_cli.SERVICES[1]
    script = (ROOT / "infra/prove.sh").read_text()
    assert all(each.removeprefix("https://").rstrip("/") in script for each in azure_cli.SERVICES)


PLAN = f"{GIVEN}/providers/Microsoft.Web/serverfarms/workers"
WRITE = "Microsoft.Web/serverfarms/write"


async def test_the_role_of_the_app_is_taken_and_given_back_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"own": [PLAN, "role-1"], "monitoring": [PLAN, "built-in"]}
    env = stand_ins(tmp_path, user=True, roles={"role-1": "x"}, assignments=given)
    monkeypatch.setenv("PATH", env["PATH"])
    place = InAzure(1, PLAN, "app")
    await place.remove_role()
    assert state_of(tmp_path)["assignments"] == {"monitoring": given["monitoring"]}
    await place.return_role()
    await place.return_role()
    assert list(state_of(tmp_path)["assignments"].values()) == [
        given["monitoring"],
        [PLAN, "/x/role-1"],
    ]
    created = calls_of(tmp_path)[-1]
    assert "--assignee-object-id app --assignee-principal-type ServicePrincipal" in created


async def test_only_changes_that_were_accepted_from_the_app_count_as_its_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def event(number: int, status: str, caller: str = "app", operation: str = WRITE) -> Any:
        named = {"operationName": {"value": operation}, "status": {"value": status}}
        time = "2026-03-02T08:00:00.1234567Z"
        return {**named, "correlationId": f"{number}", "eventTimestamp": time,
                "claims": {"objectidentifier": caller}}  # fmt: skip

    events = [event(1, "Started"), event(1, "Accepted"), event(1, "Succeeded"), event(2, "Failed"),
              event(3, "Succeeded", "user"), event(4, "Succeeded", operation="other"),
              event(5, "Succeeded")]  # fmt: skip
    answers = {"monitor activity-log list": json.dumps(events)}
    role: Any = {"roles": {"role-1": "x"}, "assignments": {"own": [PLAN, "role-1"]}}
    env = stand_ins(tmp_path, user=True, answers=answers, **role)
    monkeypatch.setenv("PATH", env["PATH"])
    monkeypatch.setattr(places, "ALERT_SECONDS", 0)
    assert len(await InAzure(1, PLAN, "app").puts(NOW)) == 2


SLOW = {
    "deployment group create": 20 * 60,
    "config-zip": 12 * 60,
    "local.prove --minutes 20 --plan": 38 * 60,
    "group delete": 60,
}
"""By a part of a command, seconds: a deployment that lasts for more than an hour."""


def as_on_a_runner(folder: Path, **state: Any) -> list[str]:
    """Take the steps of deployment.yml that concern Azure, as a runner does.

    Returns the steps that failed. A step without `if: always()` is left out after one that failed.
    """
    environment = stand_ins(folder, seconds=SLOW, **state)
    (job,) = yaml.safe_load((ROOT / ".github/workflows/deployment.yml").read_text())[
        "jobs"
    ].values()
    values = {"github.run_id": "7", "github.run_attempt": "1", "inputs.location": "westeurope"}

    def expanded(variables: dict[str, str]) -> dict[str, str]:
        pattern = re.compile(r"\$\{\{ ([\w.]+) \}\}")
        return {k: pattern.sub(lambda found: values[found[1]], v) for k, v in variables.items()}

    environment |= expanded(job.get("env", {}))
    failed: list[str] = []
    for step in job["steps"]:
        named = step.get("uses", "") or step["run"]
        if named.startswith("azure/login@"):
            clear = "az account clear && " if environment.get("AZURE_LOGIN_PRE_CLEANUP") else ""
            command = f"{clear}az login"
        elif named.startswith("infra/"):
            command = named
        else:
            continue
        if failed and step.get("if") != "always()":
            continue
        begin = state_of(folder)["now"]
        done = subprocess.run(
            ["bash", "-e", "-c", command],
            cwd=ROOT,
            env=environment | expanded(step.get("env", {})),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            start_new_session=True,
        )
        late = state_of(folder)["now"] - begin > step.get("timeout-minutes", 360) * 60
        if done.returncode or late:
            failed.append(f"{named}: {'too late' if late else done.stderr}")
    return failed


def test_the_workflow_passes_with_logins_that_last_ten_minutes_and_tokens_that_last_an_hour(
    tmp_path: Path,
) -> None:
    assert as_on_a_runner(tmp_path) == []
    state = state_of(tmp_path)
    assert state["now"] > azure_cli.TOKEN_SECONDS
    assert nothing_is_left(tmp_path)
    calls = calls_of(tmp_path)
    created = calls[position(calls, "role assignment create")]
    assert f"--assignee-object-id {azure_cli.OBJECT_ID}" in created
    assert "--assignee-principal-type ServicePrincipal" in created
    assert not any(call.startswith("az ad ") for call in calls)


@pytest.mark.parametrize(
    ("how", "command"),
    [
        ("killed", "appservice plan create"),
        ("killed", "deployment group create"),
        ("refused", "config-zip"),
        ("refused", "local.prove --minutes 20 --plan"),
        ("killed", "local.prove --minutes 20 --plan"),
    ],
)
def test_the_workflow_leaves_nothing_behind_after_an_error_or_a_cancellation(
    how: str, command: str, tmp_path: Path
) -> None:
    (failed,) = as_on_a_runner(tmp_path, **{how: command})
    assert failed.startswith("infra/prove.sh")
    assert nothing_is_left(tmp_path)
    assert calls_of(tmp_path)[-1].startswith("az group wait")


def test_the_job_of_the_deployment_has_more_time_than_its_steps_together() -> None:
    (job,) = yaml.safe_load((ROOT / ".github/workflows/deployment.yml").read_text())[
        "jobs"
    ].values()
    limits = [
        s["timeout-minutes"] for s in job["steps"] if not s.get("uses", "").startswith("actions/")
    ]
    assert sum(limits) < job["timeout-minutes"], "else the last step, which removes, is cut off"


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
@pytest.mark.parametrize(
    "script",
    [*SCRIPTS, ROOT / "local/setup.sh", ROOT / ".ci/run"],
    ids=lambda path: path.parent.name + "-" + path.stem,
)
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


NEEDED = {
    "setup": ("actions/setup-python@", "actions/setup-node@"),
    "test": ("make setup", "actions/setup-java@"),
    "mutants": ("make setup", "actions/setup-java@"),
    "emulators": ("make setup",),
    "core-tools": ("make setup", "npm install --global azure-functions-core-tools@4"),
    "infra": ("az bicep install --version ",),
    "release": ("make setup", "az bicep install --version ", "make test"),
}
"""By target: the steps that its job has before it."""


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_job_sets_up_what_its_targets_need(workflow: Path) -> None:
    for job in yaml.safe_load(workflow.read_text())["jobs"].values():
        before: list[str] = []
        for step in job["steps"]:
            command = step.get("uses", "") or step["run"]
            if command.startswith("make "):
                for needed in NEEDED[command.removeprefix("make ")]:
                    assert any(each.startswith(needed) for each in before), (command, needed)
            if command == "make setup":  # else it takes the newest Python of the runner
                assert step["env"] == {"PYTHON": "python3"}
            before.append(command)


FIRST_ON_NODE_24 = {
    "actions/checkout": 5,
    "actions/setup-python": 6,
    "actions/setup-node": 5,
    "actions/setup-java": 5,
    "actions/upload-artifact": 6,
    "actions/download-artifact": 7,
    "azure/login": 3,
}
"""By action: its first version that does not need Node.js 20, which runners no longer have."""

PINNED = re.compile(r"(?:- )?uses: ([\w/-]+)@([0-9a-f]{40}) # v(\d+)\.\d+\.\d+")


def test_workflows_pin_each_action_and_tool_to_one_version() -> None:
    lines = [line.strip() for each in WORKFLOWS for line in each.read_text().splitlines()]
    uses = [(line, PINNED.fullmatch(line)) for line in lines if "uses:" in line]
    assert [line for line, pin in uses if pin is None] == [], "a tag can be moved"
    pins = {pin.groups() for _, pin in uses if pin}
    assert len(pins) == len({name for name, *_ in pins})
    assert all(int(version) >= FIRST_ON_NODE_24[name] for name, _, version in pins)
    steps = [step for workflow in WORKFLOWS for step in steps_of(workflow) if "uses" in step]
    node = {step["with"]["node-version"] for step in steps if "setup-node" in step["uses"]}
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())["features"]
    assert node == {container["ghcr.io/devcontainers/features/node:1"]["version"]}
    assert all(int(version) >= 22 for version in node), "Core Tools need it"


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_limits_rights_and_time(workflow: Path) -> None:
    document = yaml.safe_load(workflow.read_text())
    assert document["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 120 for job in document["jobs"].values())
    for job in document["jobs"].values():
        steps = " ".join(step.get("uses", "") + step.get("run", "") for step in job["steps"])
        rights = job.get("permissions", {})
        assert ("id-token" in rights) == ("azure/login@" in steps)
        assert (rights.get("contents") == "write") == ("gh release create" in steps)
        for step in job["steps"]:
            checks_out = step.get("uses", "").startswith("actions/checkout@")
            assert not checks_out or step["with"]["persist-credentials"] is False


TOOLS_OF_A_RELEASE = {
    "bin/uv": 'for last; do :; done; echo wheel > "$last/app-0.1.0.whl"',
    "bin/python": 'shift 2; echo "$1" > "$1"',
    "bicep": 'case $1 in build) echo "{}";; format) cat "$2";; esac',
    "gh": 'printf "%s\\n" "$@" > asked',
}


@pytest.mark.parametrize(
    ("tag", "said"),
    [
        ("v0.1.0", ""),
        ("v9.9.9", "VERSION=v9.9.9 is not the version in pyproject.toml"),
        ("v0.1", "VERSION=v0.1 is not the version in pyproject.toml"),
    ],
)
def test_a_release_publishes_what_make_release_writes(tag: str, said: str, tmp_path: Path) -> None:
    """Take the steps of release.yml as a runner does, with stand-ins for the programs."""
    shutil.copytree(ROOT / "infra", tmp_path / "infra")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("## Unreleased\nnew\n## 0.1.0 (2026)\n- old\n## 0.0.9\n")
    (tmp_path / "bin").mkdir()
    for name, text in TOOLS_OF_A_RELEASE.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "VERSION": tag, "TAG": tag}
    make = ["make", "-o", ".venv/.ready", "release", "BIN=bin"]
    made = subprocess.run(
        make, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert (made.returncode == 0, said in made.stdout) == (not said, True)
    if said:
        return
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    (uploaded,) = (s["with"]["path"] for s in jobs["build"]["steps"] if "upload-" in str(s))
    download, publish = jobs["publish"]["steps"]
    shutil.copytree(tmp_path / uploaded, tmp_path / download["with"]["path"])
    subprocess.run(publish["run"], cwd=tmp_path, env=environ, shell=True, check=True)
    files = ("app-0.1.0.whl", "app.zip", "azuredeploy.json", "sbom.cdx.json")
    published = [f"release/files/{name}" for name in files]
    arguments = (tmp_path / "asked").read_text().splitlines()
    assert arguments[:7] == ["release", "create", tag, *published]
    assert (tmp_path / arguments[-1]).read_text() == "- old\n"


def test_a_push_cancels_neither_the_nightly_run_nor_a_deployment() -> None:
    groups = {w.stem: yaml.safe_load(w.read_text())["concurrency"] for w in WORKFLOWS}
    assert "${{ github.event_name }}" in groups["checks"]["group"]
    assert groups["deployment"] == {"group": "deployment", "cancel-in-progress": False}


def test_a_deployment_is_started_by_hand_only() -> None:
    document = yaml.safe_load((ROOT / ".github/workflows/deployment.yml").read_text())
    assert set(document[True]) == {"workflow_dispatch"}  # YAML reads the key `on` as true


def test_every_check_that_cannot_run_everywhere_has_a_workflow_which_contributing_explains() -> (
    None
):
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    commands = [step.get("run", "") for path in WORKFLOWS for step in steps_of(path)]
    for needed in (
        "make test",
        "make infra",
        "make emulators",
        "make core-tools",
        "infra/prove.sh",
    ):
        assert any(command.startswith(needed) for command in commands), needed
        assert needed in page
    for workflow in WORKFLOWS:
        for job in yaml.safe_load(workflow.read_text())["jobs"]:
            assert f"`{job}`" in page, job
