"""Takes secrets out of texts and errors before anybody is shown them.

Services and client libraries repeat what they were sent: addresses with signatures in them,
headers, connection strings. So errors are redacted once, where they leave an adapter (`redacting`).
Pure, and free of client libraries: errors are changed in place, whatever their class, so that who
catches them by class or reads their status notices nothing.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
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
    """What to look for in a text that has one of the words in it, and what stands there instead."""

    words: tuple[str, ...]
    pattern: re.Pattern[str]
    shown: str


def _rule(words: tuple[str, ...], pattern: str, shown: str = rf"\1{HIDDEN}") -> _Rule:
    return _Rule(words, re.compile(pattern, re.IGNORECASE), shown)


_RULES = (
    # A header, to the end of its line or of its quotes.
    _rule(
        ("authorization", "cookie"),
        rf"((?:authorization(?:-auxiliary)?|cookie)(?:{_QUOTE})?\s*[=:]\s*(?:{_QUOTE})?)"
        r"[^\"'\\\r\n]+",
    ),
    # An address with a password, with or without a user; a port is none.
    _rule(("://",), r"(://[^\s/:@\"']{0,256}:)(?!\d{1,5}/)[^\s\"']{1,1024}@", rf"\1{HIDDEN}@"),
    _rule(("://",), r"(https?://)[^\s/:@\"']{1,1024}@", rf"\1{HIDDEN}@"),
    # The key of a function, in an address.
    _rule(("code",), r"((?:[?&]|&amp;|%26|%3F)code(?:=|%3D))[^\s\"'&<>]+"),
    # A name that tells of a secret: in connection strings and addresses, as JSON, as an option.
    _rule(_NAMED, rf"({_NAMES}\s*(?:=|%3D)\s*(?:{_QUOTE})?){_VALUE}"),
    _rule(_NAMED, rf"({_NAMES}{_QUOTE}\s*:\s*{_QUOTE})[^\"'\\]+"),
    _rule(_NAMED, rf"({_NAMES}\s*:\s*)(?=\S{{0,15}}\d|\S{{16}}){_VALUE}"),
    _rule(("--",), rf"((?<![a-z-])--[a-z-]*{_NAMES}\s+){_VALUE}"),
    # The schemes of authorization; a word after one may be prose.
    _rule(("bearer",), rf"\b(bearer\s+)(?:(?=\S*\d){_BASE64}{{6,}}|{_BASE64}{{16,}})=*"),
    _rule(("basic",), rf"\b(basic\s+)(?=\S*[\d=]){_BASE64}{{6,}}=*"),
    _rule(("sharedkey",), r"\b(SharedKey(?:Lite)?\s+[^\s:]+:)[^\s\"']+"),
    _rule(("signature",), r"(signature found in the HTTP request ')[^']+"),
    # What can only be a token of Entra, the key of a storage account, or that of a namespace.
    _rule(("eyj",), r"\beyJ[\w-]{8,1024}\.[\w-]{8,}(?:\.[\w-]*)?", HIDDEN),
    _rule(("=",), r"(?<![\w+/])(?:[\w+/]{86}==|[\w+/]{43}=)(?![\w+/=])", HIDDEN),
)


def redacted(text: str) -> str:
    """The text without what looks like a secret, cut where it is very long."""
    clean = text[:TEXT_LENGTH_MAX]
    lowered = clean.lower()
    for rule in _RULES:
        if any(word in lowered for word in rule.words):
            clean = rule.pattern.sub(rule.shown, clean)
    return clean if len(text) <= TEXT_LENGTH_MAX else f"{clean}…"


def redact(error: BaseException) -> None:
    """Take secrets out of an error and of all that led to it: its text, its repr, its traceback."""
    for each in _chain(error):
        with suppress(Exception):  # an error that cannot be printed tells nothing
            _redact_one(each)


def _chain(error: BaseException) -> Iterator[BaseException]:
    waiting, seen = [error], {id(error)}
    while waiting:
        each = waiting.pop()
        yield each
        parts = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        for led in (each.__cause__, each.__context__, *parts):
            if led is not None and id(led) not in seen:
                seen.add(id(led))
                waiting.append(led)


def _redact_one(error: BaseException) -> None:
    error.args = tuple(_clean(each) for each in error.args)
    for name in (*vars(error), "strerror", "filename", "filename2"):
        with suppress(AttributeError, TypeError):  # what cannot be set is looked at below
            value = getattr(error, name)
            if isinstance(value, str):
                setattr(error, name, redacted(value))
    notes = getattr(error, "__notes__", None)
    if notes:
        error.__notes__ = [_clean(each) for each in notes]
    _fix_texts(error)


def _clean(value: Any) -> Any:
    """A text without secrets; any other value as it is, unless printing it would tell one."""
    if isinstance(value, str):
        return redacted(value)
    form = repr(value)
    clean = redacted(form)
    return value if clean == form else clean


def _fix_texts(error: BaseException) -> None:
    """Where a class makes its text of more than the arguments, such as the body of a response."""
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
    except TypeError:  # of the language itself: its text is made of its arguments
        error.args = (clean,)


def redacting(adapter: type[T]) -> type[T]:
    """Around a class: errors that leave its methods are redacted."""
    for name, method in list(vars(adapter).items()):
        if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
            wrap = redacting_call if inspect.iscoroutinefunction(method) else _wrapped
            setattr(adapter, name, wrap(method))
    return adapter


def redacting_call(function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """The same around one coroutine function, such as a handler that a user wrote."""

    @functools.wraps(function)
    async def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await function(*args, **kwargs)
        except Exception as error:
            redact(error)
            raise

    return called


def _wrapped(method: Callable[P, T]) -> Callable[P, T]:
    @functools.wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            redact(error)
            raise

    return called
