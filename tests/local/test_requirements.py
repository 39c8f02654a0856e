"""The requirement files: what is declared, and what `make lock` wrote."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "requirements"
DECLARED = [
    FOLDER / f"{path.stem}.in" for path in sorted(FOLDER.glob("*.txt")) if path.stem != "spark"
]
PIN = re.compile(r"^([\w.-]+)==(\S+)")


def pins(lock: Path) -> dict[str, set[str]]:
    """The versions of each package. A package may have one version for each Python."""
    found: dict[str, set[str]] = {}
    for line in lock.read_text(encoding="utf-8").splitlines():
        if match := PIN.match(line):
            found.setdefault(canonicalize_name(match[1]), set()).add(match[2])
    return found


def requirements(path: Path) -> list[Requirement]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


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


@pytest.mark.parametrize("declared", DECLARED, ids=lambda path: path.stem)
def test_a_lock_file_has_a_version_that_meets_each_requirement(declared: Path) -> None:
    assert unmet(declared, declared.with_suffix(".txt")) == []


def test_the_lock_file_of_the_spark_job_meets_its_requirements() -> None:
    assert unmet(ROOT / "spark_jobs" / "requirements.txt", FOLDER / "spark.txt") == []


@pytest.mark.parametrize("lock", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_every_locked_package_has_a_hash_and_no_address(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    assert "://" not in text
    entries = re.sub(r" \\\n\s+", " ", text).splitlines()
    assert [line for line in entries if PIN.match(line) and "--hash=sha256:" not in line] == []


@pytest.mark.parametrize("lock", ["app", "local", "amqp", "spark", "sql", "databricks", "synapse"])
def test_development_uses_the_versions_that_are_installed_elsewhere(lock: str) -> None:
    every, some = pins(FOLDER / "dev.txt"), pins(FOLDER / f"{lock}.txt")
    assert {name: found for name, found in some.items() if every.get(name) != found} == {}


def test_every_extra_reads_its_packages_from_one_existing_file() -> None:
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    dynamic = tables["tool"]["setuptools"]["dynamic"]
    extras = dynamic["optional-dependencies"]
    files = [file for extra in extras.values() for file in extra["file"]]
    names = "local amqp backtest spark sql databricks synapse dev"
    assert set(extras) == set(names.split())
    assert [file for file in files if not (ROOT / file).is_file()] == []
    others = {file for name in extras for file in extras[name]["file"] if name != "dev"}
    assert others | {"requirements/dev.in"} == set(extras["dev"]["file"])
