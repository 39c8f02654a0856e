"""Where Node.js is: the storage emulator is a Node program."""

import shutil


class NodeMissing(RuntimeError):
    """Node.js, or a package that runs on it, is not installed."""


def find_node() -> str:
    """Return the path of the `node` executable (Debian has long called it `nodejs`)."""
    found = shutil.which("node") or shutil.which("nodejs")
    if found is None:
        raise NodeMissing(
            "Node.js was not found: install Node.js 20 or later, then run `make setup`"
        )
    return found
