"""App settings and how bindings look them up."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from local.functions_host.app_settings import AppSettings, read_app_settings
from local.functions_host.connections import Connection
from local.functions_host.errors import HostStartFailed
from shared.settings.connections import Identity

STORAGE = "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=a2V5"


def test_the_environment_takes_precedence_over_local_settings(tmp_path: Path) -> None:
    values = {"A": "file", "B": "file", "Flag": True, "Number": 5}
    (tmp_path / "local.settings.json").write_text(json.dumps({"Values": values}))
    settings = read_app_settings(tmp_path, {"B": "environment"})
    assert settings.values == {"A": "file", "B": "environment", "Flag": "true", "Number": "5"}


def test_the_error_for_a_broken_local_settings_file_names_it(tmp_path: Path) -> None:
    (tmp_path / "local.settings.json").write_text("{")
    with pytest.raises(HostStartFailed, match=r"local\.settings\.json"):
        read_app_settings(tmp_path, {})


def test_setting_expressions_are_resolved() -> None:
    settings = AppSettings({"Queue": "metrics", "Env": "test"})
    assert settings.resolve("%Queue%-%Env%", function="f") == "metrics-test"


def test_the_error_for_a_missing_setting_names_function_and_setting() -> None:
    with pytest.raises(HostStartFailed, match="function f: setting Queue is missing"):
        AppSettings({}).resolve("%Queue%", function="f")


@pytest.mark.parametrize(
    ("values", "connection"),
    [
        ({"Metrics": STORAGE}, "Metrics"),
        ({"AzureWebJobsMetrics": STORAGE, "Metrics": "other"}, "Metrics"),
        ({"AzureWebJobsStorage": STORAGE}, "AzureWebJobsStorage"),
        ({"AzureWebJobsStorage": STORAGE}, ""),
        ({"AzureWebJobsStorage": STORAGE}, "Storage"),
    ],
)
def test_connections_are_looked_up_as_in_the_real_host(
    values: dict[str, str], connection: str
) -> None:
    assert AppSettings(values).connection(connection, function="f").connection_string == STORAGE


def test_the_short_form_for_the_emulator_becomes_a_full_connection_string() -> None:
    settings = AppSettings({"AzureWebJobsStorage": "UseDevelopmentStorage=true;"})
    assert "127.0.0.1:10001" in settings.connection("", function="f").connection_string


IDENTITY = {"S__credential": "managedidentity", "S__clientId": "c"}


@pytest.mark.parametrize(
    ("values", "url"),
    [
        ({"S__queueServiceUri": "https://a.example"}, "https://a.example"),
        ({"S__accountName": "account"}, "https://account.queue.core.windows.net"),
        (
            {"S__accountName": "account", "S__queueServiceUri": "https://a.example"},
            "https://a.example",
        ),
        ({"AzureWebJobsS__accountName": "backup"}, "https://backup.queue.core.windows.net"),
        (
            {"AzureWebJobsS__accountName": "backup", "S": STORAGE},
            "https://backup.queue.core.windows.net",
        ),
    ],
)
def test_an_identity_based_storage_connection_is_resolved_as_in_the_real_host(
    values: dict[str, str], url: str
) -> None:
    connection = AppSettings({**values, **IDENTITY}).connection("S", function="f")
    assert connection.connection_string == ""
    assert connection.storage_url("queue") == url


def test_an_identity_based_connection_names_namespace_and_identity() -> None:
    values = {"B__fullyQualifiedNamespace": "bus.example", "B__clientId": "c"}
    connection = AppSettings(values).connection("B", function="f")
    assert (connection.namespace, connection.identity) == ("bus.example", Identity("c"))
    managed = AppSettings({**values, "B__credential": "managedidentity"})
    assert managed.connection("B", function="f").identity == Identity("c", only_managed=True)


@pytest.mark.parametrize(
    ("values", "use", "problem"),
    [
        ({}, lambda _: None, "function f: setting S is missing"),
        (
            {"S__tableServiceUri": "https://a.example"},
            lambda connection: connection.storage_url("blob"),
            "S is identity-based, but S__blobServiceUri or S__accountName is missing",
        ),
        (
            {"S__accountName": "a"},
            lambda connection: connection.namespace,
            "S is identity-based, but S__fullyQualifiedNamespace is missing",
        ),
        (
            {"S__credential": "secret"},
            lambda _: None,
            "S__credential = 'secret': must be managedidentity",
        ),
    ],
)
def test_the_error_for_an_incomplete_connection_names_function_and_setting(
    values: dict[str, str], use: Callable[[Connection], object], problem: str
) -> None:
    with pytest.raises(HostStartFailed, match=re.escape(problem)):
        use(AppSettings(values).connection("S", function="f"))


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("1", True), ("false", False)])
def test_a_setting_disables_a_single_function(value: str, expected: bool) -> None:
    settings = AppSettings({"AzureWebJobs.f.Disabled": value})
    assert settings.is_disabled("f") is expected
    assert not settings.is_disabled("g")
