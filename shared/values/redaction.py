"""Removes secrets from texts and errors before they are logged or shown.

Services and client libraries repeat parts of requests in their errors. Errors are therefore
redacted once, where they leave an adapter (`redacting`), in place: their class and their other
attributes, such as the HTTP status, stay the same.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

HIDDEN = "***"
TEXT_LENGTH_MAX = 32_768

_NAMES = (
    r"(?:(?<![a-z0-9])|(?<=%26)|(?<=%3F))"
    r"(?:(?:account|shared_?access|access|secret|api|functions?|master|subscription)[-_]?key"
    r"|shared_?access_?signature|client_?secret|secret|password|passwd|pwd"
    r"|(?:access|refresh|id|sas|auth)?_?token|sig|signature)"
)
_NAMED = ("key", "sig", "secret", "passw", "pwd", "token")
_QUOTE = r"\\*[\"']"
_VALUE = r"(?:\{[^}]*\}|[^\s\"'\\;<>]+)"
_BASE64 = r"[\w.~+/-]"


@dataclass(frozen=True, slots=True)
class _Rule:
    """A pattern, which only matches a text with one of the words, and its replacement."""

    words: tuple[str, ...]
    pattern: re.Pattern[str]
    replacement: str


def _rule(words: tuple[str, ...], pattern: str, replacement: str = rf"\1{HIDDEN}") -> _Rule:
    return _Rule(words, re.compile(pattern, re.IGNORECASE), replacement)


_RULES = (
    # A header, up to the end of its line or its closing quote.
    _rule(
        ("authorization", "cookie"),
        rf"((?:authorization(?:-auxiliary)?|cookie)(?:{_QUOTE})?\s*[=:]\s*(?:{_QUOTE})?)"
        r"[^\"'\\\r\n]+",
    ),
    # An address with a password, with or without a user. A port is not a password.
    _rule(("://",), r"(://[^\s/:@\"']{0,256}:)(?!\d{1,5}/)[^\s\"']{1,1024}@", rf"\1{HIDDEN}@"),
    _rule(("://",), r"(https?://)[^\s/:@\"']{1,1024}@", rf"\1{HIDDEN}@"),
    # A function key in an address.
    _rule(("code",), r"((?:[?&]|&amp;|%26|%3F)code(?:=|%3D))[^\s\"'&<>]+"),
    # The value of a name such as "password": in connection strings, addresses, JSON and options.
    _rule(_NAMED, rf"({_NAMES}\s*(?:=|%3D)\s*(?:{_QUOTE})?){_VALUE}"),
    _rule(_NAMED, rf"({_NAMES}{_QUOTE}\s*:\s*{_QUOTE})[^\"'\\]+"),
    _rule(_NAMED, rf"({_NAMES}\s*:\s*)(?=\S{{0,15}}\d|\S{{16}}){_VALUE}"),
    _rule(("--",), rf"((?<![a-z-])--[a-z-]*{_NAMES}\s+){_VALUE}"),
    # Credentials after an authorization scheme. An ordinary word after the scheme is left
    # unchanged.
    _rule(("bearer",), rf"\b(bearer\s+)(?:(?=\S*\d){_BASE64}{{6,}}|{_BASE64}{{16,}})=*"),
    _rule(("basic",), rf"\b(basic\s+)(?=\S*[\d=]){_BASE64}{{6,}}=*"),
    _rule(("sharedkey",), r"\b(SharedKey(?:Lite)?\s+[^\s:]+:)[^\s\"']+"),
    _rule(("signature",), r"(signature found in the HTTP request ')[^']+"),
    # Text in the form of an Entra token, a storage account key or a namespace key.
    _rule(("eyj",), r"\beyJ[\w-]{8,1024}\.[\w-]{8,}(?:\.[\w-]*)?", HIDDEN),
    _rule(("=",), r"(?<![\w+/])(?:[\w+/]{86}==|[\w+/]{43}=)(?![\w+/=])", HIDDEN),
)


def redacted(text: str) -> str:
    """The text with everything that looks like a secret replaced; very long texts are cut."""
    clean = text[:TEXT_LENGTH_MAX]
    lowered = clean.lower()
    for rule in _RULES:
        if any(word in lowered for word in rule.words):
            clean = rule.pattern.sub(rule.replacement, clean)
    return clean if len(text) <= TEXT_LENGTH_MAX else f"{clean}…"


def redact(error: BaseException) -> None:
    """Remove secrets from an error and from its whole chain of causes: text, repr and traceback."""
    for each in _chain(error):
        with suppress(Exception):  # an error that cannot be printed reveals nothing
            _redact_one(each)


def _chain(error: BaseException) -> Iterator[BaseException]:
    waiting, seen = [error], {id(error)}
    while waiting:
        each = waiting.pop()
        yield each
        parts = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        for linked in (each.__cause__, each.__context__, *parts):
            if linked is not None and id(linked) not in seen:
                seen.add(id(linked))
                waiting.append(linked)


def _redact_one(error: BaseException) -> None:
    error.args = tuple(_clean(each) for each in error.args)
    for name in (*vars(error), "strerror", "filename", "filename2"):
        with suppress(AttributeError, TypeError):  # _fix_texts handles read-only attributes
            value = getattr(error, name)
            if isinstance(value, str):
                setattr(error, name, redacted(value))
    notes = getattr(error, "__notes__", None)
    if notes:
        error.__notes__ = [_clean(each) for each in notes]
    _fix_texts(error)


def _clean(value: Any) -> Any:
    """A text without secrets. Any other value is kept unless its repr contains a secret."""
    if isinstance(value, str):
        return redacted(value)
    form = repr(value)
    clean = redacted(form)
    return value if clean == form else clean


def _fix_texts(error: BaseException) -> None:
    """Replace the text of an error whose class builds it from more than the arguments."""
    text, form = str(error), repr(error)
    clean, clean_form = redacted(text), redacted(form)
    if (clean, clean_form) == (text, form):
        return
    kind = type(error)
    fixed: dict[str, Any] = {
        "__slots__": (),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__str__": lambda _: clean,
        "__repr__": lambda _: clean_form,
    }
    try:
        error.__class__ = type(kind.__name__, (kind,), fixed)
    except TypeError:  # a built-in class, which builds its text from its arguments
        error.args = (clean,)


def redacting(adapter: type[T]) -> type[T]:
    """Class decorator: redact the errors that leave the methods of an adapter."""
    for name, method in list(vars(adapter).items()):
        if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
            wrap = redacting_call if inspect.iscoroutinefunction(method) else _redacted()
            setattr(adapter, name, wrap(method))
    return adapter


def redacting_call(function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Like ``redacting``, for a single coroutine function such as a handler of the user."""

    @functools.wraps(function)
    async def called(*args: P.args, **kwargs: P.kwargs) -> T:
        with _redacted():
            return await function(*args, **kwargs)

    return called


@contextmanager
def _redacted() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        redact(error)
        raise
