"""Processes of the local functions host, which a program starts and kills."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]


@dataclass(slots=True)
class Hosts:
    """The running hosts, by port. They log to one file, and end with this process however it
    ends."""

    environ: Mapping[str, str]
    log: IO[bytes]
    keys: Path
    app: str = "."
    running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        options = ["--app", self.app, "--port", str(port), "--keys", str(self.keys)]
        self.running[port] = subprocess.Popen(
            [sys.executable, "-m", "local.functions_host", *options, "--end-with-input"],
            cwd=ROOT,
            env={**os.environ, **self.environ},
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=self.log,
        )

    def kill(self, port: int) -> None:
        with self.running.pop(port) as host:
            host.kill()

    def stop(self) -> None:
        for port in list(self.running):
            self.kill(port)
