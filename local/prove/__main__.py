"""``python -m local.prove``: prove what the app promises."""

import signal
import sys

from shared.values.packages import packages_of

if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with packages_of("backtest"):
        from local.prove.cli import main
    sys.exit(main())
