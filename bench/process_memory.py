"""Memory and CPU time of a process and all of its descendants."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

POLL_SECONDS = 0.2
STEP = 1.01
"""Shared pages are examined only at a new peak, because that is slow and pauses the process."""


def run_watched(command: Sequence[str]) -> tuple[str, float]:
    """Run a command. Return its output and its peak memory in MB; shared pages count once.

    Raises CalledProcessError with its error output.
    """
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ended = threading.Event()
    peak_mb = 0.0

    def watch() -> None:
        nonlocal peak_mb
        highest = 0
        while not ended.wait(POLL_SECONDS):
            tree = _tree(process.pid)
            resident = sum(_resident_pages(pid) for pid in tree)
            if resident > highest * STEP:
                highest = resident
                peak_mb = max(peak_mb, sum(_pss_mb(pid) for pid in tree))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        printed, errors = process.communicate()
    finally:
        ended.set()
        watcher.join()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, printed, errors)
    return printed, peak_mb


def cpu_seconds(root: int) -> float:
    """CPU time of a process and its descendants, including those that have ended."""
    ticks = 0
    for pid in _tree(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:
                continue
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    tree = [root]
    for pid in tree:
        tree += children.get(pid, [])
    return tree


def _resident_pages(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0


def _pss_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1_024 for line in lines if line.startswith("Pss:")), 0.0)
