"""``python -m local.package``: write the app as a zip to deploy, without what .funcignore lists.

The same files always produce the same bytes. Deploy the zip with ``az functionapp deployment
source config-zip`` or in the portal. ``func`` and ``azd`` create their own package.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
IGNORE_FILE = ".funcignore"
ANYWHERE = "**/"
START_OF_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip file can hold."""

READABLE = 0o644 << 16


class UnclearPattern(ValueError):
    """A line of .funcignore is neither a path nor ``**/`` followed by a name."""


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
    files = sorted(deployed_files(root))
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as package:
        for path in files:
            entry = zipfile.ZipInfo(path.as_posix(), START_OF_TIME)
            entry.external_attr = READABLE
            entry.compress_type = zipfile.ZIP_DEFLATED
            package.writestr(entry, (root / path).read_bytes())
    return len(files)


def deployed_files(root: Path) -> Iterator[Path]:
    """Paths below ``root``. Like Core Tools, a pattern without ``**/`` starts at the app's root."""
    lines = (root / IGNORE_FILE).read_text(encoding="utf-8").splitlines()
    patterns = [line.strip("/ ") for line in lines if line.strip() and not line.startswith("#")]
    for pattern in patterns:
        if any(sign in pattern.removeprefix(ANYWHERE) for sign in "*?![]"):
            raise UnclearPattern(
                f"{IGNORE_FILE}: {pattern!r} is neither a path nor **/NAME. Use one of these forms."
            )
    anywhere = {p.removeprefix(ANYWHERE) for p in patterns if p.startswith(ANYWHERE)}
    at_root = {p for p in patterns if not p.startswith(ANYWHERE)}
    yield from _below(root, Path(), at_root, anywhere)


def _below(root: Path, folder: Path, at_root: set[str], anywhere: set[str]) -> Iterator[Path]:
    for entry in (root / folder).iterdir():
        path = folder / entry.name
        if path.as_posix() in at_root or entry.name in anywhere:
            continue
        if entry.is_dir():
            yield from _below(root, path, at_root, anywhere)
        else:
            yield path


if __name__ == "__main__":
    sys.exit(main())
