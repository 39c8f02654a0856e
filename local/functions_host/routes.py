"""Compiles the route templates of HTTP triggers into patterns.

Supported parts of ASP.NET templates: literal text, `{name}` and, as a whole segment, `{name?}`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

_PARAMETER = re.compile(r"\{(?P<name>\w+)(?P<optional>\??)\}")


@dataclass(frozen=True, slots=True)
class Route:
    """A template below the route prefix. As in ASP.NET, literal text ignores case."""

    template: str
    pattern: re.Pattern[str]
    # Compared as a tuple: if several routes match, the most literal one wins.
    rank: tuple[int, ...]

    def match(self, raw_path: str) -> Mapping[str, str] | None:
        """The route's parameters if it matches a percent-encoded path, otherwise None."""
        match = self.pattern.fullmatch(raw_path.strip("/"))
        if match is None:
            return None
        return {name: unquote(value) for name, value in match.groupdict().items() if value}


def compile_route(prefix: str, template: str) -> Route:
    """Compile `prefix`/`template`. Raises `ValueError` that names an unsupported part."""
    path = "/".join(part for part in (prefix.strip("/"), template.strip("/")) if part)
    segments = [segment for segment in path.split("/") if segment]
    patterns = [_segment(segment, first=index == 0) for index, segment in enumerate(segments)]
    rank = tuple(_segment_rank(segment) for segment in segments)
    return Route(path, re.compile("".join(patterns), re.IGNORECASE), rank)


def _segment(segment: str, *, first: bool) -> str:
    slash = "" if first else "/"
    whole = _PARAMETER.fullmatch(segment)
    if whole is not None and whole["optional"]:
        return f"(?:{slash}{_parameter(whole)})?"
    return slash + _literals_and_parameters(segment)


def _literals_and_parameters(segment: str) -> str:
    parts: list[str] = []
    position = 0
    for parameter in _PARAMETER.finditer(segment):
        parts += [_literal(segment[position : parameter.start()]), _parameter(parameter)]
        position = parameter.end()
    return "".join(parts) + _literal(segment[position:])


def _literal(text: str) -> str:
    if "{" in text or "}" in text:
        raise ValueError(f"the local host does not support the route part {text!r}")
    return re.escape(text)


def _parameter(parameter: re.Match[str]) -> str:
    return f"(?P<{parameter['name']}>[^/]+)"


def _segment_rank(segment: str) -> int:
    """0: literal; 1: literal in part; 2: a parameter."""
    parameter = _PARAMETER.search(segment)
    if parameter is None:
        return 0
    return 2 if parameter[0] == segment else 1
