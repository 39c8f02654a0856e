"""Faults on demand: a test arms a fault, and a stand-in applies it to a matching request."""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Strikes(Protocol):
    def strikes(self, target: str, /) -> bool:
        """Return whether the fault applies to this entity or method."""
        ...


F = TypeVar("F", bound=Strikes)


@dataclass(slots=True)
class _ArmedFault(Generic[F]):
    fault: F
    skip: int
    times: int


class FaultSwitches(Generic[F]):
    """Armed faults. Each transfer or request meets at most one: the first that applies."""

    def __init__(self) -> None:
        self._armed: list[_ArmedFault[F]] = []

    def arm(self, fault: F, *, times: int = 1, skip: int = 0) -> None:
        """Apply `fault` to `times` matching requests, after skipping the first `skip`."""
        if times < 1 or skip < 0:
            raise ValueError(f"times is {times} and must be at least 1; skip is {skip}, at least 0")
        self._armed.append(_ArmedFault(fault, skip, times))

    def disarm(self) -> None:
        self._armed.clear()

    def next_for(self, target: str) -> F | None:
        for armed in [each for each in self._armed if each.fault.strikes(target)]:
            if armed.skip > 0:
                armed.skip -= 1
                continue
            armed.times -= 1
            if armed.times == 0:
                self._armed.remove(armed)
            return armed.fault
        return None
