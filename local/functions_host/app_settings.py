"""App settings: the process environment over local.settings.json, and lookups for bindings."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from local.functions_host.connections import Connection, find_connection
from local.functions_host.errors import HostStartFailed
from shared.settings.json_files import read_json

_EXPRESSION = re.compile(r"%([^%\s]+)%")


@dataclass(frozen=True, slots=True)
class AppSettings:
    """The settings of one app, by name."""

    values: Mapping[str, str]

    def resolve(self, text: str, *, function: str) -> str:
        """Replace each `%Name%` by its setting. A missing setting raises `HostStartFailed`."""

        def value(match: re.Match[str]) -> str:
            name = match[1]
            if name not in self.values:
                raise HostStartFailed(
                    f"function {function}: setting {name} is missing (needed by {text!r})"
                )
            return self.values[name]

        return _EXPRESSION.sub(value, text)

    def connection(self, name: str, *, function: str) -> Connection:
        """The connection for a binding's `connection`. Raises `HostStartFailed`."""
        return find_connection(self.values, name, function)

    def is_disabled(self, function: str) -> bool:
        """Whether `AzureWebJobs.<function>.Disabled` is true."""
        value = self.values.get(f"AzureWebJobs.{function}.Disabled", "")
        return value.strip().lower() in ("true", "1")


def read_app_settings(app_dir: Path, environment: Mapping[str, str]) -> AppSettings:
    """Read `Values` of local.settings.json, if it exists. The environment takes precedence."""
    return AppSettings({**_local_values(app_dir / "local.settings.json"), **environment})


def _local_values(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    try:
        document = read_json(path)
        values = document.get("Values", {})
        return {name: _as_text(value) for name, value in values.items()}
    except (ValueError, AttributeError) as error:
        raise HostStartFailed(f"{path}: {error}") from error


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
