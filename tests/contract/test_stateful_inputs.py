"""Random files of telemetry, in a container and in a folder, are read as those in memory."""

from __future__ import annotations

import asyncio
import os
import shutil
import uuid
from datetime import UTC, date, datetime
from pathlib import Path

from azure.storage.blob.aio import ContainerClient
from hypothesis import strategies as st
from hypothesis.stateful import rule

from local.azurite import Azurite
from local.twins.nightly import MemoryInputs
from shared.trends.nightly.errors import InputUnreadable
from shared.trends.submitters.inputs import StoredInputs
from tests.contract.faulty_network import Network
from tests.contract.stateful import SideBySide, run_machine

DATES = (date(2026, 2, 28), date(2026, 2, 27), date(2026, 1, 31), date(2025, 2, 28))
DAYS = st.sampled_from(DATES)
FORMS = st.sampled_from(
    (
        "A/y={0:%Y}/m={0:%m}/d={0:%d}/h=00/m=00/PT1H.json",
        "ü #/y={0:%Y}/m={0:%m}/d={0:%d}/h=23/m=00/PT1H.json",
        "key/Event/{0}/05/x.blob",
    )
)
ODD = st.sampled_from(("README.md", "A/y=2026/m=02/d=31/x.json", "A/y=2026/m=02/x.json"))
DATASETS = st.sampled_from(("sales", "$stock", "a-1"))
"""The settings only accept names of lower-case letters, digits and hyphens, and a leading ``$``."""


class InputsMachine(SideBySide):
    errors = (InputUnreadable,)

    def __init__(
        self,
        runner: asyncio.Runner,
        network: Network,
        container: ContainerClient,
        string: str,
        root: Path,
    ) -> None:
        super().__init__(runner, network)
        self.container, self.root = container, root / uuid.uuid4().hex
        self.prefix = uuid.uuid4().hex[:8]
        self.in_blobs, self.in_files = MemoryInputs(), MemoryInputs(None)
        self.blobs = StoredInputs([f"{container.url}/{self.prefix}-{{dataset}}"], string)
        self.files = StoredInputs([f"{self.root}/{{dataset}}"])

    def teardown(self) -> None:
        self.run(self.blobs.close)
        shutil.rmtree(self.root, ignore_errors=True)

    @rule(dataset=DATASETS, day=DAYS, form=FORMS, seconds=st.integers(0, 10**6))
    def a_file_is_written(self, dataset: str, day: date, form: str, seconds: int) -> None:
        """A file gets a given time. A blob gets the container's time."""
        path = form.format(day)
        blob = self.write(dataset, path, written := datetime.fromtimestamp(seconds, UTC))
        for memory, time in ((self.in_blobs, blob), (self.in_files, written)):
            memory.written = memory.written if memory.written is not None else {}
            kept = memory.written.setdefault(dataset, {})
            kept[day] = max(time, kept.get(day, time))

    @rule(dataset=DATASETS, path=ODD)
    def a_file_without_a_date_is_written(self, dataset: str, path: str) -> None:
        self.write(dataset, path, datetime.now(UTC))
        for memory in (self.in_blobs, self.in_files):
            memory.written = memory.written if memory.written is not None else {}
            memory.written.setdefault(dataset, {})

    def write(self, dataset: str, path: str, time: datetime) -> datetime:
        """Write a file and a blob. Returns the blob's time.

        A file that is overwritten keeps the newest of its times.
        """
        file = self.root / dataset / path
        file.parent.mkdir(parents=True, exist_ok=True)
        before = file.stat().st_mtime if file.exists() else 0
        file.touch()
        os.utime(file, (max(before, time.timestamp()),) * 2)

        async def upload() -> datetime:
            blob = self.container.get_blob_client(f"{self.prefix}-{dataset}/{path}")
            await blob.upload_blob(b"{}", overwrite=True)
            written: datetime = (await blob.get_blob_properties()).last_modified
            return written

        found: datetime = self.run(upload)
        return found

    @rule(dataset=DATASETS, dates=st.lists(DAYS, unique=True))
    def newest(self, dataset: str, dates: list[date]) -> None:
        self.both(
            lambda: self.in_blobs.newest(dataset, dates),
            lambda: self.blobs.newest(dataset, dates),
        )
        if (self.root / dataset).exists():
            self.both(
                lambda: self.in_files.newest(dataset, dates),
                lambda: self.files.newest(dataset, dates),
            )


def test_inputs_are_read_like_those_in_memory(azurite: Azurite, tmp_path: Path) -> None:
    network, string = Network(), azurite.connection_string
    with asyncio.Runner() as runner:

        async def opened() -> ContainerClient:
            name = f"logs-{uuid.uuid4().hex[:8]}"
            container = ContainerClient.from_connection_string(string, name)
            await container.create_container()
            return container

        container = runner.run(opened())
        try:
            run_machine(
                lambda: InputsMachine(runner, network, container, string, tmp_path), examples=3
            )
        finally:
            runner.run(container.close())
