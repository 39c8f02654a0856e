"""Runs the deployed package in a Functions host of its own process: the local one or Core Tools."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from local.package import write_package

ROOT = Path(__file__).parents[2]
STOP_SECONDS_MAX = 60.0
VISIBILITY_TIMEOUT = "00:00:01"
"""Instead of 5 s, so that a message becomes poison after 5 s instead of 25 s."""

COMMANDS = {
    "local": (sys.executable, "-m", "local.functions_host", "--keys", "master_key"),
    "func": ("func", "start"),
    "deployed": (sys.executable, "-m", "tests.deployed.host", "--keys", "master_key"),
}
_FUNCTION = re.compile(r"^\s+(\w+): (?:\[?(?:GET|POST)|\w+Trigger)", re.MULTILINE)
"""`scaler: queueTrigger` and `trends: GET http://…` here; Core Tools put methods in brackets."""

_DECLARED = (
    "import function_app as app; "
    "print(*(each.get_function_name() for each in app.functions.get_functions()))"
)


class HostProcess:
    """The app's package, unpacked in `folder` and run with these settings.

    `kind` is `local`, `func` or `deployed`. The settings are in local.settings.json, or in the
    environment if they are those of a deployment. What the host prints is appended to `log`.
    """

    def __init__(self, kind: str, folder: Path, settings: Mapping[str, str], port: int) -> None:
        self._kind = kind
        self.log = folder.with_suffix(".log")
        self._command = [*COMMANDS[kind], "--port", str(port)]
        self._folder = folder
        self._settings = dict(settings)
        self._process: subprocess.Popen[bytes] | None = None
        self._unpack()

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self) -> None:
        """Stop as Azure does. The group is killed because Core Tools leaves its worker running."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_SECONDS_MAX)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *details: object) -> None:
        """Stop in a thread, because the stand-ins in this thread still have to answer the host."""
        await asyncio.to_thread(self.stop)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def printed(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def listed_functions(self) -> set[str]:
        """The functions that the host has printed as indexed."""
        return set(_FUNCTION.findall(self.printed()))

    def declared_functions(self) -> set[str]:
        """The functions that the package declares with these settings."""
        done = subprocess.run(
            [sys.executable, "-c", _DECLARED],
            cwd=self._folder,
            env=self._environment() | self._settings,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return set(done.stdout.split())

    def _unpack(self) -> None:
        package = self._folder.with_suffix(".zip")
        write_package(ROOT, package)
        with zipfile.ZipFile(package) as archive:
            archive.extractall(self._folder)
        if self._kind != "deployed":
            document = {"IsEncrypted": False, "Values": self._settings}
            (self._folder / "local.settings.json").write_text(json.dumps(document))
        host = json.loads((self._folder / "host.json").read_text())
        host["extensions"]["queues"]["visibilityTimeout"] = VISIBILITY_TIMEOUT
        (self._folder / "host.json").write_text(json.dumps(host))

    def _environment(self) -> dict[str, str]:
        """Both hosts run the Python of the tests, which has the app's packages."""
        scripts = str(Path(sys.executable).parent)
        given = self._settings if self._kind == "deployed" else {}
        return {
            **os.environ,
            **given,
            "PATH": os.pathsep.join([scripts, os.environ.get("PATH", "")]),
            "PYTHONPATH": str(ROOT) if self._command[0] == sys.executable else "",
            "languageWorkers__python__defaultExecutablePath": sys.executable,
            "FUNCTIONS_CORE_TOOLS_TELEMETRY_OPTOUT": "1",
        }
