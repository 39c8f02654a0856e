"""A month of a plan as Azure Monitor has it: the file that ``audit --export`` writes.

Each column has one value for each minute. A minute without a value is ``null``, never zero.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from backtest import PROGRAM
from backtest.arena import Floats
from backtest.errors import BacktestError
from shared.settings.files import read_json
from shared.values.text import one_line

DAYS_MAX = 90
"""Azure Monitor keeps 93 days."""
DAY_MINUTES = 1440
BYTES_MAX = 100_000_000
COUNTS = ("incoming", "completed", "abandoned")

Value = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] | None


class Month(BaseModel):
    """The plan, its autoscale setting, and the minutes that were read so far."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["audit 1"] = "audit 1"
    source: str = ""
    """Where the data come from, if not from Azure Monitor."""
    plan: str
    """The resource ID."""
    namespace: str
    """The resource ID."""
    entity: str
    kind: Literal["queue", "topic"]
    setting: dict[str, Any] | list[Any] | None = None
    """In any form that ``import-autoscale`` reads."""
    setting_id: str = ""
    """The resource that counts the instances; empty if the instances are those in the CPU."""
    instances_source: str = ""
    """Where the instances come from, if not from Azure Monitor."""
    start: AwareDatetime
    days: int = Field(ge=1, le=DAYS_MAX)
    columns: dict[str, list[Value]]
    """active, active_max, incoming, completed, abandoned, instances and cpu."""

    @model_validator(mode="after")
    def _alike(self) -> Self:
        if missing := {"active", "instances", *COUNTS} - self.columns.keys():
            raise ValueError(f"columns: {', '.join(sorted(missing))} are missing")
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1 or self.minutes > self.days * DAY_MINUTES:
            raise ValueError(f"columns: they must be alike and not longer than the days: {lengths}")
        return self

    @property
    def minutes(self) -> int:
        """The minutes that were read."""
        return len(self.columns["active"])

    @property
    def is_whole(self) -> bool:
        return self.minutes == self.days * DAY_MINUTES

    @property
    def instances_from(self) -> str:
        if self.instances_source:
            return self.instances_source
        if self.setting_id:
            return "from ObservedCapacity of the autoscale setting"
        return "counted in CpuPercentage, not verified"

    def column(self, name: str) -> Floats:
        """The values, with NaN for a minute without one."""
        values = self.columns.get(name) or [None] * self.minutes
        return np.array([np.nan if value is None else value for value in values])

    def extended(self, columns: Mapping[str, list[float | None]]) -> Month:
        """With the minutes that follow."""
        after = {name: [*values, *columns[name]] for name, values in self.columns.items()}
        return self.model_copy(update={"columns": after})


def load_month(path: Path) -> Month:
    """Read an export. Raises BacktestError with the key, and what to do."""
    again = f"Write it with: {PROGRAM} audit --plan … --queue … --export FILE"
    try:
        if path.stat().st_size > BYTES_MAX:
            raise BacktestError(f"{path}: larger than {BYTES_MAX // 10**6} MB. {again}")
        return Month.model_validate(read_json(path))
    except OSError as error:
        raise BacktestError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "file"
        raise BacktestError(f"{path}: not an export: {place}: {first['msg']}. {again}") from error
    except (ValueError, RecursionError) as error:
        raise BacktestError(f"{path}: not JSON: {one_line(error)}. {again}") from error


def save_month(month: Month, path: Path) -> None:
    """Write the file as a whole, one line a column, so that an interruption leaves the old one."""
    given = month.model_dump(mode="json")
    columns = ",\n".join(
        f"{json.dumps(name)}: {json.dumps([_short(v) for v in values], separators=(',', ':'))}"
        for name, values in given.pop("columns").items()
    )
    rest = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in given.items())
    text = f'{{\n{rest},\n"columns": {{\n{columns}\n}}\n}}\n'
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(text, "utf-8")
        part.replace(path)
    except OSError as error:
        raise BacktestError(f"{path}: {error.strerror}") from error


def _short(value: float | None) -> float | int | None:
    return value if value is None or value % 1 else int(value)
