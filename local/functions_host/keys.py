"""The keys that open HTTP functions: one master key, and those that are derived from it.

As in the real host a function's own key opens that function, the host key opens every function,
and the master key opens /admin too.
"""

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from local.functions_host.errors import HostStartFailed
from local.functions_host.functions import Level

_CHARACTERS = 32  # 128 bits in hexadecimal; an address with one fits on a line of a terminal


@dataclass(frozen=True, slots=True)
class Keys:
    """What opens what. The keys are in no repr."""

    master: str = field(repr=False)

    @property
    def host(self) -> str:
        """Opens every function."""
        return self._derived("host")

    def function(self, name: str) -> str:
        """Opens one function."""
        return self._derived(f"function {name}")

    def opens(self, level: Level, function: str, given: str) -> bool:
        """Whether `given`, which may be empty, opens a function of this level."""
        accepted = [self.master]
        if level is Level.FUNCTION:
            accepted += [self.host, self.function(function)]
        # Bytes: compare_digest refuses texts that are not ASCII. Of bytes that are no UTF-8 a
        # header's text holds halves of surrogate pairs.
        key = given.encode("utf-8", "surrogatepass")
        matches = [hmac.compare_digest(each.encode(), key) for each in accepted]
        return level is Level.ANONYMOUS or any(matches)

    def _derived(self, purpose: str) -> str:
        digest = hmac.new(self.master.encode(), purpose.encode(), hashlib.sha256)
        return digest.hexdigest()[:_CHARACTERS]


def new_keys() -> Keys:
    """Keys that nobody has used before."""
    return Keys(secrets.token_hex(_CHARACTERS // 2))


def read_keys(path: Path) -> Keys:
    """The keys whose master key is in the file; where there is none it is written.

    So a page that is open in a browser goes on working after a restart.
    """
    if not path.exists():
        _write(path, new_keys().master)
    master = path.read_text(encoding="utf-8").strip()
    if len(master) < _CHARACTERS:
        raise HostStartFailed(
            f"{path}: holds no key of at least {_CHARACTERS} characters: delete it, "
            "and a new one is written"
        )
    return Keys(master)


def _write(path: Path, text: str) -> None:
    """Whole or not at all, for its owner only; whoever writes first wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    try:
        os.link(draft, path)
    except FileExistsError:
        pass  # another process was faster: its key counts
    finally:
        draft.unlink()
