"""``autoscaler COMMAND``: the commands of ``python -m shared``, and the programs beside them."""

from __future__ import annotations

import runpy
import sys

from appservice_autoscaler import use_app

PROGRAMS = {
    "audit": "backtest",
    "backtest": "backtest",
    "event-trends": "spark_jobs.event_trends",
}
COMMANDS = ("audit",)
"""Programs that are a command of their module."""


def main() -> None:
    """Run the program as ``python -m`` would."""
    use_app()
    from shared.values.packages import packages_of

    module = PROGRAMS.get(sys.argv[1], "shared") if sys.argv[1:] else "shared"
    if module != "shared":
        sys.argv[1:2] = sys.argv[1:2] if sys.argv[1] in COMMANDS else []
    elif sys.argv[1:] in ([], ["--help"]):
        sys.stdout.write(f"Programs with a --help of their own: {', '.join(PROGRAMS)}\n")
    with packages_of("spark"):  # the others name their own
        runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    main()
