"""When the data of each date was last written, in blobs (Azurite) and in folders."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from azure.storage.blob.aio import ContainerClient

from local.azurite import Azurite
from shared.sampling.blob_paths import container_of, date_of, may_hold
from shared.trends.nightly.model import InputUnreadable
from shared.trends.submitters.inputs import StoredInputs

DAY = date(2026, 2, 28)
OTHER = date(2026, 2, 27)
ABSENT = date(2026, 2, 26)
RESOURCE = "resourceId=/SUBSCRIPTIONS/1/RESOURCEGROUPS/G/PROVIDERS/MICROSOFT.INSIGHTS/COMPONENTS"


def paths(name: str, *days: date) -> list[str]:
    return [
        f"{RESOURCE}/{name}/y={day:%Y}/m={day:%m}/d={day:%d}/h={hour:02}/m=00/PT1H.json"
        for day in days
        for hour in (0, 23)
    ]


@pytest.fixture
async def container(azurite: Azurite) -> AsyncIterator[ContainerClient]:
    name = f"logs-{os.getpid()}"
    client = ContainerClient.from_connection_string(azurite.connection_string, name)
    async with client:
        await client.create_container()
        yield client
        await client.delete_container()


async def test_each_date_has_the_time_of_its_newest_blob(
    container: ContainerClient, azurite: Azurite
) -> None:
    old = paths("A", date(2025, 2, 28), date(2026, 1, 28)) + paths("B", OTHER)
    classic = [f"app_key/Event/{DAY}/05/x.blob", "README.md"]
    for path in [*old, *paths("A", DAY), *classic]:
        await container.upload_blob(path, b"{}")
    last = await container.get_blob_client(classic[0]).get_blob_properties()
    place = f"{container.url.removesuffix(container.container_name)}{{dataset}}"
    inputs = StoredInputs([place], azurite.connection_string)
    times = await inputs.newest(container.container_name, [DAY, OTHER, ABSENT])
    await inputs.close()
    assert set(times) == {DAY, OTHER}
    assert times[DAY] == last.last_modified


async def test_a_date_above_the_input_is_no_date_of_its_blobs(
    container: ContainerClient, azurite: Azurite
) -> None:
    """As the job reads them, so that dates are requested that it finds."""
    for path in [*paths("A", DAY), "x.json"]:
        await container.upload_blob(f"{OTHER}/{path}", b"{}")
    inputs = StoredInputs([f"{container.url}/{OTHER}"], azurite.connection_string)
    assert set(await inputs.newest("", [DAY, OTHER])) == {DAY}
    await inputs.close()


async def test_an_error_names_a_container_that_does_not_exist(azurite: Azurite) -> None:
    url = azurite.connection_string.partition("BlobEndpoint=")[2].partition(";")[0]
    inputs = StoredInputs([f"{url}/{{dataset}}"], azurite.connection_string)
    with pytest.raises(InputUnreadable, match="no-such"):
        await inputs.newest("no-such", [DAY])
    await inputs.close()


async def test_local_folders_are_read_like_containers(tmp_path: Path) -> None:
    for path in paths("A", DAY, date(2025, 2, 28)):
        file = tmp_path / "logs" / path
        file.parent.mkdir(parents=True)
        file.write_text("{}")
    written = datetime(2026, 3, 1, 0, 5, tzinfo=UTC)
    os.utime(tmp_path / "logs" / paths("A", DAY)[0], (written.timestamp(), written.timestamp()))
    newer = written + timedelta(hours=1)
    os.utime(tmp_path / "logs" / paths("A", DAY)[1], (newer.timestamp(), newer.timestamp()))
    for place in (f"{tmp_path}/{{dataset}}", f"file://{tmp_path}/{{dataset}}"):
        assert await StoredInputs([place]).newest("logs", [DAY, OTHER]) == {DAY: newer}
    metrics = tmp_path / f"{OTHER}" / paths("M", DAY)[0]
    metrics.parent.mkdir(parents=True)
    metrics.write_text("{}")
    os.utime(metrics, (written.timestamp() + 9_000,) * 2)
    both = StoredInputs([f"{tmp_path}/{{dataset}}", f"{tmp_path}/{OTHER}"])
    assert await both.newest("logs", [DAY, OTHER]) == {DAY: written + timedelta(seconds=9_000)}
    with pytest.raises(InputUnreadable, match="the folder does not exist"):
        await StoredInputs([str(tmp_path / "none")]).newest("logs", [DAY])


async def test_a_container_has_one_address_however_it_is_written() -> None:
    account = "https://acct.blob.core.windows.net"
    for address, parts in {
        "abfss://logs@acct.dfs.core.windows.net/a%20/b/": (account, "logs", "a%20/b"),
        "wasbs://logs@acct.blob.core.windows.net": (account, "logs", ""),
        f"{account}/logs": (account, "logs", ""),
        f"{account}/logs/a%20/b/": (account, "logs", "a /b"),
        "http://127.0.0.1:10000/acct/logs/a": ("http://127.0.0.1:10000/acct", "logs", "a"),
        f"{account}/": (account, "", ""),
        "abfss://acct.dfs.core.windows.net/logs": (account, "", "logs"),
    }.items():
        assert container_of(address) == parts
    for address in ("s3://bucket/a/logs", account):
        with pytest.raises(InputUnreadable, match="must be a folder"):
            await StoredInputs([address]).newest("logs", [DAY])


def test_folders_of_other_dates_are_not_listed() -> None:
    dates = [DAY, OTHER]
    assert may_hold(f"{RESOURCE}/A/", dates)
    assert may_hold(f"{RESOURCE}/A/y=2026/m=02/", dates)
    assert not may_hold(f"{RESOURCE}/A/y=2025/", dates)
    assert not may_hold(f"{RESOURCE}/A/y=2026/m=03/", dates)
    assert not may_hold(f"{RESOURCE}/A/y=2026/m=02/d=01/", dates)
    assert date_of("x/y=2026/m=02/d=31/h=00") is None
