"""``python -m local.settings_reference``: generates docs/settings.md and the settings example.

Both files are generated from the declarations in shared/settings. A test fails if they differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from shared.settings import SECTIONS, SETTINGS
from shared.settings.fields import Section, Setting
from shared.values.bounds import NO_LIMIT, Bounds

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "settings.md"
EXAMPLE = ROOT / "local.settings.json.example"
INTRODUCTION = """# Settings

These are app settings of the Function App, or `Values` of `local.settings.json` ([an example](../local.settings.json.example)). The app reads them once, at start.

- If settings or rules are wrong, no function of the app runs except two: `settings_check` fails every minute with one message that lists all problems, and `GET /api/dashboard` returns the same list with status 503 to a caller with a key. An unknown setting whose name resembles a known one causes a warning. `python -m shared validate` shows both.
- Names are compared without case, as by the Functions host. `%NAME%` in a schedule or a name of an entity is replaced by that setting.
- A schedule has six cron fields, seconds first, five without seconds, or the form `hh:mm:ss` with less than 24 hours. `1.00:00:00` is a day. The app reads cron fields as the host does: names such as `Monday` or `Jan`, lists, ranges and steps, and neither `?`, `L`, `#` nor day 7.
- A connection is a connection string, or an address such as `NAME__fullyQualifiedNamespace`, `NAME__accountName` or `NAME__queueServiceUri` with an identity. `NAME__credential=managedidentity` uses managed identity only, `NAME__clientId` or `NAME__managedIdentityResourceId` names a user-assigned identity, and `NAME__tenantId`, `NAME__clientId` and `NAME__clientSecret` together name an app registration.
- `python -m shared validate --settings FILE` also reads the settings of a deployed app, as `az functionapp config appsettings list` and the portal's Advanced edit show them. It writes of a Key Vault reference that it cannot be used, because only Azure resolves it.
- The app also checks `host.json` and the settings that override it (`AzureFunctionsJobHost__…`): `messageEncoding` of the queues must be `none`.
- Give a value marked *secret* as a Key Vault reference, or use a managed identity instead. The app never logs it.
- *Used by* names functions; *rules* means `scaling_rules.py`.
- `SubscriptionId`, `ResourceGroup`, `ResourceToScale`, `Topic`, `Subscription` and `ServiceBusConnection` are required if your rules call `settings.single_resource()`, as the shipped rules do.

`make settings` generates this page from `shared/settings`.
"""  # noqa: E501  a paragraph of Markdown is a line
COMMENT = "For AzureWebJobsStorage on this machine, start Azurite with --skipApiVersionCheck."
HEADINGS = "| setting | value | default | meaning | used by |\n|---|---|---|---|---|"


def reference() -> str:
    """The text of docs/settings.md."""
    return "\n".join([INTRODUCTION, *(_table(section) for section in SECTIONS)])


def example() -> str:
    """The text of local.settings.json.example."""
    values = {"FUNCTIONS_WORKER_RUNTIME": "python", **_examples(SETTINGS)}
    document = {"Comment": COMMENT, "IsEncrypted": False, "Values": values}
    return f"{json.dumps(document, indent=2)}\n"


def _examples(settings: Mapping[str, Setting]) -> dict[str, str]:
    return {
        name: setting.default if setting.example is None else setting.example
        for name, setting in settings.items()
    }


def _table(section: Section) -> str:
    rows = "\n".join(_row(section, setting) for setting in section.settings)
    return f"## {section.title}\n\n{HEADINGS}\n{rows}\n"


def _row(section: Section, setting: Setting) -> str:
    default = f"`{setting.default}`" if setting.default else setting.unset
    used_by = setting.used_by or section.used_by
    return f"| `{setting.name}` | {_form(setting)} | {default} | {setting.meaning} | {used_by} |"


def _form(setting: Setting) -> str:
    bounds = f", {_range(setting.bounds)}" if setting.bounds else ""
    return f"{setting.form}{bounds}{', *secret*' if setting.secret else ''}"


def _range(bounds: Bounds) -> str:
    if bounds.high == NO_LIMIT:
        return f"at least {_plain(bounds.low)}"
    return f"{_plain(bounds.low)} to {_plain(bounds.high)}"


def _plain(value: float) -> str:
    return f"{value:,.10g}" if value >= 1 else f"{value:.3g}".replace("e-0", "e-")


def main() -> None:
    REFERENCE.write_text(reference(), encoding="utf-8")
    EXAMPLE.write_text(example(), encoding="utf-8")


if __name__ == "__main__":
    main()
