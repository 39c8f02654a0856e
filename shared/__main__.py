"""``python -m shared``."""

import signal
import sys

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # while imports run there is nothing to close
    from shared.cli.main import main

    sys.exit(main())
