"""The processes: started as a user would, killed as nobody should."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (
    sys.executable,
    "-m",
    "shared.ingestion",
    "run",
    "--handler",
    "bench.soak.handler:handler_of",
)
STOP_SECONDS_MAX = 30


@dataclass(slots=True)
class Fleet:
    """So many processes at all times; what they log goes to one file."""

    environ: Mapping[str, str]
    log: IO[bytes]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> None:
        environ = {**os.environ, **self.environ}
        process = subprocess.Popen(COMMAND, env=environ, cwd=ROOT, stderr=self.log)
        self.processes.append(process)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """At once and without a word; another one takes its place."""
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.processes.remove(process)
        self.start()

    async def stop(self) -> list[int]:
        """Ask all to stop; answers their exit codes."""
        for process in self.processes:
            process.terminate()
        codes = [await asyncio.to_thread(self._wait, process) for process in self.processes]
        self.processes.clear()
        return codes

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
