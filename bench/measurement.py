"""One figure beside its baseline: what the bench prints."""

from __future__ import annotations

import json
from dataclasses import dataclass

SIGNIFICANT_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Measurement:
    """A figure and what it is compared with, both of the same run and in the same unit."""

    name: str
    value: float
    unit: str
    baseline: float
    aim: str = ""
    """What the figure is wanted to be; empty where it stands for information."""
    note: str = ""
    """What the baseline is, and what else one has to know to read the figure."""

    @property
    def ratio(self) -> float:
        return self.value / self.baseline

    @property
    def line(self) -> str:
        """The measurement as one line of JSON."""
        fields = {
            "name": self.name,
            "value": _rounded(self.value),
            "unit": self.unit,
            "baseline": _rounded(self.baseline),
            "ratio": _rounded(self.ratio),
        }
        optional = {"aim": self.aim, "note": self.note}
        shown = {key: text for key, text in optional.items() if text}
        return json.dumps({**fields, **shown}, ensure_ascii=False)


def _rounded(number: float) -> float:
    return float(f"{number:.{SIGNIFICANT_DIGITS}g}")
