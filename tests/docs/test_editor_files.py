"""The files for editors, pre-commit and GitHub name commands, tools and files that exist."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
TOOLS = Path(sys.executable).parent
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def editor(name: str) -> Any:
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


def commands(text: str) -> Iterator[str]:
    """The single commands of a line of shell."""
    yield from (each.strip() for each in text.split("&&"))


def assert_exists(command: str) -> None:
    program, *arguments = command.split()
    if program == "make":
        assert set(arguments) <= TARGETS, command
    elif program.startswith(".venv/bin/"):
        assert (TOOLS / program.removeprefix(".venv/bin/")).exists(), command
        if arguments[:1] == ["-m"]:
            assert importlib.util.find_spec(arguments[1]), command
    else:
        assert program == "npm", command


def test_the_tasks_run_commands_and_depend_on_tasks_that_exist() -> None:
    tasks = {task["label"]: task for task in editor(".vscode/tasks.json")["tasks"]}
    for task in tasks.values():
        assert task.get("dependsOn", task["label"]) in tasks
        if task["type"] == "shell":
            assert_exists(task["command"])
    launched = editor(".vscode/launch.json")["configurations"]
    assert {each["preLaunchTask"] for each in launched} <= tasks.keys()
    for each in launched:
        assert "module" not in each or importlib.util.find_spec(each["module"])


def test_the_dev_container_runs_commands_that_exist() -> None:
    container = editor(".devcontainer/devcontainer.json")
    for command in commands(container["postCreateCommand"]):
        assert_exists(command)
    recommended = set(editor(".vscode/extensions.json")["recommendations"])
    assert recommended <= set(container["customizations"]["vscode"]["extensions"])


def test_every_hook_of_pre_commit_runs_a_tool_of_the_project() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = [hook for repository in config["repos"] for hook in repository["hooks"]]
    assert [hook["id"] for hook in hooks] == ["ruff-format", "ruff", "mypy", "lint-imports"]
    for hook in hooks:
        assert_exists(hook["entry"])


def test_dependabot_looks_after_each_kind_of_pin_where_it_stands() -> None:
    watched = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text(encoding="utf-8"))
    files = {
        "github-actions": ".github/workflows/checks.yml",
        "docker-compose": "compose.yaml",
        "devcontainers": ".devcontainer/devcontainer.json",
        "npm": "local/package-lock.json",
        "pip": "requirements/app.txt",
    }
    folders = {each["package-ecosystem"]: each["directory"] for each in watched["updates"]}
    assert folders.keys() == files.keys()
    for kind, folder in folders.items():
        assert (ROOT / files[kind]).is_relative_to(ROOT / folder.removeprefix("/")), kind
        assert (ROOT / files[kind]).is_file(), kind
    assert "@sha256:" in editor(".devcontainer/devcontainer.json")["image"]
