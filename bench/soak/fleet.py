"""The processes of the soak test: starts, kills and replaces them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
PYTHON = (sys.executable, "-m")
STOP_SECONDS_MAX = 30


class Kind(Enum):
    """The kind of a process. A host's worker runs in the same process, so both are killed."""

    RUNNER = (*PYTHON, "shared", "run", "--handler", "bench.soak.handler:handler_of")
    HOST = (*PYTHON, "local.functions_host", "--app", "bench/soak/host_app", "--port", "0")


@dataclass(slots=True)
class Fleet:
    """A constant number of processes. They log to one file."""

    environ: Mapping[str, str]
    log: IO[bytes]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _kinds: dict[int, Kind] = field(default_factory=dict)

    @property
    def kinds(self) -> list[Kind]:
        """The running kinds, in the order in which they were started."""
        return list(dict.fromkeys(self._kinds.values()))

    def of(self, kind: Kind) -> list[subprocess.Popen[bytes]]:
        return [process for process in self.processes if self._kinds[process.pid] is kind]

    def start(self, kind: Kind) -> None:
        environ = {**os.environ, **self.environ}
        process = subprocess.Popen(
            kind.value, env=environ, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=self.log
        )
        self.processes.append(process)
        self._kinds[process.pid] = kind

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill with SIGKILL, which leaves no time to clean up."""
        process.send_signal(signal.SIGKILL)
        process.wait()

    def replace(self, process: subprocess.Popen[bytes]) -> None:
        """Start another process of the same kind."""
        self.processes.remove(process)
        self.start(self._kinds.pop(process.pid))

    async def stop(self) -> list[int]:
        """Stop all processes and return their exit codes."""
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
