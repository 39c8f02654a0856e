"""``python -m local.prove``: prove what the app promises."""

import signal
import sys

from shared.values.packages import packages_of

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # During the imports there is nothing to close.
    with packages_of("backtest"):
        from local.prove.cli import main
    sys.exit(main())
