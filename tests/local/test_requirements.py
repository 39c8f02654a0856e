"""The requirement files: what is imported, what is declared, and what `make lock` wrote."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import distributions, requires
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from local import sbom

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "requirements"
LOCKS = sorted(FOLDER.glob("*.txt"))
PIN = re.compile(r"^([\w.-]+)==(\S+)(?: ; (.*?))?(?: \\)?$")
SPARK = ROOT / "spark_jobs" / "requirements.txt"
DEV = ROOT / "pyproject.toml"
OPTIONAL = ["sql"]
INSTALLED = {
    **{name: [name] for name in ("app", "local", "amqp", *OPTIONAL, "spark")},
    "dev": ["app", "local", "amqp", "backtest", "dev", "spark", *OPTIONAL],
}
"""What each lock file is made of."""

COMMANDS = ["shared/cli", "shared/__main__.py"]
IDS = ["shared/sampling/kept_ids.py"]
IMPORTING = {
    "app": (["function_app.py", "scaling_rules.py", "shared"], ["app", *OPTIONAL], []),
    "job": (["spark_jobs", *IDS], ["spark"], []),
    "backtest": (["backtest"], ["backtest"], ["app"]),
    "local": (["local", *COMMANDS], ["local", "amqp"], ["app", "host"]),
}
"""Files, what is declared for them, and for what they build on."""

NEEDED_BY = {"multidict": "aiohttp", "pyjwt": "azure-identity"}
"""Packages that the local stand-ins import beside the one that depends on them."""

NOT_IMPORTED = {
    "psycopg": "SQLAlchemy loads it by name",
    "tzdata": "ZoneInfo reads it where the system has no zones",
}


def pins(lock: Path) -> dict[str, set[str]]:
    """The versions of each package. A package may have one version for each Python."""
    found: dict[str, set[str]] = {}
    for line in lock.read_text(encoding="utf-8").splitlines():
        if match := PIN.match(line):
            found.setdefault(canonicalize_name(match[1]), set()).add(match[2])
    return found


def requirements(path: Path) -> list[Requirement]:
    """Those of a file, or of the group in pyproject.toml."""
    text = path.read_text(encoding="utf-8")
    lines = tomllib.loads(text)["dependency-groups"]["dev"] if path == DEV else text.splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def source_of(name: str) -> Path:
    return {"spark": SPARK, "dev": DEV}.get(name, FOLDER / f"{name}.in")


def declared(names: list[str]) -> list[Requirement]:
    return [each for name in names for each in requirements(source_of(name))]


def needed(roots: list[Requirement]) -> set[str]:
    """The packages that pip would install for these here, by what the installed ones declare."""
    seen: set[tuple[str, str]] = set()
    todo = [(each.name, extra) for each in roots for extra in ("", *each.extras)]
    while todo:
        name, extra = todo.pop()
        if (canonicalize_name(name), extra) not in seen:
            seen.add((canonicalize_name(name), extra))
            for each in required_by(name):
                if each.marker is None or each.marker.evaluate({"extra": extra}):
                    todo += [(each.name, extra) for extra in ("", *each.extras)]
    return {name for name, _ in seen}


@cache
def required_by(package: str) -> list[Requirement]:
    return [Requirement(each) for each in requires(package) or ()]


@cache
def package_of_modules() -> dict[str, str]:
    found: dict[str, str] = {}
    for package in distributions():  # its attribute `files` would take fifteen seconds
        name = canonicalize_name(package.metadata["Name"])
        for line in (package.read_text("RECORD") or "").splitlines():
            file = line.partition(",")[0]
            if file.endswith((".py", ".so")):
                found[file.split(".")[0].removesuffix("/__init__").replace("/", ".")] = name
    return found


def imported(paths: list[str]) -> Iterator[tuple[str, str]]:
    """Each package that these files import, also inside functions, with the name of a file."""
    ours = {path.name.removesuffix(".py") for path in ROOT.iterdir()} | sys.stdlib_module_names
    for file in (each for path in paths for each in modules(ROOT / path)):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            yield from (
                (package_of(name), file.name) for name in names if name.split(".")[0] not in ours
            )


def modules(path: Path) -> list[Path]:
    """The Python files there. The commands and what only the job imports are no part of the app."""
    files = path.rglob("*.py") if path.is_dir() else [path]
    others = {ROOT / each for each in (*COMMANDS, *IDS)}
    return [file for file in files if path in others or not others & {file, *file.parents}]


def package_of(module: str) -> str:
    parts = module.split(".")
    found = (package_of_modules().get(".".join(parts[:n])) for n in range(len(parts), 0, -1))
    return next(filter(None, found), module)


@pytest.mark.parametrize("part", IMPORTING)
def test_each_part_declares_exactly_the_packages_that_it_imports(part: str) -> None:
    paths, own, lent = IMPORTING[part]
    found = dict(imported(paths))
    known = {canonicalize_name(each.name) for each in declared([*own, *lent])}
    assert [each for each in found.items() if NEEDED_BY.get(each[0], each[0]) not in known] == []
    names = {canonicalize_name(each.name) for each in declared(own)}
    assert names - found.keys() - NOT_IMPORTED.keys() == set()


@pytest.mark.parametrize("lock", INSTALLED)
def test_a_lock_file_holds_what_is_declared_and_what_that_needs_and_nothing_else(lock: str) -> None:
    locked = [PIN.match(line) for line in (FOLDER / f"{lock}.txt").read_text().splitlines()]
    assert {
        canonicalize_name(pin[1])
        for pin in locked
        if pin and (not pin[3] or Marker(pin[3]).evaluate())
    } == needed(declared(INSTALLED[lock]))


def unmet(declared: Path, lock: Path) -> list[str]:
    locked = pins(lock)
    return [
        str(each)
        for each in requirements(declared)
        if not any(
            each.specifier.contains(version)
            for version in locked.get(canonicalize_name(each.name), ())
        )
    ]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_a_lock_file_has_a_version_that_meets_each_requirement(lock: Path) -> None:
    assert unmet(source_of(lock.stem), lock) == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_every_locked_package_has_a_hash_and_no_address(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    assert "://" not in text
    entries = re.sub(r" \\\n\s+", " ", text).splitlines()
    assert [line for line in entries if PIN.match(line) and "--hash=sha256:" not in line] == []


@pytest.mark.parametrize("lock", ["app", "local", "amqp", "spark", "sql"])
def test_development_uses_the_versions_that_are_installed_elsewhere(lock: str) -> None:
    every, some = pins(FOLDER / "dev.txt"), pins(FOLDER / f"{lock}.txt")
    assert {name: found for name, found in some.items() if every.get(name) != found} == {}


def test_the_list_of_packages_of_a_release_has_what_the_app_needs_and_the_chart_library() -> None:
    components = sbom.document()["components"]
    listed = {each["name"]: each["version"] for each in components if "pypi" in each["purl"]}
    locked = pins(FOLDER / "app.txt")
    assert {canonicalize_name(name) for name in listed} == locked.keys()
    assert all(version in locked[name] for name, version in listed.items())
    assert components[-1]["purl"] == "pkg:npm/uplot@1.6.32"
