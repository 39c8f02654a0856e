"""``python -m local.sbom FILE``: list the packages that the app is deployed with, as CycloneDX.

The names are those of requirements/app.txt. Versions and licenses are those of this environment,
which `make setup` installs from the same lock.
"""

from __future__ import annotations

import argparse
import json
import re
import tomllib
from collections.abc import Sequence
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CHART = ROOT / "shared" / "web" / "static" / "uplot" / "uPlot.iife.min.js"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m local.sbom", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.parse_args(arguments).file.write_text(json.dumps(document(), indent=1) + "\n")


def document() -> dict[str, Any]:
    lock = (ROOT / "requirements" / "app.txt").read_text(encoding="utf-8")
    names = sorted(set(re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)))
    (chart,) = re.findall(r"\(v([\d.]+)\)", CHART.read_text(encoding="utf-8")[:100])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": _named("application", project["name"], project["version"])},
        "components": [*map(_package, names), _component("npm", "uplot", chart, "MIT")],
    }


def _package(name: str) -> dict[str, Any]:
    said = metadata(name)
    (license_,) = said.get_all("License-Expression") or [None]
    return _component("pypi", name, said["Version"], license_)


def _component(kind: str, name: str, version: str, license_: str | None) -> dict[str, Any]:
    licenses = {"licenses": [{"expression": license_}]} if license_ else {}
    return _named("library", name, version) | {"purl": f"pkg:{kind}/{name}@{version}"} | licenses


def _named(kind: str, name: str, version: str) -> dict[str, Any]:
    return {"type": kind, "name": name, "version": version}


if __name__ == "__main__":
    main()
