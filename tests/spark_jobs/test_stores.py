"""Output folders: every store keeps the same contract, in a local folder and in Azure Storage."""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from azure.core.credentials import AzureSasCredential
from azure.storage.blob import BlobServiceClient

from spark_jobs.azure_blobs import BlobStore, open_container
from spark_jobs.errors import JobError
from spark_jobs.job import run_job
from spark_jobs.options import Options
from spark_jobs.publish.stores import LocalStore, Store, marker_beside, require, store_of
from tests.spark_jobs.test_publishing import DAY, SHAPE, Counting, Sized, counts

if TYPE_CHECKING:
    from local.azurite import Azurite


@pytest.fixture
def blob_store(azurite: Azurite) -> BlobStore:
    blobs = BlobServiceClient.from_connection_string(azurite.connection_string)
    container = blobs.create_container(f"out-{uuid.uuid4().hex}")
    return BlobStore(container, "a folder/trends", "abfss://c@account.dfs.core.windows.net/trends")


@pytest.fixture(params=["local", "blobs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return LocalStore(tmp_path)
    blobs: BlobStore = request.getfixturevalue("blob_store")
    return blobs


def test_a_folder_lists_its_children_and_not_theirs(store: Store) -> None:
    assert store.names("partials") == []
    for name in ("partials/run1/a/part", "partials/run1/b", "partials/run2", "partials2/run3"):
        store.write(name, b"x")
    assert store.names("partials") == ["run1", "run2"]
    assert store.names("partials/run1") == ["a", "b"]


def test_a_write_replaces_the_earlier_file(store: Store) -> None:
    store.write("results/run/trends.jsonl", b"old")
    store.write("results/run/trends.jsonl", b"new")
    assert store.read("results/run/trends.jsonl") == b"new"


def test_a_missing_file_is_not_found(store: Store) -> None:
    with pytest.raises(FileNotFoundError):
        store.read("manifests/1.json")


def test_only_one_of_many_concurrent_runs_creates_a_file(store: Store) -> None:
    created: list[bytes] = []
    meet = threading.Barrier(8)

    def create(content: bytes) -> None:
        meet.wait(20)
        if store.create("manifests/1.json", content):
            created.append(content)

    threads = [threading.Thread(target=create, args=(b"%d" % n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert created == [store.read("manifests/1.json")]
    assert store.names("manifests") == ["1.json"]


def test_deleting_a_folder_deletes_its_contents_and_no_other_folder(store: Store) -> None:
    for name in ("partials/run/a/part", "partials/run/b", "partials/run2/c"):
        store.write(name, b"x")
    store.delete("partials/run")
    store.delete("partials/absent")
    assert store.names("partials") == ["run2"]
    store.delete("partials/run2/c")
    assert store.names("partials/run2") == []


def test_a_run_whose_reply_is_lost_recognizes_the_manifest_that_it_created(store: Store) -> None:
    """The client sends the request again, and the service answers that the file exists."""
    assert store.create("manifests/1.json", b"mine")
    assert store.create("manifests/1.json", b"mine")
    assert not store.create("manifests/1.json", b"theirs")


def test_errors_of_the_file_system_name_the_output(tmp_path: Path) -> None:
    (tmp_path / "manifests").touch()
    store = LocalStore(tmp_path)
    for call in (
        lambda: store.create("manifests/1.json", b""),
        lambda: store.write("manifests/1.json", b""),
        lambda: store.read("manifests/1.json"),
        lambda: store.delete("manifests/1.json"),
    ):
        with pytest.raises(JobError, match=r"--output .*manifests.*: Not a directory|File exists"):
            call()


@dataclass(frozen=True, slots=True)
class SharedStore(BlobStore):
    """Spark reaches a local folder here, since it has no connector for the emulator."""

    folder: str = ""

    def url(self, name: str) -> str:
        return f"{self.folder}/{name}"


def test_a_job_publishes_to_a_storage_account(blob_store: BlobStore, tmp_path: Path) -> None:
    folder = (tmp_path / "out").as_uri()
    store = SharedStore(blob_store.container, blob_store.prefix, blob_store.root, folder)
    for run_id in ("first", "second"):
        request = Options(SHAPE, run_id, date(2017, 7, 1))
        done = run_job(Sized(sizes={DAY: 3}), store, Counting(), request)
    assert counts(done.trends) == {15: 3}
    assert store.names("manifests") == ["000000001.json", "000000002.json"]
    assert store.names("results/second") == [
        "operations.jsonl",
        *(f"{name}.{form}" for name in ("sums", "trends") for form in ("jsonl", "parquet")),
    ]


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("https://account.blob.core.windows.net/c/trends", "must be a local folder or a folder of"),
        ("hdfs://node/trends", "must be a local folder or a folder of a storage account"),
        ("abfss://account.dfs.core.windows.net/trends", "names no container and account"),
        ("/data/trends[1]", "Spark cannot read folders with any of "),
        ("file://out/trends", "names the machine out; write out/trends for a relative path"),
    ],
)
def test_an_output_that_cannot_be_published_to_is_refused(location: str, message: str) -> None:
    with pytest.raises(JobError, match=message):
        store_of(location)


def test_the_folder_of_a_file_url_is_used(tmp_path: Path) -> None:
    for location in (
        f"file://{tmp_path}/out",
        f"file:{tmp_path}/out",
        f"file://localhost{tmp_path}/out",
    ):
        store = store_of(location)
        assert isinstance(store, LocalStore)
        assert store.root == tmp_path / "out"


def test_a_task_on_a_machine_without_the_output_folder_writes_nothing(tmp_path: Path) -> None:
    marker = marker_beside(f"file://{tmp_path}/partials/run")
    require(marker)
    (tmp_path / "partials").rename(tmp_path / "not shared")
    with pytest.raises(JobError, match=f"--output {tmp_path}: .* does not share this folder"):
        require(marker)


def test_a_storage_account_needs_no_marker() -> None:
    marker = marker_beside("abfss://telemetry@account.dfs.core.windows.net/trends")
    assert marker == ""
    require(marker)


def test_a_connection_string_of_another_account_is_not_used(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_jobs.azure_blobs.login", lambda: AzureSasCredential("of the login"))
    mine = open_container("https://mine.blob.core.windows.net", "c", "", azurite.connection_string)
    assert mine.url == "https://mine.blob.core.windows.net/c"
    url = BlobServiceClient.from_connection_string(azurite.connection_string).url.rstrip("/")
    assert open_container(url, "c", "", azurite.connection_string).url == f"{url}/c"


def test_a_malformed_connection_string_is_an_error_that_names_its_variable() -> None:
    with pytest.raises(JobError, match="AZURE_STORAGE_CONNECTION_STRING: "):
        open_container("https://a.blob.core.windows.net", "c", "", "AccountName")


def test_a_missing_container_is_an_error_that_names_it(
    blob_store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob_store.container.delete_container()
    monkeypatch.setattr("spark_jobs.azure_blobs.open_container", lambda *_: blob_store.container)
    with pytest.raises(JobError, match="there is no container telemetry"):
        store_of("abfss://telemetry@account.dfs.core.windows.net/trends")
