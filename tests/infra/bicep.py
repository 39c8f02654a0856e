"""A Bicep reader for tests: declarations, plain values and names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tree_sitter_bicep
from tree_sitter import Language, Node, Parser

KINDS = {
    "parameter_declaration": "param",
    "variable_declaration": "var",
    "resource_declaration": "resource",
    "module_declaration": "module",
    "output_declaration": "output",
}
PARSER = Parser(Language(tree_sitter_bicep.language()))


class Expression(str):
    """The source text of an expression that is not a plain value."""


@dataclass(frozen=True)
class Declaration:
    """A param, var, resource, module or output. ``of`` is a resource's type or a module's file."""

    kind: str
    name: str
    of: str
    value: Any
    node: Node

    @property
    def has_value(self) -> bool:
        return any(child.type == "=" for child in self.node.children)

    @property
    def exists_already(self) -> bool:
        return any(child.type == "existing" for child in self.node.children)


@dataclass(frozen=True)
class Loop:
    """A loop that repeats ``body`` for each element of ``over``."""

    over: Any
    body: Any


class BicepFile:
    """One Bicep file. Nested resources are listed like all others, with their full type."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root = PARSER.parse(path.read_bytes()).root_node

    @cached_property
    def declarations(self) -> list[Declaration]:
        return list(self._declared(self.root, ""))

    def named(self, name: str) -> Declaration:
        (declaration,) = (each for each in self.declarations if each.name == name)
        return declaration

    def of_kind(self, kind: str) -> list[Declaration]:
        return [each for each in self.declarations if each.kind == kind]

    def resources(self, of: str) -> list[Declaration]:
        """Resources that the file creates, of a type such as Microsoft.Storage/storageAccounts."""
        typed = [r for r in self.of_kind("resource") if r.of.split("@")[0] == of]
        return [each for each in typed if not each.exists_already]

    @cached_property
    def variables(self) -> dict[str, Node]:
        declared = (each for each in walk(self.root) if each.type == "variable_declaration")
        return {text(identifier(each)): each.named_children[-1] for each in declared}

    def _declared(self, node: Node, parent: str) -> Iterator[Declaration]:
        for child in node.named_children:
            kind = KINDS.get(child.type)
            of = ""
            if kind in ("resource", "module"):
                of = plain(next(c for c in child.named_children if c.type == "string"))
                if parent and kind == "resource":
                    start, _, version = parent.partition("@")
                    of = f"{start}/{of}@{version}"
            if kind:
                value = self.value(child.named_children[-1])
                yield Declaration(kind, text(identifier(child)), of, value, child)
            yield from self._declared(child, of if kind == "resource" else parent)

    def value(self, node: Node) -> Any:
        """A Python value where possible. A variable is replaced by its value."""
        match node.type:
            case "object":
                pairs = [p for p in node.named_children if p.type == "object_property"]
                pairs = [p for p in pairs if p.named_children[0].type != "resource_declaration"]
                return {self._key(p): self.value(p.named_children[-1]) for p in pairs}
            case "array":
                return [self.value(child) for child in node.named_children]
            case "string":
                whole = all(child.type == "string_content" for child in node.named_children)
                return plain(node) if whole else Expression(text(node))
            case "number" | "boolean":
                return json.loads(text(node))
            case "for_statement":
                over, body = node.named_children[-2:]
                return Loop(self.value(over), self.value(body))
            case "if_statement":
                return self.value(node.named_children[-1])
            case "identifier" if text(node) in self.variables:
                return self.value(self.variables[text(node)])
        return Expression(text(node))

    @staticmethod
    def _key(pair: Node) -> str:
        key = pair.named_children[0]
        return plain(key) if key.type == "string" else text(key)


def walk(node: Node) -> Iterator[Node]:
    yield node
    for child in node.named_children:
        yield from walk(child)


def identifier(node: Node) -> Node:
    return next(child for child in node.named_children if child.type == "identifier")


def plain(node: Node) -> str:
    return "".join(text(child) for child in node.named_children)


def text(node: Node) -> str:
    assert node.text is not None
    return node.text.decode()
