"""ASP.NET route templates, as HTTP triggers write them, turned into patterns."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

_PARAMETER = re.compile(r"\{(?P<all>\*{0,2})(?P<name>\w+)(?::(?P<kind>\w+))?(?P<optional>\??)\}")
_NUMBER = r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_KINDS = {
    "alpha": r"[A-Za-z]+",
    "bool": r"true|false",
    "decimal": r"[+-]?\d+(?:\.\d+)?",
    "double": _NUMBER,
    "float": _NUMBER,
    "guid": r"\{?[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}\}?",
    "int": r"[+-]?\d+",
    "long": r"[+-]?\d+",
}


@dataclass(frozen=True, slots=True)
class Route:
    """A template below the route prefix. Literal text matches in any case, as in ASP.NET."""

    template: str
    pattern: re.Pattern[str]
    # Compared as a tuple: where several routes match, the most literal wins.
    rank: tuple[int, ...]

    def match(self, raw_path: str) -> Mapping[str, str] | None:
        """Return the route's parameters if it matches a percent-encoded path."""
        found = self.pattern.fullmatch(raw_path.strip("/"))
        if found is None:
            return None
        return {name: unquote(value) for name, value in found.groupdict().items() if value}


def compile_route(prefix: str, template: str) -> Route:
    """Translate `prefix`/`template`, or raise `ValueError` naming the part not understood."""
    path = "/".join(part for part in (prefix.strip("/"), template.strip("/")) if part)
    segments = [segment for segment in path.split("/") if segment]
    patterns = [_segment(segment, first=index == 0) for index, segment in enumerate(segments)]
    rank = tuple(_segment_rank(segment) for segment in segments)
    return Route(path, re.compile("".join(patterns), re.IGNORECASE), rank)


def _segment(segment: str, *, first: bool) -> str:
    slash = "" if first else "/"
    whole = _PARAMETER.fullmatch(segment)
    if whole is not None and (whole["optional"] or whole["all"]):
        return f"(?:{slash}{_parameter(whole)})?"
    return slash + _literals_and_parameters(segment)


def _literals_and_parameters(segment: str) -> str:
    parts: list[str] = []
    position = 0
    for found in _PARAMETER.finditer(segment):
        parts += [_literal(segment[position : found.start()]), _parameter(found)]
        position = found.end()
    return "".join(parts) + _literal(segment[position:])


def _literal(text: str) -> str:
    if "{" in text or "}" in text:
        raise ValueError(f"route part {text!r} is not understood by the local host")
    return re.escape(text)


def _parameter(found: re.Match[str]) -> str:
    kind = found["kind"]
    if kind is not None and kind.lower() not in _KINDS:
        raise ValueError(f"route constraint {kind!r} is not understood by the local host")
    value = _KINDS[kind.lower()] if kind else ".+" if found["all"] else "[^/]+"
    return f"(?P<{found['name']}>{value})"


def _segment_rank(segment: str) -> int:
    found = _PARAMETER.search(segment)
    if found is None:
        return 0
    if found["all"]:
        return 3
    return 1 if found["kind"] or found[0] != segment else 2
