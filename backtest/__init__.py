"""Replays a trace through the scaling rules and compares their cost with the best that is found.

`python -m backtest TRACE.csv --rules scaling_rules.py`. All schedules are judged in one arena
(`arena.py`): those of the user's rules, which run in the production code (`replay.py`), of
well-known autoscalers (`rivals.py`), of a planner that knows the whole trace (`clairvoyant.py`),
and the lower bound that no schedule can undercut (`lower_bound.py`). `StablePanic` and
`SlackAwareDrain` are policies that QueueAge replaced; a rules file for the backtest may use them.
"""

import sys

PROGRAM = "autoscaler backtest" if "appservice_autoscaler" in sys.modules else "python -m backtest"
