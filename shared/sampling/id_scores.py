"""The scores by which samplers decide, from the id of an operation, whether to keep it.

A sampler keeps an operation if its score, from 0 to 1, is below the sampling rate. The ids of the
kept operations therefore show the rate, whatever their records state. The SDKs of Application
Insights and the OpenTelemetry distributions of Azure share one hash, which .NET applies to the id
in capitals; the samplers of OpenTelemetry itself compare bits of the trace id.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

HASH, HASH_OF_CAPITALS = "hash of the id", "hash of the id in capitals"
START, FACTOR, LENGTH_MIN = 5381, 33, 8
INT_MAX, TWO_32 = 2**31 - 1, 2**32
TRACE_ID = re.compile(r"[0-9a-f]{32}", re.IGNORECASE)


def hash_score(operation_id: str) -> float:
    """The score of Application Insights: hash = 33 · hash + character, from 5381 on, as a signed
    number of 32 bits whose absolute value is divided by the largest one. An id of fewer than 8
    characters is doubled until it has them.
    """
    text = operation_id
    while 0 < len(text) < LENGTH_MIN:
        text += text
    value = START
    for character in text:
        value = (value * FACTOR + ord(character)) % TWO_32
    return min(value, TWO_32 - value, INT_MAX) / INT_MAX


def scores_of(operation_id: str) -> Mapping[str, float]:
    """The score of each known sampler. Only W3C trace ids have those of OpenTelemetry."""
    scores = {name: score(operation_id) for name, score in HASHES.items()}
    if TRACE_ID.fullmatch(operation_id) is not None:
        number = int(operation_id, 16)
        scores |= {name: score(number) for name, score in RATIOS.items()}
    return scores


HASHES: Mapping[str, Callable[[str], float]] = {
    HASH: hash_score,
    HASH_OF_CAPITALS: lambda operation_id: hash_score(operation_id.upper()),
}


def _abs_64(number: int) -> float:
    return min(number, 2**64 - number) / 2**63


RATIOS: Mapping[str, Callable[[int], float]] = {
    "last 8 bytes": lambda number: number % 2**64 / 2**64,
    "last 8 bytes, signed": lambda number: _abs_64(number % 2**64),
    "first 8 bytes": lambda number: (number >> 64) % 2**63 / 2**63,
    "all bytes, combined": lambda number: (
        (number ^ number >> 32 ^ number >> 64 ^ number >> 96) % TWO_32 / TWO_32
    ),
    "last 7 bytes": lambda number: 1 - (number % 2**56 + 1) / 2**56,
}
"""The ratio samplers of OpenTelemetry: Python and Go, Java, .NET, JavaScript, and the threshold of
56 random bits."""
