"""The reply of an app whose settings or rules are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from shared.web.http import Reply, json_reply
from shared.web.operation import operation

NEXT_STEP = "Correct the settings or scaling_rules.py. The app restarts by itself."


class SettingsProblems(TypedDict):
    """What is wrong with settings and rules. Until it is corrected, only ``dashboard`` and
    ``settings_check`` run."""

    problems: list[str]
    next_step: str


@operation("GET", "dashboard")
async def settings_problems(problems: Sequence[str]) -> Reply:
    """What is wrong with settings and rules, in place of the dashboard."""
    told: SettingsProblems = {"problems": list(problems), "next_step": NEXT_STEP}
    return json_reply(told, 503)
