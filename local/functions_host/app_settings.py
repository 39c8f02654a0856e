"""App settings: the process environment over local.settings.json, and lookups for bindings."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from local.azurite import USUAL_PORTS, connection_string
from local.functions_host.errors import HostStartFailed
from shared.settings.json_files import read_json

DEFAULT_CONNECTION = "AzureWebJobsStorage"
# The Python SDK does not accept the short form that the host accepts for an emulator.
_EMULATOR_SHORT_FORM = "usedevelopmentstorage=true"
_EMULATOR = connection_string(USUAL_PORTS)
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

    def connection_string(self, connection: str, *, function: str) -> str:
        """The connection string for a binding's `connection`, looked up as the host does."""
        name = connection or DEFAULT_CONNECTION
        for candidate in (f"AzureWebJobs{name}", name):
            value = self.values.get(candidate, "")
            if value.rstrip(";").lower() == _EMULATOR_SHORT_FORM:
                return _EMULATOR
            if value:
                return value
        raise HostStartFailed(self._missing_connection(name, function))

    def is_disabled(self, function: str) -> bool:
        """Whether `AzureWebJobs.<function>.Disabled` is true."""
        value = self.values.get(f"AzureWebJobs.{function}.Disabled", "")
        return value.strip().lower() in ("true", "1")

    def _missing_connection(self, name: str, function: str) -> str:
        if any(key.startswith(f"{name}__") for key in self.values):
            return (
                f"function {function}: connection {name} is identity-based ({name}__…), "
                f"which this host does not support: give {name} a connection string"
            )
        return f"function {function}: setting {name} is missing (its connection string)"


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
