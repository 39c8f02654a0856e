"""A short `make soak`: of a functions host and a runner, the host is killed.

tests/ingestion/test_own_handler.py kills a runner.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 115


def test_killed_processes_lose_and_repeat_nothing() -> None:
    command = [sys.executable, "-m", "bench.soak", "--kills", "1", "--events", "300"]
    options = ["--processes", "2", "--hosts", "1", "--partitions", "2", "--interval", "1"]
    ended = subprocess.run(
        [*command, *options, "--seed", "4"],
        cwd=ROOT,
        capture_output=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout.decode() + ended.stderr.decode()[-4000:]
    figures = json.loads(ended.stdout)
    assert (figures["events"], figures["killed_hosts"]) == (300, 1)
    assert figures["partitions_that_lost_their_reader"] > 0
