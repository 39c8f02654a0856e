"""``python -m local.package``: write the app as a zip to deploy, with only what the app needs.

The same files always produce the same bytes. Deploy the zip with ``az functionapp deployment
source config-zip`` or in the portal. ``func`` and ``azd`` create their own package: everything in
the folder that .funcignore does not exclude.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from shared.values.text import listed

ROOT = Path(__file__).parents[1]
IGNORE_FILE = ".funcignore"
FILES = {"host.json", "requirements.txt"}
LOCKS = "requirements"
SHARED = "shared"
SUFFIXES = {".py", ".html", ".css", ".js"}
"""Of the files of a Python package: modules, and what the page consists of."""

NAMED_MAX = 10
START_OF_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip file can hold."""

READABLE = 0o644 << 16
_IMPORT = re.compile(r"^\s*(?:from|import) +(\w+)", re.MULTILINE)


class UnclearPattern(ValueError):
    """A line of .funcignore has a form that the tools that read it understand differently."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m local.package", description=__doc__)
    parser.add_argument("zip", type=Path, nargs="?", default=ROOT / ".local" / "app.zip")
    target: Path = parser.parse_args(arguments).zip
    count = write_package(ROOT, target)
    print(f"{target}: {count} files, {target.stat().st_size:,} bytes", file=sys.stderr)
    return 0


def write_package(root: Path, target: Path) -> int:
    """Write the zip and return the number of files in it. Raises UnclearPattern."""
    target.parent.mkdir(parents=True, exist_ok=True)
    files = deployed_files(root)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as package:
        for path in files:
            entry = zipfile.ZipInfo(path.as_posix(), START_OF_TIME)
            entry.external_attr = READABLE
            entry.compress_type = zipfile.ZIP_DEFLATED
            package.writestr(entry, (root / path).read_bytes())
    return len(files)


def deployed_files(root: Path) -> list[Path]:
    """Paths below ``root``: its modules, the packages that they import, and what Azure reads.

    Names on stderr what is left out although .funcignore does not exclude it.
    """
    ignored = ignores((root / IGNORE_FILE).read_text(encoding="utf-8"))
    packages = _packages(root, ignored)
    files = sorted(_files(root, ignored))
    deployed = [path for path in files if _is_needed(path, packages)]
    if left_out := sorted({path.as_posix() for path in files} - {p.as_posix() for p in deployed}):
        print(f"not in the package: {listed(left_out, NAMED_MAX)}", file=sys.stderr)
    return deployed


def ignores(text: str) -> Callable[[str], bool]:
    """Whether the patterns of .funcignore exclude a path, as Core Tools reads them: a pattern
    starts at the app's root, ``*`` stays in a folder, and what follows the pattern may be anything.
    """
    patterns = [line.strip() for line in text.splitlines()]
    patterns = [line.removeprefix("/") for line in patterns if line and not line.startswith("#")]
    if unclear := [line for line in patterns if re.search(r"[?!\[\]{}\\]", line)]:
        raise UnclearPattern(
            f"{IGNORE_FILE}: {unclear[0]!r} has a sign that not every tool understands. Use only "
            "names, *, and **."
        )
    parts = [re.escape(line).replace(r"\*\*", ".+").replace(r"\*", "[^/]+") for line in patterns]
    expression = re.compile("|".join(parts) or "(?!)")
    return lambda path: expression.match(path) is not None


def _is_needed(path: Path, packages: set[str]) -> bool:
    folder, *below = path.parts
    if not below:
        return path.suffix == ".py" or path.name in FILES
    if folder == LOCKS:
        return len(below) == 1 and path.suffix == ".txt"
    return folder in packages and (path.suffix in SUFFIXES or path.name == "LICENSE")


def _packages(root: Path, ignored: Callable[[str], bool]) -> set[str]:
    """``shared``, and the folders whose modules those of the root import, directly or not."""
    found, sources = {SHARED}, list(root.glob("*.py"))
    while sources:
        names = set(_IMPORT.findall(sources.pop().read_text("utf-8", "replace"))) - found
        new = {name for name in names if (root / name).is_dir() and not ignored(f"{name}/_")}
        found |= new
        sources += [module for name in new for module in (root / name).rglob("*.py")]
    return found


def _files(root: Path, ignored: Callable[[str], bool]) -> Iterator[Path]:
    """The files that .funcignore does not exclude."""
    for folder, folders, names in os.walk(root):
        here = Path(folder).relative_to(root)
        folders[:] = [name for name in folders if not ignored(f"{(here / name).as_posix()}/_")]
        yield from (here / name for name in names if not ignored((here / name).as_posix()))


if __name__ == "__main__":
    sys.exit(main())
