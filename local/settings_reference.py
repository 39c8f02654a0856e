"""``python -m local.settings_reference``: write what is declared about settings into the docs.

That is docs/settings.md and local.settings.json.example; a test holds both to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from shared.settings import SECTIONS, SETTINGS
from shared.settings.fields import NO_LIMIT, Bounds, Section, Setting

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "settings.md"
EXAMPLE = ROOT / "local.settings.json.example"
INTRODUCTION = """# Settings

App settings of the Function App, or `Values` of `local.settings.json` ([an example](../local.settings.json.example)). All are read once, at start; whatever is wrong with them comes in one message, and a name that is almost one of these in a warning (`python -m shared validate` shows it too). Schedules have six cron fields, seconds first, or are `hh:mm:ss`. *Secret*: give it as a Key Vault reference, or do without by managed identity; it is in no log. *Used by* names functions, and *rules* is `scaling_rules.py`. The settings from `SubscriptionId` to `ThresholdDown` are needed only if your rules read them.

This page is written from `shared/settings` by `make settings`.
"""  # noqa: E501  a paragraph of Markdown is a line
HEADINGS = "| setting | what it may be | default | meaning | used by |\n|---|---|---|---|---|"


def reference() -> str:
    """docs/settings.md."""
    return "\n".join([INTRODUCTION, *(_table(section) for section in SECTIONS)])


def example() -> str:
    """local.settings.json.example."""
    values = {"FUNCTIONS_WORKER_RUNTIME": "python", **_examples(SETTINGS)}
    return f"{json.dumps({'IsEncrypted': False, 'Values': values}, indent=2)}\n"


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
