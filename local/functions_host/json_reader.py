"""Looking values of a JSON document up by dotted keys, collecting what is wrong with them."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Parsed = TypeVar("Parsed")


class JsonReader:
    """Answers defaults for what is missing or wrong; `mistakes` says what is."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self.mistakes: list[str] = []

    def whole(self, key: str, default: int, bounds: tuple[int, int]) -> int:
        value = self._value(key, default)
        low, high = bounds
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        self.mistakes.append(f"{key} is {value!r}, expected a whole number {low} to {high}")
        return default

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._value(key, default)
        if isinstance(value, bool):
            return value
        self.mistakes.append(f"{key} is {value!r}, expected true or false")
        return default

    def has(self, key: str) -> bool:
        return self._value(key, None) is not None

    def text(self, key: str, default: str) -> str:
        value = self._value(key, default)
        if isinstance(value, str):
            return value
        self.mistakes.append(f"{key} is {value!r}, expected a text")
        return default

    def parsed(self, key: str, parse: Callable[[Any], Parsed], default: str | None) -> Parsed:
        value = self._value(key, default)
        try:
            if value is None or isinstance(value, str):
                return parse(value or default)
            raise ValueError(f"{value!r} is not a text")
        except ValueError as error:
            self.mistakes.append(f"{key}: {error}")
            return parse(default)

    def _value(self, key: str, default: Any) -> Any:
        value: Any = self._document
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return default
            value = value[part]
        return value
