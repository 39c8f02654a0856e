"""The settings in a file, in the forms in which people have them, and how such a file is read."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shared.settings.variables import same_name

FORMS = (
    'the file must have the form {"Values": {"Name": "text"}}, or be the JSON of the portal\'s '
    "Advanced edit or of `az functionapp config appsettings list`"
)
ENCRYPTED = (
    "its values are encrypted. Run `func settings decrypt` in its folder, or set IsEncrypted to "
    "false and write the values"
)

REDACTED = (
    "every value is null, as Azure answers a change of settings. Write the answer of "
    "`az functionapp config appsettings list`"
)

_STRING = r'"(?:\\.|[^"\\])*"'
_COMMENTS = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_TRAILING_COMMAS = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)


class NoSettings(ValueError):
    """The document contains no settings that can be read."""


def values_of(document: Any) -> dict[str, str]:
    """The settings by name. A value of null is left out, unless all are. Raises NoSettings.

    The document is a local.settings.json, a list of names and values, as the portal and the Azure
    CLI show it, or an answer of Resource Manager, which has the settings in ``properties``.
    """
    if isinstance(document, list):
        if not document:
            raise NoSettings("the list is empty")
        return _texts(_named(each) for each in document)
    given = document.items() if isinstance(document, dict) else ()
    parts = {key.lower(): part for key, part in given}
    if str(parts.get("isencrypted", False)).lower() == "true":
        raise NoSettings(ENCRYPTED)
    values = parts.get("values", parts.get("properties"))
    is_app = isinstance(values, dict) and "siteConfig" in values
    if isinstance(values, dict) and not is_app:
        return _texts(values.items())
    if parts and values is None:
        raise NoSettings('has no "Values". Write {"Values": {…}}')
    raise NoSettings(FORMS)


def _named(entry: Any) -> tuple[str, Any]:
    if isinstance(entry, dict) and isinstance(entry.get("name"), str) and "value" in entry:
        return entry["name"], entry["value"]
    raise NoSettings(f'each item of the list must have a "name" and a "value"; {FORMS}')


def _texts(pairs: Iterable[tuple[str, Any]]) -> dict[str, str]:
    listed = list(pairs)
    given = [(name, value) for name, value in listed if value is not None]
    if listed and not given:
        raise NoSettings(REDACTED)
    names = [same_name(name) for name, _ in given]
    if twice := [name for name, _ in given if names.count(same_name(name)) > 1]:
        raise NoSettings(f"{' and '.join(twice)}: they are the same setting. Remove one of them")
    return {name: v if isinstance(v, str) else json.dumps(v) for name, v in given}


def read_json(path: Path) -> Any:
    """The value in a JSON file that people edit, read as Azure Functions Core Tools does: with a
    byte order mark, comments, trailing commas, or in UTF-16. Comments become spaces, so that an
    error names the line and column of the file. Raises OSError, or ValueError if it is not JSON or
    has a name twice."""
    data = path.read_bytes()
    text = data.decode(json.detect_encoding(data)).removeprefix("\ufeff")
    for pattern in (_COMMENTS, _TRAILING_COMMAS):
        text = pattern.sub(_blank, text)
    return json.loads(text, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object. JSON itself would drop all but the last value of a name without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        raise ValueError(f"{' and '.join(twice)}: there twice in one object. Remove one of them")
    return found


def _blank(match: re.Match[str]) -> str:
    found = match[0]
    return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)
