"""The keys for HTTP functions: one master key, from which all others are derived.

As in the real host, a function key opens that function, the host key opens every function, and the
master key also opens /admin.
"""

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from local.functions_host.errors import HostStartFailed
from local.functions_host.functions import Level

_CHARACTERS = 32  # 128 bits in hexadecimal. A URL with it still fits on a terminal line.


@dataclass(frozen=True, slots=True)
class Keys:
    """Derives keys and checks them. No key appears in a repr."""

    master: str = field(repr=False)

    @property
    def host(self) -> str:
        """The key that opens every function."""
        return self._derived("host")

    def function(self, name: str) -> str:
        """The key that opens one function."""
        return self._derived(f"function {name}")

    def opens(self, level: Level, function: str, given: str) -> bool:
        """Whether `given`, which may be empty, opens a function of this level."""
        accepted = [self.master]
        if level is Level.FUNCTION:
            accepted += [self.host, self.function(function)]
        # compare_digest refuses strings that are not ASCII, so bytes are compared. A header with
        # invalid UTF-8 contains surrogates.
        key = given.encode("utf-8", "surrogatepass")
        matches = [hmac.compare_digest(each.encode(), key) for each in accepted]
        return level is Level.ANONYMOUS or any(matches)

    def _derived(self, purpose: str) -> str:
        digest = hmac.new(self.master.encode(), purpose.encode(), hashlib.sha256)
        return digest.hexdigest()[:_CHARACTERS]


def new_keys() -> Keys:
    """Keys from a new random master key."""
    return Keys(secrets.token_hex(_CHARACTERS // 2))


def read_keys(path: Path) -> Keys:
    """The keys for the master key in the file. If the file is missing, it is created.

    A page that is open in a browser therefore works after a restart.
    """
    if not path.exists():
        _write(path, new_keys().master)
    master = path.read_text(encoding="utf-8").strip()
    if len(master) < _CHARACTERS:
        raise HostStartFailed(
            f"{path} does not hold a key of at least {_CHARACTERS} characters. Delete the file; "
            "the next start writes a new one."
        )
    return Keys(master)


def _write(path: Path, text: str) -> None:
    """Create the file atomically, for its owner only. The first process to write wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    try:
        os.link(draft, path)
    except FileExistsError:
        pass  # Another process created the file first, so its key is used.
    finally:
        draft.unlink()
