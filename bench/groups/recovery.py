"""recovery: how long a partition stands still after its reader was killed.

Real processes on Azurite and the AMQP stand-in, as in ``make soak``.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.measurement import Measurement, figures_of
from bench.soak.__main__ import SETTINGS

PROCESSES = 2
EVENTS = 2000
"""Sent before each kill, so that some events are always left to commit."""
EXPIRY_SECONDS = float(SETTINGS["OwnershipExpireSeconds"])
KINDS = {"run": 0, "host": PROCESSES}
"""How many of the processes are local functions hosts. The others are ``shared run``."""


def measure(kills: int = 4, interval_seconds: float = 12) -> Iterator[Measurement]:
    """The median for each kind of process. The baseline is the lifetime of a lease, the minimum."""
    for kind, hosts in KINDS.items():
        recovery = _soak(kills, interval_seconds, hosts)
        if recovery["count"]:
            yield Measurement(
                f"recovery.{kind}",
                recovery["p50"],
                "s",
                EXPIRY_SECONDS,
                "≤ 2 times the baseline",
                f"from the kill to the next commit, median of {recovery['count']:g} partitions, at "
                f"most {recovery['max']:g} s; baseline: the lifetime of a lease just renewed",
            )


def _soak(kills: int, interval_seconds: float, hosts: int) -> dict[str, float]:
    options = {
        "--kills": kills,
        "--events": EVENTS * kills,
        "--interval": interval_seconds,
        "--processes": PROCESSES,
        "--hosts": hosts,
    }
    arguments = [part for option in options.items() for part in option]
    recovery: dict[str, float] = figures_of("bench.soak", *arguments)["recovery_seconds"]
    return recovery
