"""Finds Node.js, which runs the storage emulator."""

import os
import shutil
import sys
from pathlib import Path


class NodeMissing(RuntimeError):
    """Node.js, or a package that runs on it, is not installed."""


def find_node() -> str:
    """Return the path of `node`, from the virtual environment if it has one, else from PATH."""
    # The path is not resolved: the environment's `python` is a link to an interpreter elsewhere.
    beside_python = str(Path(sys.executable).parent)
    node = shutil.which(
        "node", path=os.pathsep.join([beside_python, os.environ.get("PATH", os.defpath)])
    )
    if node is None:
        raise NodeMissing("Node.js was not found. Run `make setup`.")
    return node
