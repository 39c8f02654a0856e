"""Every app setting: its name, form, bounds, default and meaning, in one place.

Values are read by these declarations, and docs/settings.md and local.settings.json.example are
written from them (``make settings``).
"""

from __future__ import annotations

from shared.settings.declared.data_sets import DATA_SETS, TRENDS
from shared.settings.declared.hub import HUB
from shared.settings.declared.scaling import PATIENCE, SCALED, THE_RULES
from shared.settings.declared.setting import Bounds, Section, Setting
from shared.settings.declared.telling import TELLING

SECTIONS = (SCALED, THE_RULES, PATIENCE, TELLING, HUB, DATA_SETS, TRENDS)
SETTINGS = {setting.name: setting for section in SECTIONS for setting in section.settings}

__all__ = ["SECTIONS", "SETTINGS", "Bounds", "Section", "Setting"]
