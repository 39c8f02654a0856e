"""``python -m shared``."""

import logging
import signal
import sys

from shared.values.packages import packages_of

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # while imports run there is nothing to close
    # A command prints what failed, in one line. The client libraries also log it, in many.
    logging.getLogger("azure").setLevel(logging.CRITICAL)
    with packages_of("local"):
        from shared.cli.main import main
    sys.exit(main())
