"""host.json and the app settings that override it, read as by the Functions host, without regard to
case: ``AzureFunctionsJobHost__extensions__http__routePrefix`` overrides ``routePrefix`` in ``http``
in ``extensions``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.settings.files import read_json
from shared.settings.variables import same_name

HOST_JSON = "host.json"
OVERRIDE = "AzureFunctionsJobHost"
APP_FOLDER = "AzureWebJobsScriptRoot"
"""The variable in which the host names the folder of the app."""


def app_folder(environ: Mapping[str, str]) -> Path | None:
    """The folder that the host names, the current one, or that of the code; None if none of them
    contains an app, as with an installed package."""
    code = Path(__file__).parents[2]
    for folder in (Path(environ.get(APP_FOLDER) or "."), Path(), code):
        if any((folder / name).is_file() for name in (HOST_JSON, "function_app.py")):
            return folder
    return None


def host_document(folder: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """The content of host.json with the overrides; only these if there is no such file. Raises
    OSError, or ValueError if the file is not a JSON object."""
    path = folder / HOST_JSON
    document = read_json(path) if path.is_file() else {}
    if not isinstance(document, dict):
        raise ValueError("must be a JSON object")
    for name, value in environ.items():
        prefix, *keys = name.replace("__", ":").split(":")
        if keys and value and same_name(prefix) == same_name(OVERRIDE):
            _put(document, keys, value)
    return document


def host_value(document: Mapping[str, Any], path: str, default: Any) -> Any:
    """The value at a path such as ``extensions.queues.messageEncoding``."""
    value: Any = document
    for key in path.split("."):
        found = _same_key(value, key) if isinstance(value, Mapping) else None
        if found is None:
            return default
        value = value[found]
    return default if value is None else value


def _put(document: dict[str, Any], keys: list[str], text: str) -> None:
    for key in keys[:-1]:
        section = _same_key(document, key) or key
        if not isinstance(document.get(section), dict):
            document[section] = {}
        document = document[section]
    document[_same_key(document, keys[-1]) or keys[-1]] = _scalar(text)


def _same_key(section: Mapping[str, Any], key: str) -> str | None:
    return next((each for each in section if each.lower() == key.lower()), None)


def _scalar(text: str) -> Any:
    """The number or flag that the text means; otherwise the text."""
    try:
        value = json.loads(text.lower())
    except ValueError:
        return text
    return value if isinstance(value, int | float) else text
