"""Runs one command for LocalSubmitter, detached from it: ``local_child.py FOLDER COMMAND…``.

It writes the files ``started`` (the process group), ``log.txt`` and ``exit`` (the exit code), and
holds ``lock`` together with the command. It uses the standard library only.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

NICENESS = 5
"""The app on the same machine has priority."""


def main(folder: Path, command: list[str]) -> None:
    if os.fork():
        return  # the parent ends at once, so that its caller need not wait for the command
    os.setsid()
    os.nice(NICENESS)
    lock = (folder / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # the run was submitted twice
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
    """Write the file atomically, because another process may be reading it."""
    temporary = path.with_suffix(".new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
