"""host.json and the settings that override it are checked at start and by ``validate``."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from local.functions_host.host_json import read_host_json
from local.functions_host.storage_queues import MessageEncoding
from shared.settings import SettingsError
from shared.wiring.app import App
from tests.bindings.test_function_app import ENVIRON

ROOT = Path(__file__).parents[2]
OWN = json.loads((ROOT / "host.json").read_text(encoding="utf-8"))
AS_CREATED: dict[str, Any] = {
    "version": "2.0",
    "logging": {"applicationInsights": {"samplingSettings": {"isEnabled": True}}},
    "extensionBundle": {"id": "Microsoft.Azure.Functions.ExtensionBundle", "version": "[4.*, 5.0)"},
}
"""A file as Core Tools creates it. The encoding is base64 by default."""

ENCODING = "AzureFunctionsJobHost__extensions__queues__messageEncoding"


def queues(**options: object) -> dict[str, Any]:
    return {**AS_CREATED, "extensions": {"queues": options}}


def app(folder: Path, document: object, **overrides: str) -> App:
    (folder / "host.json").write_text(
        document if isinstance(document, str) else json.dumps(document)
    )
    return App({**ENVIRON, "AzureWebJobsScriptRoot": str(folder), **overrides})


@pytest.mark.parametrize(
    ("document", "overrides", "place"),
    [
        (AS_CREATED, {}, "host.json"),
        (queues(messageEncoding="base64"), {}, "host.json"),
        ({**AS_CREATED, "queues": {"messageEncoding": "none"}}, {}, "host.json"),  # version 1
        (OWN, {ENCODING: "Base64"}, ENCODING),
        (OWN, {"azurefunctionsjobhost:Extensions:Queues:MessageEncoding": "base64"}, ENCODING),
        ("{", {}, "host.json: JSONDecodeError"),
    ],
)
def test_a_host_json_under_which_no_message_can_be_read_is_refused(
    document: object, overrides: dict[str, str], place: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError) as raised:
        _ = app(tmp_path, document, **overrides).checked
    (problem,) = raised.value.problems
    assert problem.startswith(place)
    assert "messageEncoding" in problem or "Error" in problem


@pytest.mark.parametrize(
    ("document", "overrides"),
    [
        (OWN, {}),
        (AS_CREATED, {ENCODING: "none"}),
        (AS_CREATED, {ENCODING.upper(): "None"}),
        (AS_CREATED, {ENCODING.replace("__", ":"): "none"}),
        ({"version": "2.0", "Extensions": {"Queues": {"MessageEncoding": "None"}}}, {}),
    ],
)
def test_the_local_host_and_the_app_agree_that_messages_are_plain_text(
    document: object, overrides: dict[str, str], tmp_path: Path
) -> None:
    assert app(tmp_path, document, **overrides).warnings == ()
    config = read_host_json(tmp_path, overrides)
    assert config.queues.message_encoding is MessageEncoding.NONE


@pytest.mark.parametrize(
    ("changed", "overrides", "warning"),
    [
        ({"functionTimeout": "00:01:00"}, {}, "host.json: functionTimeout is 00:01:00: must be at"),
        ({}, {"AzureFunctionsJobHost__functionTimeout": "00:04:59"}, "AzureFunctionsJobHost__func"),
        ({"routes": ""}, {}, "host.json: extensions.http.routePrefix is '': links"),
        (
            {},
            {"AzureFunctionsJobHost__extensions__http__routePrefix": "x"},
            "AzureFunctionsJobHost",
        ),
        ({"functionTimeout": "00:05:00", "routes": "/API/"}, {}, None),
        ({"functionTimeout": "-1"}, {}, None),
    ],
)
def test_a_limit_or_prefix_that_the_app_does_not_expect_is_a_warning(
    changed: dict[str, Any], overrides: dict[str, str], warning: str | None, tmp_path: Path
) -> None:
    document = {**OWN, **changed}
    document["extensions"] = {**OWN["extensions"], "http": {"routePrefix": changed.get("routes")}}
    if "routes" not in changed:
        document["extensions"].pop("http")
    warnings = app(tmp_path, document, **overrides).warnings
    assert len(warnings) == (warning is not None)
    assert not warnings or warnings[0].startswith(warning or "")


def test_the_function_app_starts_no_function_under_a_host_json_with_base64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app(tmp_path, AS_CREATED)
    for name, value in {**ENVIRON, "AzureWebJobsScriptRoot": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    sys.modules.pop("function_app", None)
    module = importlib.import_module("function_app")
    sys.modules.pop("function_app", None)
    names = [each.get_function_name() for each in module.functions.get_functions()]
    assert sorted(names) == ["settings_check", "settings_problems"]
    assert "messageEncoding" in str(module.failure)
