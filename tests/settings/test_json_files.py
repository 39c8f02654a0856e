"""Settings files are read as Core Tools reads them: with a byte order mark, comments and trailing
commas."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from local.demo.settings_files import running_writer
from local.functions_host.app_settings import read_app_settings
from local.functions_host.host_json import read_host_json
from shared import settings
from shared.settings import SettingsError
from shared.settings.files import read_json

EDITED = """\ufeff// of this machine
{
    "Process": PROCESS, /* of the
    demo */
    "functionTimeout": "00:07:00",
    "Values": {
        "Topic": "orders", // not "invoices"
        "Url": "http://127.0.0.1/*x*/?a,}", // a comma in a text stays: ,]
        // "Subscription": "billing"
    },
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which each file that the app or a command reads was edited by a person."""
    text = EDITED.replace("PROCESS", str(os.getppid()))
    for name in ("local.settings.json", "host.json"):
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_commands_the_local_host_and_demos_read_files_with_comments(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {})
    settings.add_file(folder / "local.settings.json")
    assert os.environ == {"Topic": "orders", "Url": "http://127.0.0.1/*x*/?a,}"}
    assert read_app_settings(folder, {}).values["Topic"] == "orders"
    assert read_host_json(folder).function_timeout_seconds == 420
    assert running_writer(folder / "local.settings.json") == os.getppid()


LISTED = [
    {"name": "Topic", "value": "orders", "slotSetting": False},
    {"name": "CompletedMetric", "value": None, "slotSetting": False},
]


@pytest.mark.parametrize(
    "document",
    [
        {"Values": {"Topic": "orders", "CompletedMetric": None}},
        {"isEncrypted": False, "values": {"Topic": "orders"}},
        LISTED,
        {"id": "/subscriptions/1/…/config/appsettings", "properties": {"Topic": "orders"}},
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_the_settings_of_a_deployed_app_are_read_as_azure_and_powershell_write_them(
    document: object, encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "local.settings.json"
    file.write_bytes(json.dumps(document).encode(encoding))
    monkeypatch.setattr(os, "environ", {})
    settings.add_file(file)
    assert os.environ == {"Topic": "orders"}
    assert dict(read_app_settings(tmp_path, {}).values) == {"Topic": "orders"}


def test_a_value_that_is_not_text_is_read_as_its_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"DryRun": True, "WindowSeconds": 60, "TrendsRequest": {"file": "a"}}
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"Values": values}))
    monkeypatch.setattr(os, "environ", {})
    settings.add_file(file)
    loaded = settings.load()
    assert (loaded.dry_run, loaded.window_seconds) == (True, 60)
    assert loaded.nightly.request == {"file": "a"}


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (
            {"IsEncrypted": True, "Values": {"Topic": "Zm9v"}},
            "values are encrypted. Run `func sett",
        ),
        ({"isEncrypted": "true", "Values": {}}, "its values are encrypted"),
        ([{"name": "Topic"}], 'each item of the list must have a "name" and a "value"'),
        (["Topic=orders"], 'each item of the list must have a "name" and a "value"'),
        (
            [LISTED[0], {"name": "topic", "value": "x"}],
            "Topic and topic: they are the same setting",
        ),
        ({"properties": {"siteConfig": {"appSettings": LISTED}}}, "the file must have the form"),
        ({"Values": ["Topic"]}, "the file must have the form"),
        ([], "the list is empty"),
        ([LISTED[1]], "every value is null, as Azure answers a change"),
        ("Topic", "the file must have the form"),
    ],
)
def test_a_file_without_readable_settings_is_refused_in_one_sentence(
    document: object, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(document))
    with pytest.raises(SettingsError) as raised:
        settings.add_file(file)
    (told,) = raised.value.problems
    assert problem in told
    assert "Zm9v" not in told
    file.write_text("")
    with pytest.raises(SettingsError, match=r"json: it cannot be read \(Expecting value: line 1"):
        settings.add_file(file)


def test_an_error_names_the_line_and_column_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{ // one\n/* two\nthree */ "a": wrong }')
    with pytest.raises(json.JSONDecodeError) as raised:
        read_json(file)
    assert (raised.value.lineno, raised.value.colno) == (3, 15)


def test_a_name_that_is_there_twice_is_refused_instead_of_dropping_the_first(
    tmp_path: Path,
) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"Values": {"DryRun": "true", "Topic": "a", "DryRun": "false"}}')
    with pytest.raises(SettingsError, match=r"DryRun: there twice in one object\. Remove one"):
        settings.add_file(file)


@pytest.mark.parametrize(
    "text", ["", "{", '{"a": 1} // x\n}', '{"a": "b // c\n}', "/* {}", "[1,,]"]
)
def test_a_file_that_is_not_json_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(text)
    with pytest.raises(ValueError, match="line"):
        read_json(file)
