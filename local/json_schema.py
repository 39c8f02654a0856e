"""JSON Schema of the types with which the app annotates its JSON.

https://json-schema.org/draft/2020-12
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, NotRequired, Union, get_args, get_origin, get_type_hints

JsonSchema = dict[str, Any]
SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}
UNIONS = (Union, UnionType)


class NoSchema(TypeError):
    """A type that has no schema here. Use a TypedDict, or teach this module the type."""


class Schemas:
    """The schemas of TypedDicts and enumerations by name, as they are met."""

    def __init__(self, references: str = "#/components/schemas/") -> None:
        self.by_name: dict[str, JsonSchema] = {}
        self._types: dict[str, Any] = {}
        self._references = references

    def of(self, kind: Any) -> JsonSchema:
        """The schema of a type. Raises NoSchema."""
        if kind is Any:
            return {}
        if kind in SIMPLE:
            return {"type": SIMPLE[kind]}
        if inspect.isclass(kind) and (issubclass(kind, StrEnum) or hasattr(kind, "__total__")):
            return self._named(kind)
        return self._generic(kind, get_origin(kind), get_args(kind))

    def _generic(self, kind: Any, origin: Any, parts: Sequence[Any]) -> JsonSchema:
        if origin is Annotated:
            return {**self.of(parts[0]), "format": parts[1]}
        if origin in UNIONS:
            return {"anyOf": [self.of(part) for part in parts]}
        if origin is list:
            return {"type": "array", "items": self.of(parts[0])}
        if origin is dict and parts[0] is str:
            return {"type": "object", "additionalProperties": self.of(parts[1])}
        raise NoSchema(f"{kind}: has no schema")

    def _named(self, kind: Any) -> JsonSchema:
        name = kind.__name__
        if self._types.setdefault(name, kind) is not kind:
            raise NoSchema(f"{name}: is the name of two types")
        if name not in self.by_name:
            self.by_name[name] = {}  # so that a type may contain itself
            self.by_name[name] = _enumeration(kind) if issubclass(kind, StrEnum) else self._of(kind)
        return {"$ref": f"{self._references}{name}"}

    def _of(self, kind: Any) -> JsonSchema:
        hints: Mapping[str, Any] = get_type_hints(kind, include_extras=True)
        optional = {name for name, hint in hints.items() if get_origin(hint) is NotRequired}
        types = {
            name: get_args(hint)[0] if name in optional else hint for name, hint in hints.items()
        }
        return {
            "type": "object",
            "description": plain(kind.__doc__ or ""),
            "properties": {name: self.of(each) for name, each in types.items()},
            "required": [name for name in hints if name not in optional],
        }


def _enumeration(kind: type[StrEnum]) -> JsonSchema:
    about = {"description": plain(kind.__doc__)} if kind.__doc__ else {}
    return {"type": "string", **about, "enum": [str(each) for each in kind]}


def plain(docstring: str) -> str:
    """The text of a docstring on one line, as Markdown."""
    return " ".join(docstring.split()).replace("``", "`")
