"""``python -m tests.upgrades VERSION``: writes the fixtures of a version that is about to be
released.

The fixtures are what the app of this folder writes: rows of all tables, a database, messages and
files. The tests of later versions read them. Those of a released version are never written again.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from local.azurite import Azurite
from tests.upgrades.fixtures import FOLDER, Fixtures, database_of, files_of, save, tables_of
from tests.upgrades.store import stores, texts, write


async def written(connection_string: str, folder: Path) -> Fixtures:
    """What this version writes to empty stores."""
    async with stores(connection_string, folder) as at:
        expected = await write(at)
        tables = await tables_of(connection_string)
        output = files_of(folder / "output")
    return Fixtures(tables, database_of(folder / "events.db"), texts(), output, expected)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.upgrades", description=__doc__)
    parser.add_argument("version", metavar="VERSION", help="such as 0.2.0")
    version = parser.parse_args(arguments).version
    if (FOLDER / version).exists():
        sys.stderr.write(f"{FOLDER / version} exists: fixtures of a release are not replaced\n")
        return 1
    with Azurite() as azurite, tempfile.TemporaryDirectory() as folder:
        fixtures = asyncio.run(written(azurite.connection_string, Path(folder)))
    sys.stdout.write(f"wrote {save(version, fixtures)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
