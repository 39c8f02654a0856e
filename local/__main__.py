"""``python -m local``: run the demo."""

import signal
import sys

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # During the imports there is nothing to close.
    from local.cli import main

    sys.exit(main())
