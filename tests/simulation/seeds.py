"""Which seeds a simulation tries in the tests; `make simulate` tries thousands."""

from __future__ import annotations

import os

SEEDS, SEED = "SIMULATION_SEEDS", "SIMULATION_SEED"


def seeds(number: int) -> list[int]:
    """So many, or as many as SIMULATION_SEEDS says, or the one that SIMULATION_SEED names."""
    if only := os.environ.get(SEED):
        return [int(only)]
    return list(range(int(os.environ.get(SEEDS, number))))
