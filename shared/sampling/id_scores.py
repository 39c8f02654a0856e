"""The scores by which samplers decide, from the id of an operation, whether to keep it.

A sampler keeps an operation if its score, from 0 to 1, is below the sampling rate. The ids of the
kept operations therefore show the rate, whatever their records state. The SDKs of Application
Insights and the OpenTelemetry distributions of Azure share one hash, which .NET applies to the id
in capitals; the samplers of OpenTelemetry itself compare bits of the trace id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

HASH, HASH_OF_CAPITALS = "hash of the id", "hash of the id in capitals"
HASHES = (HASH, HASH_OF_CAPITALS)
START, FACTOR, LENGTH_MIN = 5381, 33, 8
INT_MAX, TWO_32 = 2**31 - 1, 2**32
TRACE_ID = re.compile(r"[0-9a-f]{32}", re.IGNORECASE)


def hash_scores(ids: Sequence[str]) -> Any:
    """The scores of Application Insights: hash = 33 · hash + character, from 5381 on, as a signed
    number of 32 bits whose absolute value is divided by the largest one. An id of fewer than 8
    characters is doubled until it has them.
    """
    texts = [text if len(text) >= LENGTH_MIN else text * _times(len(text)) for text in ids]
    lengths = np.array([len(text) for text in texts])
    found = np.full(len(texts), START, np.int64)
    for length in np.unique(lengths[lengths > 0]).tolist():
        chosen = np.flatnonzero(lengths == length)
        same = np.array([texts[n] for n in chosen], f"U{length}")
        for column in same.view(np.uint32).reshape(-1, length).T:
            found[chosen] = (found[chosen] * FACTOR + column) % TWO_32
    return np.minimum(np.minimum(found, TWO_32 - found), INT_MAX) / INT_MAX


def _times(length: int) -> int:
    times = 1
    while 0 < length * times < LENGTH_MIN:
        times *= 2
    return times


def scores_of(ids: Sequence[str]) -> Mapping[str, Any]:
    """The scores of each known sampler. Only W3C trace ids have those of OpenTelemetry: of Python
    and Go, Java, .NET, JavaScript, and the threshold of 56 random bits.
    """
    scores = {HASH: hash_scores(ids), HASH_OF_CAPITALS: hash_scores([i.upper() for i in ids])}
    if not all(map(TRACE_ID.fullmatch, ids)):
        return scores
    first, last = (np.array([int(i[at], 16) for i in ids], np.uint64) for at in HALVES)
    half, low = np.uint64(1 << 63), np.uint64(TWO_32 - 1)
    both = first ^ last
    return scores | {
        "last 8 bytes": last / 2**64,
        "last 8 bytes, signed": np.minimum(last, -last) / 2**63,
        "first 8 bytes": first % half / 2**63,
        "all bytes, combined": ((both ^ both >> np.uint64(32)) & low) / TWO_32,
        "last 7 bytes": 1 - (last % np.uint64(1 << 56) + np.uint64(1)) / 2**56,
    }


HALVES = (slice(16), slice(16, None))
