"""The seeds that the tests of a simulation use. `make simulate` uses thousands."""

from __future__ import annotations

import os

SEEDS, SEED = "SIMULATION_SEEDS", "SIMULATION_SEED"


def seeds(number: int) -> list[int]:
    """The first ``number`` seeds, or as many as SIMULATION_SEEDS says, or SIMULATION_SEED alone."""
    if only := os.environ.get(SEED):
        return [int(only)]
    return list(range(int(os.environ.get(SEEDS, number))))
