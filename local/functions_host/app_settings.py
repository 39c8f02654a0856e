"""App settings: the process environment over local.settings.json, and lookups for bindings."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from local.functions_host.connections import Connection, find_connection
from local.functions_host.errors import HostStartFailed
from shared.settings.files import read_json, values_of
from shared.settings.variables import Variables, resolved


@dataclass(frozen=True, slots=True)
class AppSettings:
    """The settings of one app, by name."""

    values: Mapping[str, str]

    def resolve(self, text: str, *, function: str) -> str:
        """Replace each `%Name%` by its setting. A missing setting raises `HostStartFailed`."""

        try:
            return resolved(text, self.values)
        except ValueError as error:
            problem = f"function {function}: {error} (needed by {text!r})"
            raise HostStartFailed(problem) from error

    def connection(self, name: str, *, function: str) -> Connection:
        """The connection for a binding's `connection`. Raises `HostStartFailed`."""
        return find_connection(self.values, name, function)

    def is_disabled(self, function: str) -> bool:
        """Whether `AzureWebJobs.<function>.Disabled` is true."""
        value = self.values.get(f"AzureWebJobs.{function}.Disabled", "")
        return value.strip().lower() in ("true", "1")


def read_app_settings(app_dir: Path, environment: Mapping[str, str]) -> AppSettings:
    """Read `Values` of local.settings.json, if it exists. The environment takes precedence."""
    local = _local_values(app_dir / "local.settings.json")
    return AppSettings(Variables({**local, **environment}))


def _local_values(path: Path) -> dict[str, str]:
    try:
        return values_of(read_json(path)) if path.is_file() else {}
    except ValueError as error:
        raise HostStartFailed(f"{path}: {error}") from error
