"""Replay a trace through the scaling rules: what they cost, and what the best possible would have.

`python -m backtest TRACE.csv --rules scaling_rules.py`. The arena (`arena.py`) is the same for the
user's rules, which run in the very code that runs in production (`replay.py`), for well-known
autoscalers (`rivals.py`), for the clairvoyant schedule (`clairvoyant.py`) and for the bound that
nobody can beat (`lower_bound.py`).
"""
