"""``python -m local.audit``: known vulnerabilities of what is installed in Azure.

Exit code 1 where one is found. Where the data cannot be had this says "not audited", and why; that
is a failure only with ``--strict``. The data are those of PyPI, or else of OSV.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
REQUIREMENTS = tuple(f"requirements{each}.txt" for each in ("", "-sql", "-synapse", "-databricks"))
SERVICES = ("pypi", "osv")
ANSWER_SECONDS_MAX, SECONDS_MAX = 5, 60


@dataclass(frozen=True, slots=True)
class Report:
    """What one service knows. ``unknown``: packages by why it knows nothing of them."""

    service: str
    audited: int
    vulnerable: tuple[str, ...]
    unknown: dict[str, str]

    @property
    def empty(self) -> bool:
        return self.audited == 0


@dataclass(frozen=True, slots=True)
class Unreachable:
    service: str
    reason: str


Ask = Callable[[str], Report | Unreachable]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m local.audit", description=__doc__)
    parser.add_argument("--strict", action="store_true", help="fail where there are no data")
    options = parser.parse_args(arguments)
    lines, code = audit(ask)
    print("\n".join(lines))
    return 1 if code is None and options.strict else code or 0


def audit(ask: Ask) -> tuple[list[str], int | None]:
    """What to say, and 0: nothing known against it; 1: something is; None: not audited, or in part.

    The first service that knows anything has the word.
    """
    why = []
    for service in SERVICES:
        found = ask(service)
        if isinstance(found, Report) and not found.empty:
            return list(_told(found)), 1 if found.vulnerable else None if found.unknown else 0
        why.append(f"{service}: {_nothing(found)}")
    return [f"not audited: no data on vulnerabilities can be had ({'; '.join(why)})"], None


def _nothing(found: Report | Unreachable) -> str:
    if isinstance(found, Unreachable):
        return found.reason
    return next(iter(found.unknown.values()), "no packages")


def _told(report: Report) -> Iterator[str]:
    yield from report.vulnerable
    known = f"{len(report.vulnerable)} known vulnerabilities" if report.vulnerable else "none known"
    yield f"audited {report.audited} package(s) ({report.service}): {known}"
    if report.unknown:
        yield f"not audited: {', '.join(sorted(report.unknown))}"


def ask(service: str) -> Report | Unreachable:
    """Asks pip-audit."""
    files = [word for name in REQUIREMENTS for word in ("-r", name)]
    command = [sys.executable, "-m", "pip_audit", "-s", service, "-f", "json", "--no-deps"]
    command += ["--disable-pip", "--progress-spinner", "off", "--timeout", str(ANSWER_SECONDS_MAX)]
    try:
        done = subprocess.run(
            [*command, *files],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Unreachable(service, f"no answer within {SECONDS_MAX} s")
    try:
        return read(service, json.loads(done.stdout))
    except ValueError:  # no report: it says what went wrong in its last line
        return Unreachable(service, next(iter(done.stderr.strip().splitlines()[-1:]), "no answer"))


def read(service: str, report: dict[str, Any]) -> Report:
    """A report of pip-audit."""
    packages: list[dict[str, Any]] = report["dependencies"]
    vulnerable = tuple(
        f"{package['name']} {package['version']}: {found['id']}, mended in "
        f"{', '.join(found['fix_versions']) or 'no version yet'}"
        for package in packages
        for found in package.get("vulns", [])
    )
    unknown = {p["name"]: p["skip_reason"] for p in packages if "skip_reason" in p}
    return Report(service, len(packages) - len(unknown), vulnerable, unknown)


if __name__ == "__main__":
    sys.exit(main())
