"""Changes that are made from the code of the modules that generated.toml lists."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from tests.mutants.changes import GENERATED, ROOT, Change, Check, functions, span

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
}  # fmt: skip
T = TypeVar("T")


class Equivalent(NamedTuple):
    """Changed lines of a function that behave like the original."""

    at: str
    reason: str
    lines: list[str]


def generated() -> list[Change]:
    made = list[Change]()
    for group in tomllib.loads(GENERATED.read_text())["generated"]:
        check = Check(tuple(group["tests"]))
        for module in group["modules"]:
            made += changes_of(module, (ROOT / module).read_text(encoding="utf-8"), check)
    return made


def equivalents() -> list[Equivalent]:
    return [Equivalent(**each) for each in tomllib.loads(GENERATED.read_text())["equivalent"]]


def changes_of(file: str, text: str, check: Check) -> Iterator[Change]:
    """Each small change of each function: one comparison, number, condition, argument or call."""
    for name, function in functions(ast.parse(text)):
        for statement in function.body:
            for node in _code(statement):
                for old, new in _replaced(node):
                    start, end = span(text, old)
                    if isinstance(old, ast.keyword) and text[end] == ",":
                        end += 1
                    if text[start:end] != new:
                        yield Change(f"{file}:{name}", text[start:end], new, start, check)


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """What runs: neither annotations nor the texts of messages."""
    if isinstance(node, ast.JoinedStr):
        return
    yield node
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _code(child)


def _replaced(node: ast.AST) -> Iterator[tuple[ast.stmt | ast.expr | ast.keyword, str]]:
    match node:
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield value, "None"
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield node, "pass"
        case ast.If(test=test) | ast.IfExp(test=test):
            yield test, "True"
            yield test, "False"
        case ast.While(test=test):
            yield test, "False"
        case ast.Call(keywords=[*keywords]):
            yield from ((each, "") for each in keywords if each.arg)
        case ast.expr():
            yield from ((node, text) for text in _other_values(node))


def _other_values(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Compare(left, ops, comparators):
            for n, op in enumerate(ops):
                others = _with(ops, n, COMPARISONS[type(op)]())
                yield ast.unparse(ast.Compare(left, others, comparators))
        case ast.BoolOp(op, values):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield f"({ast.unparse(ast.BoolOp(other, values))})"
        case ast.UnaryOp(ast.Not(), operand):
            yield f"bool({ast.unparse(operand)})"
        case ast.BinOp(left, op, right) if type(op) in OPERATORS and not _is_text(left):
            yield ast.unparse(ast.BinOp(left, OPERATORS[type(op)](), right))
        case ast.Constant(value=bool() as value):
            yield str(not value)
        case ast.Constant(value=int() | float() as number):
            yield repr(number + 1)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _with(items: Sequence[T], n: int, item: T) -> list[T]:
    return [*items[:n], item, *items[n + 1 :]]
