"""The reply of an app whose settings or rules are wrong. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from shared.web.http import Reply, json_reply

NEXT_STEP = "Correct the settings or scaling_rules.py. The app restarts by itself."


def problems_reply(problems: Sequence[str]) -> Reply:
    """Every problem, with status 503: no function runs until they are corrected."""
    return json_reply({"problems": list(problems), "next_step": NEXT_STEP}, 503)
