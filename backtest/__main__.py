"""``python -m backtest``: run the backtest."""

import signal
import sys

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # During the imports there is nothing to close.
    from backtest.cli import main

    sys.exit(main())
