"""Proves that a deployment keeps its promises: a scripted load with faults, and a report.

``python -m local.prove`` runs it against the complete local system, and ``infra/prove.sh`` in a
subscription. `script.py`, `load.py`, `watch.py` and `checks.py` do not know where they run:
`places.py` has what differs.
"""
