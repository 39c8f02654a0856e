"""Answers with pages, from templates. Text from outside is escaped."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.web.http import SECURITY_HEADERS, Reply

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"


def page(status: int, template: str, policy: str, **shown: Any) -> Reply:
    """A page that no other page may contain. ``policy`` is what else its content may do."""
    text = _environment().get_template(template).render(shown)
    headers = {**SECURITY_HEADERS, "Content-Security-Policy": policy, "X-Frame-Options": "DENY"}
    return Reply(status, text, "text/html", headers)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415  only pages need it

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"clock": _clock, "day": _day, "minutes": _minutes, "number": _number}
    return environment


def _clock(text: str, as_of: str) -> str:
    """The time of day; with the date if the day differs from that of ``as_of``."""
    time, now = datetime.fromisoformat(text), datetime.fromisoformat(as_of)
    return time.strftime("%H:%M:%S" if time.date() == now.date() else "%m-%d %H:%M:%S")


def _day(text: str) -> str:
    return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M")


def _minutes(value: float) -> str:
    return f"{value * 60:.2g} s" if value < 1 else f"{value:.3g} min"


def _number(value: Any) -> str:
    if value is None:
        return "?"
    return f"{value:,.4g}" if isinstance(value, float) and abs(value) < 1e4 else f"{value:,.0f}"
