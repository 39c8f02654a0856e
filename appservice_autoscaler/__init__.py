"""The installed package. The command ``autoscaler`` is the way into it.

The packages of the app, such as ``shared``, are in ``_app``, or in a clone beside this folder. So a
user's project may have a folder of the same name.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
INSTALLED = HERE / "_app"
APP = INSTALLED if INSTALLED.is_dir() else HERE.parent


def use_app() -> None:
    """Let ``shared`` and its siblings be those of the app, in this process and in those that it
    starts. Every other module comes from the current folder first, as with ``python -m``."""
    sys.path.insert(0, str(APP))
    for name in ("shared", "backtest", "spark_jobs"):
        import_module(name)
    sys.path[0] = ""
    others = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(APP), *([others] if others else [])])
    os.environ["PYTHONSAFEPATH"] = "1"  # `python -m` would put the current folder first
