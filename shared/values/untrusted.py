"""Values that come from outside: what a measurement may be, and how errors show any value.

Whatever its size, type and depth, a value costs little and raises nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator

MEASURE_MAX = 1e15
"""Of a metric's value. Up to here floats tell whole numbers apart and sums of squares are finite;
whatever is larger is a mistake of the sender."""

SHOWN_CHARACTERS_MAX = 80
INTEGER_BITS_MAX = 10_000
"""Python refuses to print integers of many thousands of digits, and nobody reads them."""

METRICS_OF_A_MESSAGE_MAX = 8
"""Of one resource. Each is a row of up to 110 kB, and all of a message are one transaction: up to
1 MiB the client sends it without holding up the event loop."""


def measure(value: object) -> float | None:
    """The value as a number from 0 to ``MEASURE_MAX``; None where it is none. Text is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MEASURE_MAX else None  # NaN is in no range


def shown(value: object) -> str:
    """The value as ``repr`` writes it, cut; what is cut off is never written in the first place."""
    parts: list[str] = []
    size = 0
    for part in _written(value):
        parts.append(part)
        size += len(part)
        if size > SHOWN_CHARACTERS_MAX:
            return f"{''.join(parts)[: SHOWN_CHARACTERS_MAX - 3]}..."
    return "".join(parts)


def _written(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield "{"
        for index, (name, each) in enumerate(value.items()):
            yield ", " if index else ""
            yield from _written(name)
            yield ": "
            yield from _written(each)
        yield "}"
    elif isinstance(value, list):
        yield "["
        for index, each in enumerate(value):
            yield ", " if index else ""
            yield from _written(each)
        yield "]"
    elif isinstance(value, str | bytes):
        yield repr(value[: SHOWN_CHARACTERS_MAX + 1])
    elif isinstance(value, int) and value.bit_length() > INTEGER_BITS_MAX:
        yield f"an integer of {value.bit_length()} bits"
    else:
        yield repr(value)
