"""``python -m backtest``."""

import sys

from backtest.cli import main

sys.exit(main())
