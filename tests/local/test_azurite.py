"""The storage emulator: starting, keeping data, error messages, and leaving no process behind."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from azure.core.exceptions import AzureError
from azure.storage.queue import QueueServiceClient

import local.azurite
from local.azurite import FREE_PORTS, Azurite, AzuriteFailed
from local.node import NodeMissing

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 40.0
START_AND_WAIT = """
from local.azurite import Azurite
azurite = Azurite()
azurite.start()
print(azurite.connection_string, flush=True)
input()
"""


def queue_names(connection_string: str) -> list[str]:
    with QueueServiceClient.from_connection_string(connection_string, retry_total=0) as service:
        return [each.name for each in service.list_queues()]


def test_the_emulator_ends_when_its_parent_is_killed() -> None:
    command = [sys.executable, "-c", START_AND_WAIT]
    parent = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        connection_string = parent.stdout.readline().strip()
        assert queue_names(connection_string) == []
        parent.kill()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while answers(connection_string):
        assert time.monotonic() < deadline, "the emulator outlived its parent"
        time.sleep(0.05)


def answers(connection_string: str) -> bool:
    try:
        queue_names(connection_string)
    except AzureError:
        return False
    return True


def test_the_error_for_a_missing_package_names_the_command_to_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(local.azurite, "SCRIPT", tmp_path / "absent.js")
    with pytest.raises(NodeMissing, match="Run `make setup`"):
        Azurite().start()


def test_the_error_includes_the_output_of_an_emulator_that_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "broken.js"
    script.write_text("console.error('no such luck'); process.exit(1)")
    monkeypatch.setattr(local.azurite, "SCRIPT", script)
    with pytest.raises(AzuriteFailed, match=r"^Azurite ended \(exit code 1\)\nno such luck$"):
        Azurite().start()


def test_the_error_for_a_port_in_use_names_the_port(azurite: Azurite) -> None:
    (port,) = re.findall(r"BlobEndpoint=http://127.0.0.1:(\d+)", azurite.connection_string)
    taken = Azurite(ports={**FREE_PORTS, "blob": int(port)})
    with pytest.raises(AzuriteFailed) as raised:
        taken.start()
    other = "another process does, perhaps another Azurite"
    assert str(raised.value) == f"Azurite cannot use 127.0.0.1:{port}: {other}"
