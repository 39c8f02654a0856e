"""`make test` is green only if every test of the tree has run and passed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests import census

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest
from unittest import TestCase
def test_one(): pass
@pytest.mark.parametrize("n", [1, 2, 3])
async def test_more(n): pass
class TestGroup:
    def test_in_class(self): pass
class Machine:
    class TestCase(TestCase):
        def runTest(self): pass
TestMachine = Machine.TestCase
"""
HOOKS = """
import sys
sys.path.insert(0, {root!r})
from tests.census import pytest_collection_finish, pytest_itemcollected
"""
OPTIONS = "[tool.pytest.ini_options]\nasyncio_mode = 'auto'\n"
DROPPED = "def pytest_collection_modifyitems(items): del items[1:]\n"
UNREPORTED = "def pytest_runtest_protocol(item): return 'two' in item.nodeid or None\n"


def run(folder: Path, *options: str, **files: str) -> tuple[int, int]:
    """The exit codes of pytest and of the census, in a project of two files of tests."""
    tests = folder / "tests"
    tests.mkdir()
    texts = {"tests/test_one.py": TESTS, "tests/sub/test_two.py": TESTS, "pyproject.toml": OPTIONS}
    texts |= {"tests/conftest.py": HOOKS.format(root=str(ROOT))}
    for name, text in files.items():
        path = {"conftest": "tests/conftest.py", "project": "pyproject.toml"}.get(name)
        path = path or f"tests/sub/{name}.py"
        texts[path] = texts.get(path, "") + text
    for path, text in texts.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    report = str(folder / "report.xml")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml", report]
    command += ["-p", "pytest_asyncio.plugin", *(["-p", "xdist"] if "-n" in options else [])]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    done = subprocess.run(
        [*command, *options], cwd=folder, env=environment, capture_output=True, check=False
    )
    return done.returncode, census.main([report], folder)


@pytest.mark.parametrize("options", ["", "-n 2 --dist worksteal"])
def test_a_run_of_all_tests_is_accepted(tmp_path: Path, options: str) -> None:
    assert run(tmp_path, *options.split()) == (0, 0)


@pytest.mark.parametrize(
    ("options", "files", "said"),
    [
        ("-k one", {}, "not run: tests.sub.test_two.TestMachine.runTest"),
        ("-k 'not 2'", {}, "1 cases not run: tests.test_one.test_more"),
        ("--deselect tests/test_one.py::TestGroup", {}, "tests.test_one.TestGroup.test_in_class"),
        ("--ignore tests/sub", {}, "not run: tests.sub.test_two.test_one"),
        ("", {"project": "testpaths = ['tests/sub']"}, "not run: tests.test_one.test_one"),
        ("", {"project": "addopts = '-k more'"}, "not run: tests.sub.test_two.test_one"),
        ("", {"project": "python_files = 'test_o*.py'"}, "not run: tests.sub.test_two.test_one"),
        ("", {"project": "norecursedirs = 'sub'"}, "not run: tests.sub.test_two.test_one"),
        ("", {"conftest": DROPPED}, "not run: tests.test_one.test_one"),
        ("-n 2", {"conftest": UNREPORTED}, "not run: tests.sub.test_two.test_one"),
        ("", {"conftest": "collect_ignore = ['sub']"}, "not run: tests.sub.test_two.test_one"),
        ("", {"tests_three": "def test_lost(): pass"}, "not run: tests.sub.tests_three.test_lost"),
    ],
)
def test_a_run_that_left_out_a_test_is_refused_and_the_test_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: str,
    files: dict[str, str],
    said: str,
) -> None:
    words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", options)]
    assert run(tmp_path, *words, **files) == (0, 1)
    assert said in capsys.readouterr().out


FAILS = "def test_that_fails(): assert False"
SKIPS = "import pytest\n@pytest.mark.{mark}\ndef test_a(): assert False"


def test_a_test_that_failed_or_was_skipped_without_need_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marks = ("skip(reason='later')", "xfail(reason='a bug')", "skip(reason='pyspark[connect]')")
    skipped = {f"test_{n}": SKIPS.format(mark=mark) for n, mark in enumerate(marks)}
    assert run(tmp_path, test_three=FAILS, **skipped)[1] == 1
    said = capsys.readouterr().out
    for expected in (
        "failed: tests.sub.test_three.test_that_fails",
        "skipped: tests.sub.test_0.test_a: later",
        "test_1.test_a: a bug",
        "test_2.test_a: pyspark[connect]",
    ):
        assert expected in said


def test_a_test_is_skipped_where_what_it_needs_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _tool: None)
    reason = "no chromium in PATH: apt-get install chromium"
    assert run(tmp_path, test_three=SKIPS.format(mark=f"skip(reason={reason!r})")) == (0, 0)


@pytest.mark.parametrize("absent", ["report.xml", "report.xml.collected"])
def test_a_run_without_a_report_is_refused(tmp_path: Path, absent: str) -> None:
    run(tmp_path)
    (tmp_path / absent).unlink()
    assert census.main([str(tmp_path / "report.xml")], tmp_path) == 1


def test_the_tests_of_this_tree_are_counted() -> None:
    from tests import conftest

    assert vars(conftest)["pytest_itemcollected"] is census.pytest_itemcollected
    assert vars(conftest)["pytest_collection_finish"] is census.pytest_collection_finish


def test_make_test_runs_every_check_and_all_tests_and_counts_them() -> None:
    dry = ["make", "--no-print-directory", "--dry-run", "--always-make", "test"]
    outside = {name: text for name, text in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(dry, cwd=ROOT, env=outside, capture_output=True, text=True, check=True)
    commands = done.stdout.replace(".venv/bin/", "").splitlines()
    ran = [line for line in commands if not line.startswith(("sh local", "touch", "report="))]
    scanned = "function_app.py scaling_rules.py shared spark_jobs backtest local"
    assert ran == [
        "ruff format --check .",
        "ruff check .",
        "mypy",
        "lint-imports",
        f"bandit -q -ll -ii -r {scanned}",
        "rm -f .local/tests.xml*",
        "python -m pytest -n auto --dist worksteal --junitxml .local/tests.xml",
        "python -m tests.census .local/tests.xml",
    ]
    assert "pip-audit --strict" in done.stdout


@pytest.mark.parametrize("code", [0, 3])
def test_the_script_for_main_runs_make_test_and_passes_its_exit_code_on(
    tmp_path: Path, code: int
) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    for name, text in (("make", f'echo "$*" > asked; exit {code}'), ("chromium", "exit 0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", ".ci/run"], cwd=tmp_path, env=environment, check=False)
    assert done.returncode == code
    assert (tmp_path / "asked").read_text() == "test\n"


def test_the_workflow_of_every_push_runs_make_test_and_stops_where_it_fails() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "checks.yml").read_text())
    assert set(workflow[True]) >= {"push", "pull_request"}  # YAML reads the key `on` as true
    last = {name: job["steps"][-1]["run"] for name, job in workflow["jobs"].items()}
    assert last == {
        "tests": "make test",
        "templates": "make infra",
        "emulators": "make emulators",
        "core-tools": "make core-tools",
        "mutants": "make mutants",
    }
    assert "continue-on-error" not in str(workflow)
    assert not any("if" in step for job in workflow["jobs"].values() for step in job["steps"])
