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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.changes import ROOT, Change, Check

FOLDER = ROOT / ".local" / "mutants"
LINKED = (".venv", "local/node_modules")
SEEDS = 60
TEST_SECONDS_MAX = 30  # some changes let a loop run for ever
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


def pass_without_a_change(
    tests: Collection[str], tree: Path, processes: int, *options: str, **environment: str
) -> None:
    """Raises ValueError if one of the tests fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"-n{processes}"]
    ran = subprocess.run(
        [*command, *options, *sorted(tests)],
        cwd=tree, env=os.environ | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ran.returncode:
        raise ValueError(f"Tests fail without a change:\n{ran.stdout[-4000:]}{ran.stderr[-1000:]}")


def with_tests(changes: Sequence[Change], tree: Path, processes: int) -> list[Change]:
    """Each generated change with the tests that reach its line, instead of all that may."""
    from coverage import CoverageData  # installed for `make mutants` only

    data = FOLDER / "coverage"
    tests = {test for change in changes for test in change.check.tests}
    options = ("--cov=shared", "--cov-context=test", "--cov-report=")
    pass_without_a_change(tests, tree, processes, *options, COVERAGE_FILE=str(data))
    measured = CoverageData(str(data))
    measured.read()
    reached = {
        file: measured.contexts_by_lineno(str(tree / file)) for file in {c.file for c in changes}
    }
    return [replace(each, check=Check(_tests(each.line, reached[each.file]))) for each in changes]


def _tests(line: int, reached: Mapping[int, Sequence[str]]) -> tuple[str, ...]:
    """Those that reach the line, or the closest line above it: one of many in a call."""
    while line and not any(reached.get(line, ())):
        line -= 1
    return tuple(sorted({each.partition("|")[0] for each in reached.get(line, ()) if each}))


def survivors(changes: Sequence[Change], trees: Sequence[Path]) -> Iterator[Change]:
    """Make each change in one of the trees. Yield those with which nothing fails."""
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
            if status == 0:
                yield change
            continue
        for child, (_, _, begun) in running.items():
            if time.monotonic() - begun > SECONDS_MAX:
                os.killpg(child, signal.SIGKILL)
        time.sleep(0.02)


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
            module.check_seed(seed)
        return 0
    if not check.tests:
        return 0
    options = ["-x", "-q", "--hypothesis-profile=ci", f"--timeout={TEST_SECONDS_MAX}"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # for those imported below
    return pytest.main([*options, "-p", "no:cacheprovider", "-p", "no:xdist", *check.tests])


def import_libraries() -> None:
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
