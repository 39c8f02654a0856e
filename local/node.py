"""Where Node.js is: the storage emulator is a Node program."""

import os
import shutil
import sys
from pathlib import Path


class NodeMissing(RuntimeError):
    """Node.js, or a package that runs on it, is not installed."""


def find_node() -> str:
    """Return the path of `node`: the virtual environment's own, else the machine's."""
    # Not resolved: the environment's `python` is a link to an interpreter elsewhere.
    beside_python = str(Path(sys.executable).parent)
    node = shutil.which(
        "node", path=os.pathsep.join([beside_python, os.environ.get("PATH", os.defpath)])
    )
    if node is None:
        raise NodeMissing("Node.js was not found: run `make setup`")
    return node
