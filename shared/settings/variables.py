"""The names and values of app settings, read as by the Functions host."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

NAME_IN_TEXT = re.compile(r"%([^%\s]+)%")
REFERENCES = ("@microsoft.keyvault(", "@microsoft.appconfiguration(")
UNRESOLVED = (
    "is a reference that was not resolved. In Azure, check the reference under Environment "
    "variables, and that the app's identity may read its target. Elsewhere, write the value itself"
)
QUOTED = "remove the quotation marks around the value"


class Variables(Mapping[str, str]):
    """Environment variables, compared as by the host: without case, and ``:`` is the same as
    ``__``. The name as it was asked for comes first."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._given = environ
        self._by_name = {same_name(name): name for name in environ}

    def __getitem__(self, name: str) -> str:
        if name in self._given:
            return self._given[name]
        return self._given[self._by_name[same_name(name)]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)


def same_name(name: str) -> str:
    """A text that two names have in common if they mean the same setting."""
    return name.replace("__", ":").casefold()


def ambiguous(environ: Mapping[str, str], known: Collection[str]) -> Iterator[str]:
    """A problem for each known setting that is given in several spellings with different values."""
    ours, spellings = {same_name(name) for name in known}, defaultdict[str, list[str]](list)
    for name in environ:
        spellings[same_name(name)].append(name)
    for same, given in spellings.items():
        if same.partition(":")[0] in ours and len({environ[name] for name in given}) > 1:
            yield f"{' and '.join(sorted(given))}: they are the same setting. Remove one of them"


def is_unresolved(value: str) -> bool:
    """Whether the value contains a reference to Key Vault or App Configuration, which Azure
    resolves only if it is the whole value."""
    return any(reference in value.lower() for reference in REFERENCES)


def is_quoted(value: str) -> bool:
    return len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"


def resolved(text: str, environ: Mapping[str, str]) -> str:
    """The text with each ``%NAME%`` replaced by that setting. Raises ValueError if one is missing,
    or if a % is left over."""
    rest = NAME_IN_TEXT.sub("", text)
    if "%" in rest:
        raise ValueError("it must have no %, except around the names of other settings")
    for name in NAME_IN_TEXT.findall(text):
        if not environ.get(name, "").strip():
            raise ValueError(f"setting {name} is missing")
    return NAME_IN_TEXT.sub(lambda match: environ[match[1]].strip(), text)
