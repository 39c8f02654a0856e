"""Tries changes in copies of the source tree, each in a process that runs what must notice it."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.changes import ROOT, Change, Check

FOLDER = ROOT / ".local" / "mutants"
LINKED = (".venv", "local/node_modules")
SEEDS = 60
CPU_SECONDS_MAX = 30  # for a test or a seed, because some changes let a loop run for ever
SECONDS_MAX = 900
LIBRARIES = (
    "aiohttp", "azure.data.tables.aio", "azure.functions", "azure.servicebus.aio",
    "azure.storage.queue.aio", "hypothesis", "jinja2", "msgspec", "numpy", "pydantic",
    "pytest_asyncio", "pytest_timeout", "sqlalchemy.ext.asyncio",
)  # fmt: skip
"""Imported once, because each process is a fork. They hold nothing of this project."""


def copies(number: int) -> list[Path]:
    """Copies of the tree as it is now, without what git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    names = [name for name in listed.stdout.split("\0") if (ROOT / name).is_file()]
    made = [FOLDER / f"tree-{n}" for n in range(number)]
    for copy in made:
        shutil.rmtree(copy, ignore_errors=True)
        for name in names:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
        for name in LINKED:
            (copy / name).symlink_to(ROOT / name)
        subprocess.run(["git", "init", "-q"], cwd=copy, check=True)
        subprocess.run(["git", "add", "."], cwd=copy, check=True)
    return made


def with_tests(changes: Sequence[Change], tree: Path, processes: int) -> list[Change]:
    """Each change with those of its tests that reach the line. Raises ValueError if a test fails.

    If none does, as for a constant or a page, all of its tests stay.
    """
    from coverage import CoverageData  # installed for `make mutants` only

    data = FOLDER / "coverage"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"-n{processes}"]
    command += ["--cov=shared", "--cov=spark_jobs", "--cov-context=test", "--cov-report="]
    ran = subprocess.run(
        [*command, *sorted({file for change in changes for file in change.check.files})],
        env=os.environ | {"COVERAGE_FILE": str(data), "SIMULATION_SEEDS": "2"},
        cwd=tree, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ran.returncode:
        raise ValueError(f"Tests fail without a change:\n{ran.stdout[-4000:]}{ran.stderr[-1000:]}")
    measured = CoverageData(str(data))
    measured.read()
    lines = {
        file: measured.contexts_by_lineno(str(tree / file)) for file in {c.file for c in changes}
    }
    return [replace(each, check=reaching(each, lines[each.file])) for each in changes]


def reaching(change: Change, contexts: Mapping[int, Sequence[str]]) -> Check:
    """The tests of the line, or of the closest above it, where a call of many lines starts."""
    line, selected = change.line, change.check.tests
    while line and line not in contexts:
        line -= 1
    tests = {context.rpartition("|")[0] for context in contexts.get(line, ())} - {""}
    tests = {test for test in tests if test.startswith(selected)}
    return change.check._replace(tests=tuple(sorted(tests)) or selected)


def results(changes: Sequence[Change], trees: Sequence[Path]) -> Iterator[tuple[Change, bool]]:
    """Make each change in one of the trees. Yield each with whether it survives."""
    waiting = list(enumerate(changes, 1))[::-1]
    free = list(trees)
    running = dict[int, tuple[Change, Path, float]]()
    while waiting or running:
        while waiting and free:
            number, change = waiting.pop()
            tree = free.pop()
            running[_start(change, tree, number)] = change, tree, time.monotonic()
        process, status = os.waitpid(-1, os.WNOHANG)
        if process in running:
            change, tree, _ = running.pop(process)
            shutil.copy2(ROOT / change.file, tree / change.file)
            free.append(tree)
            yield change, status == 0
            continue
        for child, (_, _, begun) in running.items():
            if time.monotonic() - begun > SECONDS_MAX:
                os.killpg(child, signal.SIGKILL)
        time.sleep(0.02)


def survives_unchanged(changes: Sequence[Change], trees: Sequence[Path]) -> bool:
    """Whether the tests of one change pass without it, run as with it. Otherwise, no change that
    they notice would prove anything."""
    one = min(changes, key=lambda change: len(change.check.tests) or SEEDS)
    return all(alive for _, alive in results([replace(one, new=one.old)], trees))


def _start(change: Change, tree: Path, number: int) -> int:
    """Make the change, and run in another process what must notice it."""
    file = tree / change.file
    file.write_text(change.changed(), encoding="utf-8")
    os.utime(file, (number, number))  # else byte code of the same second and size is used
    if (process := os.fork()) == 0:
        try:
            os.setsid()
            code = _run(change.check, tree)
        except BaseException:  # the change was noticed
            code = 1
        os._exit(code)
    return process


def _run(check: Check, tree: Path) -> int:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.chdir(tree)
    sys.path[0] = str(tree)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    if check.seeds_of:
        logging.disable()  # the app logs each simulated fault
        module = importlib.import_module(check.seeds_of.removesuffix(".py").replace("/", "."))
        for seed in range(check.first_seed, check.first_seed + SEEDS):
            _limit()
            module.check_seed(seed)
        return 0
    options = ["-x", "-q", "--hypothesis-profile=ci", "-p", "no:cacheprovider", "-p", "no:xdist"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # for those imported below
    files = sorted({test.partition("::")[0] for test in check.tests})
    return pytest.main([*options, *files], plugins=[SelectedTests(check.tests)])


class SelectedTests:
    """Runs only these tests, each for a limited time.

    Their names are compared, because pytest does not find each of them that it is called with, and
    a test that is not found would count as one that noticed the change.
    """

    def __init__(self, tests: Sequence[str]) -> None:
        self._tests = frozenset(tests)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._tests] or items

    def pytest_runtest_logstart(self) -> None:
        _limit()


def _limit() -> None:
    """Let the signal of the timer end this process, which does not depend on the load."""
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS_MAX)


def import_libraries() -> None:
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
