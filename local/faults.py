"""Faults to order: a stand-in meets those that a test has armed."""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Strikes(Protocol):
    def strikes(self, target: str, /) -> bool:
        """Whether it strikes what goes to this entity, or what has this method."""


F = TypeVar("F", bound=Strikes)


@dataclass(slots=True)
class _ArmedFault(Generic[F]):
    fault: F
    skip: int
    times: int


class FaultSwitches(Generic[F]):
    """Faults that wait. Each transfer or request meets at most one, the first armed."""

    def __init__(self) -> None:
        self._armed: list[_ArmedFault[F]] = []

    def arm(self, fault: F, *, times: int = 1, skip: int = 0) -> None:
        """Strike `times` times, after `skip` have passed."""
        if times < 1 or skip < 0:
            raise ValueError("times: at least 1; skip: at least 0")
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
