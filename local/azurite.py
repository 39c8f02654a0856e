"""Azurite, Microsoft's storage emulator, as a process on free loopback ports.

``python -m local.azurite`` runs it on its usual ports, for ``func start``, until Ctrl-C.
"""

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Self

from local.node import NodeMissing, find_node

ACCOUNT = "devstoreaccount1"
# Microsoft publishes this key. Every emulator uses it, and it opens nothing else.
PUBLIC_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
SCRIPT = Path(__file__).parent / "node_modules" / "azurite" / "dist" / "src" / "azurite.js"
SERVICES = ("blob", "queue", "table")
USUAL_PORTS = {"blob": 10000, "queue": 10001, "table": 10002}
FREE_PORTS: Mapping[str, int] = dict.fromkeys(SERVICES, 0)

# Azurite ends when its standard input closes, so no orphan is left however this process dies.
# It ends by SIGTERM, because it then saves what it keeps in a folder.
_STOP = '()=>process.kill(process.pid,"SIGTERM")'
_END_WITH_PARENT = f'data:text/javascript,process.stdin.on("end",{_STOP}).resume().unref()'
_LISTENING = re.compile(r"Azurite (\w+) service is successfully listening at http://[\d.]+:(\d+)")
_USUAL_LINE = re.compile(r"Azurite \w+ service |In-memory extent storage is enabled ")
_IN_USE = re.compile(r"EADDRINUSE: address already in use (\S+)")
# With the emulator's default of 5 s, it closes connections that a client still keeps for reuse.
_KEEP_ALIVE_SECONDS = 60
_START_LIMIT_SECONDS = 30.0
_STOP_LIMIT_SECONDS = 5.0
_POLL_SECONDS = 0.02
_OUTPUT_LINES = 20


def connection_string(ports: Mapping[str, int]) -> str:
    """Return the connection string of an emulator whose services listen on these ports."""
    endpoints = (
        f"{service.capitalize()}Endpoint=http://127.0.0.1:{ports[service]}/{ACCOUNT};"
        for service in SERVICES
    )
    account = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={PUBLIC_KEY};"
    return account + "".join(endpoints)


class AzuriteFailed(RuntimeError):
    """Azurite ended, or did not listen in time. The end of its output follows the first line."""


class Azurite:
    """A storage emulator with blobs, queues and tables, kept in memory or in `folder`."""

    def __init__(self, folder: Path | None = None, ports: Mapping[str, int] = FREE_PORTS) -> None:
        self._folder = folder
        self._wanted_ports = ports
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._ports: dict[str, int] = {}

    @property
    def connection_string(self) -> str:
        """The storage connection string of the running emulator."""
        return connection_string(self._ports)

    def start(self) -> None:
        """Start the emulator and return when all three services listen."""
        command = _command(self._folder, self._wanted_ports)
        # A file rather than a pipe: a pipe that nobody reads would block the emulator.
        self._output = tempfile.NamedTemporaryFile()  # noqa: SIM115 - closed by stop()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            # Ctrl-C must reach the parent only, because it may still need storage to finish.
            start_new_session=True,
        )
        try:
            self._ports = self._wait_for_ports(self._process)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the emulator. If it ignores SIGTERM, kill it."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)
        if self._output is not None:
            self._output.close()
            self._output = None

    def ended(self) -> str:
        """How the emulator ended by itself, and the end of its output; empty while it runs."""
        if self._process is None or (code := self._process.poll()) is None:
            return ""
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return self._with_output(f"Azurite ended ({how})")

    def _wait_for_ports(self, process: subprocess.Popen[bytes]) -> dict[str, int]:
        deadline = time.monotonic() + _START_LIMIT_SECONDS
        while time.monotonic() < deadline:
            ports = _listening_ports(self._printed())
            if len(ports) == len(SERVICES):
                return ports
            if process.poll() is not None:
                raise AzuriteFailed(_port_in_use(self._printed()) or self.ended())
            time.sleep(_POLL_SECONDS)
        limit = f"Azurite did not listen within {_START_LIMIT_SECONDS:.0f} s"
        raise AzuriteFailed(self._with_output(limit))

    def _with_output(self, sentence: str) -> str:
        lines = [line for line in self._printed().splitlines() if not _USUAL_LINE.match(line)]
        return "\n".join([sentence, *lines[-_OUTPUT_LINES:]])

    def _printed(self) -> str:
        assert self._output is not None
        # Opened by name: reading through the emulator's file object would move its write position.
        return Path(self._output.name).read_text(errors="replace")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def _command(folder: Path | None, wanted_ports: Mapping[str, int]) -> list[str]:
    node = find_node()
    if not SCRIPT.is_file():
        raise NodeMissing("Azurite is not installed. Run `make setup`.")
    storage = ["--inMemoryPersistence"] if folder is None else ["--location", str(folder)]
    ports = [f"--{service}Port={wanted_ports[service]}" for service in SERVICES]
    keep_alive = [f"--{service}KeepAliveTimeout={_KEEP_ALIVE_SECONDS}" for service in SERVICES]
    # Current SDKs request API versions that this emulator serves but does not list.
    quiet = ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    return [node, "--import", _END_WITH_PARENT, str(SCRIPT), *quiet, *storage, *ports, *keep_alive]


def _port_in_use(printed: str) -> str:
    taken = _IN_USE.search(printed)
    return (
        f"Azurite cannot use {taken[1]}: another process does, perhaps another Azurite"
        if taken
        else ""
    )


def _listening_ports(printed: str) -> dict[str, int]:
    return {name.lower(): int(port) for name, port in _LISTENING.findall(printed)}


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.terminate()
    try:
        process.wait(_STOP_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdin.close()


def main() -> int:
    awaited = {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD}
    signal.signal(signal.SIGCHLD, lambda *_: None)  # Else macOS discards it.
    try:
        with Azurite(ports=USUAL_PORTS) as azurite:
            signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
            ports = ", ".join(f"{service} {port}" for service, port in USUAL_PORTS.items())
            print(f"Azurite is listening: {ports} (press Ctrl-C to stop)", flush=True)
            while not (ended := azurite.ended()):
                if signal.sigwait(awaited) != signal.SIGCHLD:
                    break
            if ended:
                raise AzuriteFailed(ended)
    except (AzuriteFailed, NodeMissing) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
