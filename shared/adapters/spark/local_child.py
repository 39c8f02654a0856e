"""Runs one command for LocalSubmitter, apart from who started it. Standard library only.

``local_child.py FOLDER COMMAND…``: leaves ``started`` (the process group), ``log.txt`` and
``exit`` (the code) in the folder. The lock on ``lock`` is held for as long as any of it runs.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

NICENESS = 5
"""The app beside comes first."""


def main(folder: Path, command: list[str]) -> None:
    if os.fork():
        return  # so that whoever started this need not wait, nor bury it
    os.setsid()
    os.nice(NICENESS)
    lock = (folder / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # submitted twice
    if (folder / "started").exists():
        return
    write(folder / "started", str(os.getpid()))
    with (folder / "log.txt").open("wb") as log:
        try:
            code = subprocess.run(  # noqa: S603  the command is the app's own
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[lock.fileno()],
                check=False,
            ).returncode
        except OSError as error:
            log.write(f"{command[0]}: {error.strerror}\n".encode())
            code = 127
    write(folder / "exit", str(code))


def write(path: Path, text: str) -> None:
    """All at once, for somebody may be reading."""
    temporary = path.with_suffix(".new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
