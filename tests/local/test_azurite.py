"""The storage emulator: it starts, keeps what it should, says what is wrong, leaves nothing."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from azure.core.exceptions import AzureError
from azure.data.tables import TableServiceClient
from azure.storage.queue import QueueServiceClient

import local.azurite
from local.azurite import Azurite, AzuriteFailed
from local.node import NodeMissing, find_node

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


def test_a_folder_keeps_what_was_stored(tmp_path: Path) -> None:
    with Azurite(tmp_path) as azurite:
        connection = azurite.connection_string
        with QueueServiceClient.from_connection_string(connection) as service:
            service.create_queue("kept").close()
    with Azurite(tmp_path) as azurite:
        assert queue_names(azurite.connection_string) == ["kept"]


def test_tables_answer(azurite: Azurite) -> None:
    with TableServiceClient.from_connection_string(azurite.connection_string) as service:
        service.create_table_if_not_exists("Probe").close()
        assert "Probe" in {each.name for each in service.list_tables()}


def test_it_ends_when_its_parent_is_killed() -> None:
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


def test_a_missing_package_says_what_to_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(local.azurite, "SCRIPT", tmp_path / "absent.js")
    with pytest.raises(NodeMissing, match="run `make setup`"):
        Azurite().start()


def test_a_missing_node_says_what_to_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(NodeMissing, match="run `make setup`"):
        find_node()


def test_the_environments_own_node_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    node = tmp_path / "node"
    node.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert find_node() == str(node)


def test_what_it_printed_is_shown_when_it_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "broken.js"
    script.write_text("console.error('no such luck'); process.exit(1)")
    monkeypatch.setattr(local.azurite, "SCRIPT", script)
    with pytest.raises(AzuriteFailed, match="no such luck"):
        Azurite().start()
