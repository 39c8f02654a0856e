"""The sampling rate that the ids of kept operations show, and what it says about stated weights."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from shared.sampling.kept_ids import INT_MAX, Weights, edge_of, hash_scores, scores_of, weights_seen
from tests.sampling.reference import hash_score

Score = Callable[[str], float]
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    ("operation_id", "signed_hash"),
    [
        # 5381·33⁸ + 97·(33⁸ - 1)/32 = 7,572,147,950,878,861 = 348,946,573 in 32 bits
        ("aaaaaaaa", 348_946_573),
        ("a", 348_946_573),
        ("ab", 1_641_601_553),
        (TRACE_ID, -1_133_633_597),
        (TRACE_ID.upper(), -231_367_037),
    ],
)
def test_the_score_is_the_absolute_hash_of_32_bits(operation_id: str, signed_hash: int) -> None:
    assert hash_score(operation_id) == abs(signed_hash) / INT_MAX
    assert hash_scores([operation_id, "other"])[0] == hash_score(operation_id)


def test_only_trace_ids_have_the_scores_of_ratio_samplers() -> None:
    assert len(scores_of(["|short.1"])) == 2
    found = scores_of(["0" * 15 + "1" + "8" + "0" * 15])
    scores = {name: each[0] for name, each in found.items()}
    assert scores["last 8 bytes"] == 0.5
    assert scores["last 8 bytes, signed"] == 1.0
    assert scores["first 8 bytes"] == 2**-63


def even(rng: random.Random, count: int, rate: float) -> list[float]:
    return [rng.random() * rate for _ in range(count)]


@pytest.mark.parametrize(("count", "error"), [(200, 0.0054), (5_000, 0.00023)])
def test_the_rate_is_read_off_the_ids(count: int, error: float) -> None:
    rng = random.Random(3)
    edges = [edge_of(even(rng, count, 0.2)) for _ in range(100)]
    errors = [edge.value / 0.2 - 1 for edge in edges]
    assert math.sqrt(sum(e * e for e in errors) / len(errors)) < 1.3 * error
    assert sum(edge.low <= 0.2 <= edge.high for edge in edges) >= 88


@pytest.mark.parametrize("exempt", [1, 20])
def test_exempt_records_do_not_move_the_rate(exempt: int) -> None:
    rng = random.Random(4)
    edge = edge_of([*even(rng, 500, 0.2), *even(rng, exempt, 1.0)])
    assert edge.is_rate
    assert edge.value == pytest.approx(0.2, rel=0.01)
    assert edge.exempt == pytest.approx(exempt / 500, abs=0.015)


@pytest.mark.parametrize("rates", [(0.2, 0.5), (0.1, 0.2, 0.25, 0.5)])
def test_several_rates_have_no_edge(rates: tuple[float, ...]) -> None:
    rng = random.Random(5)
    assert not edge_of([rng.random() * rng.choice(rates) for _ in range(1_000)]).is_rate


def test_few_operations_show_nothing() -> None:
    few = kept((0.2,), count=199)
    assert weights_seen(few).weights is weights_seen({}).weights is Weights.UNKNOWN


def kept(
    rates: tuple[float, ...],
    stated: Callable[[float], float] = lambda _: 1.0,
    score: Score = hash_score,
    count: int = 500,
    exempt: float = 0.0,
) -> dict[str, float]:
    """The ids that a sampler keeps, at one of the rates each, with the weight that it states."""
    rng = random.Random(7)
    found: dict[str, float] = {}
    while len(found) < count:
        operation_id, rate = f"{rng.getrandbits(128):032x}", rng.choice(rates)
        if score(operation_id) < rate:
            found[operation_id] = stated(rate)
        elif rng.random() < exempt:
            found[operation_id] = 1.0
    return found


def rounded(rate: float) -> float:
    return float(round(1 / rate))


def of_capitals(operation_id: str) -> float:
    return hash_score(operation_id.upper())


def of_last_bytes(operation_id: str) -> float:
    return int(operation_id[16:], 16) / 2**64


def at_random(operation_id: str) -> float:
    return random.Random(operation_id).random()


ADAPTIVE = (1.0, 0.5, 0.25, 0.2, 0.1)


@pytest.mark.parametrize(
    ("operations", "weights", "factor"),
    [
        (kept((1.0,)), Weights.RIGHT, 1),
        (kept((0.2,), rounded), Weights.RIGHT, 1),
        (kept(ADAPTIVE, rounded), Weights.RIGHT, 1),
        (kept((0.2,), rounded, of_capitals), Weights.RIGHT, 1),
        (kept((0.3,), rounded), Weights.ROUNDED, 1 / 0.9),
        (kept((0.75,), rounded), Weights.ROUNDED, 1 / 0.75),
        (kept((0.204,)), Weights.WRONG, 4.9),
        (kept((0.204,), score=of_capitals), Weights.WRONG, 4.9),
        (kept((0.204,), exempt=0.005), Weights.WRONG, 4.9),
        (kept((0.2,), score=of_last_bytes), Weights.WRONG, 5),
        (kept((1.0, 0.8), score=of_capitals, count=1_500), Weights.UNKNOWN, math.nan),
        (kept((0.2,), rounded, at_random), Weights.UNKNOWN, math.nan),
        ({f"{10**30 + n:032x}": 1.0 for n in range(500)}, Weights.UNKNOWN, math.nan),
        (kept((0.2,), count=199), Weights.UNKNOWN, math.nan),
        ({}, Weights.UNKNOWN, math.nan),
    ],
)
def test_ids_tell_right_weights_from_wrong_ones(
    operations: dict[str, float], weights: Weights, factor: float
) -> None:
    seen = weights_seen(operations)
    assert seen.weights is weights
    assert seen.factor == pytest.approx(factor, rel=0.04, nan_ok=True)


@pytest.mark.parametrize("rates", [ADAPTIVE, (0.5, 0.25, 0.2, 0.1)])
def test_at_changing_rates_only_the_least_error_of_the_weights_is_told(
    rates: tuple[float, ...],
) -> None:
    seen = weights_seen(kept(rates, score=of_capitals))
    true = sum(rates) and len(rates) / sum(rates)
    assert seen.weights is Weights.WRONG
    assert math.isnan(seen.factor)
    assert 1.1 <= seen.low <= true


@pytest.mark.parametrize(
    ("operations", "unsampled"),
    [
        (kept((1.0,)), True),
        (kept((0.9,)), False),
        (kept((0.9,), score=of_capitals), False),
        (kept((0.9,), score=of_last_bytes), False),
        (kept(ADAPTIVE, rounded), False),
        (kept((1.0,), count=199), False),
    ],
)
def test_operations_are_unsampled_if_no_known_sampler_dropped_any(
    operations: dict[str, float], unsampled: bool
) -> None:
    assert weights_seen(operations).unsampled is unsampled


@pytest.mark.parametrize("stated", [1.0, 4.0])
@pytest.mark.parametrize("padded", [0.3, 1.0], ids=["some", "all"])
@pytest.mark.parametrize("prefixes", [1, 5], ids=["zeros", "small numbers"])
def test_ids_that_are_padded_never_show_that_weights_are_wrong(
    stated: float, padded: float, prefixes: int
) -> None:
    rng = random.Random(7)
    ids = (
        f"{rng.randrange(prefixes):08x}{0:08x}{rng.getrandbits(64):016x}"
        if rng.random() < padded
        else f"{rng.getrandbits(128):032x}"
        for _ in range(3_000)
    )
    assert weights_seen(dict.fromkeys(ids, stated)).weights is not Weights.WRONG
