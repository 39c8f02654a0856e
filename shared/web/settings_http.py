"""The reply of an app whose settings or rules are wrong. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from shared.web.http import Reply, json_reply

NEXT_STEP = "Correct the settings or scaling_rules.py. The app restarts by itself."


class SettingsProblems(TypedDict):
    """What is wrong with settings and rules. Until it is corrected, only ``dashboard`` and
    ``settings_check`` run."""

    problems: list[str]
    next_step: str


def problems_reply(problems: Sequence[str]) -> Reply:
    """Every problem, with status 503."""
    told: SettingsProblems = {"problems": list(problems), "next_step": NEXT_STEP}
    return json_reply(told, 503)
